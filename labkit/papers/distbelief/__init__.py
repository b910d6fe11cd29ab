"""DistBelief (2012): many replicas in virtual time, a network cut over machines, figures.

``training`` trains a small network on digits by Downpour and by Sandblaster, ``cutting`` counts
operations and bytes of a network cut over machines, ``figures`` draws.
"""

from labkit.papers.distbelief.cutting import (
    IMAGE,
    SPEECH,
    Layer,
    Machine,
    received_bytes,
    speedup,
    step_s,
)
from labkit.papers.distbelief.figures import (
    figure_accuracy,
    figure_budget,
    figure_idea,
    figure_speedup,
    figure_staleness,
)
from labkit.papers.distbelief.training import (
    Adagrad,
    Cluster,
    Data,
    Decaying,
    Fixed,
    Run,
    accuracy,
    at_best_rate,
    downpour,
    first_weights,
    gradient,
    loss_and_gradient,
    pass_s,
    read_data,
    sandblaster,
    warm_start,
)

__all__ = [
    "IMAGE",
    "SPEECH",
    "Adagrad",
    "Cluster",
    "Data",
    "Decaying",
    "Fixed",
    "Layer",
    "Machine",
    "Run",
    "accuracy",
    "at_best_rate",
    "downpour",
    "figure_accuracy",
    "figure_budget",
    "figure_idea",
    "figure_speedup",
    "figure_staleness",
    "first_weights",
    "gradient",
    "loss_and_gradient",
    "pass_s",
    "read_data",
    "received_bytes",
    "sandblaster",
    "speedup",
    "step_s",
    "warm_start",
]
