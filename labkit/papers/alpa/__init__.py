"""Alpa (OSDI 2022): its models, how operators are cut inside meshes, and stages across meshes.

``models`` has the shapes; ``inside`` what every stage takes on a
mesh; ``across`` the plans of Alpa and of what it is compared with; ``figures`` draws. The program
inside meshes is solved by ``planner.choose``, the one across them by ``planner.place``.
"""

from labkit.datasets.end_to_end import read_measured
from labkit.papers.alpa.across import Cluster, measures, predict, table_of, throughput
from labkit.papers.alpa.figures import (
    NAMES,
    figure_idea,
    figure_lines,
    figure_throughput,
)
from labkit.papers.alpa.inside import Inside, Mesh
from labkit.papers.alpa.models import E2E, Block, Model, Product, model_on

__all__ = [
    "E2E",
    "NAMES",
    "Block",
    "Cluster",
    "Inside",
    "Mesh",
    "Model",
    "Product",
    "figure_idea",
    "figure_lines",
    "figure_throughput",
    "measures",
    "model_on",
    "predict",
    "read_measured",
    "table_of",
    "throughput",
]
