"""What the clever planners are compared with: one clock for everything, chosen in simple ways."""

from __future__ import annotations

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.clocks import (
    DEADLINE_TOLERANCE,
    Choice,
    cost_of,
    max_clock_rows,
    valley_rows,
)
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.schedule import KINDS, Schedule


def choose_max_clock(
    schedule: Schedule, profile: EnergyProfile, deadline_s: float | None = None
) -> Choice:
    """The highest measured clock throughout."""
    return Choice(max_clock_rows(profile)[schedule.kind, schedule.stage])


def choose_uniform(
    schedule: Schedule, profile: EnergyProfile, deadline_s: float | None = None
) -> Choice:
    """Every stage at its energy-valley clock."""
    return Choice(valley_rows(profile)[schedule.kind, schedule.stage])


def choose_zeus_global(
    schedule: Schedule, profile: EnergyProfile, deadline_s: float | None
) -> Choice:
    """The one clock for all stages that takes least energy within the deadline.

    Raises:
        UsageError: no clock that is measured everywhere meets the deadline.
    """
    assert deadline_s is not None
    best: tuple[float, np.ndarray] | None = None
    fastest_s = np.inf
    for clock in np.unique(profile.clock_mhz):
        table = np.full((len(KINDS), profile.num_stages), -1)
        at_clock = np.flatnonzero(profile.clock_mhz == clock)
        table[profile.kind[at_clock], profile.stage[at_clock]] = at_clock
        row = table[schedule.kind, schedule.stage]
        if (row < 0).any():
            continue  # not measured everywhere
        makespan_s, energy_j = cost_of(schedule, profile, row)
        fastest_s = min(fastest_s, makespan_s)
        if makespan_s <= deadline_s * (1 + DEADLINE_TOLERANCE) and (
            best is None or energy_j < best[0]
        ):
            best = energy_j, row
    if best is None:
        raise UsageError(
            f"deadline_s = {deadline_s!r} cannot be met by one clock for all stages; the fastest "
            f"that is measured everywhere needs {fastest_s:.9g} s"
        )
    return Choice(best[1])
