"""Efficiently Scaling Transformer Inference (MLSys'23): PaLM's layers on chips, in closed forms.

``partition`` counts bytes and seconds, ``figures`` draws. How a layer is divided, on virtual chips,
stands in the paper's notebook.
"""

from labkit.papers.effscale_inference.figures import (
    figure_frontier,
    figure_idea,
    figure_layouts,
    figure_sizes,
)
from labkit.papers.effscale_inference.partition import (
    PALM,
    Attention,
    Layout,
    Partition,
    Pass,
    fewest_bytes,
    frontier,
    layer_bytes,
    layouts,
    pareto,
)

__all__ = [
    "PALM",
    "Attention",
    "Layout",
    "Partition",
    "Pass",
    "fewest_bytes",
    "figure_frontier",
    "figure_idea",
    "figure_layouts",
    "figure_sizes",
    "frontier",
    "layer_bytes",
    "layouts",
    "pareto",
]
