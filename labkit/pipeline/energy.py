"""Clock plans for a pipeline: which clock each forward and backward runs at, and what it costs.

Energy of an iteration, one GPU a stage: every instruction's measured energy, and the blocking
power for all the time a GPU waits, that is ``sum_i (E_i - P_b t_i) + G P_b T``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.graph import longest_to
from labkit.pipeline.policies import build
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.relaxation import DEADLINE_TOLERANCE, check_stages, options, relax
from labkit.pipeline.rounding import realise
from labkit.pipeline.schedule import BACKWARD, FORWARD, KINDS, Schedule
from labkit.pipeline.timeline import Timeline, simulate

if TYPE_CHECKING:
    import pandas as pd

Reconfigure = Literal["balanced", "greedy", "none"]
Floor = Literal["energy", "above-waiting"]
_SETTINGS = {"envpipe": ("floor", "reconfigure")}


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """A clock for every instruction, and what follows from it.

    Attributes:
        method: the planner that made it.
        row: for each instruction, in the order of ``schedule.frame()``, its row of ``profile``.
        deadline_s: what the planner had to keep; None where it had no deadline.
        known_bound_j: ``bound_j``, where the planner computed it along the way.
    """

    schedule: Schedule
    profile: EnergyProfile
    method: str
    row: np.ndarray
    deadline_s: float | None = None
    known_bound_j: float | None = None

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.schedule, self.profile.time_s[self.row])

    @property
    def makespan_s(self) -> float:
        return self.timeline.makespan_s

    @property
    def energy_j(self) -> float:
        """Of one iteration, over all GPUs, waiting included."""
        return float(self.profile.net_energy_j[self.row].sum() + self.waiting_w * self.makespan_s)

    @property
    def waiting_w(self) -> float:
        """What all GPUs together draw while they wait."""
        return self.profile.blocking_power_w * self.schedule.num_devices

    @cached_property
    def bound_j(self) -> float:
        """The least energy of any plan that ends by ``horizon_s``.

        Over the profile's ``kept`` clocks, which under ``dominance="net"`` are all that can help.
        """
        if self.known_bound_j is not None:
            return self.known_bound_j
        return lower_bound_j(self.schedule, self.profile, self.horizon_s)

    @property
    def horizon_s(self) -> float:
        """The later of deadline and makespan."""
        return max(self.deadline_s or 0.0, self.makespan_s)

    @property
    def gap(self) -> float:
        """How far above the bound: 0.01 means at most 1 % more energy than the best plan."""
        return self.energy_j / self.bound_j - 1

    def frame(self) -> pd.DataFrame:
        """One row per instruction: the timeline's columns, clock_mhz, energy_j, power_w."""
        table = self.timeline.frame()
        energy, time = self.profile.energy_j[self.row], self.profile.time_s[self.row]
        return table.assign(
            clock_mhz=self.profile.clock_mhz[self.row], energy_j=energy, power_w=energy / time
        )


def plan(
    schedule: Schedule,
    profile: EnergyProfile,
    method: str = "optimal",
    deadline_s: float | None = None,
    **settings: Any,
) -> Plan:
    """Choose a clock for every instruction.

    Args:
        method: ``"max-clock"``: the highest measured clock throughout.
            ``"uniform"``: every stage at its energy-valley clock (the slow end of the paper's
            ablation). ``"zeus-global"``: the one clock for all stages that takes least energy
            within the deadline. ``"envpipe"``: see :func:`envpipe_rows`, which also describes
            its settings ``reconfigure`` and ``floor``.
            ``"optimal"``: the linear relaxation, rounded to measured clocks; ``gap`` certifies
            how near to the best it is.
        deadline_s: latest end of the iteration. None means the all-max-clock makespan for
            planners that need one, and no constraint for the others.

    Raises:
        UsageError: an unknown method or setting, stages that differ, or a deadline that cannot
            be met (by this method).
    """
    check_stages(schedule, profile)
    if method not in _METHODS:
        raise UsageError(f"no planner {method!r}; there are: {', '.join(_METHODS)}")
    if unknown := sorted(set(settings) - set(_SETTINGS.get(method, ()))):
        raise UsageError(f"planner {method!r} has no setting {unknown[0]!r}")
    if deadline_s is not None and not (np.isfinite(deadline_s) and deadline_s > 0):
        raise UsageError(f"deadline_s must be finite and > 0, found {deadline_s!r}")
    if deadline_s is None and method in _NEED_DEADLINE:
        deadline_s = _max_clock(schedule, profile).makespan_s
    made = replace(
        _METHODS[method](schedule, profile, deadline_s, **settings),
        method=method,
        deadline_s=deadline_s,
    )
    if deadline_s is not None and made.makespan_s > deadline_s * (1 + DEADLINE_TOLERANCE):
        raise UsageError(
            f"deadline_s = {deadline_s!r} cannot be met by planner {method!r}: "
            f"its plan needs {made.makespan_s:.9g} s"
        )
    return made


