"""Policies from textbooks: always the same, searches without a posterior, bandits over batch sizes.

All but the fixed one and the grid take the power limit from the just-in-time profile and stop runs
early, as the published policy does, so that what differs is the choice of the batch size alone.
"""

from __future__ import annotations

import numpy as np

from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Share, Whole, description
from labkit.tuning.policies.policy import (
    Floats,
    Indices,
    Outcome,
    Policy,
    Task,
    cheapest,
    outward,
)


@description(frozen=False)
class Fixed(Policy):
    """Always runs the same batch size at the same power limit (indices)."""

    batch: Whole
    power: Whole
    stops_early: bool = False
    profiles_power: bool = False

    def begin(self, task: Task) -> None:
        super().begin(task)
        limits = len(task.power_limits_w)
        for name, index, count in (
            ("batch", self.batch, task.shape[1]),
            ("power", self.power, limits),
        ):
            if index >= count:
                raise BadValue(
                    f"Fixed.{name} must be an index from 0 to {count - 1} on this job; got {index}"
                )

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        return np.full(len(who), self.batch), np.full(len(who), self.power)


@description(frozen=False)
class GridSearch(Policy):
    """Tries one pair of batch size and power limit per recurrence, then keeps the cheapest.

    It starts at b0 and goes through smaller, then larger batch sizes, each from the highest power
    limit down. A batch size that missed the target is pruned: its other power limits are skipped.
    With ``stops_early`` a run may also end for its cost, which prunes only that pair. A recurrence
    whose trial failed is finished with the cheapest pair known. Of concurrent recurrences, each
    tries a pair of its own.

    Source: Zeus §6.1 (the baseline; the paper's own order of trial is not stated in what we read).
    """

    stops_early: bool = False
    profiles_power: bool = False

    def begin(self, task: Task) -> None:
        super().begin(task)
        (num_seeds, num_sizes) = task.shape
        num_limits = len(task.power_limits_w)
        order = outward(num_sizes, task.default_index)
        batch = np.repeat(order, num_limits)
        power = np.tile(np.arange(num_limits)[::-1], num_sizes)
        may_run = slice(None) if task.profiled is None else task.profiled[batch, power]
        self.batch = batch[may_run]
        self.power = power[may_run]
        self.place = np.empty((num_sizes, num_limits), dtype=np.intp)
        self.place[self.batch, self.power] = np.arange(len(self.batch))
        self.taken, self.tried = np.zeros((2, num_seeds, len(self.batch)), dtype=bool)
        self.pruned = np.zeros((num_seeds, num_sizes), dtype=bool)
        self.cost = np.full((num_seeds, len(self.batch)), np.inf)
        self.retries = np.zeros(num_seeds, dtype=bool)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        left = ~self.taken[who] & ~self.pruned[who][:, self.batch]
        settles = self.retries[who] & np.isfinite(self.cost[who]).any(1)
        explores = left.any(1) & ~settles
        place = np.where(explores, left.argmax(1), self.cost[who].argmin(1))
        self.taken[who, place] = True
        self.retries[who] = False
        return self.batch[place], self.power[place]

    def observe(self, who: Indices, outcome: Outcome) -> None:
        place = self.place[outcome.batch, outcome.power]
        ok = outcome.reached
        first = ~self.tried[who, place]
        self.cost[who[first & ok], place[first & ok]] = outcome.cost_j[first & ok]
        self.cost[who[~ok], place[~ok]] = np.inf
        self.tried[who, place] = True
        self.retries[who] = ~ok
        if not self.stops_early:
            self.pruned[who[~ok], outcome.batch[~ok]] = True


@description(frozen=False)
class RandomSearch(Policy):
    """Tries b0, then every other batch size once in random order, then keeps the cheapest that
    reached.

    Each runs at the power limit its profile chose. A failure is tried again with the next. It knows
    nothing of order or shape: every other search has to beat it.

    Source: Bergstra, Bengio, "Random search for hyper-parameter optimization", JMLR 13 (2012).
    """

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.left = np.ones(task.shape, dtype=bool)
        self.failed = np.zeros(task.shape, dtype=bool)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        left = self.left[who]
        first = np.arange(left.shape[1]) == self.default
        drawn = np.where(left, np.where(first, -np.inf, noise), np.inf).argmin(1)
        works = (self.memory.count[who] > 0) & ~self.failed[who]
        known = cheapest(self.memory.mean[who], works, self.default)
        batch = np.where(left.any(1), drawn, known)
        self.left[who, batch] = False
        return batch, self.limits[batch]

    def observe(self, who: Indices, outcome: Outcome) -> None:
        self.memory.add(who, outcome.batch, outcome.cost_j)
        self.failed[who, outcome.batch] = ~outcome.reached


