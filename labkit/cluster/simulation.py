"""Simulate a trace on a cluster under a policy; compare policies, and sweep over what they run on.

``simulate`` is the one door: a kind of policy has a loop of its own below (``loops``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.cluster.bounds import bound
from labkit.cluster.inputs.clusters import Cluster, best_speed
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops import priorities, rounds, shares
from labkit.cluster.policies.allocators import Allocator, OwnLoop
from labkit.cluster.policies.orders import Policy
from labkit.cluster.policies.shares import SharePolicy
from labkit.cluster.results import Placement, Run
from labkit.errors import BadValue, did_you_mean
from labkit.kit.compiled import threads
from labkit.kit.describe import Share, checked

if TYPE_CHECKING:
    import pandas as pd

AnyPolicy = Policy | SharePolicy | Allocator | OwnLoop
"""What :func:`simulate` takes: an order of jobs, shares of time, numbers of GPUs, or a loop."""
THREADS = 2
"""Runs at a time of a sweep; compiled loops do not hold Python's lock."""
MOST_ROUNDS = 10**9
"""Rounds of one job that a run may need: minutes for a compiled loop, hours for one in Python."""


@checked
def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: AnyPolicy,
    *,
    placement: Placement = "any",
    window: tuple[int, int] | None = None,
    keeps_segments: bool = True,
) -> Run:
    """Run a trace on a cluster under a policy.

    An order of jobs (:class:`Policy`) is followed event by event: a job stays where it runs until
    it is stopped, and one that fits in no pool is reported (``Run.ran``, ``Run.why``) while the
    others do not wait for it. An :class:`Allocator` is asked round by round, shares of time
    (:class:`SharePolicy`) are realised in rounds, and an :class:`OwnLoop` runs itself.

    Args:
        trace: the jobs.
        cluster: the machines.
        policy: who runs.
        placement: of an order of jobs. ``any``: any free GPUs of a pool will do; ``consolidated``:
            as few nodes as can hold the job, whole nodes first.
        window: the jobs from the first place to before the second are those wanted: a run of
            shares stops when they have ended, and other jobs may have no end then.
        keeps_segments: False: a run of shares writes down no stretches of jobs on GPUs, of which
            it has hundreds a job; its utilisation is NaN then.

    Raises:
        BadValue: a job needs a GPU type that the cluster lacks or more GPUs than it has; rounds are
            so short that a job needs more than :data:`MOST_ROUNDS` of them; the policy's key is not
            one finite number a job; a job of a run of shares fits in no pool; the window holds no
            job; or a policy that places jobs itself is given a placement.

    >>> trace = Trace(arrival_s=[0, 0], duration_s=[10, 5], gpus=[1, 1])
    >>> simulate(trace, Cluster.nodes(1, gpus=1), Policy(name="fifo")).end_s.tolist()
    [10.0, 15.0]
    """
    _check_types(trace, cluster)
    _check_widths(trace, cluster)
    return _run(trace, cluster, policy, placement, window, keeps_segments)


def _run(
    trace: Trace,
    cluster: Cluster,
    policy: AnyPolicy,
    placement: Placement,
    window: tuple[int, int] | None = None,
    keeps_segments: bool = True,
) -> Run:
    """As :func:`simulate`, for jobs that were looked at."""
    first, last = window or (0, len(trace))
    if not 0 <= first < last <= len(trace):
        raise BadValue(f"window must be two places from 0 to {len(trace)}, rising; got {window}")
    if isinstance(policy, Policy):
        return priorities.run(trace, cluster, policy, placement)
    if placement != "any":
        raise BadValue(
            f"simulate: {policy.name!r} places jobs itself; valid: placement 'any', or a policy "
            "that orders jobs"
        )
    _check_rounds(trace, policy)
    if isinstance(policy, SharePolicy):
        return shares.run(trace, cluster, policy, (first, last), keeps_segments)
    if isinstance(policy, Allocator):
        return rounds.run(trace, cluster, policy)
    return policy.run(trace, cluster)


def _check_types(trace: Trace, cluster: Cluster) -> None:
    """Refuse jobs that need a GPU type which the cluster lacks."""
    known = {"", *cluster.gpu_types}
    for job, wanted in enumerate(trace.gpu):
        if wanted not in known:
            hint = did_you_mean(wanted, cluster.gpu_types)
            raise BadValue(
                f"{trace.name}, job {trace.id_of(job)}: gpu {wanted!r} is not in the cluster; "
                f"{hint + ' ' if hint else ''}valid: {', '.join(cluster.gpu_types)}, or nothing"
            )


def _check_widths(trace: Trace, cluster: Cluster) -> None:
    """Refuse jobs of more GPUs than the cluster has."""
    gpus = trace.column("gpus")
    too_many = gpus > cluster.num_gpus
    if too_many.any():
        job = int(too_many.argmax())
        raise BadValue(
            f"{trace.name}, job {trace.id_of(job)}: gpus {gpus[job]} is more than the cluster "
            f"has; valid: 1 to {cluster.num_gpus}"
        )


