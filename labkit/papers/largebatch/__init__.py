"""Large-batch SGD (Goyal et al. 2017): trainings by learning-rate rule, scaling, and figures.

``runs`` trains small networks at k times a small batch, ``scaling`` models throughput on more
GPUs, ``figures`` draws.
"""

from labkit.papers.largebatch.figures import (
    figure_distances,
    figure_errors,
    figure_losses,
    figure_rates,
    figure_scaling,
)
from labkit.papers.largebatch.runs import Rule, errors, folded, lars, sweep
from labkit.papers.largebatch.scaling import Job, efficiencies

__all__ = [
    "Job",
    "Rule",
    "efficiencies",
    "errors",
    "figure_distances",
    "figure_errors",
    "figure_losses",
    "figure_rates",
    "figure_scaling",
    "folded",
    "lars",
    "sweep",
]
