"""One GPU and its clients: kernels, guests, weights that arrive over a link."""
