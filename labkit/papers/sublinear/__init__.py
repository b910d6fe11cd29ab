"""Sublinear memory (Chen et al. 2016): networks of growing depth, and figures of their memory.

The paper's ways to recompute are the engine's (:data:`labkit.swap.METHODS`), but for equal
segments whose number is searched; its algorithms stand in its notebook, as code that runs. Loads
torch.
"""

from labkit.papers.sublinear.blocks import Residual
from labkit.papers.sublinear.depths import (
    WORDS,
    best_equal,
    growth,
    least_bytes,
    plan_bytes,
    tracked_peaks,
)
from labkit.papers.sublinear.figures import (
    figure_depths,
    figure_idea,
    figure_optimum,
    figure_peaks,
)

__all__ = [
    "WORDS",
    "Residual",
    "best_equal",
    "figure_depths",
    "figure_idea",
    "figure_optimum",
    "figure_peaks",
    "growth",
    "least_bytes",
    "plan_bytes",
    "tracked_peaks",
]
