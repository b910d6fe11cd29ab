"""Gandiva (OSDI'18): a hyper-parameter search in time slices, whose bad trials are stopped early.

    from labkit.papers import gandiva

    gandiva.search_hours(cluster.las(1800.0), 128, feedback=0.05).mean()

Its packing of two jobs on one GPU is the share policy ``packed``, which Gavel compares with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import Policy
from labkit.cluster.simulation import simulate
from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Share, Whole, checked


@checked
def search_hours(
    policy: Policy,
    num_trials: Count,
    *,
    feedback: Share = 1.0,
    num_gpus: Count = 4,
    trial_s: Positive = 36_000.0,
    seeds: Sequence[Whole] = range(40),
) -> NDArray[np.float64]:
    """Hours until the good trial is done, by draw of its place in the queue.

    All trials are there at the start, one GPU each. First come, first served ends the k-th on one
    GPU, counted from 0, after (k × feedback + 1) trials.

    Args:
        policy: who runs next.
        num_trials: of the search; one of them is good.
        feedback: the share of a bad trial after which it is stopped; 1: nobody looks.
        num_gpus: of the cluster.
        trial_s: how long a whole trial runs.
        seeds: one draw of the good trial's place for each.

    Raises:
        BadValue: ``feedback`` is 0.
    """
    if feedback <= 0:
        raise BadValue(f"search_hours: feedback must be above 0; got {feedback:g}")
    cluster = Cluster.nodes(1, gpus=num_gpus)
    arrival_s = np.zeros(num_trials)
    gpus = np.ones(num_trials)
    hours = []
    for seed in seeds:
        good = int(np.random.default_rng(seed).integers(num_trials))
        length_s = np.full(num_trials, trial_s * feedback)
        length_s[good] = trial_s
        trials = Trace(arrival_s=arrival_s, duration_s=length_s, gpus=gpus)
        hours.append(simulate(trials, cluster, policy).end_s[good] / 3600)
    return np.array(hours)
