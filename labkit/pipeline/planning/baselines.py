"""What the clever planners are compared with: one clock for a whole GPU, chosen in simple ways.

Zeus tunes the power limit of one GPU. The Perseus artifact makes two baselines of it for a
pipeline; with a clock in the place of the power limit they are here. A GPU keeps its clock for the
whole iteration, whatever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.profiles.clocks import (
    DEADLINE_TOLERANCE,
    Choice,
    cost_of,
    max_clock_rows,
    valley_rows,
)
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import Lag
from labkit.pipeline.scheduling.schedule import FORWARD, KINDS, Schedule

if TYPE_CHECKING:
    import pandas as pd

Balance = Literal["nearest", "not-slower"]
Phase = Literal["forward", "backward", "both"]
Tables = list[dict[float, np.ndarray]]  # a device: clock -> its rows, one for each work it runs


class Setting(NamedTuple):
    """One clock for each device, and what an iteration at these clocks costs."""

    clock_mhz: np.ndarray  # (device,)
    row: np.ndarray  # (n,) profile row of each instruction
    makespan_s: float
    energy_j: float


def choose_max_clock(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None = None,
    *,
    lag_s: Lag | None = None,
) -> Choice:
    """The highest measured clock throughout."""
    return Choice(max_clock_rows(profile)[schedule.kind, schedule.stage])


def choose_uniform(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None = None,
    *,
    lag_s: Lag | None = None,
) -> Choice:
    """Every stage at its energy-valley clock."""
    return Choice(valley_rows(profile)[schedule.kind, schedule.stage])


def choose_zeus_global(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None = None,
    *,
    lag_s: Lag | None = None,
    eta: float = 0.5,
    max_power_w: float | None = None,
) -> Choice:
    """The one clock for all stages that takes least energy within the deadline.

    Without a deadline, the one of least Zeus cost (see :func:`zeus_cost_j`, also for ``eta`` and
    ``max_power_w``).

    Raises:
        UsageError: no clock that is measured everywhere meets the deadline.

    Source: Perseus (SOSP 2024) artifact, scheduler ZeusGlobalPowerLimit.
    """
    settings = list(_global_settings(schedule, profile, lag_s))
    what = "one clock for all stages"
    return _chosen(settings, schedule, profile, deadline_s, what, eta, max_power_w)


def choose_zeus_local(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None = None,
    *,
    lag_s: Lag | None = None,
    balance: Balance = "nearest",
    phase: Phase = "forward",
    eta: float = 0.5,
    max_power_w: float | None = None,
) -> Choice:
    """One clock for each device, balanced with the heaviest; which, is chosen as above.

    The candidates are those of :func:`zeus_local_settings`. All stages slowed to the heaviest
    one's pace fill and drain the pipeline more slowly than at the highest clock, so the deadline
    "as fast as at the highest clock" is one that this planner can rarely meet.

    Raises:
        UsageError: no candidate meets the deadline.
    """
    settings = list(_local_settings(schedule, profile, lag_s, balance, phase))
    what = "one clock a device, balanced with the heaviest"
    return _chosen(settings, schedule, profile, deadline_s, what, eta, max_power_w)


def zeus_global_settings(
    schedule: Schedule, profile: EnergyProfile, *, lag_s: Lag | None = None
) -> pd.DataFrame:
    """Every clock that is measured everywhere, set on all GPUs: the highest first.

    Returns:
        Columns clock_mhz_0, clock_mhz_1, ... (one a device), makespan_s, energy_j; the structure
        of the Perseus artifact's ``zeus_global.csv``.
    """
    return _settings_frame(_global_settings(schedule, profile, lag_s))


def zeus_local_settings(
    schedule: Schedule,
    profile: EnergyProfile,
    *,
    lag_s: Lag | None = None,
    balance: Balance = "nearest",
    phase: Phase = "forward",
) -> pd.DataFrame:
    """For every clock of the heaviest device, from the highest down, all others balanced with it.

    The heaviest device is the one that takes longest for the ``phase`` of one microbatch (all the
    stages it holds) at the highest clock. Every other device gets, among the clocks no higher
    than the heaviest one's and no higher than its own last one, that with which its phase takes

    - ``"nearest"``: as nearly as long as the heaviest device's; of equals the lower clock. So the
      artifact's scheduler ZeusLocalPowerState does it ("Zeus per stage" in the paper), which
      steps down from limit to limit until the distance grows; where times rise as clocks fall
      the nearest is what it finds. A device may then be slower than the heaviest.
    - ``"not-slower"``: as long as possible without being longer. Where even the highest allowed
      clock is slower, that one.

    It ends with the first setting in which some device runs at its lowest clock.

    Args:
        phase: what is balanced; the artifact balances ``"forward"``.

    Returns:
        Columns clock_mhz_0, ... (one a device), makespan_s, energy_j, heaviest_device,
        heaviest_clock_mhz; the structure of the Perseus artifact's ``zeus_local.csv``.

    Raises:
        UsageError: an unknown balance or phase, or a device whose works were measured at no
            common clock.
    """
    table = _settings_frame(_local_settings(schedule, profile, lag_s, balance, phase))
    heaviest = _heaviest(_phase_times(profile, _clock_tables(schedule, profile), phase))
    table["heaviest_device"] = heaviest
    table["heaviest_clock_mhz"] = table[f"clock_mhz_{heaviest}"]
    return table


def zeus_cost_j(
    makespan_s: np.ndarray | float,
    energy_j: np.ndarray | float,
    *,
    num_devices: int,
    max_power_w: float,
    eta: float = 0.5,
) -> np.ndarray | float:
    """Zeus's cost of an iteration: eta * energy + (1 - eta) * devices * highest power * time.

    Args:
        eta: 1 counts energy alone, 0 time alone.
        max_power_w: highest power of a GPU, which makes joules of seconds.

    Source: Zeus (NSDI 2023), over all GPUs of the pipeline; the Perseus artifact picks its
    ``optimal_power_limit`` so with eta = 0.5.
    """
    if not 0 <= eta <= 1:
        raise UsageError(f"eta must lie between 0 and 1, found {eta!r}")
    return eta * energy_j + (1 - eta) * num_devices * max_power_w * makespan_s


def _global_settings(
    schedule: Schedule, profile: EnergyProfile, lag_s: Lag | None
) -> Iterator[Setting]:
    tables = _clock_tables(schedule, profile)
    for clock in sorted(set.intersection(*(set(table) for table in tables)), reverse=True):
        clocks = np.full(schedule.num_devices, clock)
        yield _setting(schedule, profile, tables, clocks, lag_s)


def _local_settings(
    schedule: Schedule,
    profile: EnergyProfile,
    lag_s: Lag | None,
    balance: Balance,
    phase: Phase,
) -> Iterator[Setting]:
    if balance not in ("nearest", "not-slower"):
        raise UsageError(f"balance must be 'nearest' or 'not-slower', found {balance!r}")
    tables = _clock_tables(schedule, profile)
    times = _phase_times(profile, tables, phase)
    heaviest = _heaviest(times)
    ceiling = np.array([max(table) for table in times])
    for clock, target_s in sorted(times[heaviest].items(), reverse=True):
        ceiling = np.minimum(ceiling, clock)
        for device, table in enumerate(times):
            if device != heaviest:
                ceiling[device] = _balanced(table, ceiling[device], target_s, balance)
        yield _setting(schedule, profile, tables, ceiling.copy(), lag_s)
        if any(ceiling[device] <= min(table) for device, table in enumerate(times)):
            return


def _balanced(
    time_s: dict[float, float], ceiling_mhz: float, target_s: float, balance: Balance
) -> float:
    """The clock up to the ceiling whose time is balanced with the target."""
    allowed = [clock for clock in sorted(time_s) if clock <= ceiling_mhz] or [min(time_s)]
    if balance == "not-slower":
        quick = [clock for clock in allowed if time_s[clock] <= target_s]
        return max(quick, key=lambda clock: (time_s[clock], -clock)) if quick else allowed[-1]
    return min(allowed, key=lambda clock: abs(time_s[clock] - target_s))


def _phase_times(profile: EnergyProfile, tables: Tables, phase: Phase) -> list[dict[float, float]]:
    """For each device, clock -> seconds that the phase of one microbatch takes there."""
    if phase not in ("forward", "backward", "both"):
        raise UsageError(f"phase must be forward, backward or both, found {phase!r}")
    return [
        {clock: _phase_time(profile, rows, phase) for clock, rows in table.items()}
        for table in tables
    ]


def _phase_time(profile: EnergyProfile, rows: np.ndarray, phase: Phase) -> float:
    forward = profile.kind[rows] == FORWARD
    counted = {"forward": forward, "backward": ~forward, "both": forward | ~forward}[phase]
    return float(profile.time_s[rows[counted]].sum())


def _heaviest(times: list[dict[float, float]]) -> int:
    """The device that takes longest at its highest clock; of equals the first."""
    return int(np.argmax([table[max(table)] for table in times]))


def _clock_tables(schedule: Schedule, profile: EnergyProfile) -> Tables:
    tables = []
    for device in range(schedule.num_devices):
        mine = schedule.device == device
        works = set(zip(schedule.stage[mine].tolist(), schedule.kind[mine].tolist(), strict=True))
        rows = [profile.rows(stage, KINDS[kind]) for stage, kind in sorted(works)]
        common = set.intersection(*(set(profile.clock_mhz[r].tolist()) for r in rows))
        if not common:
            raise UsageError(f"the works of device {device} were measured at no common clock")
        kept = [r[np.isin(profile.clock_mhz[r], list(common))] for r in rows]  # highest first
        tables.append(dict(zip(sorted(common, reverse=True), np.array(kept).T, strict=True)))
    return tables


def _setting(
    schedule: Schedule,
    profile: EnergyProfile,
    tables: Tables,
    clock_mhz: np.ndarray,
    lag_s: Lag | None,
) -> Setting:
    row = np.empty(len(schedule), dtype=int)
    for device, clock in enumerate(clock_mhz.tolist()):
        rows = tables[device][clock]
        table = np.full((len(KINDS), profile.num_stages), -1)
        table[profile.kind[rows], profile.stage[rows]] = rows
        mine = schedule.device == device
        row[mine] = table[schedule.kind[mine], schedule.stage[mine]]
    return Setting(clock_mhz, row, *cost_of(schedule, profile, row, lag_s))


def _settings_frame(settings: Iterator[Setting]) -> pd.DataFrame:
    import pandas as pd

    made = list(settings)
    table = pd.DataFrame(np.array([one.clock_mhz for one in made]))
    table.columns = [f"clock_mhz_{device}" for device in table.columns]
    table["makespan_s"] = [one.makespan_s for one in made]
    table["energy_j"] = [one.energy_j for one in made]
    return table


def _chosen(
    settings: list[Setting],
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None,
    what: str,
    eta: float,
    max_power_w: float | None,
) -> Choice:
    """The candidate of least energy by the deadline, or of least Zeus cost without one."""
    if not settings:
        raise UsageError("no clock was measured for all that the schedule runs")
    if deadline_s is None:
        highest_w = float((profile.energy_j / profile.time_s).max())
        power_w = highest_w if max_power_w is None else max_power_w

        def cost_j(one: Setting) -> float:
            return float(
                zeus_cost_j(
                    one.makespan_s,
                    one.energy_j,
                    num_devices=schedule.num_devices,
                    max_power_w=power_w,
                    eta=eta,
                )
            )

        return Choice(min(settings, key=cost_j).row)
    latest_s = deadline_s * (1 + DEADLINE_TOLERANCE)
    in_time = [one for one in settings if one.makespan_s <= latest_s]
    if not in_time:
        fastest_s = min(one.makespan_s for one in settings)
        raise UsageError(
            f"deadline_s = {deadline_s!r} cannot be met by {what}; the fastest that is measured "
            f"everywhere needs {fastest_s:.9g} s"
        )
    return Choice(min(in_time, key=lambda one: one.energy_j).row)
