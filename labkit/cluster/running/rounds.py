"""Policies that are asked every so often and give each job a number of GPUs, perhaps another one.

An allocator decides at the boundaries of rounds; in between, jobs make progress on what they hold.
Time 0 is a boundary. In each round, in this order: jobs that have arrived since the last boundary
are admitted or refused; the allocator says what each job holds from now on; jobs whose GPUs changed
begin anew after ``restart_s``; work advances; jobs that end give their GPUs back at the next
boundary. Rounds in which no job is there are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.jobs.clusters import Cluster
from labkit.cluster.jobs.jobs import Trace
from labkit.cluster.policies.orders import Policy
from labkit.cluster.running.core import CAPACITY, ORDER, PREEMPTED
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, description

CAUSES = ("capacity", "order", "fragmentation", "preemption", "round")
"""What a job waits for: too few GPUs free; jobs ahead of it in a queue that blocks, or a policy
that leaves GPUs free; enough free GPUs, on too many nodes; GPUs again, after it was stopped; the
next round of a policy that decides in rounds. The event loop counts the first four, in order."""
ROUND = CAUSES.index("round")
TOLERANCE = 1e-9  # of a job's work: less than this is none
TOLERANCE_S = 1e-6  # nor is work of less time: late clocks cannot tell such moments apart
_MOST_IDLE = 10_000  # rounds after which an allocator that starts nothing is stopped

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an allocator sees at a boundary. Columns are by job of the whole trace.

    Attributes:
        now_s, round_s: the moment, and how long its decision will hold at least.
        jobs: the jobs in the system, in order of arrival: rows of what it decides.
        left: work left, in seconds at the job's own GPUs (or in the unit of its progress).
        attained_gpu_s: GPU-seconds held so far, restarts included.
        held: job × pool (or × node, for ``by="nodes"``): GPUs held until now.
        stops: how often each job's GPUs were changed or taken.
        capacity: GPUs of each pool (or node).
        trace, progress: the jobs asked for, and the object that advances them.
        memory: what the allocator notes for itself; empty when a run begins.
    """

    now_s: float
    round_s: float
    jobs: Ints
    left: Floats
    attained_gpu_s: Floats
    held: Ints
    stops: Ints
    capacity: Ints
    trace: Trace
    progress: Any
    memory: dict[str, Any]


class Progress(Protocol):
    """How work advances in a round. A fresh one is made for every run."""

    left: Floats

    def advance(self, jobs: Ints, held: Ints, seconds: Floats) -> Floats:
        """Take the work of so many seconds off ``left``; returns the seconds each job needed."""
        ...


@description
@dataclass(frozen=True, kw_only=True, eq=False)
class Rates:
    """Work a second by kind of job, number of GPUs and pool.

    Attributes:
        kinds: of the jobs, as the trace's ``kind`` has them.
        gpus: the numbers of GPUs listed, rising.
        work_per_s: kind × number × pool; 1 is the speed at which ``duration_s`` was stated.

    Raises:
        BadValue: the table's shape does not match, or a rate is negative or not finite.
    """

    kinds: Annotated[tuple[str, ...], MinLen(1)]
    gpus: Annotated[tuple[Count, ...], MinLen(1)]
    work_per_s: ArrayLike

    def __post_init__(self) -> None:
        table = np.asarray(self.work_per_s, dtype=float)
        wanted = (len(self.kinds), len(self.gpus))
        if table.ndim != 3 or table.shape[:2] != wanted or not (table >= 0).all():
            raise BadValue(
                f"Rates.work_per_s must be kinds × gpus × pools, here {wanted} × pools, of numbers "
                f"from 0; got shape {table.shape}"
            )

    def times(self, most: int) -> dict[str, Floats]:
        """Seconds of one unit of work on 1 to ``most`` GPUs of the first pool, by kind.

        Between listed numbers the logarithms are interpolated; NaN beyond those that can run.
        """
        listed, gpus = np.log(self.gpus), np.log(np.arange(1, most + 1))
        rows = np.asarray(self.work_per_s, dtype=float)[:, :, 0]
        lines = [np.interp(gpus, listed[r > 0], np.log(r[r > 0]), np.nan, np.nan) for r in rows]
        return {kind: np.exp(-line) for kind, line in zip(self.kinds, lines, strict=True)}

    def of(self, trace: Trace) -> Callable[[Ints, Ints], Floats]:
        """Rates of ``(jobs, held)``, where ``held`` is job × pool; 0 where nothing is held."""
        table = np.asarray(self.work_per_s, dtype=float)
        kinds = trace.kind or (self.kinds[0],) * len(trace)
        if unknown := set(kinds) - set(self.kinds):
            raise BadValue(
                f"Rates.kinds lacks {min(unknown)!r} of {trace.name}; it has "
                f"{', '.join(self.kinds)}"
            )
        row = np.array([self.kinds.index(kind) for kind in kinds])
        column = np.full(max(self.gpus) + 1, -1)
        column[list(self.gpus)] = range(len(self.gpus))

        def rates(jobs: Ints, held: Ints) -> Floats:
            pool, gpus = held.argmax(1), held.sum(1)
            place = column[np.minimum(gpus, column.size - 1)]
            wrong = (gpus > 0) & ((gpus >= column.size) | (place < 0) | (held.max(1) < gpus))
            if wrong.any():
                job = int(np.argmax(wrong))
                raise BadValue(
                    f"Rates: {trace.id_of(jobs[job])} holds {held[job].tolist()} GPUs by pool; "
                    f"valid: {', '.join(map(str, self.gpus))} of one pool"
                )
            return np.asarray(np.where(gpus > 0, table[row[jobs], place, pool], 0.0))

        return rates


