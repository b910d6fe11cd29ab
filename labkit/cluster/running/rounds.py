"""Policies that are asked every so often and give each job a number of GPUs, perhaps another one.

An allocator decides at the boundaries of rounds; in between, jobs make progress on what they hold.
Time 0 is a boundary. In each round, in this order: jobs that have arrived since the last boundary
join; the allocator says what each job holds from now on; jobs whose GPUs changed begin anew after
``restart_s``; work advances; jobs that end give their GPUs back at the next boundary. Rounds in
which no job is there are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.cluster.jobs.clusters import Cluster, speeds
from labkit.cluster.jobs.jobs import Trace
from labkit.cluster.running.core import CAPACITY, ORDER, PREEMPTED, ROUND
from labkit.cluster.running.runs import CAUSES, LIFE, Run, jobs_of, run_of
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, description

TOLERANCE = 1e-9  # of a job's work: less than this is none
TOLERANCE_S = 1e-6  # nor is work of less time: late clocks cannot tell such moments apart
_MOST_IDLE = 10_000  # rounds after which an allocator that starts nothing is stopped

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    by_node = np.repeat(speed, [p.nodes for p in cluster.pools], 1)
    return lambda jobs, held: np.asarray((held * by_node[row[jobs]]).sum(1) / asked[jobs])


@description(eq=False)
class Rates:
    """Work a second by kind of job and number of GPUs.

    Attributes:
        kinds: of the jobs, as the trace's ``kind`` has them.
        gpus: the numbers of GPUs listed, rising.
        work_per_s: kind × number; 1 is the speed at which ``duration_s`` was stated.

    Raises:
        BadValue: the table's shape does not match, or a rate is negative or not finite.
    """

    kinds: Annotated[tuple[str, ...], MinLen(1)]
    gpus: Annotated[tuple[Count, ...], MinLen(1)]
    work_per_s: Floats

    def __post_init__(self) -> None:
        table = np.array(self.work_per_s, dtype=float)
        wanted = (len(self.kinds), len(self.gpus))
        if table.shape != wanted or not (np.isfinite(table) & (table >= 0)).all():
            raise BadValue(
                f"Rates.work_per_s must be kinds × gpus, here {wanted}, of finite numbers from 0; "
                f"got shape {table.shape}"
            )
        object.__setattr__(self, "work_per_s", table)

    def times(self, most: int) -> dict[str, Floats]:
        """Seconds of one unit of work on 1 to ``most`` GPUs, by kind.

        Between listed numbers the logarithms are interpolated; NaN beyond those that can run.
        """
        listed = np.log(self.gpus)
        gpus = np.log(np.arange(1, most + 1))
        rows = self.work_per_s
        lines = [np.interp(gpus, listed[r > 0], np.log(r[r > 0]), np.nan, np.nan) for r in rows]
        return {kind: np.exp(-line) for kind, line in zip(self.kinds, lines, strict=True)}

    def of(self, trace: Trace) -> Floats:
        """Work a second of each job, by number of GPUs."""
        kinds = trace.kind or (self.kinds[0],) * len(trace)
        if unknown := set(kinds) - set(self.kinds):
            raise BadValue(
                f"Rates.kinds lacks {min(unknown)!r} of {trace.name}; it has "
                f"{', '.join(self.kinds)}"
            )
        return self.work_per_s[[self.kinds.index(kind) for kind in kinds]]


@description(eq=False)
class Allocator:
    """Who holds how many GPUs. Subclasses write ``decide``, or ``run`` with a loop of their own.

    Attributes:
        name: as tables show it.
        round_s: seconds between decisions.
        restart_s: how long a job holds new GPUs, the first included, before it makes progress.
        rates: a function of trace and cluster that makes a run's progress (as :class:`Steady`), or
            a function of ``(jobs, held)``, GPUs by job and node: work a second. Default: as asked.
    """

    name: str
    round_s: Positive = 60.0
    restart_s: NonNegative = 0.0
    rates: Any = None

    def decide(self, state: State) -> Ints:
        """GPUs from now on: one row for each of ``state.jobs``, one column a node."""
        raise NotImplementedError

    def run(self, trace: Trace, cluster: Cluster) -> Run:
        """A trace to its end; O(jobs in the system) a round, beside ``decide``.

        Raises:
            BadValue: the allocator hands out GPUs that are not there, or none for ever.
        """
        return State(trace, cluster, self).run()


class State:
    """A run at a boundary, as its allocator sees it. Columns are by job of the whole trace.

    Attributes:
        now_s: the moment.
        jobs: the jobs in the system, in order of arrival: rows of a decision.
        capacity: GPUs of each node, those of all pools in order: columns of a decision.
        held: job × node: GPUs held until now.
        attained_gpu_s: GPU-seconds held so far, restarts included.
        stops: how often each job's GPUs were changed or taken.
        progress: of the jobs (:class:`Steady`, …); ``progress.left`` is their work left.
        memory: what the allocator notes for itself; empty when a run begins.
    """

    def __init__(self, trace: Trace, cluster: Cluster, allocator: Allocator) -> None:
        self.trace = trace
        self.cluster = cluster
        self.allocator = allocator
        self.now_s = 0.0
        self.jobs = np.zeros(0, dtype=np.int64)
        self._life = jobs_of(trace, np.dtype(LIFE))
        self.memory = dict[str, Any]()
        self.capacity = np.repeat(*np.array([(p.gpus_per_node, p.nodes) for p in cluster.pools]).T)
        self.held = np.zeros((len(trace), self.capacity.size), dtype=np.int64)
        self.attained_gpu_s = np.zeros(len(trace))
        self.stops = self._life["stops"]
        self.progress: Any = (allocator.rates or as_asked)(trace, cluster)
        if not hasattr(self.progress, "advance"):
            self.progress = Steady(trace.column("duration_s").copy(), self.progress)
        self._waits = np.zeros((len(trace), len(CAUSES)))
        self._segments: list[tuple[int, float, float]] = []  # job, start, end
        self._on: list[Ints] = []  # the GPUs of each segment, by node

    def run(self) -> Run:
        arrival = self.trace.column("arrival_s")
        round_s = self.allocator.round_s
        coming = 0
        idle = 0
        while coming < arrival.size or self.jobs.size:
            if not self.jobs.size:
                self.now_s = max(self.now_s, float(np.ceil(arrival[coming] / round_s)) * round_s)
            new = np.arange(coming, np.searchsorted(arrival, self.now_s, side="right"))
            self._waits[new, ROUND] += self.now_s - arrival[new]
            self.jobs = np.concatenate([self.jobs, new])
            coming = coming + new.size
            given = self._checked(np.asarray(self.allocator.decide(self)))
            self._hand_out(given)
            idle = 0 if given.any() or coming < arrival.size else idle + 1
            if idle > _MOST_IDLE:
                raise BadValue(
                    f"{self.allocator.name}.decide leaves {self.jobs.size} jobs without GPUs for "
                    f"ever, such as {self.trace.id_of(int(self.jobs[0]))}; valid: every job gets "
                    "its turn"
                )
            self._advance(given)
        return self._result()

    def _checked(self, given: NDArray[Any]) -> Ints:
        shape = (self.jobs.size, self.capacity.size)
        name = self.allocator.name
        if given.shape != shape or given.dtype.kind not in "iu" or (given < 0).any():
            raise BadValue(
                f"{name}.decide must give whole numbers from 0, one row a job and one column a "
                f"node, here {shape}; got {given.dtype} {given.shape}"
            )
        over = given.sum(0) > self.capacity
        if over.any():
            node = int(np.argmax(over))
            raise BadValue(
                f"{name}.decide gives {given[:, node].sum()} GPUs of node {node}; valid: at most "
                f"{self.capacity[node]}"
            )
        return given.astype(np.int64, copy=False)

    def _hand_out(self, given: Ints) -> None:
        """Close the segments of jobs whose GPUs change, and begin new ones."""
        old = self.held[self.jobs]
        changes = (old != given).any(1)
        if not changes.any():
            return
        moved = self.jobs[changes]
        for job in moved[old[changes].any(1)].tolist():
            self._close(job, self.now_s)
            self.stops[job] += 1
        begin = moved[given[changes].any(1)]
        start = self._life["start"]
        self._life["warm"][begin] = self.now_s + self.allocator.restart_s
        start[begin[np.isnan(start[begin])]] = self.now_s
        self.held[moved] = given[changes]
        self._life["since"][moved] = self.now_s

    def _close(self, job: int, end: float) -> None:
        since = float(self._life["since"][job])
        if end > since:
            self._segments.append((job, since, end))
            self._on.append(self.held[job].copy())

    def _advance(self, given: Ints) -> None:
        """Let the round pass; jobs that are done leave."""
        now = self.now_s
        after = self.now_s + self.allocator.round_s
        gpus = given.sum(1)
        runs = gpus > 0
        on = self.jobs[runs]
        off = self.jobs[~runs]
        if off.size:
            short = self.capacity.sum() - gpus.sum() < self.trace.column("gpus")[off]
            cause = np.where(self.stops[off] > 0, PREEMPTED, np.where(short, CAPACITY, ORDER))
            self._waits[off, cause] += after - now
        warm = np.clip(self._life["warm"][on], now, after)
        self._life["lost"][on] += warm - now
        needed = self.progress.advance(on, given[runs], after - warm)
        ended = self.progress.left[on] <= 0
        until = np.where(ended, warm + needed, after)
        self.attained_gpu_s[on] += gpus[runs] * (until - now)
        self._life["end"][on[ended]] = until[ended]
        for job, end in zip(on[ended].tolist(), until[ended].tolist(), strict=True):
            self._close(job, end)
            self.held[job] = 0
        self.jobs = self.jobs[self.progress.left[self.jobs] > 0]
        self.now_s = after

    def _result(self) -> Run:
        segments = np.array(self._segments, dtype=float).reshape(-1, 3)
        order = np.argsort(segments[:, 2], kind="stable")
        held = np.array(self._on, dtype=np.int64).reshape(-1, self.capacity.size)[order]
        segment, node = held.nonzero()
        pool = np.repeat(range(len(self.cluster.pools)), [p.nodes for p in self.cluster.pools])
        of, start, end = segments[order].T
        columns = of.astype(np.int64), start, end, pool[held.argmax(1)], held.sum(1)
        return run_of(
            self.trace,
            self.cluster,
            self.allocator,
            self._life,
            self._waits,
            columns,
            nodes=(segment, node, held[segment, node]),
            placement="consolidated",
        )
