"""Run a trace in rounds, jobs taking turns on GPUs as their shares of time say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.cluster.jobs.clusters import Cluster, best_speed
from labkit.cluster.jobs.clusters import speeds as speeds_of
from labkit.cluster.jobs.jobs import Trace
from labkit.cluster.jobs.throughputs import Throughputs
from labkit.cluster.policies.shares import Active, SharePolicy
from labkit.cluster.running import rotation
from labkit.cluster.running.core import CAPACITY, PREEMPTED
from labkit.cluster.running.runs import CAUSES, Run, check_gpus, jobs_of, run_of
from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Positive, Whole, checked

if TYPE_CHECKING:
    import pandas as pd

SLACK = 1024
"""Entries that may join before shares are computed anew."""


@checked
def simulate_shares(
    trace: Trace,
    cluster: Cluster,
    policy: SharePolicy,
    table: Throughputs | None = None,
    *,
    round_s: Positive = 360.0,
    reset_s: NonNegative = 1920.0,
    restart_s: NonNegative = 0.0,
    window: tuple[int, int] | None = None,
    seed: Whole = 0,
    keeps_segments: bool = True,
) -> Run:
    """Run a trace in rounds; a job alone has the speed of its pool.

    Jobs are stopped and moved between rounds only: a GPU whose job ends within a round is idle to
    the end of the round, and a job that comes within one waits for the next. Two jobs on one GPU
    each hold it, so the utilisation of a run that pairs jobs can exceed 1.

    Args:
        table: speeds of two jobs on one GPU, for policies that pair them.
        round_s: seconds of a round.
        reset_s: least seconds between two computations of shares.
        restart_s: seconds without progress of a job that was stopped or moved.
        window: stop when the jobs from the first to before the second place are done; others may
            have no end then. Default: all jobs.
        seed: of the order of pools for policies that know no speeds.
        keeps_segments: write down every stretch of a job on its GPUs: where jobs take turns there
            are hundreds a job. Without them a run's utilisation is NaN.

    Raises:
        BadValue: a job fits in no pool, or needs a GPU type or more GPUs than the cluster has; or
            the window holds no job.
    """
    check_gpus(trace, cluster)
    first, last = window or (0, len(trace))
    if not 0 <= first < last <= len(trace):
        raise BadValue(f"window must be two places from 0 to {len(trace)}, rising; got {window}")
    fits = best_speed(trace, cluster) > 0
    room = np.array([p.num_gpus for p in cluster.pools])
    if not fits.all():
        raise BadValue(
            f"{trace.name}, job {trace.id_of(int(np.argmin(fits)))} fits in no pool of {cluster}; "
            "valid: jobs that some pool can hold"
        )
    loop = _Loop(trace, cluster, policy, table, keeps_segments)
    orders = np.arange(room.size)[None]
    if not policy.aware:  # a random order of pools each round, in a cycle
        orders = np.random.default_rng(seed).permuted(np.repeat(orders, 4096, axis=0), axis=1)
    clock = np.array([0.0, -np.inf, 0.0, round_s, restart_s, reset_s])
    return loop.run(clock, np.array([0, 0, 0, 0, last - first, first, last]), room, orders)


@checked
def sweep_shares(
    traces: Mapping[Any, Trace],
    cluster: Cluster,
    policies: Sequence[SharePolicy],
    table: Throughputs | None = None,
    *,
    windows: Sequence[tuple[int, int]],
    round_s: Positive = 360.0,
    restart_s: NonNegative = 0.0,
) -> pd.DataFrame:
    """Every trace under every policy: completion times of the jobs in each window, in hours.

    One row a trace, policy and window; two runs at a time. ``slowdown`` is the mean over that of
    jobs alone on their fastest GPUs, ``worst_slowdown`` a job's largest, ``stops`` a job's mean.

    Raises:
        BadValue: as :func:`simulate_shares`; or jobs stop arriving before the last window is done,
            which flatters every policy that shares.
    """
    import pandas as pd

    if not windows or not all(0 <= first < end for first, end in windows):
        raise BadValue(f"windows must be pairs of places from 0, rising; got {list(windows)}")
    last = max(end for _, end in windows)

    def rows(case: tuple[Any, SharePolicy]) -> list[dict[str, Any]]:
        trace = traces[case[0]]
        policy = case[1]
        run = simulate_shares(
            trace,
            cluster,
            policy,
            table,
            round_s=round_s,
            restart_s=restart_s,
            window=(0, last),
            keeps_segments=False,
        )
        if last < len(trace) and np.nanmax(run.end_s[:last]) > trace.column("arrival_s")[-1]:
            raise BadValue(f"{trace.name}: jobs end later than the last arrives; draw more jobs")
        alone_s = trace.column("duration_s") / best_speed(trace, cluster)
        each = []
        load = trace.offered_load(cluster.num_gpus)
        for first, end in windows:
            jct_s = run.jct_s[first:end]
            part = slice(first, end)
            times = {"mean_h": jct_s.mean() / 3600}
            times |= {f"p{q}_h": np.quantile(jct_s, q / 100) / 3600 for q in (50, 90, 99)}
            times |= {"slowdown": jct_s.mean() / alone_s[part].mean()}
            times |= {"worst_slowdown": (jct_s / alone_s[part]).max()}
            times |= {"stops": run.preemptions[part].mean()}
            names = {"trace": case[0], "policy": policy.name, "offered_load": load, "first": first}
            each.append(names | times)
        return each

    cases = [(name, policy) for policy in policies for name in traces]
    with ThreadPoolExecutor(2) as pool:
        return pd.DataFrame([row for each in pool.map(rows, cases) for row in each])


class _Loop:
    """Rounds, and what the policy answers where shares are due."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        policy: SharePolicy,
        table: Throughputs | None,
        keeps_segments: bool,
    ) -> None:
        self.trace = trace
        self.cluster = cluster
        self.policy = policy
        self.keeps_segments = keeps_segments
        (row, speeds) = speeds_of(trace, cluster)
        both = np.column_stack([row, trace.column("gpus")])
        alike, self.group = np.unique(both, axis=0, return_inverse=True)
        self.speed = speeds[row]
        self.gpus = alike[:, 1]
        true = speeds[alike[:, 0]]
        kinds = dict(zip(row.tolist(), trace.kind or ("",) * len(trace), strict=True))
        names = [kinds[k] for k in alike[:, 0].tolist()]
        self.shared = np.zeros((len(alike), *true.shape))
        if table is not None:
            self.shared = table.of(names)[1]
        believed = policy.believes.of(names) if policy.believes else (true, self.shared)
        self.seen: dict[str, Any] = {"speed": believed[0], "shared": believed[1], "memory": {}}
        self.jobs = jobs_of(trace, rotation.JOB)
        self.jobs["pool"] = self.jobs["was"] = -1

    def run(self, clock: Any, count: Any, room: Any, orders: Any) -> Run:
        (pairs, table) = _entries(SLACK, room.size)
        is_done = False
        log = np.zeros(4 * len(self.trace) if self.keeps_segments else 0, rotation.SEGMENT)
        while True:
            log, is_done = rotation.run(
                self.jobs,
                self.speed,
                pairs,
                table,
                room,
                orders,
                clock,
                count,
                log,
                self.policy.strict,
            )
            if is_done:
                return self._result(log[: count[rotation.SEGMENTS]])
            pairs, table = self._shares(pairs, table, room, clock, count)

    def _shares(self, pairs: Any, table: Any, room: Any, clock: Any, count: Any) -> tuple[Any, Any]:
        """Settle what was owed, ask the policy, and lay out the entries anew."""
        num = int(count[rotation.ENTRIES])
        now = float(clock[rotation.NOW])
        elapsed = now - max(clock[rotation.SINCE], 0.0)
        old = pairs[:num]
        values = table[:, :num]
        had = values[rotation.TIME] - clock[3] / 2
        owed = values[rotation.DEFICIT] + values[rotation.SHARE] * elapsed - had
        is_single = old[:, 1] < 0
        jobs = old[is_single, 0]
        paired_before = old[~is_single]
        active = Active(
            jobs=jobs,
            group=self.group[jobs],
            left_s=self.jobs["left"][jobs],
            gpus=self.gpus,
            room=room,
            **self.seen,
        )
        shares = self.policy.decide(active)
        both = jobs[shares.pairs]
        mine = slice(0, jobs.size)
        size = jobs.size + len(both)
        paired = slice(jobs.size, size)
        if len(pairs) < size + SLACK:
            pairs, table = _entries(2 * size + SLACK, room.size)
        pairs[mine, 0] = jobs
        pairs[mine, 1] = -1
        pairs[paired] = both
        table[rotation.TIME, :size] = clock[3] / 2
        table[rotation.SHARE, mine] = shares.alone
        table[rotation.DEFICIT, mine] = owed[is_single]
        table[rotation.FIRST, mine] = self.speed[jobs]
        if len(both):
            a, b = self.group[both.T]
            table[rotation.SHARE, paired] = shares.together
            table[rotation.DEFICIT, paired] = _carried(paired_before, owed[~is_single], both)
            table[rotation.FIRST, paired] = self.shared[a, b]
            table[rotation.SECOND, paired] = self.shared[b, a]
        count[rotation.ENTRIES] = size
        clock[rotation.SINCE] = now
        clock[rotation.CHANGED] = 0.0
        return pairs, table

    def _result(self, log: Any) -> Run:
        jobs = self.jobs
        waits = np.zeros((len(self.jobs), len(CAUSES)))
        waits[:, CAPACITY] = jobs["waited"]
        waits[:, PREEMPTED] = jobs["stopped"]
        columns = [log[name] for name in log.dtype.names]
        return run_of(self.trace, self.cluster, self.policy, jobs, waits, columns)


def _entries(most: int, pools: int) -> tuple[Any, Any]:
    """Room for so many entries: their jobs, and the table of the compiled loop."""
    return np.zeros((most, 2), np.int64), np.ones((5, most, pools))


def _carried(old: Any, owed: Any, new: Any) -> Any:
    """What is owed to pairs that are still there; 0 to new ones."""
    result = np.zeros((len(new), owed.shape[1]))
    was, now = (pairs[:, 0] * (1 << 31) + pairs[:, 1] for pairs in (old, new))
    _, before, after = np.intersect1d(was, now, assume_unique=True, return_indices=True)
    result[after] = owed[before]
    return result
