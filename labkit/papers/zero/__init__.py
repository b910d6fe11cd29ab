"""ZeRO (SC'20): its plans by stage, its printed tables and runs, and their throughput, modelled.

``tables`` sets the printed tables beside ours cell by cell, ``runs`` describes every run that the
figures show, fits the network's rates and asks what fills a GPU, ``figures`` draws. The paper's
idea, one Adam that is cut among the ranks, stands in its notebook.
"""

from labkit.papers.zero.figures import (
    figure_headline,
    figure_idea,
    figure_rest,
    figure_scaling,
)
from labkit.papers.zero.runs import (
    Method,
    inputs_gb,
    largest_under,
    plan_of,
    restaged,
    servers,
    states_gb,
)
from labkit.papers.zero.tables import (
    largest_model,
    printed_grid,
    printed_largest,
    printed_states,
    stages,
)

__all__ = [
    "Method",
    "figure_headline",
    "figure_idea",
    "figure_rest",
    "figure_scaling",
    "inputs_gb",
    "largest_model",
    "largest_under",
    "plan_of",
    "printed_grid",
    "printed_largest",
    "printed_states",
    "restaged",
    "servers",
    "stages",
    "states_gb",
]
