"""Whale (ATC 2022): work by speed and memory on unequal GPUs, beside the linear program's optimum.

``speeds`` has Gavel's measured steps, ``balance`` batches in data parallel, ``stages`` those of a
pipeline, ``figures`` draws. The paper's ideas stand in its notebook.
"""

from labkit.papers.whale.balance import Optimum, idle, optimum, proportional, relieved, step_s
from labkit.papers.whale.figures import figure_gains, figure_ratios, figure_step
from labkit.papers.whale.speeds import MODELS, OTHERS, Speed, fit, read_speeds, usual_batch
from labkit.papers.whale.stages import best_cut, cut_by_share, kept_bytes, pipeline_s, stages_s

__all__ = [
    "MODELS",
    "OTHERS",
    "Optimum",
    "Speed",
    "best_cut",
    "cut_by_share",
    "figure_gains",
    "figure_ratios",
    "figure_step",
    "fit",
    "idle",
    "kept_bytes",
    "optimum",
    "pipeline_s",
    "proportional",
    "read_speeds",
    "relieved",
    "stages_s",
    "step_s",
    "usual_batch",
]