def lower_bound_j(schedule: Schedule, profile: EnergyProfile, deadline_s: float) -> float:
    """Energy that no plan ending by ``deadline_s`` can undercut (see ``relaxation``).

    Raises:
        UsageError: not even the fastest clocks meet the deadline, or stages differ.
    """
    return relax(schedule, profile, deadline_s, options(schedule, profile)).bound_j


def frontier(
    schedule: Schedule, profile: EnergyProfile, num_points: int = 40, method: str = "optimal"
) -> pd.DataFrame:
    """Plans for deadlines from the fastest possible to the one beyond which nothing is saved.

    Returns:
        One row per deadline: deadline_s, makespan_s, energy_j, bound_j.

    Raises:
        UsageError: ``num_points`` is below 2, or the method takes no deadline.
    """
    import pandas as pd

    if method not in _NEED_DEADLINE:
        raise UsageError(f"planner {method!r} has no frontier; {', '.join(_NEED_DEADLINE)} have")
    if num_points < 2:
        raise UsageError(f"num_points must be >= 2, found {num_points!r}")
    choices = options(schedule, profile)
    offered = choices.time_s[choices.of]
    slowest = np.where(np.isfinite(offered), offered, 0.0).max(axis=1)
    horizon_s = float(longest_to(schedule.graph, slowest).max())
    if method == "optimal":
        first_s = float(longest_to(schedule.graph, choices.fastest_s()).max())
    else:
        first_s = _max_clock(schedule, profile).makespan_s
    last_s = max(first_s, relax(schedule, profile, max(first_s, horizon_s), choices).makespan_s)
    rows = []
    for deadline_s in np.linspace(first_s, last_s, num_points):
        made = plan(schedule, profile, method, float(deadline_s))
        rows.append((float(deadline_s), made.makespan_s, made.energy_j, made.bound_j))
    return pd.DataFrame(rows, columns=["deadline_s", "makespan_s", "energy_j", "bound_j"])


def early_forwards(
    profile: EnergyProfile, num_microbatches: int, *, max_in_flight: int | None = None
) -> tuple[int, ...]:
    """How many forwards EnvPipe runs early on each stage, for ``build("envpipe", ...)``.

    As many as fit, at the energy-valley clock, into the wait for the first backward to come
    back at the maximum clock through the S - s - 1 later stages; no more than microbatches
    remain, than memory holds beside the S - s that 1F1B keeps, or than the stage before runs
    early (unless that one has all microbatches in flight).

    Args:
        max_in_flight: microbatches whose activations a device can hold; None for no limit.

    Source: EnvPipe (USENIX ATC 2023), scheduler; the public implementation counts so.
    """
    num_stages = profile.num_stages
    top, valley = max_clock_rows(profile), valley_rows(profile)
    counts: list[int] = []
    for stage in range(num_stages):
        ahead = num_stages - stage
        wait_s = (ahead - 1) * profile.time_s[top[BACKWARD, stage]]
        fit = int(wait_s / profile.time_s[valley[FORWARD, stage]] + 1e-9)
        room = num_microbatches if max_in_flight is None else min(max_in_flight, num_microbatches)
        count = max(0, min(fit, room - ahead))
        if counts and ahead + 1 + counts[-1] < num_microbatches:
            count = min(count, counts[-1])
        counts.append(count)
    return tuple(counts)


