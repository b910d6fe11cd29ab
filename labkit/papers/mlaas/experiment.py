"""Jobs that the notebook makes of a recorded trace: groups, bursts, parts of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import Policy
from labkit.cluster.simulation import simulate
from labkit.errors import BadValue
from labkit.kit.describe import Positive, Share, Whole, checked

IN_BURST_S = 2e7
"""When a burst begins. Whatever runs before it was submitted earlier and is over."""
OLD_GAP_S = 500.0
BURST_GAP_S = 0.03  # of a burst that is half of the jobs: 1,000 a minute


@checked
def groups_by_gap(trace: Trace, gap_h: Positive) -> tuple[str, ...]:
    """A group of each job: jobs of a tenant, each submitted at most so long after the last.

    Args:
        trace: jobs with tenants.
        gap_h: hours between two jobs of a group, at most.

    >>> trace = Trace(arrival_s=[0, 60, 9000], duration_s=[1, 1, 1], gpus=[1] * 3,
    ...               tenant=("a", "a", "a"))
    >>> groups_by_gap(trace, gap_h=1.0)
    ('0', '0', '1')

    Raises:
        BadValue: the trace does not know tenants.
    """
    if not trace.tenant:
        raise BadValue(f"groups_by_gap: {trace.name} does not know tenants of its jobs")
    table = pd.DataFrame({"tenant": trace.tenant, "arrival_s": trace.column("arrival_s")})
    gap_s = table.groupby("tenant")["arrival_s"].diff()
    is_first = gap_s > 3600 * gap_h
    number = is_first.groupby(table["tenant"]).cumsum()
    return tuple(map(str, number))


@checked
def burst(trace: Trace, is_old: NDArray[np.bool_], *, gap_h: Positive) -> Trace:
    """The old jobs one by one, then the others within minutes, in the trace's order.

    Args:
        trace: jobs with tenants.
        is_old: of each job, whether it is history.
        gap_h: hours between two jobs of a group, at most; a job's group becomes its kind.

    Raises:
        BadValue: ``is_old`` does not have one value a job.
    """
    old = np.asarray(is_old, dtype=bool)
    if old.shape != (len(trace),):
        raise BadValue(f"burst: is_old needs {len(trace)} values, one a job; got {old.shape}")
    place = np.arange(len(trace))
    arrival_s = np.where(old, OLD_GAP_S * place, IN_BURST_S) + BURST_GAP_S * place
    return trace.changed(kind=groups_by_gap(trace, gap_h), arrival_s=arrival_s)


@checked
def mean_in_burst_s(trace: Trace, cluster: Cluster, policy: Policy) -> float:
    """Mean completion time of the jobs of a burst."""
    completion_s = simulate(trace, cluster, policy).jct_s
    return float(completion_s[trace.column("arrival_s") >= IN_BURST_S].mean())


@checked
def parts_of_gpus(trace: Trace, share: Share, *, rng: np.random.Generator | Whole) -> list[Trace]:
    """The trace in halves of a GPU: where some jobs ask for half of one, and as it is.

    Args:
        trace: jobs that ask for whole GPUs.
        share: of the jobs of one GPU, those that ask for half.
    """
    whole = 2 * trace.column("gpus").astype(np.int64)
    asks_half = np.random.default_rng(rng).random(len(trace)) < share
    parts = np.where((whole == 2) & asks_half, 1, whole)
    return [
        trace.changed(gpus=parts, name="parts of GPUs"),
        trace.changed(gpus=whole, name="whole GPUs"),
    ]


@checked
def explained_variance(trace: Trace, *labels: Sequence[str]) -> float:
    """The share of the variance of log durations that groups explain, adjusted for their number.

    Jobs are of one group where they agree in all labels.
    """
    logs = pd.Series(np.log(trace.column("duration_s")))
    groups = logs.groupby([np.array(each) for each in labels])
    within = logs - groups.transform("mean")
    return float(1 - within.var(ddof=groups.ngroups) / logs.var())
