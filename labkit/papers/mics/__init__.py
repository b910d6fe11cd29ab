"""MiCS (PVLDB 2022): its jobs on slow networks, modelled, and what its ranks are held against.

``jobs`` has a training job with its network, ``reference`` ZeRO-3's traffic and undivided Adam,
``figures`` draws. The paper's ideas, groups, two hops and gathers in stages, stand in its notebook.
"""

from labkit.papers.mics.figures import figure_gain, figure_idea, figure_traffic
from labkit.papers.mics.jobs import Job
from labkit.papers.mics.reference import undivided_adam, zero3_micro_batch

__all__ = [
    "Job",
    "figure_gain",
    "figure_idea",
    "figure_traffic",
    "undivided_adam",
    "zero3_micro_batch",
]
