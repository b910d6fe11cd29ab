"""Hyper-parameter search on a cluster: when the one good trial is done."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.jobs.clusters import Cluster
from labkit.cluster.jobs.jobs import Trace
from labkit.cluster.policies.orders import Policy
from labkit.cluster.running.runs import simulate
from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Share, Whole, checked


@checked
def search_hours(
    policy: Policy, num_trials: Count, *, feedback: Share = 1.0, num_gpus: Count = 4,
    trial_s: Positive = 36_000.0, draws: Count = 40, seed: Whole = 0,
) -> NDArray[np.float64]:  # fmt: skip
    """Hours until the good trial is done, by draw of its place in the queue.

    All trials are there at the start, one GPU each. A bad one is stopped when ``feedback`` of it
    has run; 1: nobody looks. First come, first served ends the k-th on one GPU, counted from 0,
    after (k × feedback + 1) trials.

    Raises:
        BadValue: ``feedback`` is 0.
    """
    if feedback <= 0:
        raise BadValue(f"search_hours: feedback must be above 0; got {feedback:g}")
    cluster, hours = Cluster.nodes(1, gpus=num_gpus), []
    for draw in range(seed, seed + draws):
        good = int(np.random.default_rng(draw).integers(num_trials))
        length_s = np.full(num_trials, trial_s * feedback)
        length_s[good] = trial_s
        start, gpus = np.zeros(num_trials), np.ones(num_trials)
        run = simulate(Trace(arrival_s=start, duration_s=length_s, gpus=gpus), cluster, policy)
        hours.append(run.end_s[good] / 3600)
    return np.array(hours)
