"""OptCNN (ICML 2018): each layer of a network has its own layout, on a modelled cluster.

``ways`` has the cluster, the ways to split a network and the claims' values, ``figures`` draws.
The paper's idea, eliminating nodes and edges, stands in its notebook and in :mod:`labkit.planner`.
"""

from labkit.papers.optcnn.figures import figure_bytes, figure_gain, figure_idea, figure_scaling
from labkit.papers.optcnn.ways import (
    NETWORKS,
    RIVALS,
    Cluster,
    Gradients,
    Split,
    Way,
    measured_s,
    measures,
    random_problem,
    restricted,
    scaling,
)

__all__ = [
    "NETWORKS",
    "RIVALS",
    "Cluster",
    "Gradients",
    "Split",
    "Way",
    "figure_bytes",
    "figure_gain",
    "figure_idea",
    "figure_scaling",
    "measured_s",
    "measures",
    "random_problem",
    "restricted",
    "scaling",
]