def build_for(
    profile: EnergyProfile, name: str, num_microbatches: int, *, max_in_flight: int | None = None
) -> Schedule:
    """The named schedule for a profile's stages, early forwards counted from its durations.

    Raises:
        UsageError: as :func:`labkit.pipeline.build`.
    """
    options: dict[str, Any] = {"max_in_flight": max_in_flight}
    if name == "envpipe":
        counts = early_forwards(profile, num_microbatches, max_in_flight=max_in_flight)
        options["early_forwards"] = counts
    return build(name, profile.num_stages, num_microbatches, **options)


def max_clock_rows(profile: EnergyProfile) -> np.ndarray:
    """Table (kind, stage) -> profile row of the highest clock; -1 where none was measured."""
    table = np.full((len(KINDS), profile.num_stages), -1)
    for kind, stage in profile.works():
        table[kind, stage] = profile.rows(stage, KINDS[kind])[0]
    return table


def valley_rows(profile: EnergyProfile, *, above_waiting: bool = False) -> np.ndarray:
    """Table (kind, stage) -> profile row of the stage's energy-valley clock; -1 where none."""
    table = np.full((len(KINDS), profile.num_stages), -1)
    for kind, stage in profile.works():
        clock = profile.valley_clock_mhz(stage, above_waiting=above_waiting)
        rows = profile.rows(stage, KINDS[kind])
        table[kind, stage] = rows[profile.clock_mhz[rows] == clock][0]
    return table


def outer_envelope(schedule: Schedule) -> np.ndarray:
    """Which instructions lie on EnvPipe's envelope, shape (n,).

    The first forward and the last backward of every stage, and all of the last stage: the
    critical path wherever the last stage is the heaviest.

    Source: EnvPipe (USENIX ATC 2023), planner.
    """
    first = (schedule.kind == FORWARD) & (schedule.microbatch == 0)
    last = (schedule.kind == BACKWARD) & (schedule.microbatch == schedule.num_microbatches - 1)
    return first | last | (schedule.stage == schedule.num_stages - 1)


def envpipe_rows(
    schedule: Schedule,
    profile: EnergyProfile,
    *,
    reconfigure: Reconfigure = "balanced",
    floor: Floor = "energy",
) -> np.ndarray:
    """EnvPipe's planner: a profile row for every instruction.

    The outer envelope runs at the maximum clock and all other units at their stage's energy
    valley. While some inner unit lies on the critical path, ``"balanced"`` raises those of its
    inner units that have the lowest clock by one step, ``"greedy"`` the one nearest to its end
    by three; ``"none"`` leaves the first plan as it is. ``floor`` says what the valley is the
    least of: the published planner's is energy; energy above waiting is what a pipeline saves.

    As described, reconfiguring ends when the critical path is the envelope. Where the last stage
    is not the heaviest that never comes about; the public implementation also stops when no unit
    of the path can go faster, and so do we. Clocks only rise, so it always ends, and then every
    unit of one longest path runs at the maximum clock: never slower than all at that clock.

    Ours differs in that the critical path is exact, from the simulated timeline, where a running
    system infers it from measured receive times; and a step is one clock of the profile.

    Source: EnvPipe (USENIX ATC 2023), planner; behaviour of the authors' public implementation.
    """
    if reconfigure not in ("balanced", "greedy", "none"):
        raise UsageError(f"reconfigure must be balanced, greedy or none, found {reconfigure!r}")
    if floor not in ("energy", "above-waiting"):
        raise UsageError(f"floor must be energy or above-waiting, found {floor!r}")
    envelope = outer_envelope(schedule)
    # Rows of one work stand in descending order of clock: one step up is one row less.
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    valley = valley_rows(profile, above_waiting=floor == "above-waiting")
    row = np.where(envelope, top, valley[schedule.kind, schedule.stage])
    while reconfigure != "none":
        path = _critical_path(schedule, profile.time_s[row])
        slow = path[(row[path] > top[path]) & ~envelope[path]]
        if not len(slow):
            break
        if reconfigure == "balanced":
            clock = profile.clock_mhz[row[slow]]
            row[slow[clock == clock.min()]] -= 1
        else:
            row[slow[0]] = max(row[slow[0]] - 3, top[slow[0]])
    return row


