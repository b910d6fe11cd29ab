"""Perseus (SOSP'24): its emulated jobs, the ways it is compared with, and its figures.

``published`` opens profiles and frontiers that the authors published, ``stragglers`` asks what a
pipeline saves until a slower one ends, for Perseus and for its rivals, ``figures`` draws. The
planner itself stands in ``labkit.pipeline.planning.perseus``, since commands offer it; the walk of
cuts stands in the notebook, as code to be read.
"""

from labkit.papers.perseus.figures import (
    figure_cut,
    figure_full_speed,
    figure_idea,
    figure_stragglers,
    figure_walks,
)
from labkit.papers.perseus.published import JOBS, open_frontier, open_jobs
from labkit.papers.perseus.stragglers import Way, plans_of, savings

__all__ = [
    "JOBS",
    "Way",
    "figure_cut",
    "figure_full_speed",
    "figure_idea",
    "figure_stragglers",
    "figure_walks",
    "open_frontier",
    "open_jobs",
    "plans_of",
    "savings",
]
