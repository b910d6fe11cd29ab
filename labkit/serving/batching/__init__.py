"""Networks that run once a request: batches, packing, groups of GPUs."""
