"""What a scheduler decides: an order of jobs, a number of GPUs, or a share of time."""
