"""OmniReduce (SIGCOMM 2021): gradients with zero blocks, seconds of ways to sum them, and figures.

``gradients`` trains small networks and returns what each worker would send, ``network`` has the
seconds of ways to sum, ``figures`` draws. The streaming itself stands in the notebook.
"""

from labkit.papers.omnireduce.figures import figure_idea, figure_lines
from labkit.papers.omnireduce.gradients import dense_layer, recommender
from labkit.papers.omnireduce.network import Job, Way, blocks_of, random_blocks

__all__ = [
    "Job",
    "Way",
    "blocks_of",
    "dense_layer",
    "figure_idea",
    "figure_lines",
    "random_blocks",
    "recommender",
]
