"""The survey of parallel deep learning: work and depth counted, all-reduce schemes on links.

``counting`` runs operators on numbers that count what is done with them, ``networks`` has a
network's work and depth, ``links`` the measured times of messages, ``schemes`` what an all-reduce
sends, ``figures`` draws.
"""

from labkit.papers.ddl_survey.counting import (
    OPERATORS,
    Tally,
    Traced,
    count_operator,
    expected,
    tree_sum,
)
from labkit.papers.ddl_survey.figures import (
    figure_idea,
    figure_layers,
    figure_ratios,
    figure_schemes,
)
from labkit.papers.ddl_survey.links import Link, all_reduce_s, file_names, read_links
from labkit.papers.ddl_survey.networks import Layer, alexnet, alexnet_weights
from labkit.papers.ddl_survey.schemes import (
    SCHEMES,
    bound_s,
    crossover_bytes,
    messages,
    scheme_s,
)

__all__ = [
    "OPERATORS",
    "SCHEMES",
    "Layer",
    "Link",
    "Tally",
    "Traced",
    "alexnet",
    "alexnet_weights",
    "all_reduce_s",
    "bound_s",
    "count_operator",
    "crossover_bytes",
    "expected",
    "figure_idea",
    "figure_layers",
    "figure_ratios",
    "figure_schemes",
    "file_names",
    "messages",
    "read_links",
    "scheme_s",
    "tree_sum",
]
