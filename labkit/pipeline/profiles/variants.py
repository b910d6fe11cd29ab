"""Profiles derived from measured ones: smoothed, split, joined, cut into chunks.

The public functions are methods of :class:`.profile.EnergyProfile`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Gt, Lt

from labkit.errors import UsageError
from labkit.kit.describe import checked
from labkit.pipeline.scheduling.schedule import BACKWARD, INPUT, KINDS, WEIGHT, Schedule

if TYPE_CHECKING:
    from labkit.pipeline.profiles.profile import EnergyProfile

Inner = Annotated[float, Gt(0), Lt(1)]
"""A share that leaves something on both sides."""


def smoothed(profile: EnergyProfile) -> EnergyProfile:
    """The same clocks, times and energies without the noise of measuring.

    For each stage and kind two least-squares fits of relative error, under no other assumption
    than a shape:

    - time falls with the clock, ever more slowly (decreasing and convex): true of work that takes
      a + b / f, and of a power cap, above which a higher clock changes nothing;
    - energy is a convex function of that time: each further second saves less than the one
      before, beyond the energy valley it costs ever more.

    Nothing is left to tune, and data of that shape are returned as they are. Neither a formula
    for power nor Perseus's exponential is imposed, since both miss the plateau of a capped GPU.

    Raises:
        UsageError: a fit is not positive, so wide is the scatter.
    """
    time, energy = profile.time_s.copy(), profile.energy_j.copy()
    for kind, stage in profile.works():
        rows = profile.rows(stage, KINDS[kind])
        time[rows] = _convex_fit(-profile.clock_mhz[rows], time[rows], rising=True)
        energy[rows] = _convex_fit(time[rows], energy[rows])
        if min(time[rows].min(), energy[rows].min()) <= 0:
            raise UsageError(
                f"stage {stage} {KINDS[kind]}: measurements scatter too widely to be smoothed"
            )
    moved_time = np.abs(time / profile.time_s - 1).max()
    moved_energy = np.abs(energy / profile.energy_j - 1).max()
    return profile._with_rows(
        f"times and energies are smoothed, changed by at most {moved_time:.2%} and "
        f"{moved_energy:.2%}",
        time_s=time,
        energy_j=energy,
    )


def _convex_fit(x: np.ndarray, y: np.ndarray, *, rising: bool = False) -> np.ndarray:
    """Convex function of ``x`` nearest to ``y`` in relative least squares, at ``x``.

    A convex function through sorted points is a constant, a slope, and a hinge at each inner
    point with a weight >= 0; ``rising`` keeps the slope >= 0 as well.
    """
    from scipy.optimize import nnls

    knots = np.unique(x)
    if len(knots) == 1:
        weight = 1 / y**2
        return np.full(len(y), (weight * y).sum() / weight.sum())
    scaled, knots = (x - knots[0]) / np.ptp(knots), (knots - knots[0]) / np.ptp(knots)
    columns = [np.ones(len(x)), -np.ones(len(x)), scaled]
    columns += [] if rising else [-scaled]
    columns += [np.maximum(scaled - knot, 0) for knot in knots[1:-1]]
    matrix = np.stack(columns, axis=1)
    solution, _ = nnls(matrix / y[:, None], np.ones(len(y)), maxiter=100 * matrix.shape[1])
    return matrix @ solution


@checked
def split_backward(profile: EnergyProfile, weight_fraction: Inner = 0.5) -> EnergyProfile:
    """With input and weight halves, assumed to be a fixed share of the full backward.

    Full backward rows stay; halves that were measured stay as they are. ``weight_fraction``: the
    weight half's share of both time and energy, at every clock.
    """
    measured, every = set(profile.works()), len(profile.kept)
    row, kind, factor = [np.arange(every)], [profile.kind], [np.ones(every)]
    for half, share in ((INPUT, 1 - weight_fraction), (WEIGHT, weight_fraction)):
        lacking = [s for s in range(profile.num_stages) if (half, s) not in measured]
        rows = np.flatnonzero((profile.kind == BACKWARD) & np.isin(profile.stage, lacking))
        row.append(rows)
        kind.append(np.full(len(rows), half))
        factor.append(np.full(len(rows), share))
    source, scale = np.concatenate(row), np.concatenate(factor)
    if len(source) == every:
        return profile
    return profile._with_rows(
        f"the weight half takes {weight_fraction:g} of a full backward's time and energy at every "
        "clock, the input half the rest",
        row=source,
        kind=np.concatenate(kind),
        factor=scale,
    )


def join_backward(profile: EnergyProfile) -> EnergyProfile:
    """With a full backward for each stage that has only its halves: their sum, at one clock."""
    measured = set(profile.works())
    stages = [s for s in range(profile.num_stages) if (BACKWARD, s) not in measured]
    _, first, second = np.concatenate([profile._whole_stage(s) for s in stages], axis=1)
    both = {name: getattr(profile, name) for name in ("time_s", "energy_j")}
    return profile._with_rows(
        "a full backward takes the time and energy of its halves at one clock",
        row=np.append(np.arange(len(profile.kept)), first),
        kind=np.append(profile.kind, np.full(len(first), BACKWARD)),
        **{name: np.append(x, x[first] + x[second]) for name, x in both.items()},
    )


def _cut(profile: EnergyProfile, devices: list[int]) -> EnergyProfile:
    """The profile of chunks that lie on these devices, each device's work shared equally."""
    counts = np.bincount(devices, minlength=profile.num_stages)
    cut = profile.restage(devices, scale=(1 / counts[devices]).tolist())
    held = sorted(set(counts.tolist()))
    assumed = (
        f"a device's work is shared equally by its {' or '.join(map(str, held))} chunks: each "
        "takes that part of the measured stage's time and energy at every clock"
    )
    return replace(cut, assumptions=(*cut.assumptions, assumed))


@checked
def for_schedule(
    profile: EnergyProfile, schedule: Schedule, weight_fraction: Inner = 0.5
) -> EnergyProfile:
    """Whatever ``schedule`` runs, derived from what was measured.

    Stages are cut where each device holds several, the backward pass is split or joined where
    the schedule runs what was not measured; ``assumptions`` says what was assumed. A profile
    that already fits is returned as it is.

    Raises:
        UsageError: the schedule has another depth, or a stage is spread over devices.
    """
    if schedule.num_stages != profile.num_stages:
        profile = _cut(profile, _devices(profile, schedule))
    lacks = schedule.works - set(profile.works())
    if any(kind in (INPUT, WEIGHT) for kind, _ in lacks):
        profile = split_backward(profile, weight_fraction)
    if any(kind == BACKWARD for kind, _ in lacks):
        profile = join_backward(profile)
    return profile


def _devices(profile: EnergyProfile, schedule: Schedule) -> list[int]:
    """The one device that holds each stage of a schedule of chunks."""
    if schedule.num_devices != profile.num_stages:
        raise UsageError(
            f"the schedule runs {schedule.num_stages} stages on {schedule.num_devices} devices, "
            f"the profile measured {profile.num_stages}; EnergyProfile.restage makes a profile of "
            "another depth"
        )
    pairs = np.unique(np.stack([schedule.stage, schedule.device]), axis=1)
    if pairs.shape[1] != schedule.num_stages:
        twice = int(pairs[0, np.flatnonzero(np.diff(pairs[0]) == 0)[0]])
        raise UsageError(
            f"stage {twice} lies on several devices; a profile can be cut into chunks only where "
            "each stage lies on one"
        )
    return [int(device) for device in pairs[1]]
