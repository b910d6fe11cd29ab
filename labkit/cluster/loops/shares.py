"""Run a trace in rounds, jobs taking turns on GPUs as their shares of time say.

Jobs are stopped and moved between rounds only: a GPU whose job ends within a round is idle to the
end of the round, and a job that comes within one waits for the next. Two jobs on one GPU each hold
it, so the utilisation of a run that pairs jobs can exceed 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.cluster.inputs.clusters import Cluster, best_speed, speeds
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops import share_loop
from labkit.cluster.loops.event_loop import CAPACITY, PREEMPTED
from labkit.cluster.loops.records import LIFE, jobs_of, run_of
from labkit.cluster.policies.shares import Active, SharePolicy
from labkit.cluster.results import CAUSES, Run
from labkit.errors import BadValue

SLACK = 1024
"""Entries that may join before shares are computed anew."""
NUM_ORDERS = 4096
"""Random orders of pools, one a round and then again, for policies that know no speeds."""
JOB = np.dtype(
    [
        *LIFE,
        ("pool", "i8"),  # of this round; -1 for none
        ("was", "i8"),  # its pool of the last round; -1 for none
        ("waited", "f8"),  # seconds before its first run
        ("stopped", "f8"),  # seconds without GPUs after it
    ]
)
SEGMENT = np.dtype(
    [  # a run of a job
        ("job", "i8"),
        ("start", "f8"),
        ("end", "f8"),
        ("pool", "i8"),
        ("gpus", "i8"),
    ]
)
ONE = -1  # in the place of an entry's second job


def run(
    trace: Trace,
    cluster: Cluster,
    policy: SharePolicy,
    window: tuple[int, int],
    keeps_segments: bool,
) -> Run:
    """A trace until the jobs from the first to before the second place of the window have ended.

    Raises:
        BadValue: a job fits in no pool.
    """
    fits = best_speed(trace, cluster) > 0
    if not fits.all():
        raise BadValue(
            f"{trace.name}, job {trace.id_of(int(np.argmin(fits)))} fits in no pool of {cluster}; "
            "valid: jobs that some pool can hold"
        )
    return _Turns(trace, cluster, policy, keeps_segments).run(window)


class _Turns:
    """The compiled rounds, and what the policy answers where shares are due."""

    def __init__(
        self, trace: Trace, cluster: Cluster, policy: SharePolicy, keeps_segments: bool
    ) -> None:
        self.trace = trace
        self.cluster = cluster
        self.policy = policy
        self.room = np.array([pool.num_gpus for pool in cluster.pools])
        self.keeps_segments = keeps_segments
        # Jobs of one kind, GPU type and number of GPUs are alike: a group.
        row, speed = speeds(trace, cluster)
        both = np.column_stack([row, trace.column("gpus")])
        alike, self.group = np.unique(both, axis=0, return_inverse=True)
        self.gpus = alike[:, 1]
        self.speed = speed[row]
        speed_of_group = speed[alike[:, 0]]
        kinds = dict(zip(row.tolist(), trace.kind or ("",) * len(trace), strict=True))
        names = [kinds[place] for place in alike[:, 0].tolist()]
        self.shared = np.zeros((len(alike), *speed_of_group.shape))
        if policy.pairs is not None:
            _, self.shared = policy.pairs.of(names)
        believed = speed_of_group, self.shared
        if policy.believes is not None:
            believed = policy.believes.of(names)
        self.believed_speed, self.believed_shared = believed
        self.memory: dict[str, Any] = {}
        self.jobs = jobs_of(trace, JOB)
        self.jobs["pool"] = -1
        self.jobs["was"] = -1
        self.clock = np.zeros(share_loop.NUM_CLOCKS)
        self.count = np.zeros(share_loop.NUM_COUNTS, np.int64)

    def run(self, window: tuple[int, int]) -> Run:
        policy = self.policy
        self.clock[share_loop.SINCE] = -np.inf
        self.clock[share_loop.ROUND_S] = policy.round_s
        self.clock[share_loop.RESTART_S] = policy.restart_s
        self.clock[share_loop.RESET_S] = policy.reset_s
        self.count[share_loop.WANTED] = window[1] - window[0]
        self.count[share_loop.FROM] = window[0]
        self.count[share_loop.TO] = window[1]
        orders = np.arange(self.room.size)[None]
        if not policy.aware:
            draw = np.random.default_rng(policy.rng)
            orders = draw.permuted(np.repeat(orders, NUM_ORDERS, axis=0), axis=1)
        log = np.zeros(4 * len(self.trace) if self.keeps_segments else 0, SEGMENT)
        pairs, table = _entries(SLACK, self.room.size)
        is_done = False
        while True:
            log, is_done = share_loop.run(
                self.jobs,
                self.speed,
                pairs,
                table,
                self.room,
                orders,
                self.clock,
                self.count,
                log,
                policy.strict,
            )
            if is_done:
                return self._result(log[: self.count[share_loop.SEGMENTS]])
            pairs, table = self._shares(pairs, table)

    def _shares(self, pairs: Any, table: Any) -> tuple[Any, Any]:
        """Settle what was owed, ask the policy, and lay out the entries anew."""
        # 1. What each entry was due since shares were last computed, beyond what it had.
        num = int(self.count[share_loop.ENTRIES])
        now_s = float(self.clock[share_loop.NOW])
        elapsed_s = now_s - max(self.clock[share_loop.SINCE], 0.0)
        head_start_s = share_loop.HEAD_START_ROUNDS * self.clock[share_loop.ROUND_S]
        old_pairs = pairs[:num]
        old = table[:, :num]
        seconds_had = old[share_loop.TIME] - head_start_s
        due_s = old[share_loop.DEFICIT] + old[share_loop.SHARE] * elapsed_s
        owed_s = due_s - seconds_had
        is_single = old_pairs[:, 1] == ONE
        jobs = old_pairs[is_single, 0]
        paired_before = old_pairs[~is_single]
        # 2. The policy's answer.
        shares = self.policy.decide(self._active(jobs))
        together = jobs[shares.pairs]
        # 3. An entry for each job, then one for each pair.
        size = jobs.size + len(together)
        if len(pairs) < size + SLACK:
            pairs, table = _entries(2 * size + SLACK, self.room.size)
        single = slice(0, jobs.size)
        paired = slice(jobs.size, size)
        pairs[single, 0] = jobs
        pairs[single, 1] = ONE
        pairs[paired] = together
        table[share_loop.TIME, :size] = head_start_s
        table[share_loop.SHARE, single] = shares.alone
        table[share_loop.DEFICIT, single] = owed_s[is_single]
        table[share_loop.FIRST, single] = self.speed[jobs]
        if len(together):
            first, second = self.group[together.T]
            table[share_loop.SHARE, paired] = shares.together
            table[share_loop.DEFICIT, paired] = _carried(
                paired_before, owed_s[~is_single], together
            )
            table[share_loop.FIRST, paired] = self.shared[first, second]
            table[share_loop.SECOND, paired] = self.shared[second, first]
        self.count[share_loop.ENTRIES] = size
        self.clock[share_loop.SINCE] = now_s
        self.clock[share_loop.CHANGED] = 0.0
        return pairs, table

    def _active(self, jobs: Any) -> Active:
        """What the policy sees of the jobs that are there."""
        return Active(
            jobs=jobs,
            group=self.group[jobs],
            left_s=self.jobs["left"][jobs],
            speed=self.believed_speed,
            gpus=self.gpus,
            shared=self.believed_shared,
            room=self.room,
            memory=self.memory,
        )

    def _result(self, log: Any) -> Run:
        waits_s = np.zeros((len(self.jobs), len(CAUSES)))
        waits_s[:, CAPACITY] = self.jobs["waited"]
        waits_s[:, PREEMPTED] = self.jobs["stopped"]
        return run_of(
            self.trace,
            self.cluster,
            self.policy,
            self.jobs,
            waits_s,
            [log[name] for name in SEGMENT.names or ()],
            stops_early=bool(np.isnan(self.jobs["end"]).any()),
        )


def _entries(most: int, pools: int) -> tuple[Any, Any]:
    """Room for so many entries: their jobs, and the table of the compiled loop."""
    return np.zeros((most, 2), np.int64), np.ones((share_loop.NUM_LAYERS, most, pools))


def _carried(old_pairs: Any, owed_s: Any, new_pairs: Any) -> Any:
    """What is owed to pairs that are still there; 0 to new ones."""
    carried = np.zeros((len(new_pairs), owed_s.shape[1]))
    was, now = (pairs[:, 0] * (1 << 31) + pairs[:, 1] for pairs in (old_pairs, new_pairs))
    _, before, after = np.intersect1d(was, now, assume_unique=True, return_indices=True)
    carried[after] = owed_s[before]
    return carried