def speeds(trace: Trace, cluster: Cluster) -> tuple[Ints, Floats]:
    """Each job's row, and rows by pool: the speed, 0 where such a job may not run."""
    num_jobs = len(trace)
    gpu, kind = trace.gpu or ("",) * num_jobs, trace.kind or ("",) * num_jobs
    if not trace.gpu and not any(pool.speeds for pool in cluster.pools):
        rows = [("", "")]
        row = np.zeros(num_jobs, dtype=np.int64)
    else:
        places: dict[tuple[str, str], int] = {}
        pairs = zip(gpu, kind, strict=True)
        row = np.array([places.setdefault(pair, len(places)) for pair in pairs], dtype=np.int64)
        rows = list(places)
    speed = [
        [pool.speed_of(runs) if wanted in ("", pool.gpu) else 0.0 for pool in cluster.pools]
        for wanted, runs in rows
    ]
    return row, np.array(speed, dtype=float)


class Steady:
    """Progress at a rate that stands still while the GPUs do."""

    def __init__(self, work: Floats, rates: Callable[[Ints, Ints], Floats]) -> None:
        self.left, self.rates = work, rates

    def advance(self, jobs: Ints, held: Ints, seconds: Floats) -> Floats:
        rate = self.rates(jobs, held)
        work = rate * seconds
        left = self.left[jobs]
        ends = (left - work <= np.maximum(left * TOLERANCE, rate * TOLERANCE_S)) & (rate > 0)
        self.left[jobs] = np.where(ends, 0.0, left - work)
        return np.where(ends, left / np.where(rate > 0, rate, 1.0), seconds)


def as_asked(trace: Trace, cluster: Cluster) -> Callable[[Ints, Ints], Floats]:
    """The speed of a pool for the GPUs asked for; fewer or more count in proportion."""
    row, speed = speeds(trace, cluster)
    asked, by_node = trace.column("gpus"), np.repeat(speed, [p.nodes for p in cluster.pools], 1)

    def rates(jobs: Ints, held: Ints) -> Floats:
        of_column = speed if held.shape[1] == speed.shape[1] else by_node
        return np.asarray((held * of_column[row[jobs]]).sum(1) / asked[jobs])

    return rates


@description
@dataclass(frozen=True, kw_only=True, eq=False)
class Allocator:
    """Who holds how many GPUs. Subclasses write ``decide``, and ``admit`` where they refuse.

    Attributes:
        name: as tables show it.
        round_s: seconds between decisions.
        restart_s: how long a job holds new GPUs before it makes progress, each time they change.
        start_s: the same for the first GPUs it gets.
        ask: ``rounds``, at boundaries only; ``events``, whenever a job arrives or ends (its rates
            must then stand still in between).
        ends: a job ends ``within`` a round, or counts as ended at its ``boundary``.
        by: columns of a decision: ``pools``, or ``nodes``, those of all pools in order.
        rates: a :class:`Rates`, or a function of trace and cluster that makes a function of
            ``(jobs, held)`` or a :class:`Progress`; default: as asked for.
    """

    name: str
    round_s: Positive = 60.0
    restart_s: NonNegative = 0.0
    start_s: NonNegative = 0.0
    ask: Literal["rounds", "events"] = "rounds"
    ends: Literal["within", "boundary"] = "within"
    by: Literal["pools", "nodes"] = "pools"
    rates: Any = None

    def decide(self, state: State) -> Ints:
        """GPUs from now on: one row for each of ``state.jobs``, one column a pool (or node)."""
        raise NotImplementedError

    def admit(self, state: State, new: Ints) -> NDArray[np.bool_]:
        """Which of the jobs that have just arrived are taken in."""
        return np.ones(new.size, dtype=bool)

    def replay(self, trace: Trace, cluster: Cluster) -> Log | None:
        """A whole run at once, for a policy that has a loop of its own; None: it has not."""
        return None


