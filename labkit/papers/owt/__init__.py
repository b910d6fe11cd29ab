"""One weird trick (2014): convolutions data-parallel, dense layers model-parallel.

``schemes`` has the machine, the paper's schemes and what a step takes, ``figures`` draws. The trick
itself, and the same step on real ranks, stand in the paper's notebook.
"""

from labkit.papers.owt.figures import figure_bytes, figure_idea, figure_speedup
from labkit.papers.owt.schemes import Box, Scheme, feed_forward, speedups

__all__ = [
    "Box",
    "Scheme",
    "feed_forward",
    "figure_bytes",
    "figure_idea",
    "figure_speedup",
    "speedups",
]