@description(frozen=False)
class Halving(Policy):
    """Halves the batch sizes again and again: each survivor is run once, and the cheaper half
    stays.

    It prunes in no order, has no posterior and draws nothing at random.

    Source: Karnin, Koren, Somekh, "Almost optimal exploration in multi-armed bandits", ICML'13.
    """

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.order = outward(task.shape[1], task.default_index)
        self.alive = np.ones(task.shape, dtype=bool)
        self.taken, self.played = np.zeros((2, *task.shape), dtype=bool)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        left = (self.alive[who] & ~self.taken[who])[:, self.order]
        seen = self.alive[who] & (self.memory.count[who] > 0)
        known = cheapest(self.memory.mean[who], seen, self.default)
        batch = np.where(left.any(1), self.order[left.argmax(1)], known)
        self.taken[who, batch] = True
        return batch, self.limits[batch]

    def observe(self, who: Indices, outcome: Outcome) -> None:
        batch = outcome.batch
        ok = outcome.reached
        self.memory.add(who, batch, outcome.cost_j)
        self.played[who, batch] = True
        dropped = ~ok & (self.alive[who].sum(1) > 1)  # the last one left stays
        self.alive[who[dropped], batch[dropped]] = False
        waits = self.alive[who] & ~self.played[who]
        over = ~waits.any(1) & (self.alive[who].sum(1) > 1)
        who = who[over]
        mean = np.where(self.alive[who], self.memory.mean[who], np.inf)
        rank = mean.argsort(axis=1, kind="stable").argsort(axis=1)
        self.alive[who] &= rank < (self.alive[who].sum(1, keepdims=True) + 1) // 2
        self.played[who] = self.taken[who] = False


# ---------------------------------------------------------------- bandits


class _Bandit(Policy):
    """A policy that differs from others of its kind by :meth:`score` alone.

    A run's cost is what it took; one that failed is charged a run of the cheapest known on top,
    since its recurrence must run again.
    """

    visits = 1
    """How often every batch size is tried, outward from b0, before the score decides."""

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.order = outward(task.shape[1], task.default_index)
        self.decided = np.zeros(task.shape)
        self.cheapest = np.full(task.num_seeds, np.inf)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        rounds = np.floor(self.decided[who].min(1, keepdims=True))
        untried = (self.decided[who] == rounds)[:, self.order]
        early = rounds[:, 0] < self.visits
        seen = self.memory.count[who] > 0
        batch = cheapest(self.score(who, noise), seen, self.default)
        batch = np.where(early, self.order[untried.argmax(1)], batch)
        self.decided[who, batch] += 1
        return batch, self.limits[batch]

    def observe(self, who: Indices, outcome: Outcome) -> None:
        ok = outcome.reached
        cost = outcome.cost_j
        self.cheapest[who[ok]] = np.minimum(self.cheapest[who[ok]], cost[ok])
        again = np.where(ok | np.isinf(self.cheapest[who]), 0.0, self.cheapest[who])
        self.memory.add(who, outcome.batch, cost + again)

    def score(self, who: Indices, noise: Floats) -> Floats:
        """Rank batch sizes, seeds × batch sizes: the one that scores least is run."""
        raise NotImplementedError


@description(frozen=False)
class EpsilonGreedy(_Bandit):
    """Runs each batch size once, outward from b0; then the cheapest, or with ``epsilon`` any.

    Source: Sutton, Barto, "Reinforcement Learning", 2nd ed., §2.2.
    """

    epsilon: Share = 0.1

    def score(self, who: Indices, noise: Floats) -> Floats:
        """Score by mean cost; in a share ε of all turns by distance from a batch size drawn at
        random.
        """
        from scipy.special import ndtr

        uniform = ndtr(noise[:, :1])
        index = np.arange(noise.shape[1])
        drawn = np.floor(uniform / max(self.epsilon, np.finfo(float).tiny) * len(index))
        return np.where(uniform < self.epsilon, np.abs(index - drawn), self.memory.mean[who])


@description(frozen=False)
class LowerConfidenceBound(_Bandit):
    """Runs each batch size once, then the one of least mean − c·√(2 ln t / n): UCB turned round for
    costs.

    UCB1 needs costs of a known range. Costs here are positive and bounded by early stopping, so the
    range taken is the least mean known, and ``width`` scales it.

    Source: Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem",
    Machine Learning 47 (2002), UCB1.
    """

    width: NonNegative = 0.1

    def score(self, who: Indices, noise: Floats) -> Floats:
        count = self.memory.count[who]
        mean = self.memory.mean[who]
        total = np.maximum(count.sum(1, keepdims=True), 1)
        scale = np.where(count > 0, mean, np.inf).min(1, keepdims=True)
        scale[np.isinf(scale)] = 0.0  # nothing was seen: nothing to scale
        return mean - self.width * scale * np.sqrt(2 * np.log(total) / np.maximum(count, 1))


@description(frozen=False)
class Thompson(_Bandit):
    """Runs each batch size twice, then draws each mean from N(x̄, s²/n) and runs the least; prunes
    nothing.

    Source: Zeus §4.3, whose second half it is (see :class:`Zeus`).
    """

    visits = 2

    def score(self, who: Indices, noise: Floats) -> Floats:
        return self.memory.mean[who] + noise * self.memory.standard_error(who)
