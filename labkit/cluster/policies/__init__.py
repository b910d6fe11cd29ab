"""What a scheduler decides: orders of jobs, shares of time."""
