"""BytePS (OSDI 2020): how a gradient is best split over servers, training jobs, and figures.

``splits`` has the linear programs that the paper's formula is held against, ``jobs`` a training
job with its network, ``figures`` draws. The formula itself is ``labkit.collectives.byteps_shares``,
since programs are built with it.
"""

from labkit.papers.byteps.figures import figure_gain, figure_idea, figure_passes, figure_uplink
from labkit.papers.byteps.jobs import Job, Way
from labkit.papers.byteps.splits import Split, best_split, best_trees, theorem

__all__ = [
    "Job",
    "Split",
    "Way",
    "best_split",
    "best_trees",
    "figure_gain",
    "figure_idea",
    "figure_passes",
    "figure_uplink",
    "theorem",
]