@description
@dataclass(frozen=True, kw_only=True, eq=False)
class InOrder(Allocator):
    """A policy that is an order, asked in rounds: each job gets what it asked for, if it fits."""

    policy: Policy

    def decide(self, state: State) -> Ints:
        jobs, asked = state.jobs, state.trace.column("gpus")[state.jobs]
        order = self.policy.order
        if order == "key":
            key = np.asarray(self.policy.key(state.trace), dtype=float)[jobs]
        elif order.startswith("remaining"):
            key = state.left[jobs] * (asked if order.endswith("service") else 1)
        else:
            attained = state.attained_gpu_s[jobs] / (1 if order.endswith("service") else asked)
            key = np.searchsorted(self.policy.thresholds, attained, side="right") * 1.0
        held, runs = state.held[jobs], state.held[jobs].any(1)
        first = runs & (not self.policy.preemptive)
        waits = ~runs if self.policy.thresholds else np.zeros(jobs.size)
        free, given = state.capacity.copy(), np.zeros_like(held)
        for row in np.lexsort((waits, key, ~first)):
            own = held[row].nonzero()[0]
            fits = [*own[free[own] >= held[row, own]], *(free >= asked[row]).nonzero()[0]]
            if fits:
                given[row, fits[0]] = asked[row]
                free[fits[0]] -= asked[row]
            elif self.policy.blocks:
                break
        return given


@dataclass(slots=True, kw_only=True)
class Log:
    """What came out: by job, and by segment."""

    start: Floats
    end: Floats
    stops: Ints
    waits: Floats
    restart: Floats
    refused: NDArray[np.bool_]
    segments: Any  # (job, start, end) of each
    held: Any  # GPUs of each, by node
    rounds: int = 0


