"""Plans for GPUs that stand still while they change their clock.

A plan made as if changes were free changes clocks at almost every instruction, and loses more time
than it has. Here each change takes ``switch_s`` at blocking power, as
:func:`labkit.pipeline.replay` counts it: once an instruction's input is there, if the device ran
its last one at another clock.

Method. Fix, for every message between devices, a time by which it is sent and from which it can be
used. Then the devices no longer depend on each other, and each chooses its own clocks: a chain of
instructions with release times and due times, solved by dynamic programming over (clock, end).
Whatever the devices choose, the iteration keeps its deadline. Those times come first from a plan
without switches for an earlier deadline, stretched to the real one; then, again and again, from the
plan just made, whose slack each round hands to other instructions.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.planning.plans import Plan, max_clock_s, plan
from labkit.pipeline.profiles.clocks import check_stages
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import longest_from, longest_to
from labkit.pipeline.scheduling.schedule import FORWARD, KINDS, Schedule
from labkit.pipeline.simulation.network import Network, lags
from labkit.pipeline.studies.clock_chains import Chain, SwitchTask, chains

_STRETCH = (1.0, 1.01, 1.025, 1.05, 1.1, 1.2, 1.4)  # deadline over that of the first plan
_SHARES = (0.5, 0.0, 1.0, 0.25, 0.75)  # where in its slack a message stands, round by round


@dataclass(frozen=True, eq=False, kw_only=True)
class SwitchPlan:
    """A plan with what its clock switches cost.

    Attributes:
        plan: the clocks; its own makespan and energy are those of switches that take no time.
        switch_s: how long a GPU stands still at each change of its clock.
        num_switches: how often a clock changes, over all devices.
        makespan_s, energy_j: of an iteration, switches included.
    """

    plan: Plan
    switch_s: float
    num_switches: int
    makespan_s: float
    energy_j: float

    @property
    def bound_j(self) -> float:
        """No plan undercuts it by the deadline, not even with switches that take no time."""
        return self.plan.bound_j

    @property
    def gap(self) -> float:
        """How far above the bound: part of it is the price that no plan avoids."""
        return self.energy_j / self.bound_j - 1


def plan_with_switches(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None = None,
    *,
    switch_s: float,
    method: str = "optimal",
    network: Network | None = None,
    num_rounds: int = 10,
) -> SwitchPlan:
    """Clocks that keep the deadline although every change of a clock takes time.

    Never later than the deadline. The search starts from, and so is never worse than: the highest
    clock throughout; one clock a device; and ``method``'s own plans for this and earlier
    deadlines, as far as their switches leave them in time.

    Args:
        deadline_s: latest end, switches included; None for that of the highest clock throughout.
        switch_s: seconds that a GPU stands still at a change.
        method: planner of the plans to start from, one that takes a deadline.
        network: how long messages take; None for no time.
        num_rounds: how often slack is handed round at most.

    Raises:
        UsageError: a negative ``switch_s``, stages that differ, or a deadline that even one clock
            a device cannot meet.
    """
    if not (np.isfinite(switch_s) and switch_s >= 0):
        raise UsageError(f"switch_s must be finite and >= 0, found {switch_s!r}")
    check_stages(schedule, profile)
    lag_s = lags(schedule, network)
    if deadline_s is None:
        deadline_s = max_clock_s(schedule, profile, lag_s)
    task = SwitchTask(schedule, profile, deadline_s, switch_s, lag_s)
    each = chains(task)
    steady = list(_steady(task))
    groups = [steady[:1], steady[1:], list(_stretched(task, each, method, network))]
    found = [min(rows, key=task.energy_j) for rows in groups if rows]
    found = [row for row in found if task.in_time(row)]
    if not found:
        raise UsageError(
            f"deadline_s = {deadline_s!r} cannot be met with {1000 * switch_s:g} ms a switch; the "
            f"highest clock throughout needs {max_clock_s(schedule, profile, lag_s):.9g} s"
        )
    best = min((_hand_round(task, each, row, num_rounds) for row in found), key=task.energy_j)
    made_s, energy_j = task.cost(best)
    return SwitchPlan(
        plan=Plan(
            schedule=schedule,
            profile=profile,
            method=f"{method}, {1000 * switch_s:g} ms a switch",
            row=best,
            deadline_s=deadline_s,
            network=network,
        ),
        switch_s=switch_s,
        num_switches=int(task.switched(best).sum()),
        makespan_s=made_s,
        energy_j=energy_j,
    )


# --- where the search starts


def _steady(task: SwitchTask) -> Iterator[np.ndarray]:
    """Few switches: the highest clock, one clock a device, and one for each phase of a device.

    Slower first and last instructions of a device make the pipeline fill and drain more slowly,
    so a device may also run all but these at one clock.
    """
    by_device = [one for one in task.schedule.by_device(np.arange(len(task.schedule))) if len(one)]

    def parts(cut: Callable[[np.ndarray], list[np.ndarray]]) -> list[_Part]:
        return [_Part(mine, _clock_rows(task, mine)) for one in by_device for mine in cut(one)]

    devices = parts(lambda one: [one])
    if not all(part.rows for part in devices):
        return
    fastest = np.concatenate([part.rows[0] for part in devices])
    inner = parts(lambda one: [one[1:-1]] if len(one) > 2 else [])
    phases = parts(lambda one: _phases(task, one))
    yield fastest
    for start in (_descend(task, devices, fastest), _descend(task, inner, fastest)):
        yield start
        yield _descend(task, phases, start)


class _Part(NamedTuple):
    """Instructions of one device that share a clock: their rows from the highest clock down."""

    mine: np.ndarray
    rows: list[np.ndarray]


def _phases(task: SwitchTask, mine: np.ndarray) -> list[np.ndarray]:
    """One device's first instruction, warm-up, steady state, drain and last instruction."""
    forward = task.schedule.kind[mine] == FORWARD
    warm = int(np.argmin(forward)) if not forward.all() else len(mine)
    drain = len(mine) - int(np.argmax(forward[::-1]))
    cuts = sorted({0, 1, warm, drain, len(mine) - 1, len(mine)})
    return [mine[a:b] for a, b in itertools.pairwise(cuts) if a < b]


