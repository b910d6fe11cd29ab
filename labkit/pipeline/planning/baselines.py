"""What the clever planners are compared with: one clock for a whole GPU, chosen in simple ways.

Zeus tunes the power limit of one GPU. The Perseus artifact makes two baselines of it for a
pipeline; with a clock in the place of the power limit they are here. A GPU keeps its clock for the
whole iteration, whatever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.errors import UsageError
from labkit.kit.describe import Share, checked
from labkit.pipeline.profiles.clocks import Choice, Task, max_clock_rows, table_of, valley_rows
from labkit.pipeline.scheduling.schedule import FORWARD

Tables = list[dict[float, np.ndarray]]  # a device: clock -> its rows, one for each work it runs


def choose_max_clock(task: Task) -> Choice:
    """The highest measured clock throughout."""
    return Choice(max_clock_rows(task.profile)[task.schedule.kind, task.schedule.stage])


def choose_uniform(task: Task) -> Choice:
    """Every stage at its energy-valley clock."""
    return Choice(valley_rows(task.profile)[task.schedule.kind, task.schedule.stage])


@checked
def choose_zeus_global(task: Task, *, eta: Share = 0.5) -> Choice:
    """The one clock for all stages that takes least energy within the deadline.

    Without a deadline, the one of least Zeus cost (see :func:`zeus_cost_j`, also for ``eta``),
    where the highest power is the highest that was measured.

    Raises:
        UsageError: no clock that is measured everywhere meets the deadline.

    Source: Perseus (SOSP 2024) artifact, scheduler ZeusGlobalPowerLimit.
    """
    return _least(task, list(global_settings(task)), "one clock for all stages", eta)


@checked
def choose_zeus_local(task: Task, *, eta: Share = 0.5) -> Choice:
    """One clock for each device, balanced with the heaviest; which, is chosen as above.

    The candidates are those of :func:`local_settings`. Stages slowed to the heaviest one's pace
    fill and drain the pipeline more slowly, so "as fast as at the highest clock" can rarely be met.

    Raises:
        UsageError: no candidate meets the deadline.
    """
    what = "one clock a device, balanced with the heaviest"
    return _least(task, list(local_settings(task)), what, eta)


def zeus_cost_j(
    makespan_s: np.ndarray,
    energy_j: np.ndarray,
    *,
    num_devices: int,
    max_power_w: float,
    eta: float = 0.5,
) -> np.ndarray:
    """Zeus's cost of an iteration: eta * energy + (1 - eta) * devices * highest power * time.

    Source: Zeus (NSDI 2023), over all GPUs of the pipeline; the Perseus artifact picks its
    ``optimal_power_limit`` so with eta = 0.5.
    """
    return eta * energy_j + (1 - eta) * num_devices * max_power_w * makespan_s


def global_settings(task: Task) -> Iterator[np.ndarray]:
    """Rows for every clock that is measured everywhere, set on all GPUs: the highest first."""
    tables = _clock_tables(task)
    common = set.intersection(*map(set, tables))
    if not common:
        raise UsageError("no clock was measured for all that the schedule runs")
    for clock in sorted(common, reverse=True):
        yield _setting(task, tables, np.full(len(tables), clock))


def local_settings(task: Task) -> Iterator[np.ndarray]:
    """Rows for every clock of the heaviest device, from the highest down, all others balanced.

    The heaviest takes longest for the forwards of one microbatch (of all its stages) at the
    highest clock. Every other device gets, among the clocks no higher than the heaviest one's and
    its own last one, that with which its forwards take as nearly as long; of equals the lower
    clock. It ends with the first setting in which some device runs at its lowest clock.

    Source: the Perseus artifact's ZeusLocalPowerState ("Zeus per stage" in the paper), which steps
    down from limit to limit until the distance grows: where times rise as clocks fall, the nearest.
    """
    tables = _clock_tables(task)
    profile = task.profile
    forward_s = np.where(profile.kind == FORWARD, profile.time_s, 0.0)
    times = [{mhz: float(forward_s[rows].sum()) for mhz, rows in t.items()} for t in tables]
    heaviest = int(np.argmax([table[max(table)] for table in times]))
    ceiling = np.array([max(table) for table in times])
    for clock, target_s in sorted(times[heaviest].items(), reverse=True):
        ceiling = np.minimum(ceiling, clock)
        for device, table in enumerate(times):
            if device != heaviest:
                ceiling[device] = _balanced(table, ceiling[device], target_s)
        yield _setting(task, tables, ceiling)
        if any(ceiling[device] <= min(table) for device, table in enumerate(times)):
            return


def _balanced(time_s: dict[float, float], ceiling_mhz: float, target_s: float) -> float:
    """The clock up to the ceiling whose time is nearest to the target."""
    allowed = [clock for clock in sorted(time_s) if clock <= ceiling_mhz] or [min(time_s)]
    return min(allowed, key=lambda clock: abs(time_s[clock] - target_s))


def _clock_tables(task: Task) -> Tables:
    schedule = task.schedule
    profile = task.profile
    tables = []
    for device in range(schedule.num_devices):
        mine = schedule.device == device
        works = set(zip(schedule.stage[mine].tolist(), schedule.kind[mine].tolist(), strict=True))
        rows = profile.rows_together(sorted(works))
        if not rows.size:
            raise UsageError(f"the works of device {device} were measured at no common clock")
        tables.append(dict(zip(profile.clock_mhz[rows[0]].tolist(), rows.T, strict=True)))
    return tables


def _setting(task: Task, tables: Tables, clock_mhz: np.ndarray) -> np.ndarray:
    """The profile row of each instruction where every device runs at its clock."""
    schedule = task.schedule
    row = np.empty(len(schedule), dtype=int)
    for device, clock in enumerate(clock_mhz.tolist()):
        mine = schedule.device == device
        table = table_of(task.profile, tables[device][clock])
        row[mine] = table[schedule.kind[mine], schedule.stage[mine]]
    return row


def _least(task: Task, settings: list[np.ndarray], what: str, eta: float) -> Choice:
    """The candidate of least energy by the deadline, or of least Zeus cost without one."""
    time_s, energy_j = np.array([task.cost(row) for row in settings]).T
    if task.deadline_s is None:
        power_w = float((task.profile.energy_j / task.profile.time_s).max())
        devices = task.schedule.num_devices
        cost = zeus_cost_j(time_s, energy_j, num_devices=devices, max_power_w=power_w, eta=eta)
    else:
        cost = np.where([task.in_time(t) for t in time_s], energy_j, np.inf)
        if not np.isfinite(cost).any():
            raise UsageError(
                f"deadline_s = {task.deadline_s!r} cannot be met by {what}; the fastest that is "
                f"measured everywhere needs {time_s.min():.9g} s"
            )
    return Choice(settings[int(np.argmin(cost))])
