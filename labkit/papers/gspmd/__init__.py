"""GSPMD (2021): layouts that spread from a few annotations, and one program for all devices.

``graphs`` has tensor programs and propagation, ``partitions`` collectives and virtual devices,
``layers`` a Transformer layer and seconds of a step, ``dtensor`` torch's answer, ``figures`` draws.
"""

from labkit.papers.gspmd.dtensor import compare_products
from labkit.papers.gspmd.figures import figure_lines, figure_spread, figure_utilisation
from labkit.papers.gspmd.graphs import Graph, links, merged, propagate
from labkit.papers.gspmd.layers import (
    DATA,
    MODELS,
    WEIGHTS,
    Core,
    Model,
    Way,
    annotated,
    by_hand,
    expert_layer,
    formula_bytes,
    largest_weights,
    measures,
    partitioned,
    scaling,
    transformer_layer,
)
from labkit.papers.gspmd.partitions import Program, partition

__all__ = [
    "DATA",
    "MODELS",
    "WEIGHTS",
    "Core",
    "Graph",
    "Model",
    "Program",
    "Way",
    "annotated",
    "by_hand",
    "compare_products",
    "expert_layer",
    "figure_lines",
    "figure_spread",
    "figure_utilisation",
    "formula_bytes",
    "largest_weights",
    "links",
    "measures",
    "merged",
    "partition",
    "partitioned",
    "propagate",
    "scaling",
    "transformer_layer",
]
