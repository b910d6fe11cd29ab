"""What a policy is told and asked: the one interface between deciding and replaying.

A policy sees a :class:`Task` (what may be chosen) and, run by run, an :class:`Outcome` (what its
choices led to). It sees neither the trace nor the clock. All seeds of an experiment are decided at
once: ``who`` holds the indices of the seeds whose turn it is, and every array beside it has one
entry for each.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labkit.errors import UsageError

Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a policy may know of a recurring job before it first runs."""

    batch_sizes: tuple[int, ...]
    power_limits_w: tuple[float, ...]
    default_index: int
    profiled_limits: Indices
    """The index of the limit that each batch size's profile will choose; handed back, not read."""
    num_recurrences: int
    num_seeds: int
    concurrency: int = 1
    profiled: Flags | None = None
    """Batch sizes × limits: pairs that were profiled, the only ones that may run; None: all."""

    @property
    def shape(self) -> tuple[int, int]:
        """Seeds × batch sizes."""
        return self.num_seeds, len(self.batch_sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of each seed led to: all that a policy may learn from."""

    batch: Indices
    power: Indices
    cost_j: Floats
    """Of the run; of one that could not even start, far above its bound."""
    epochs: Floats
    """Run before it reached the target or was stopped."""
    reached: Flags


@dataclass(kw_only=True)
class Policy:
    """Says how to decide. A description plays nothing: :meth:`start` gives a copy that does."""

    stops_early: bool = True
    """Whether runs end when they exceed β times the cheapest success so far."""
    profiles_power: bool = True
    """Whether the power limit comes from a just-in-time profile (charged when first needed)."""
    trusts_default: bool = False
    """Whether it assumes that the default batch size reaches the target in every run."""

    def start(self, task: Task) -> Self:
        """Start a copy of the policy, with an empty memory of every seed's recurrences."""
        playing = copy(self)
        playing.begin(task)
        return playing

    def begin(self, task: Task) -> None:
        """Make the memory that deciding needs."""
        self.limits = task.profiled_limits
        self.default = task.default_index
        self.memory = Memory(task.shape)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        """Choose the indices of the batch size and power limit each seed of ``who`` runs next.

        Args:
            who: the seeds that have a run to start.
            noise: standard normal draws, seeds × batch sizes, for policies that randomise.
        """
        raise UsageError(f"policy {type(self).__name__} has no method decide")

    def patience(self, who: Indices, batch: Indices, epoch_cost_j: Floats) -> Floats:
        """Say after how many epochs to give up the runs just decided (at least one is run).

        It is asked once the first epoch has shown what an epoch costs.

        Args:
            who, batch: the seeds, and the batch sizes they run.
            epoch_cost_j: what an epoch of each costs.
        """
        return np.full(len(who), np.inf)

    def observe(self, who: Indices, outcome: Outcome) -> None:
        """Learn from runs that have ended, in the order they were decided."""


class Memory:
    """Keeps count, mean and variance of costs, seeds × batch sizes, by Welford's update."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.count = np.zeros(shape)
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)

    def add(self, who: Indices, batch: Indices, cost: Floats) -> None:
        """Add one cost for each seed of ``who`` at its batch size."""
        self.count[who, batch] += 1
        before = cost - self.mean[who, batch]
        self.mean[who, batch] += before / self.count[who, batch]
        self.squares[who, batch] += before * (cost - self.mean[who, batch])

    def standard_error(self, who: Indices) -> Floats:
        """√(s²/n) with s² the variance over n (not n − 1); it is 0 where nothing was seen."""
        return np.sqrt(self.squares[who]) / np.maximum(self.count[who], 1)


class WindowMemory(Memory):
    """Remembers the last ``window`` costs of each batch size, and answers as :class:`Memory`."""

    def __init__(self, shape: tuple[int, int], window: int) -> None:
        super().__init__(shape)
        self.costs = np.full((*shape, window), np.nan)
        self.seen = np.zeros(shape, dtype=np.intp)

    def add(self, who: Indices, batch: Indices, cost: Floats) -> None:
        """Add one cost for each seed of ``who`` and forget the one that leaves the window."""
        self.costs[who, batch, self.seen[who, batch] % self.costs.shape[2]] = cost
        self.seen[who, batch] += 1
        kept = self.costs[who, batch]
        self.count[who, batch] = np.isfinite(kept).sum(axis=1)
        self.mean[who, batch] = np.nansum(kept, axis=1) / self.count[who, batch]
        strays = kept - self.mean[who, batch][:, None]
        self.squares[who, batch] = np.nansum(strays**2, axis=1)


def cheapest(cost: Floats, usable: Flags, fallback: int) -> Indices:
    """Find the least cost among the usable of each row; ``fallback`` where nothing is usable."""
    place = np.where(usable, cost, np.inf).argmin(1)
    return np.where(usable.any(1), place, fallback)


def outward(count: int, start: int) -> Indices:
    """List ``start`` and what is below it, downwards, then what is above it, upwards.

    >>> outward(5, 2).tolist()
    [2, 1, 0, 3, 4]
    """
    return np.array([*range(start, -1, -1), *range(start + 1, count)])
