"""Which power limit to run at, given what an epoch (or any slice of work) takes at each.

Four ways to decide: least cost (:func:`cost_j`), least energy, least time, or the lowest limit
that is at most ``max_slowdown`` slower than the highest. Ties go to the highest limit.

A just-in-time profile measures each limit on a slice of real work. The slices are part of the run:
nothing is thrown away, and what profiling costs is only what the slices at the other limits took
beyond the limit that was chosen.

Source: Zeus (NSDI'23), §4.2 (the profile).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import NonNegative, Positive, Share, checked, description
from labkit.kit.rules import MOST

Selector = Literal["cost", "energy", "time", "max-slowdown"]
"""Source: zeus-ml's ``zeus.optimizer.power_limit`` offers the same four."""


@checked
def cost_j(
    energy_j: ArrayLike, time_s: ArrayLike, *, eta: Share, max_power_w: Positive
) -> NDArray[np.float64]:
    """Weigh energy against time as Zeus does: η·energy + (1 − η)·MaxPower·time, in joules.

    η = 1 counts energy alone, η = 0 time alone (charged at the GPU's highest power limit so that
    both terms are joules).

    Args:
        energy_j, time_s: of the same work; arrays broadcast.
        eta: the weight η of energy, 0 to 1.
        max_power_w: MaxPower, the GPU's highest power limit.

    Source: Zeus §2.3, Eq. 2.

    >>> cost_j([1000.0], [10.0], eta=0.5, max_power_w=250.0).item()
    1750.0
    """
    _check_measured(energy_j, time_s)
    return eta * np.asarray(energy_j) + (1 - eta) * max_power_w * np.asarray(time_s)


def _check_measured(energy_j: ArrayLike, time_s: ArrayLike) -> None:
    """Refuse arrays that do not go together, and what no unit makes joules or seconds."""
    try:
        np.broadcast_shapes(np.shape(energy_j), np.shape(time_s))
    except ValueError:
        raise BadValue(
            f"energy_j and time_s must broadcast; got shapes {np.shape(energy_j)} and "
            f"{np.shape(time_s)}"
        ) from None
    for name, values in (("energy_j", energy_j), ("time_s", time_s)):
        sizes = np.abs(np.asarray(values, dtype=float))
        if ((sizes > MOST) & np.isfinite(sizes)).any():
            raise BadValue(f"{name} must hold numbers up to {MOST:g}")


@checked
def select_limits(
    time_s: ArrayLike,
    energy_j: ArrayLike,
    *,
    max_power_w: Positive,
    selector: Selector = "cost",
    eta: Share = 0.5,
    max_slowdown: NonNegative | None = None,
) -> NDArray[np.intp]:
    """Find the index of the power limit to run at, for each row of measurements.

    Args:
        time_s, energy_j: of the same work at each limit, ascending along the last axis; NaN where a
            limit was not measured, which is never chosen.
        max_power_w: the highest limit, which ``cost`` charges time at.
        selector: what is least at the chosen limit: ``cost``, ``energy`` or ``time``;
            ``max-slowdown`` takes the lowest limit that is hardly slower than the highest.
        eta: weight of energy against time, for ``cost``.
        max_slowdown: for ``max-slowdown``, which needs it: 0.05 allows 5 % more time than at the
            highest limit that was measured.

    Raises:
        UsageError: a knob is missing or belongs to another selector, or a row has no measurement.

    >>> select_limits([4.0, 3.0, 2.9], [300.0, 310.0, 400.0], max_power_w=150, selector="energy")
    array(0)
    """
    check_selector(selector, max_slowdown)
    time = np.asarray(time_s, dtype=float)
    energy = np.asarray(energy_j, dtype=float)
    if time.shape != energy.shape or not time.ndim or not time.size:
        raise BadValue(
            "time_s and energy_j must hold one value each for every power limit, got shapes "
            f"{time.shape} and {energy.shape}"
        )
    known = ~(np.isnan(time) | np.isnan(energy))
    if not known.any(axis=-1).all():
        raise BadValue("time_s and energy_j must be known at one power limit or more of each row")
    if selector == "max-slowdown":
        assert max_slowdown is not None
        highest = known.shape[-1] - 1 - known[..., ::-1].argmax(axis=-1)
        at_highest = np.take_along_axis(time, np.expand_dims(highest, -1), axis=-1)
        allowed = known & (time <= (1 + max_slowdown) * at_highest)
        return np.asarray(allowed.argmax(axis=-1))
    cost = cost_j(energy, time, eta=eta, max_power_w=max_power_w)
    value = np.where(known, {"cost": cost, "energy": energy, "time": time}[selector], np.inf)
    return np.asarray(value.shape[-1] - 1 - value[..., ::-1].argmin(axis=-1))


def check_selector(selector: Selector, max_slowdown: float | None) -> None:
    """Refuse a selector without its knob, or the knob of another one."""
    if (max_slowdown is None) == (selector == "max-slowdown"):
        raise UsageError(
            "selector 'max-slowdown' needs max_slowdown, such as 0.05 for 5 % slower"
            if max_slowdown is None
            else f"max_slowdown {max_slowdown:g} is for selector 'max-slowdown', not {selector!r}"
        )


# ---------------------------------------------------------------- just in time


@description(slots=True)
class Slice:
    """What a slice of work took under one power limit; slices that are compared do equal work."""

    power_limit_w: Positive
    time_s: Positive
    energy_j: Positive


@checked
def profile_limits(
    run_slice: Callable[[float], Slice], power_limits_w: Iterable[float]
) -> tuple[Slice, ...]:
    """Run a slice of work at each power limit, from the highest down, and return them ascending.

    Args:
        run_slice: does a slice of work at a limit (W), always the same amount, and says what it
            took.
        power_limits_w: the limits to try, in any order.

    Source: Zeus §4.2 (the just-in-time profile).
    """
    return tuple(map(run_slice, sorted(set(power_limits_w), reverse=True)))[::-1]
