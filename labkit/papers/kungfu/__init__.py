"""KungFu (OSDI'20): trainings whose batch size changes on the way, and what they come to.

``training`` trains a small network under a policy, ``outcomes`` times runs and sets policies beside
each other, ``figures`` draws (imported by itself: ranks need no Plotly). What the paper adds to a
training step, monitoring, agreement and rescaling, stands in its notebook, on real ranks.

Source: Mai et al., "KungFu: Making Training in Distributed Machine Learning Adaptive", OSDI'20.
"""

from labkit.papers.kungfu.outcomes import (
    compare,
    final_error,
    modelled_step_s,
    monitored_rates,
    replay,
    summary,
    times_by_seed,
    times_to,
)
from labkit.papers.kungfu.training import AdaptiveRun, Network, Norms, replicas, train

__all__ = [
    "AdaptiveRun",
    "Network",
    "Norms",
    "compare",
    "final_error",
    "modelled_step_s",
    "monitored_rates",
    "replay",
    "replicas",
    "summary",
    "times_by_seed",
    "times_to",
    "train",
]