def _clock_rows(task: SwitchTask, mine: np.ndarray) -> list[np.ndarray]:
    """Rows of these instructions at each clock at which all were measured, the highest first."""
    schedule, profile = task.schedule, task.profile
    works = list(zip(schedule.kind[mine].tolist(), schedule.stage[mine].tolist(), strict=True))
    rows = {work: profile.rows(work[1], KINDS[work[0]]) for work in set(works)}
    of = {
        work: dict(zip(profile.clock_mhz[r].tolist(), r.tolist(), strict=True))
        for work, r in rows.items()
    }
    common = set.intersection(*(set(one) for one in of.values()))
    return [np.array([of[work][c] for work in works]) for c in sorted(common, reverse=True)]


def _descend(task: SwitchTask, parts: list[_Part], row: np.ndarray) -> np.ndarray:
    """Slow parts down, the step that saves most first, as long as the plan stays in time.

    Offers wait in a heap and are looked at again when their turn comes; a last look at all of
    them finds those that have become better since.
    """
    row, least_j = row.copy(), task.energy_j(row)
    at = [
        next((k for k, rows in enumerate(part.rows) if (rows == row[part.mine]).all()), -1)
        for part in parts
    ]

    def offer(i: int) -> tuple[float, int, int] | None:
        """The best of a few steps down: energy change, part, and where it leads."""
        part, old = parts[i], row[parts[i].mine]
        steps = [at[i] + step for step in (1, 2, 4, 8) if 0 < at[i] + step < len(part.rows)]
        best = (0.0, i, -1)
        for k in steps if at[i] >= 0 else ():
            row[part.mine] = part.rows[k]
            best = min(best, (task.energy_j(row) - least_j, i, k))
        row[part.mine] = old
        return best if best[0] < 0 else None

    while heap := [one for one in map(offer, range(len(parts))) if one is not None]:
        heapq.heapify(heap)
        while heap:
            fresh = offer(heapq.heappop(heap)[1])
            if fresh is None:
                continue
            if heap and fresh > heap[0]:
                heapq.heappush(heap, fresh)
                continue
            change_j, i, at[i] = fresh
            least_j += change_j
            row[parts[i].mine] = parts[i].rows[at[i]]
            if (again := offer(i)) is not None:
                heapq.heappush(heap, again)
    return row


