"""The stages whose slowest needs the least time: PipeDream's dynamic program.

``best[i, m, j]`` is the least time a minibatch of layers i to j - 1 on m units, with the last
stage from layer k on r of them:

    best[i, m, j] = min over k, r of max(best[i, m - r, k], seconds(k, j, r))

1. Columns j from left to right: all earlier columns are known for every number of units.
2. With two levels, the inner one solves every interval on its devices; its times are what a
   machine computes in. What machines exchange for each minibatch are the weights of its stages
   divided by their replicas (the replicas inside a machine add up their gradients first), or by
   all devices of a machine (:attr:`.Costing.machines_exchange`).

O(n² D²) elementary steps on one level, O(n³ d²) for the inner of two.

Source: PipeDream §3.1, the recurrence A^k(i → j, m).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from labkit.errors import UsageError
from labkit.planner.costing import Cheapest, StageCosts


class Stage(NamedTuple):
    """Layers ``first`` to ``end`` - 1 on ``replicas`` devices, or machines with stages inside."""

    first: int
    end: int
    replicas: int
    inside: tuple[Stage, ...] = ()

    @property
    def name(self) -> str:
        """Replicas; of machines, with the stages inside.

        >>> inner = (Stage(0, 3, replicas=3), Stage(3, 4, replicas=1))
        >>> Stage(0, 4, replicas=2, inside=inner).name
        '2×(3-1)'
        """
        if not self.inside:
            return str(self.replicas)
        return f"{self.replicas}×({'-'.join(stage.name for stage in self.inside)})"

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return self.replicas * (sum(s.num_devices for s in self.inside) or 1)


@dataclass(frozen=True, kw_only=True)
class Program:
    """The table of one level, for the given first layers.

    Attributes:
        starts: the first layers; without ``machines`` only one.
        memory_bytes: of a device, with a version of weights and activations for each minibatch
            in flight; None for no limit.
        straight: one unit a stage.
        machines: the units are those of a machine: weights are tracked for the level above, so
            that ``costs`` must be those of one way.
    """

    costs: StageCosts | Cheapest
    starts: np.ndarray
    memory_bytes: float | None = None
    straight: bool = False
    machines: bool = False

    @property
    def evaluations(self) -> int:
        """Stages that are compared."""
        count = self.costs.level.count
        layers = len(self.costs.chain)
        return len(self.starts) * layers * (layers + 1) // 2 * count * (count + 1) // 2

    @cached_property
    def solved(self) -> tuple[np.ndarray, np.ndarray]:
        """``best`` and the weights a device exchanges for it; (starts, units + 1, n + 1) each."""
        count = self.costs.level.count
        layers = len(self.costs.chain)
        best = np.full((len(self.starts), count + 1, layers + 1), np.inf)
        synced = np.zeros_like(best)
        best[np.arange(len(self.starts)), 0, self.starts] = 0.0
        step = self._times_and_weights if self.machines else self._only_times
        for end in range(1, layers + 1):
            step(best, synced, end)
        return best, synced

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Units and replicas of the last stage, ordered by units; where each number begins."""
        count = self.costs.level.count
        units = np.repeat(np.arange(1, count + 1), np.arange(1, count + 1))
        begins = np.searchsorted(units, np.arange(1, count + 1))
        return units, np.arange(len(units)) - begins[units - 1] + 1, begins

    def _only_times(self, best: np.ndarray, _: np.ndarray, end: int) -> None:
        """Fill a column for every number of units at once."""
        units, replicas, begins = self._pairs
        tried = self._tried(best[0], self.costs.column(end), units, replicas)
        best[0, 1:, end] = np.minimum.reduceat(tried.min(-1), begins)

    def _tried(
        self, best: np.ndarray, seconds: np.ndarray, units: np.ndarray, replicas: np.ndarray
    ) -> np.ndarray:
        """The slowest stage, by pairs of units and replicas of the last one, by its first layer."""
        end = seconds.shape[1]
        tried = best[units - replicas, :end]
        np.maximum(tried, seconds[replicas - 1], out=tried)
        if self.memory_bytes is not None:
            chain = self.costs.chain
            used = units - replicas
            versions = np.ceil((self.costs.level.count - used) / replicas)
            stage_bytes = chain.weight_bytes[:end, end] + chain.kept_bytes[:end, end]
            tried[versions[:, None] * stage_bytes > self.memory_bytes] = np.inf
        if self.straight:
            tried[replicas > 1] = np.inf
        return tried

    def _times_and_weights(self, best: np.ndarray, synced: np.ndarray, end: int) -> None:
        """Fill a column for every first layer, with the weights that the stages exchange."""
        assert isinstance(self.costs, StageCosts)
        synced_bytes = self.costs.synced_bytes
        seconds = self.costs.column(end)
        for replicas in range(1, best.shape[1]):
            tried = np.maximum(best[:, :-replicas, :end], seconds[replicas - 1])
            first = tried.argmin(-1)
            value = np.take_along_axis(tried, first[..., None], -1)[..., 0]
            earlier = np.take_along_axis(synced[:, :-replicas, :end], first[..., None], -1)[..., 0]
            weights = earlier + synced_bytes[first, end] / replicas
            better = value < best[:, replicas:, end]
            best[:, replicas:, end] = np.where(better, value, best[:, replicas:, end])
            synced[:, replicas:, end] = np.where(better, weights, synced[:, replicas:, end])

    def stages(self, start: int, units: int, end: int) -> list[Stage]:
        """The stages of the best plan of layers start to end - 1 on so many units.

        Args:
            start: one of :attr:`starts`.
            units: all of them are used.

        Raises:
            UsageError: no plan fits the memory.
        """
        best, _ = self.solved
        table = best[int(np.flatnonzero(self.starts == start)[0])]
        if not np.isfinite(table[units, end]):
            raise UsageError(self._refusal())
        stages: list[Stage] = []
        while end > start:
            every = np.arange(1, units + 1)
            tried = self._tried(table, self.costs.column(end), np.full(units, units), every)
            row, first = np.argwhere(tried == table[units, end])[0].tolist()
            stages.append(Stage(first, end, row + 1))
            units = units - (row + 1)
            end = first
        return stages[::-1]

    def _refusal(self) -> str:
        if self.memory_bytes is None:
            return "no plan uses exactly these devices: fewer layers than stages"
        return (
            f"no plan keeps every device within memory_bytes, {self.memory_bytes:.4g}; valid: "
            "more memory, more devices, or a chain with smaller layers"
        )
