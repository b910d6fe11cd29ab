"""Overlap by decomposition (ASPLOS 2023): matrix products cut into slices beside hops of a ring.

``timeline`` has a product on lanes of time, ``layers`` transformers on a ring of chips, ``links``
the measured times of a node of A100s, ``numerics`` the products with real numbers, ``figures``
draws, and ``gpu`` measures the loop on one device with two streams.
"""

from labkit.papers.overlap_decomp.figures import (
    figure_lines,
    figure_models,
    figure_timelines,
    whole_timeline,
)
from labkit.papers.overlap_decomp.layers import SIX, Chip, Layer, Model, speedups
from labkit.papers.overlap_decomp.links import FILES, Node, read_node
from labkit.papers.overlap_decomp.numerics import (
    gathered,
    gathered_on_rank,
    largest_difference,
    scattered,
)
from labkit.papers.overlap_decomp.timeline import Event, Product, Timeline

__all__ = [
    "FILES",
    "SIX",
    "Chip",
    "Event",
    "Layer",
    "Model",
    "Node",
    "Product",
    "Timeline",
    "figure_lines",
    "figure_models",
    "figure_timelines",
    "gathered",
    "gathered_on_rank",
    "largest_difference",
    "read_node",
    "scattered",
    "speedups",
    "whole_timeline",
]
