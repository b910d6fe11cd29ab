"""ARK (NSDI 2023): who starts a copy, played by processes that share memory, and a model of it.

``rings`` runs the processes and measures them, ``model`` has seconds of messages and of all-reduces
of a training, ``figures`` draws. None of it is ARK's engine, which is hardware on a GPU's bus.
"""

from labkit.papers.ark.figures import figure_idea, figure_lines
from labkit.papers.ark.model import Starter, all_reduces_s, in_flight, tensor_bytes
from labkit.papers.ark.rings import WAYS, Run, measure, run

__all__ = [
    "WAYS",
    "Run",
    "Starter",
    "all_reduces_s",
    "figure_idea",
    "figure_lines",
    "in_flight",
    "measure",
    "run",
    "tensor_bytes",
]
