"""The published policy: prune batch sizes by walking, then Gaussian Thompson sampling."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from labkit.kit.describe import Whole, description
from labkit.tuning.policies.policy import (
    Flags,
    Floats,
    Indices,
    Outcome,
    Policy,
    Task,
    WindowMemory,
)


@description(frozen=False)
class Zeus(Policy):
    """Prune by exploring from b0 down, then up, twice; then Gaussian Thompson sampling.

    A round walks from its start to ever smaller batch sizes until one fails, then from the next
    larger one up until one fails; a run fails when it misses the target or is stopped early. Only
    batch sizes that succeeded stay, and the cheapest of them starts the next round. Afterwards
    every recurrence draws, for each survivor, a mean cost from N(x̄, s²/n) (the posterior under a
    flat prior, s² the plain variance of its n observed costs) and runs the one with the lowest.

    Should a later round leave nothing, the cheapest batch size of the round before stays.

    Jobs that drift: ``window`` keeps only the last so many costs of each batch size, so that old
    ones are forgotten and the spread that a change brings makes it explore again. Concurrent
    submissions: while the walk waits for its run, others run the best batch size known; the
    draws of Thompson sampling differ by themselves.

    Source: Zeus §4.3, Alg. 1 and 2, §4.4; order, constants and the meaning of the window as in
    zeus-ml's simulator.
    """

    num_pruning_rounds: Whole = 2
    window: Annotated[int, Ge(2)] | None = None
    """At least 2, since one cost has no spread; None: all costs count."""
    trusts_default: bool = True

    def begin(self, task: Task) -> None:
        super().begin(task)
        if self.window is not None:
            self.memory = WindowMemory(task.shape, self.window)
        num_seeds = task.num_seeds
        self.alive = np.ones(task.shape, dtype=bool)
        self.good = np.zeros(task.shape, dtype=bool)
        self.round = np.zeros(num_seeds, dtype=np.intp)
        self.going_up, self.waiting = np.zeros((2, num_seeds), dtype=bool)
        starts = np.full((4, num_seeds), task.default_index)
        self.origin, self.expected, self.best, self.known = starts
        self.best_cost, self.known_cost = np.full((2, num_seeds), np.inf)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        sampled = self.memory.mean[who] + noise * self.memory.standard_error(who)
        thompson = np.where(self.alive[who], sampled, np.inf).argmin(1)
        walk = np.where(self.waiting[who], self.known[who], self.expected[who])
        walking = self.round[who] < self.num_pruning_rounds
        batch = np.where(walking, walk, thompson)
        self.waiting[who] = walking
        return batch, self.limits[batch]

    def observe(self, who: Indices, outcome: Outcome) -> None:
        batch = outcome.batch
        cost = outcome.cost_j
        ok = outcome.reached
        self.memory.add(who, batch, cost)
        cheaper = ok & (cost < self.known_cost[who])
        self.known[who[cheaper]] = batch[cheaper]
        self.known_cost[who[cheaper]] = cost[cheaper]
        walking = (self.round[who] < self.num_pruning_rounds) & self.waiting[who]
        steps = walking & (batch == self.expected[who])
        who = who[steps]
        batch = batch[steps]
        cost = cost[steps]
        ok = ok[steps]
        self.waiting[who] = False
        self.good[who, batch] = ok
        better = ok & (cost < self.best_cost[who])
        self.best[who[better]] = batch[better]
        self.best_cost[who[better]] = cost[better]
        self._walk(who, batch, ok)

    def _walk(self, who: Indices, batch: Indices, ok: Flags) -> None:
        """Move on to the next batch size of the round, or to the next round."""
        index = np.arange(self.alive.shape[1])
        up = self.going_up[who]
        below = self.alive[who] & (index < batch[:, None])
        down = ~up & ok & below.any(1)
        self.expected[who[down]] = len(index) - 1 - below[down][:, ::-1].argmax(1)

        edge = np.where(up, batch, self.origin[who])
        above = self.alive[who] & (index > edge[:, None])
        rise = ~down & (~up | ok) & above.any(1)
        self.expected[who[rise]] = above[rise].argmax(1)
        self.going_up[who[rise]] = True
        self._next_round(who[~down & ~rise])

    def _next_round(self, who: Indices) -> None:
        """Begin the next round from the cheapest batch size, among those that succeeded in this
        one.
        """
        nothing = who[~self.good[who].any(1)]
        self.good[nothing, self.best[nothing]] = True
        self.alive[who] = self.good[who]
        self.good[who] = False
        self.origin[who] = self.expected[who] = self.best[who]
        self.round[who] += 1
        self.going_up[who] = False
        self.best_cost[who] = np.inf
