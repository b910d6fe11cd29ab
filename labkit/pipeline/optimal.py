"""The planner ours: the linear relaxation's plan, rounded to measured clocks, and its frontier."""

from __future__ import annotations

import numpy as np

from labkit.pipeline.clocks import Choice
from labkit.pipeline.graph import longest_to
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.relaxation import options, relax
from labkit.pipeline.rounding import realise
from labkit.pipeline.schedule import Schedule


def choose_optimal(schedule: Schedule, profile: EnergyProfile, deadline_s: float | None) -> Choice:
    """Near the least energy by the deadline; the bound certifies how near."""
    assert deadline_s is not None
    choices = options(schedule, profile)
    relaxed = relax(schedule, profile, deadline_s, choices)
    waiting_w = profile.blocking_power_w * schedule.num_devices
    chosen = realise(schedule.graph, choices, relaxed, deadline_s, waiting_w)
    return Choice(choices.row[choices.of, chosen], relaxed.bound_j)


def lower_bound_j(schedule: Schedule, profile: EnergyProfile, deadline_s: float) -> float:
    """Energy that no plan ending by ``deadline_s`` can undercut (see ``relaxation``).

    Raises:
        UsageError: not even the fastest clocks meet the deadline, or stages differ.
    """
    return relax(schedule, profile, deadline_s, options(schedule, profile)).bound_j


def deadline_range_s(schedule: Schedule, profile: EnergyProfile) -> tuple[float, float]:
    """The shortest deadline that can be met, and the one beyond which nothing is saved."""
    choices = options(schedule, profile)
    offered = choices.time_s[choices.of]
    slowest = np.where(np.isfinite(offered), offered, 0.0).max(axis=1)
    first_s = float(longest_to(schedule.graph, choices.fastest_s()).max())
    horizon_s = float(longest_to(schedule.graph, slowest).max())
    return first_s, max(first_s, relax(schedule, profile, horizon_s, choices).makespan_s)
