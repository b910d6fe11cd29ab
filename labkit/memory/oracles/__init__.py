"""Torch itself: fake tensors, ranks over gloo, a GPU, each beside a plan."""
