"""Tofu (EuroSys 2019): every tensor is halved again and again, at the least bytes each time.

``cuts`` has operators, what halvings move and how they are chosen; ``networks`` the two models;
``machine`` seconds and memory beside swapping and placement; ``figures`` draws.
"""

from labkit.papers.tofu.cuts import (
    HEURISTICS,
    Count,
    Method,
    Network,
    Plan,
    moved,
    moved_by_halvings,
    next_cut,
    planned,
    recursive,
)
from labkit.papers.tofu.figures import figure_bytes, figure_idea, figure_throughput
from labkit.papers.tofu.machine import (
    Machine,
    buffer_bytes,
    measures,
    memory_share,
    placed,
    placement_share,
    ratios,
)
from labkit.papers.tofu.networks import Model, lstm, small_network, wide_resnet

__all__ = [
    "HEURISTICS",
    "Count",
    "Machine",
    "Method",
    "Model",
    "Network",
    "Plan",
    "buffer_bytes",
    "figure_bytes",
    "figure_idea",
    "figure_throughput",
    "lstm",
    "measures",
    "memory_share",
    "moved",
    "moved_by_halvings",
    "next_cut",
    "placed",
    "placement_share",
    "planned",
    "ratios",
    "recursive",
    "small_network",
    "wide_resnet",
]
