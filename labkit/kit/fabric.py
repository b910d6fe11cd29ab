"""Devices and the links between them: one level, or machines of several devices, or racks of those.

This is the one home of links for engines: planners place stages on a fabric, collectives send over
it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import numpy as np
from annotated_types import Gt, MinLen

from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.kit.rules import Unbounded

GBIT = 1e9 / 8
"""Bytes per second in a link rate of 1 Gbit/s."""


@description(slots=True)
class Level:
    """So many units (devices, or groups of the level below) that a link joins.

    Attributes:
        count: units of this level.
        bandwidth_bytes_per_s: of a unit's link, in each direction.
        latency_s: of one message.
    """

    count: Count
    bandwidth_bytes_per_s: Positive
    latency_s: NonNegative = 0.0


@description(slots=True)
class Fabric:
    """Levels of devices, the innermost first.

    Attributes:
        levels: links of devices first, then of groups of devices, and so on.
        add_bytes_per_s: how fast a device adds what arrives to what it holds.
    """

    levels: Annotated[tuple[Level, ...], MinLen(1)]
    add_bytes_per_s: Annotated[float, Gt(0), Unbounded()] = math.inf

    @classmethod
    @checked
    def flat(
        cls, count: Count, *, bandwidth_bytes_per_s: Positive, latency_s: NonNegative = 0.0
    ) -> Fabric:
        """Devices that are all joined alike.

        Args:
            bandwidth_bytes_per_s: of a device's link, in each direction.
            latency_s: of one message.

        >>> Fabric.flat(16, bandwidth_bytes_per_s=10 * GBIT).num_devices
        16
        """
        level = Level(count=count, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)
        return cls(levels=(level,))

    @classmethod
    @checked
    def machines(
        cls,
        count: Count,
        devices: Count,
        *,
        inside_bytes_per_s: Positive,
        between_bytes_per_s: Positive,
        latency_s: NonNegative = 0.0,
    ) -> Fabric:
        """So many machines of so many devices; a machine's link is shared by its devices.

        Args:
            count: of machines.
            devices: of each machine.
            inside_bytes_per_s: of a device's link inside its machine.
            between_bytes_per_s: of a machine's link to the others.
            latency_s: of one message between machines.

        >>> rates = {"inside_bytes_per_s": 12e9, "between_bytes_per_s": 10 * GBIT}
        >>> Fabric.machines(4, 8, **rates).num_devices
        32
        """
        near = Level(count=devices, bandwidth_bytes_per_s=inside_bytes_per_s)
        far = Level(count=count, bandwidth_bytes_per_s=between_bytes_per_s, latency_s=latency_s)
        return cls(levels=(near, far))

    @property
    def latencies_s(self) -> np.ndarray:
        """Of a message at each level, the innermost first; shape (levels,)."""
        return np.array([level.latency_s for level in self.levels])

    @property
    def bandwidths_bytes_per_s(self) -> np.ndarray:
        """Of a unit's link at each level, the innermost first; shape (levels,)."""
        return np.array([level.bandwidth_bytes_per_s for level in self.levels])

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return math.prod(level.count for level in self.levels)

    @checked
    def scaled(self, bandwidth: Positive) -> Fabric:
        """Every link ``bandwidth`` times as fast."""
        faster = [
            replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * bandwidth)
            for level in self.levels
        ]
        return replace(self, levels=tuple(faster))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Devices below one unit of each level, the innermost first: 1, then of a machine, ….

        >>> rates = {"inside_bytes_per_s": 12e9, "between_bytes_per_s": 10 * GBIT}
        >>> Fabric.machines(4, 8, **rates).group_sizes
        (1, 8)
        """
        counts = [level.count for level in self.levels]
        return tuple(math.prod(counts[:depth]) for depth in range(len(counts)))
