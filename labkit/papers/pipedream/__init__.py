"""PipeDream (SOSP'19): the plans its authors run, its rivals, training on older weights, figures.

``configurations`` reads profiles and the plans that the authors publish, ``ways`` prices
PipeDream's plans beside those of its rivals, ``training`` trains small networks on weights of any
age, ``figures`` draws. The planner itself stands in ``labkit.planner``, since DAPPLE and a command
use it.
"""

from labkit.papers.pipedream.configurations import (
    CASES,
    COSTINGS,
    NETWORKS,
    PROFILED_IMAGES,
    file_names,
    last_layer,
    published_plans,
    read_chains,
)
from labkit.papers.pipedream.figures import (
    figure_ages,
    figure_bandwidth,
    figure_costings,
    figure_idea,
    figure_steps,
    figure_waiting,
)
from labkit.papers.pipedream.training import Rule, accuracies, age, draw_weights, gradients, images
from labkit.papers.pipedream.ways import Way, balanced, minibatch_s, speedups

__all__ = [
    "CASES",
    "COSTINGS",
    "NETWORKS",
    "PROFILED_IMAGES",
    "Rule",
    "Way",
    "accuracies",
    "age",
    "balanced",
    "draw_weights",
    "figure_ages",
    "figure_bandwidth",
    "figure_costings",
    "figure_idea",
    "figure_steps",
    "figure_waiting",
    "file_names",
    "gradients",
    "images",
    "last_layer",
    "minibatch_s",
    "published_plans",
    "read_chains",
    "speedups",
]
