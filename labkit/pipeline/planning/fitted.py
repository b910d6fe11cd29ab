"""Schedules made for a profile: orders that follow its durations, the profile cut to fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labkit.kit.describe import Count, checked
from labkit.pipeline.planning.envpipe import early_forwards
from labkit.pipeline.profiles.clocks import max_clock_rows
from labkit.pipeline.profiles.profile import EnergyProfile, Inner
from labkit.pipeline.scheduling.families import family_of
from labkit.pipeline.scheduling.policies import build
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule


@checked
def build_for(
    profile: EnergyProfile, name: str, num_microbatches: Count, **settings: Any
) -> Schedule:
    """The named schedule for a profile's stages, its order following their durations.

    Without chunks and backward halves the profile itself can be planned with; where the schedule
    has them, use :func:`fitted`.
    """
    return fitted(profile, name, num_microbatches, **settings)[0]


@checked
def fitted(
    profile: EnergyProfile,
    name: str,
    num_microbatches: Count,
    *,
    weight_fraction: Inner = 0.5,
    **settings: Any,
) -> tuple[Schedule, EnergyProfile]:
    """A named schedule over a profile's stages, and the profile cut and split as it runs them.

    Options that depend on durations (EnvPipe's early forwards, the orders of list schedulers)
    follow the profile's at the highest clock unless ``settings`` gives them.
    """
    whole = resolved(profile, name, num_microbatches, settings, weight_fraction)
    schedule = build(name, profile.num_stages, num_microbatches, **whole)
    return schedule, profile.for_schedule(schedule, weight_fraction)


def resolved(
    profile: EnergyProfile,
    name: str,
    num_microbatches: int,
    settings: Mapping[str, Any],
    weight_fraction: float = 0.5,
) -> dict[str, Any]:
    """``settings`` with what :func:`fitted` takes from the profile."""
    known = family_of(name).options
    complete = dict(settings)
    if "early_forwards" in known:
        limit = complete.get("max_in_flight")
        known_limit = limit if isinstance(limit, int) else None
        counts = early_forwards(profile, num_microbatches, max_in_flight=known_limit)
        complete.setdefault("early_forwards", counts)
    if "durations_s" in known and "durations_s" not in complete:
        even = build(name, profile.num_stages, num_microbatches, **complete)
        stages = profile.for_schedule(even, weight_fraction)
        complete["durations_s"] = _fastest_s(stages, weight_fraction)
    return complete


def _fastest_s(profile: EnergyProfile, weight_fraction: float) -> list[list[float]]:
    """Seconds of each stage's forward, input half and weight half at the highest clock."""
    top = max_clock_rows(profile)
    time_s = np.where(top >= 0, profile.time_s[top], np.nan)
    for half, share in ((INPUT, 1 - weight_fraction), (WEIGHT, weight_fraction)):
        time_s[half] = np.where(top[half] >= 0, time_s[half], share * time_s[BACKWARD])
    return [time_s[kind].tolist() for kind in (FORWARD, INPUT, WEIGHT)]
