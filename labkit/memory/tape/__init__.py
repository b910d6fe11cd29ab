"""A training step on a symbolic autograd: what a layer keeps, and until when."""