def _stretched(
    task: SwitchTask, each: list[Chain], method: str, network: Network | None
) -> Iterator[np.ndarray]:
    """Plans of a planner that knows of no switches, and those with messages timed as in them.

    An earlier deadline leaves the more room for switches, the more the plan is stretched.
    """
    schedule, profile, graph = task.schedule, task.profile, task.schedule.graph
    shortest_s = np.full((len(KINDS), profile.num_stages), np.inf)
    np.minimum.at(shortest_s, (profile.kind, profile.stage), profile.time_s)
    quickest = shortest_s[schedule.kind, schedule.stage]
    fastest_s = float(longest_to(graph, quickest, task.lag_s).max())
    for stretch in _STRETCH:
        earlier_s = task.deadline_s / stretch
        if earlier_s < fastest_s:
            return
        made = plan(schedule, profile, method, earlier_s, network=network)
        yield made.row
        duration = profile.time_s[made.row]
        end = longest_to(graph, duration, task.lag_s)
        # Lags do not stretch, so messages have a little more room than they need.
        start = end - duration
        factor = task.deadline_s / float(end.max())
        window = _windows(task, factor * start, factor * end, 0.5)
        yield _solve(task, each, window, made.row)


# --- fixed message times


class _Windows(NamedTuple):
    """For each instruction: when its input is there, and by when it must end."""

    release_s: np.ndarray
    due_s: np.ndarray


def _windows(task: SwitchTask, start_s: np.ndarray, end_s: np.ndarray, share: float) -> _Windows:
    """Message times for a timeline: each somewhere between its sender's end and the user's start.

    Args:
        share: 0 for as soon as the sender ends, 1 for as late as the user starts.
    """
    graph, n = task.schedule.graph, len(task.schedule)
    device = task.schedule.device
    lag = np.zeros(n) if task.lag_s is None else task.lag_s[1]
    user = np.flatnonzero(graph.needs < n)
    user = user[device[graph.needs[user]] != device[user]]
    sender = graph.needs[user]
    sent = end_s[sender] + share * np.maximum(start_s[user] - lag[user] - end_s[sender], 0.0)
    release, due = np.zeros(n), np.full(n, task.deadline_s)
    release[user] = sent + lag[user]
    np.minimum.at(due, sender, sent)
    return _Windows(release, due)


def _solve(task: SwitchTask, each: list[Chain], window: _Windows, row: np.ndarray) -> np.ndarray:
    """Every device's best clocks within its windows; ``row`` where it finds no better ones."""
    best = row.copy()
    for chain in each:
        found = chain.solve(window.release_s[chain.mine], window.due_s[chain.mine])
        if found is not None:
            best[chain.mine] = found
    return best


def _hand_round(
    task: SwitchTask, each: list[Chain], row: np.ndarray, num_rounds: int
) -> np.ndarray:
    """Improve a plan by giving its slack, round by round, to other instructions.

    Its own timeline is feasible as early as possible, as late as possible and anywhere between;
    each round takes another share, stretches it to the deadline, and keeps what the devices find
    where it saves energy.
    """
    graph = task.schedule.graph
    least_j, idle = task.energy_j(row), 0
    for turn in range(num_rounds):
        share = _SHARES[turn % len(_SHARES)]
        duration = task.durations_s(row)
        end = longest_to(graph, duration, task.lag_s)
        early, made_s = end - duration, float(end.max())
        late = made_s - longest_from(graph, duration, task.lag_s)
        start = early + share * np.maximum(late - early, 0.0)
        factor = max(1.0, task.deadline_s / made_s)
        window = _windows(task, factor * start, factor * (start + duration), 0.5)
        tried = _solve(task, each, window, row)
        energy_j = task.energy_j(tried)
        idle = 0 if energy_j < least_j * (1 - 1e-6) else idle + 1
        if energy_j < least_j:
            row, least_j = tried, energy_j
        if idle == len(_SHARES):
            break
    return row