def _critical_path(schedule: Schedule, duration_s: np.ndarray) -> np.ndarray:
    """One longest path, last instruction first; where both waits are equal, along the device."""
    graph, n = schedule.graph, len(schedule.graph)
    end = np.append(longest_to(graph, duration_s), 0.0)
    path = [int(np.argmax(end))]
    while True:
        before, needs = int(graph.before[path[-1]]), int(graph.needs[path[-1]])
        previous = before if end[before] >= end[needs] else needs
        if previous == n:
            return np.array(path)
        path.append(previous)


def _plan(schedule: Schedule, profile: EnergyProfile, row: np.ndarray) -> Plan:
    return Plan(schedule=schedule, profile=profile, method="", row=row)


def _max_clock(schedule: Schedule, profile: EnergyProfile, deadline_s: float | None = None) -> Plan:
    table = max_clock_rows(profile)
    return _plan(schedule, profile, table[schedule.kind, schedule.stage])


def _uniform(schedule: Schedule, profile: EnergyProfile, deadline_s: float | None) -> Plan:
    table = valley_rows(profile)
    return _plan(schedule, profile, table[schedule.kind, schedule.stage])


def _envpipe(
    schedule: Schedule, profile: EnergyProfile, deadline_s: float | None, **settings: Any
) -> Plan:
    return _plan(schedule, profile, envpipe_rows(schedule, profile, **settings))


def _zeus_global(schedule: Schedule, profile: EnergyProfile, deadline_s: float | None) -> Plan:
    assert deadline_s is not None
    best: Plan | None = None
    fastest_s = np.inf
    for clock in np.unique(profile.clock_mhz):
        table = np.full((len(KINDS), profile.num_stages), -1)
        at_clock = np.flatnonzero(profile.clock_mhz == clock)
        table[profile.kind[at_clock], profile.stage[at_clock]] = at_clock
        if (table[schedule.kind, schedule.stage] < 0).any():
            continue  # not measured everywhere
        made = _plan(schedule, profile, table[schedule.kind, schedule.stage])
        fastest_s = min(fastest_s, made.makespan_s)
        if made.makespan_s <= deadline_s * (1 + DEADLINE_TOLERANCE) and (
            best is None or made.energy_j < best.energy_j
        ):
            best = made
    if best is None:
        raise UsageError(
            f"deadline_s = {deadline_s!r} cannot be met by one clock for all stages; the fastest "
            f"that is measured everywhere needs {fastest_s:.9g} s"
        )
    return best


def _optimal(schedule: Schedule, profile: EnergyProfile, deadline_s: float | None) -> Plan:
    assert deadline_s is not None
    choices = options(schedule, profile)
    relaxed = relax(schedule, profile, deadline_s, choices)
    waiting_w = profile.blocking_power_w * schedule.num_devices
    chosen = realise(schedule.graph, choices, relaxed, deadline_s, waiting_w)
    made = _plan(schedule, profile, choices.row[choices.of, chosen])
    return replace(made, known_bound_j=relaxed.bound_j)


_METHODS: dict[str, Callable[..., Plan]] = {
    "max-clock": _max_clock,
    "uniform": _uniform,
    "zeus-global": _zeus_global,
    "envpipe": _envpipe,
    "optimal": _optimal,
}
_NEED_DEADLINE = ("optimal", "zeus-global")
