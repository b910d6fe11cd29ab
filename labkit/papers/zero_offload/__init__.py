"""ZeRO-Offload (ATC'21): its printed runs, their servers, Adam on a CPU, and late updates.

``runs`` reads what the paper prints and times Adam on this CPU, ``digits`` is the small training on
which updates are delayed, ``figures`` draws. The paper's ideas, the cut of the graph, the fused
Adam and the late update, stand in its notebook.
"""

from labkit.papers.zero_offload.digits import SmallTraining
from labkit.papers.zero_offload.figures import (
    figure_adam,
    figure_cuts,
    figure_idea,
    figure_losses,
    figure_sizes,
    figure_throughput,
)
from labkit.papers.zero_offload.runs import adam_speed, dgx2_cluster, printed_runs

__all__ = [
    "SmallTraining",
    "adam_speed",
    "dgx2_cluster",
    "figure_adam",
    "figure_cuts",
    "figure_idea",
    "figure_losses",
    "figure_sizes",
    "figure_throughput",
    "printed_runs",
]
