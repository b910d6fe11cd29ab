"""What moves: communication by collective and link, and what offloading sends."""
