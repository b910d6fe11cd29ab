"""What one paper alone needs, a module a paper: two users, or it lives with its paper."""
