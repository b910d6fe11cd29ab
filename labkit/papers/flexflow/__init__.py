"""FlexFlow (MLSys 2019): plans searched at random on a simulated cluster.

``tasks`` turns layouts into tasks on GPUs and links, ``trials`` has the experiments and the claims'
values, ``figures`` draws. The walk and the simulator stand in :mod:`labkit.planner`.
"""

from labkit.papers.flexflow.figures import (
    figure_change,
    figure_gain,
    figure_throughput,
    figure_walks,
)
from labkit.papers.flexflow.tasks import NETWORKS, RIVALS, Cluster, Simulated, Way
from labkit.papers.flexflow.trials import (
    Budget,
    best_of_all,
    count_tasks,
    differing,
    gains,
    lenet,
    measures,
    over_optcnn,
    slower,
    walks_of_sums,
)

__all__ = [
    "NETWORKS",
    "RIVALS",
    "Budget",
    "Cluster",
    "Simulated",
    "Way",
    "best_of_all",
    "count_tasks",
    "differing",
    "figure_change",
    "figure_gain",
    "figure_throughput",
    "figure_walks",
    "gains",
    "lenet",
    "measures",
    "over_optcnn",
    "slower",
    "walks_of_sums",
]