def _check_rounds(trace: Trace, policy: SharePolicy | Allocator | OwnLoop) -> None:
    """Refuse rounds so short that a run would take days, or that its clock would stand still."""
    duration_s = trace.column("duration_s")
    longest_s = float(duration_s.max())
    if longest_s > MOST_ROUNDS * policy.round_s:
        raise BadValue(
            f"round_s of policy {policy.name!r} is {policy.round_s:g}: {trace.name}, job "
            f"{trace.id_of(int(duration_s.argmax()))} of {longest_s:g} s would need more than "
            f"{MOST_ROUNDS:,} rounds; valid: {longest_s / MOST_ROUNDS:.3g} s or longer"
        )


class _Case(NamedTuple):
    """A point of a sweep."""

    name: Any  # of the trace, as the table shows it
    trace: Trace
    cluster: Cluster
    policy: Any  # or a function that makes one for a trace
    bound_s: float  # on the mean completion time of all jobs


@checked
def compare(
    trace: Trace,
    cluster: Cluster,
    policies: Sequence[AnyPolicy | Callable[[Trace], Any]],
    *,
    placement: Placement = "any",
    warmup: Share = 0.0,
    windows: Sequence[tuple[int, int]] = (),
) -> pd.DataFrame:
    """Policies on one trace and cluster: one row each, beside the bound.

    Args:
        trace, cluster: what they run on.
        policies, placement, warmup, windows: as of :func:`sweep`.
    """
    return sweep([trace], [cluster], policies, placement=placement, warmup=warmup, windows=windows)


@checked
def sweep(
    traces: Sequence[Trace] | Mapping[Any, Trace],
    clusters: Sequence[Cluster],
    policies: Sequence[AnyPolicy | Callable[[Trace], Any]],
    *,
    placement: Placement = "any",
    warmup: Share = 0.0,
    windows: Sequence[tuple[int, int]] = (),
) -> pd.DataFrame:
    """Every trace on every cluster under every policy: one row each, two runs at a time.

    A job that one of the clusters is too small for, and another is not, can never run there: the
    row's ``never_ran`` counts it, for policies that order jobs. Others refuse it.

    Grids of anything else, and other executors, are :func:`labkit.sweep`'s.

    Args:
        traces: the table's column ``trace`` shows their names, or the keys of a mapping.
        clusters: the machines.
        policies: who runs; a policy may be a function that makes one for a trace.
        placement: as of :func:`simulate`, for orders of jobs.
        warmup: the fraction of jobs left out of averages, as of :meth:`Run.summary`.
        windows: one row a window instead, of the jobs from its first place to before its second;
            the column ``first`` shows the first place. Runs may stop when the last of them ends.

    Returns:
        The columns of :meth:`Run.summary`, the trace, GPUs and offered load before them. Without
        windows also ``bound_jct_s``, and ``times_bound_ratio``, the mean completion time of all
        jobs over it.

    Raises:
        BadValue: as of :func:`simulate`; or jobs stop arriving before those of a window end, which
            flatters every policy that shares.
    """
    import pandas as pd

    if not all(0 <= first < last for first, last in windows):
        raise BadValue(f"windows must be pairs of places from 0, rising; got {list(windows)}")
    if isinstance(traces, Mapping):
        named = list(traces.items())
    else:
        named = [(trace.name, trace) for trace in traces]
    cases = []
    for name, trace in named:
        if clusters:
            _check_widths(trace, max(clusters, key=lambda cluster: cluster.num_gpus))
        for cluster in clusters:
            some_fit = bool((best_speed(trace, cluster) > 0).any())
            bound_s = math.nan
            if not windows and (some_fit or len(clusters) == 1):
                bound_s = bound(trace, cluster).mean_jct_s
            cases += [_Case(name, trace, cluster, policy, bound_s) for policy in policies]

    def rows(case: _Case) -> list[dict[str, Any]]:
        return _rows(case, placement, warmup, windows)

    with threads(THREADS) as pool:
        return pd.DataFrame([row for each in pool.map(rows, cases) for row in each])


def _rows(
    case: _Case, placement: Placement, warmup: float, windows: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """What a sweep's table says of one run."""
    trace = case.trace
    policy = case.policy(trace) if callable(case.policy) else case.policy
    about = {
        "trace": case.name,
        "gpus": case.cluster.num_gpus,
        "offered_load": trace.offered_load(case.cluster.num_gpus),
    }
    _check_types(trace, case.cluster)
    if not isinstance(policy, Policy):
        _check_widths(trace, case.cluster)
    if not windows:
        run = _run(trace, case.cluster, policy, placement)
        if not run.ran.any():
            return [{**about, "policy": policy.name, "jobs": 0, "never_ran": len(trace)}]
        about |= run.summary(warmup=warmup)
        about |= {
            "bound_jct_s": case.bound_s,
            "times_bound_ratio": float(run.jct_s[run.ran].mean()) / case.bound_s,
        }
        return [about]
    last = max(end for _, end in windows)
    run = _run(trace, case.cluster, policy, placement, (0, last), keeps_segments=False)
    if last < len(trace) and np.nanmax(run.end_s[:last]) > trace.column("arrival_s")[-1]:
        raise BadValue(f"{trace.name}: jobs end later than the last arrives; draw more jobs")
    return [
        {**about, "first": window[0], **run.summary(warmup=warmup, window=window)}
        for window in windows
    ]
