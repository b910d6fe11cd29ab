"""Pictures of timelines, frontiers and plans; the only part that loads Plotly."""
