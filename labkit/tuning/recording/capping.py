"""A model of power and time under a power limit, for machines without an energy counter.

What it gives is modelled and is called so wherever it is shown. The processor draws ``idle_w``
plus ``activity · dynamic_w · f³``, ``f`` its clock relative to the highest (voltage falls with
frequency, so dynamic power falls with its cube). A limit lowers ``f`` until the draw fits, to
``min_clock`` at the least, below which the limit no longer binds. A share ``memory_share`` of
the time does not depend on the clock; the rest is as 1/f.

``activity`` tells how much of the processor a batch size keeps switching: from ``least_activity``
(an interpreter between tiny operations) to 1 at the batch size of highest throughput, in
proportion to *measured* throughput. The constants are round numbers of a small server processor,
fitted to nothing.

Source: the cubic law and its use under power caps are textbook DVFS; Zeus (NSDI'23) §2.2 shows
the effect of limits on real GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le

from labkit.kit.describe import Positive, Share, description


@description(slots=True)
class CapModel:
    """Holds the constants of the model, which the module explains."""

    idle_w: Positive = 20.0
    dynamic_w: Positive = 60.0
    memory_share: Share = 0.15
    min_clock: Annotated[float, Gt(0), Le(1)] = 0.4
    least_activity: Share = 0.4
    power_limits_w: tuple[Positive, ...] = (30.0, 40.0, 50.0, 60.0, 70.0, 80.0)

    def activity(self, throughput: float, highest: float) -> float:
        """How much of the processor switches, from measured examples a second.

        Args:
            throughput: of the batch size in question.
            highest: of the batch size that is fastest.
        """
        return self.least_activity + (1 - self.least_activity) * throughput / highest

    def clock(self, power_limit_w: float, activity: float) -> float:
        """The highest relative clock that keeps to the limit, at least ``min_clock``.

        >>> CapModel().clock(80.0, 1.0), round(CapModel().clock(27.5, 1.0), 3)
        (1.0, 0.5)
        """
        room_w = max(power_limit_w - self.idle_w, 0.0)
        return float(np.clip(np.cbrt(room_w / (activity * self.dynamic_w)), self.min_clock, 1.0))

    def time_s(self, full_clock_s: float, clock: float) -> float:
        """How long work takes that takes ``full_clock_s`` at the highest clock."""
        return full_clock_s * ((1 - self.memory_share) / clock + self.memory_share)

    def power_w(self, clock: float, activity: float) -> float:
        """How many watts are drawn on average at a clock."""
        return self.idle_w + activity * self.dynamic_w * clock**3

    def rows(self, epoch_s: Mapping[tuple[str, int], float]) -> list[tuple[Any, ...]]:
        """List network, batch size, limit, seconds and watts of an epoch, and how each was found.

        ``epoch_s`` was measured at full clock, by network and batch size. Time is measured where
        the limit leaves the clock alone, and modelled below; power is modelled.
        """
        rows = []
        for (network, size), full_s in epoch_s.items():
            fastest_s = min(s for (name, _), s in epoch_s.items() if name == network)
            activity = self.activity(1 / full_s, 1 / fastest_s)
            for limit in self.power_limits_w:
                clock = self.clock(limit, activity)
                time_s = self.time_s(full_s, clock)
                power_w = self.power_w(clock, activity)
                timed = "measured" if clock == 1 else "modelled"
                rows.append((network, size, limit, time_s, power_w, "modelled", timed))
        return rows
