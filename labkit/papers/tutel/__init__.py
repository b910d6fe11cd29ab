"""Tutel (MLSys 2023): one layer of experts on many GPUs, modelled, and a gate that is trained.

``layers`` has the network, the layer with its parts, and an expert that several GPUs share;
``routing`` the gate and the slots that tokens get; ``figures`` draws. The paper's ideas, exchange
in two levels, parallelism switched in place and sparse dispatch, stand in its notebook.
"""

from labkit.papers.tutel.figures import figure_idea, figure_lines
from labkit.papers.tutel.layers import Layer, Network, SharedExperts, pipelined_s
from labkit.papers.tutel.routing import best_s, slots, train_gate

__all__ = [
    "Layer",
    "Network",
    "SharedExperts",
    "best_s",
    "figure_idea",
    "figure_lines",
    "pipelined_s",
    "slots",
    "train_gate",
]