class _Play:
    """One run of an allocator."""

    def __init__(self, trace: Trace, cluster: Cluster, allocator: Allocator, admit: Any) -> None:
        self.trace, self.allocator, num_jobs = trace, allocator, len(trace)
        self.admit, self.memory = admit, dict[str, Any]()
        nodes = [(p.num_gpus, 1) if allocator.by == "pools" else (p.gpus_per_node, p.nodes)
                 for p in cluster.pools]  # fmt: skip
        self.capacity = np.repeat(*np.array(nodes).T)
        self.held = np.zeros((num_jobs, self.capacity.size), dtype=np.int64)
        self.attained, self.warm = np.zeros(num_jobs), np.zeros(num_jobs)
        self.since = trace.column("arrival_s").copy()
        self.progress = self._progress(trace, cluster)
        self.log = Log(
            start=np.full(num_jobs, np.nan), end=np.full(num_jobs, np.nan),
            stops=np.zeros(num_jobs, dtype=np.int64), waits=np.zeros((num_jobs, len(CAUSES))),
            restart=np.zeros(num_jobs), refused=np.zeros(num_jobs, dtype=bool), segments=[],
            held=[],
        )  # fmt: skip

    def _progress(self, trace: Trace, cluster: Cluster) -> Progress:
        rates = self.allocator.rates
        if isinstance(rates, Rates):
            make: Any = rates.of(trace)
        else:
            make = (rates or as_asked)(trace, cluster)
        return make if hasattr(make, "advance") else Steady(trace.column("duration_s") * 1.0, make)

    def run(self) -> Log:
        allocator, arrival, log = self.allocator, self.trace.column("arrival_s"), self.log
        jobs, coming, idle = np.zeros(0, dtype=np.int64), 0, 0
        now = self._boundary(float(arrival[0]))
        while coming < arrival.size or jobs.size:
            until = int(np.searchsorted(arrival, now, side="right"))
            state = self._state(now, jobs)
            if until > coming:
                new = np.arange(coming, until)
                log.waits[new, ROUND] += now - arrival[new]
                is_in = np.asarray(self.admit(state, new), dtype=bool)
                log.refused[new[~is_in]] = True
                jobs, coming = np.concatenate([jobs, new[is_in]]), until
                state = replace(state, jobs=jobs)
            following = float(arrival[coming]) if coming < arrival.size else np.inf
            if not jobs.size:
                now = self._boundary(following)
                continue
            given = self._checked(np.asarray(allocator.decide(state)), jobs)
            self._hand_out(jobs, given, now)
            log.rounds += 1
            idle = 0 if given.any() or coming < arrival.size else idle + 1
            after = self._after(jobs, given, now, following, idle)
            jobs, now = self._advance(jobs, given, now, after), after
        return log

    def _boundary(self, moment: float) -> float:
        """The first boundary that is not before a moment."""
        if self.allocator.ask == "events" or not np.isfinite(moment):
            return moment
        return float(np.ceil(moment / self.allocator.round_s)) * self.allocator.round_s

    def _state(self, now: float, jobs: Ints) -> State:
        return State(
            now_s=now, round_s=self.allocator.round_s, jobs=jobs, left=self.progress.left,
            attained_gpu_s=self.attained, held=self.held, stops=self.log.stops,
            capacity=self.capacity, trace=self.trace, progress=self.progress,
            memory=self.memory,
        )  # fmt: skip

    def _checked(self, given: NDArray[Any], jobs: Ints) -> Ints:
        shape, name = (jobs.size, self.capacity.size), self.allocator.name
        if given.shape != shape or given.dtype.kind not in "iu" or (given < 0).any():
            raise BadValue(
                f"{name}.decide must give whole numbers from 0, one row a job and one column a "
                f"{self.allocator.by[:-1]}, here {shape}; got {given.dtype} {given.shape}"
            )
        over = given.sum(0) > self.capacity
        if over.any():
            column = int(np.argmax(over))
            raise BadValue(
                f"{name}.decide gives {given[:, column].sum()} GPUs of {self.allocator.by[:-1]} "
                f"{column}; valid: at most {self.capacity[column]}"
            )
        return given.astype(np.int64, copy=False)

    def _hand_out(self, jobs: Ints, given: Ints, now: float) -> None:
        """Close the segments of jobs whose GPUs change, and begin new ones."""
        old = self.held[jobs]
        changes = (old != given).any(1)
        if not changes.any():
            return
        for job, was in zip(jobs[changes], old[changes], strict=True):
            if was.any():
                self._close(int(job), now)
                self.log.stops[job] += 1
        moved, holds = jobs[changes], given[changes].any(1)
        begin = moved[holds]
        is_first = np.isnan(self.log.start[begin])
        wait = np.where(is_first, self.allocator.start_s, self.allocator.restart_s)
        self.warm[begin] = now + wait
        self.log.start[begin[is_first]] = now
        self.held[moved], self.since[moved] = given[changes], now

    def _close(self, job: int, end: float) -> None:
        if end > self.since[job]:
            self.log.segments.append((job, float(self.since[job]), end))
            self.log.held.append(self.held[job].copy())

    def _after(self, jobs: Ints, given: Ints, now: float, following: float, idle: int) -> float:
        """The next moment at which the allocator is asked."""
        coming = now + self.allocator.round_s
        if self.allocator.ask == "events":
            rate = self.progress.rates(jobs, given)  # type: ignore[attr-defined]
            with np.errstate(divide="ignore", invalid="ignore"):
                ends = np.maximum(self.warm[jobs], now) + self.progress.left[jobs] / rate
            coming = float(min(following, ends[given.any(1) & (rate > 0)].min(initial=np.inf)))
        if coming == np.inf or idle > _MOST_IDLE:
            raise BadValue(
                f"{self.allocator.name}.decide leaves {jobs.size} jobs without GPUs for ever, such "
                f"as {self.trace.id_of(int(jobs[0]))}; valid: every job gets its turn"
            )
        return coming

    def _advance(self, jobs: Ints, given: Ints, now: float, after: float) -> Ints:
        """Let the round pass; returns the jobs that are not done."""
        log, gpus = self.log, given.sum(1)
        runs = gpus > 0
        on, off = jobs[runs], jobs[~runs]
        if off.size:
            short = self.capacity.sum() - gpus.sum() < self.trace.column("gpus")[off]
            cause = np.where(log.stops[off] > 0, PREEMPTED, np.where(short, CAPACITY, ORDER))
            log.waits[off, cause] += after - now
        warm = np.clip(self.warm[on], now, after)
        log.restart[on] += warm - now
        needed = self.progress.advance(on, given[runs], after - warm)
        ended = self.progress.left[on] <= 0
        until = warm + needed if self.allocator.ends == "within" else np.full(on.size, after)
        until = np.where(ended, until, after)
        self.attained[on] += gpus[runs] * (until - now)
        for job, end in zip(on[ended].tolist(), until[ended].tolist(), strict=True):
            self._close(job, end)
            log.end[job] = end
            self.held[job] = 0
        return jobs if not ended.any() else jobs[self.progress.left[jobs] > 0]


def play(trace: Trace, cluster: Cluster, allocator: Allocator, admit: Any = None) -> Log:
    """Run a trace to its end under an allocator; O(jobs in the system) a round, beside it."""
    log = None if admit else allocator.replay(trace, cluster)
    return log or _Play(trace, cluster, allocator, admit or allocator.admit).run()
