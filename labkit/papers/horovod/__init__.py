"""Horovod (2018): its jobs on servers of four GPUs, modelled, what real ranks measure, figures.

``jobs`` has a training job with its network and its fused messages, ``measured`` what runs on
gloo's processes, ``figures`` draws. The paper's ideas, the ring and fusion, stand in its notebook.
"""

from labkit.papers.horovod.figures import (
    figure_efficiency,
    figure_fusion,
    figure_idea,
    figure_line,
)
from labkit.papers.horovod.jobs import FILES, Job, fused, read_profiles
from labkit.papers.horovod.measured import all_reduce_s, fusion_gain

__all__ = [
    "FILES",
    "Job",
    "all_reduce_s",
    "figure_efficiency",
    "figure_fusion",
    "figure_idea",
    "figure_line",
    "fused",
    "fusion_gain",
    "read_profiles",
]
