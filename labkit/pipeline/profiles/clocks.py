"""Clock tables every planner starts from, and what a choice of clocks costs.

A choice is one profile row for each instruction. Energy of an iteration, one GPU a device: every
instruction's measured energy, and the blocking power for all the time a GPU waits, that is
``sum_i (E_i - P_b t_i) + G P_b T``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import Lag, longest_to
from labkit.pipeline.scheduling.schedule import KINDS, Schedule

DEADLINE_TOLERANCE = 1e-9
"""Share of the deadline below which a lateness counts as floating-point noise."""


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """Says what a planner is asked for: a clock for every instruction, by a deadline.

    Attributes:
        schedule: what runs.
        profile: what each stage costs at each clock.
        deadline_s: latest end of the iteration; None for none.
        lag_s: waits for messages, see :func:`.graph.longest_to`; None for none.

    Raises:
        UsageError: the profile did not measure all that the schedule runs; says what is missing,
            and how to derive it.
    """

    schedule: Schedule
    profile: EnergyProfile
    deadline_s: float | None = None
    lag_s: Lag | None = None

    def __post_init__(self) -> None:
        schedule = self.schedule
        profile = self.profile
        if schedule.num_stages != profile.num_stages:
            raise UsageError(
                f"the schedule has {schedule.num_stages} stages, the profile {profile.num_stages}; "
                "profile.for_schedule(schedule) cuts measured stages into chunks, profile.restage "
                "makes a pipeline of another depth"
            )
        if lacking := sorted(schedule.works - set(profile.works())):
            kind, stage = lacking[0]
            raise UsageError(
                f"schedule {schedule.name!r} runs {KINDS[kind]!r} on stage {stage}, which the "
                "profile did not measure; profile.for_schedule(schedule) derives it from what was"
            )

    @property
    def waiting_w(self) -> float:
        """What all GPUs together draw while they wait."""
        return self.profile.blocking_power_w * self.schedule.num_devices

    def cost(self, row: np.ndarray) -> tuple[float, float]:
        """Find the makespan (s) and energy (J) of an iteration at the chosen rows."""
        duration_s = self.profile.time_s[row]
        net_j = self.profile.net_energy_j[row]
        makespan_s = float(longest_to(self.schedule.graph, duration_s, self.lag_s).max())
        return makespan_s, float(net_j.sum()) + self.waiting_w * makespan_s

    def in_time(self, makespan_s: float) -> bool:
        """Tell whether the deadline is kept, floating-point noise aside."""
        return self.deadline_s is None or makespan_s <= self.deadline_s * (1 + DEADLINE_TOLERANCE)


class Choice(NamedTuple):
    """What a planner returns: a profile row for each instruction, and the bound if it knows it."""

    row: np.ndarray
    bound_j: float | None = None


def max_clock_rows(profile: EnergyProfile) -> np.ndarray:
    """For each (kind, stage), find the profile's row of the highest clock; -1 where none was
    measured.
    """
    work = profile.kind * profile.num_stages + profile.stage
    return table_of(profile, np.unique(work, return_index=True)[1])


def valley_rows(profile: EnergyProfile) -> np.ndarray:
    """For each (kind, stage), find the row of the stage's energy-valley clock; -1 where there is
    none.
    """
    valley_mhz = [profile.valley_clock_mhz(stage) for stage in range(profile.num_stages)]
    rows = np.flatnonzero(profile.clock_mhz == np.array(valley_mhz)[profile.stage])
    return table_of(profile, rows)


def table_of(profile: EnergyProfile, rows: np.ndarray) -> np.ndarray:
    """Arrange rows of the profile by (kind, stage); -1 stands where none of them belongs."""
    table = np.full((len(KINDS), profile.num_stages), -1)
    table[profile.kind[rows], profile.stage[rows]] = rows
    return table
