"""A hyper-parameter search: many trials of ten hours, one of them good, on a few GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import Policy, las
from labkit.cluster.simulation import simulate
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, checked

TRIAL_S = 36_000.0
"""How long a whole trial runs."""


@checked
def slices(
    slice_s: Positive = 1800.0, *, longest_s: Positive = TRIAL_S, restart_s: NonNegative = 0.0
) -> Policy:
    """Turns on the GPUs: a job that has run for a slice goes behind all that have run less.

    Args:
        slice_s: of one turn.
        longest_s: of the jobs; beyond this they no longer take turns.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.

    Raises:
        BadValue: a slice is no longer than a restart, so that no job would ever progress.

    >>> slices(10.0, longest_s=40.0).thresholds
    (10.0, 20.0, 30.0)
    """
    if restart_s >= slice_s:
        raise BadValue(f"slices: restart_s {restart_s:g} must be below slice_s {slice_s:g}")
    turns = int(np.ceil(longest_s / slice_s))
    ends_s = [slice_s * turn for turn in range(1, turns)] or [slice_s]
    return replace(las(*ends_s, restart_s=restart_s), name="slices")


@checked
def search_hours(
    policy: Policy,
    num_trials: Count,
    *,
    feedback: Share = 1.0,
    compared: bool = False,
    num_gpus: Count = 4,
    trial_s: Positive = TRIAL_S,
    seeds: Sequence[Whole] = range(40),
) -> NDArray[np.float64]:
    """Hours until the good trial is done, by draw of its place in the queue.

    All trials are there at the start, one GPU each. First come, first served ends the k-th on one
    GPU, counted from 0, after (k × feedback + 1) trials.

    Args:
        policy: who runs next.
        num_trials: of the search; one of them is good.
        feedback: the share of a bad trial after which it is stopped; 1: nobody looks.
        compared: whether a trial is known to be bad only beside a better one, for trials that are
            looked at in the order of the queue: then the best so far runs to its end. (In slices
            all have run to ``feedback`` before one goes on, so nothing differs.)
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
        draw = np.random.default_rng(seed)
        good = int(draw.integers(num_trials))
        length_s = np.full(num_trials, trial_s * feedback)
        length_s[good] = trial_s
        if compared:
            score = draw.random(num_trials)
            score[good] = 1.0  # above all others
            length_s[score == np.maximum.accumulate(score)] = trial_s
        trials = Trace(arrival_s=arrival_s, duration_s=length_s, gpus=gpus)
        hours.append(simulate(trials, cluster, policy).end_s[good] / 3600)
    return np.array(hours)
