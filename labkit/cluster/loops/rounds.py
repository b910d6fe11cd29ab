"""Run a trace under an allocator, which is asked every so often who holds how many GPUs.

An allocator decides at the boundaries of rounds; in between, jobs make progress on what they hold.
Time 0 is a boundary. In each round, in this order: jobs that have arrived since the last boundary
join; the allocator says what each job holds from now on; jobs whose GPUs changed begin anew after
``restart_s``; work advances; jobs that end give their GPUs back at the next boundary. Rounds in
which no job is there are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster, speeds
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops.event_loop import CAPACITY, ORDER, PREEMPTED, ROUND
from labkit.cluster.loops.records import LIFE, jobs_of, run_of
from labkit.cluster.policies.allocators import Allocator, Floats, Ints, State
from labkit.cluster.results import CAUSES, Run
from labkit.errors import BadValue

TOLERANCE = 1e-9  # of a job's work: less than this is none
TOLERANCE_S = 1e-6  # nor is work of less time: late clocks cannot tell such moments apart
_MOST_IDLE = 10_000  # rounds after which an allocator that starts nothing is stopped


class Steady:
    """Progress of the jobs of a run, at a rate that stands still while the GPUs do."""

    def __init__(self, work: Floats, rates: Callable[[Ints, Ints], Floats]) -> None:
        self.left = work
        self.rates = rates

    def advance(self, jobs: Ints, held: Ints, seconds: Floats) -> Floats:
        """Take the work of so many seconds off ``left``; returns the seconds each job needed."""
        rate = self.rates(jobs, held)
        work = rate * seconds
        left = self.left[jobs]
        ends = (left - work <= np.maximum(left * TOLERANCE, rate * TOLERANCE_S)) & (rate > 0)
        self.left[jobs] = np.where(ends, 0.0, left - work)
        return np.where(ends, left / np.where(rate > 0, rate, 1.0), seconds)


def as_asked(trace: Trace, cluster: Cluster) -> Callable[[Ints, Ints], Floats]:
    """The speed of a pool for the GPUs asked for; fewer or more count in proportion."""
    row, speed = speeds(trace, cluster)
    asked = trace.column("gpus")
    by_node = np.repeat(speed, [pool.nodes for pool in cluster.pools], axis=1)

    def rates(jobs: Ints, held: Ints) -> Floats:
        return np.asarray((held * by_node[row[jobs]]).sum(1) / asked[jobs])

    return rates


def run(trace: Trace, cluster: Cluster, allocator: Allocator) -> Run:
    """A trace to its end; O(jobs in the system) a round, beside ``decide``.

    Raises:
        BadValue: the allocator hands out GPUs that are not there, or none for ever.
    """
    return _Rounds(trace, cluster, allocator).run()


class _Rounds:
    """The rounds of a run: what the allocator sees, and what becomes of the jobs."""

    def __init__(self, trace: Trace, cluster: Cluster, allocator: Allocator) -> None:
        self.trace = trace
        self.cluster = cluster
        self.allocator = allocator
        self.life = jobs_of(trace, np.dtype(LIFE))
        nodes = [pool.nodes for pool in cluster.pools]
        self.pool_of_node = np.repeat(np.arange(len(cluster.pools)), nodes)
        capacity = np.repeat([pool.gpus_per_node for pool in cluster.pools], nodes)
        progress: Any = (allocator.rates or as_asked)(trace, cluster)
        if not hasattr(progress, "advance"):
            progress = Steady(trace.column("duration_s").copy(), progress)
        self.state = State(
            trace=trace,
            jobs=np.zeros(0, dtype=np.int64),
            capacity=capacity,
            held=np.zeros((len(trace), capacity.size), dtype=np.int64),
            attained_gpu_s=np.zeros(len(trace)),
            stops=self.life["stops"],
            progress=progress,
        )
        self.waits_s = np.zeros((len(trace), len(CAUSES)))
        self.segments: list[tuple[int, float, float]] = []  # job, start, end
        self.gpus_of_segments: list[Ints] = []  # by node

    def run(self) -> Run:
        state = self.state
        arrival = self.trace.column("arrival_s")
        round_s = self.allocator.round_s
        arrived = 0
        idle_rounds = 0
        while arrived < arrival.size or state.jobs.size:
            # 1. Skip to the round after the next arrival, if nobody is there.
            if not state.jobs.size:
                next_s = float(np.ceil(arrival[arrived] / round_s)) * round_s
                state.now_s = max(state.now_s, next_s)
            # 2. Jobs that have arrived join.
            new = np.arange(arrived, np.searchsorted(arrival, state.now_s, side="right"))
            self.waits_s[new, ROUND] += state.now_s - arrival[new]
            state.jobs = np.concatenate([state.jobs, new])
            arrived += new.size
            # 3. The allocator decides.
            given = self._checked(np.asarray(self.allocator.decide(state)))
            self._hand_out(given)
            idle_rounds = 0 if given.any() or arrived < arrival.size else idle_rounds + 1
            if idle_rounds > _MOST_IDLE:
                raise BadValue(
                    f"{self.allocator.name}.decide leaves {state.jobs.size} jobs without GPUs for "
                    f"ever, such as {self.trace.id_of(int(state.jobs[0]))}; valid: every job gets "
                    "its turn"
                )
            # 4. Work advances.
            self._advance(given)
        return self._result()

    def _checked(self, given: NDArray[Any]) -> Ints:
        """A decision, if there are as many GPUs as it gives."""
        capacity = self.state.capacity
        shape = (self.state.jobs.size, capacity.size)
        name = self.allocator.name
        if given.shape != shape or given.dtype.kind not in "iu" or (given < 0).any():
            raise BadValue(
                f"{name}.decide must give whole numbers from 0, one row a job and one column a "
                f"node, here {shape}; got {given.dtype} {given.shape}"
            )
        over = given.sum(0) > capacity
        if over.any():
            node = int(np.argmax(over))
            raise BadValue(
                f"{name}.decide gives {given[:, node].sum()} GPUs of node {node}; valid: at most "
                f"{capacity[node]}"
            )
        return given.astype(np.int64, copy=False)

    def _hand_out(self, given: Ints) -> None:
        """Close the segments of jobs whose GPUs change, and begin new ones."""
        state = self.state
        old = state.held[state.jobs]
        changes = (old != given).any(1)
        if not changes.any():
            return
        moved = state.jobs[changes]
        for job in moved[old[changes].any(1)].tolist():
            self._close(job, state.now_s)
            state.stops[job] += 1
        begin = moved[given[changes].any(1)]
        start = self.life["start"]
        self.life["warm"][begin] = state.now_s + self.allocator.restart_s
        start[begin[np.isnan(start[begin])]] = state.now_s
        state.held[moved] = given[changes]
        self.life["since"][moved] = state.now_s

    def _close(self, job: int, end_s: float) -> None:
        """Write down a job's segment that ends."""
        since = float(self.life["since"][job])
        if end_s > since:
            self.segments.append((job, since, end_s))
            self.gpus_of_segments.append(self.state.held[job].copy())

    def _advance(self, given: Ints) -> None:
        """Let the round pass; jobs that are done leave."""
        state = self.state
        now = state.now_s
        after = now + self.allocator.round_s
        gpus = given.sum(1)
        runs = gpus > 0
        on = state.jobs[runs]
        off = state.jobs[~runs]
        if off.size:
            short = state.capacity.sum() - gpus.sum() < self.trace.column("gpus")[off]
            cause = np.where(state.stops[off] > 0, PREEMPTED, np.where(short, CAPACITY, ORDER))
            self.waits_s[off, cause] += after - now
        warm = np.clip(self.life["warm"][on], now, after)
        self.life["lost"][on] += warm - now
        needed = state.progress.advance(on, given[runs], after - warm)
        ended = state.progress.left[on] <= 0
        until = np.where(ended, warm + needed, after)
        state.attained_gpu_s[on] += gpus[runs] * (until - now)
        self.life["end"][on[ended]] = until[ended]
        for job, end_s in zip(on[ended].tolist(), until[ended].tolist(), strict=True):
            self._close(job, end_s)
            state.held[job] = 0
        state.jobs = state.jobs[state.progress.left[state.jobs] > 0]
        state.now_s = after

    def _result(self) -> Run:
        segments = np.array(self.segments, dtype=float).reshape(-1, 3)
        order = np.argsort(segments[:, 2], kind="stable")
        num_nodes = self.state.capacity.size
        held = np.array(self.gpus_of_segments, dtype=np.int64).reshape(-1, num_nodes)[order]
        segment, node = held.nonzero()
        job, start_s, end_s = segments[order].T
        pool = self.pool_of_node[held.argmax(1)]
        return run_of(
            self.trace,
            self.cluster,
            self.allocator,
            self.life,
            self.waits_s,
            (job.astype(np.int64), start_s, end_s, pool, held.sum(1)),
            nodes=(segment, node, held[segment, node]),
            placement="consolidated",
        )
