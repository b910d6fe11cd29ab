"""Poseidon (ATC 2017): networks with the shapes of their dense layers, machines, figures.

``networks`` makes VGG19-22K of VGG-16's profile and Inception-V3 of its operations, ``cluster`` has
bytes and steps, ``figures`` draws. The paper's ideas stand in its notebook.
"""

from labkit.papers.poseidon.cluster import SCHEMES, Cluster
from labkit.papers.poseidon.figures import figure_idea, figure_schemes, figure_speedup
from labkit.papers.poseidon.networks import FILES, by_operations, scaled, vgg19_22k, weighted

__all__ = [
    "FILES",
    "SCHEMES",
    "Cluster",
    "by_operations",
    "figure_idea",
    "figure_schemes",
    "figure_speedup",
    "scaled",
    "vgg19_22k",
    "weighted",
]
