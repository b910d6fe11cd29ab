"""Textbook bandits over batch sizes: ε-greedy, confidence bounds, Thompson sampling.

All take the power limit from the just-in-time profile and stop runs early, as the published policy
does, so that what differs is the choice of the batch size alone. A run's cost is what it took; one
that failed is charged a run of the cheapest known on top, since its recurrence must run again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.kit.describe import NonNegative, Share, description
from labkit.tuning.policies.player import (
    Floats,
    Indices,
    Memory,
    Outcome,
    Player,
    Policy,
    Task,
    cheapest,
    outward,
)


class _Bandit(Policy):
    """A policy of which :meth:`score` is all there is to say."""

    visits = 1
    """How often every batch size is tried, outward from b0, before the score decides."""

    def start(self, task: Task) -> Player:
        return _MeansPlayer(task, self)

    def score(self, memory: Memory, who: Indices, noise: Floats) -> Floats:
        """The less, the sooner run; seeds × batch sizes."""
        raise NotImplementedError


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonGreedy(_Bandit):
    """Each batch size once, outward from b0; then the cheapest mean, or with ``epsilon`` any.

    Source: Sutton, Barto, "Reinforcement Learning", 2nd ed., §2.2.
    """

    epsilon: Share = 0.1

    def score(self, memory: Memory, who: Indices, noise: Floats) -> Floats:
        """The mean; in a share ε of all turns, distance from a batch size drawn at random."""
        from scipy.special import ndtr

        uniform = ndtr(noise[:, :1])
        index = np.arange(noise.shape[1])
        drawn = np.floor(uniform / max(self.epsilon, np.finfo(float).tiny) * len(index))
        return np.where(uniform < self.epsilon, np.abs(index - drawn), memory.mean[who])


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class LowerConfidenceBound(_Bandit):
    """Each batch size once, then the least mean − c·√(2 ln t / n): UCB turned round for costs.

    UCB1 needs costs of a known range. Costs here are positive and bounded by early stopping, so
    the range taken is the least mean known, and ``width`` scales it.

    Source: Auer, Cesa-Bianchi, Fischer, "Finite-time analysis of the multiarmed bandit problem",
    Machine Learning 47 (2002), UCB1.
    """

    width: NonNegative = 0.1

    def score(self, memory: Memory, who: Indices, noise: Floats) -> Floats:
        count, mean = memory.count[who], memory.mean[who]
        total = np.maximum(count.sum(1, keepdims=True), 1)
        scale = np.where(count > 0, mean, np.inf).min(1, keepdims=True)
        scale[np.isinf(scale)] = 0.0  # nothing was seen: nothing to scale
        return mean - self.width * scale * np.sqrt(2 * np.log(total) / np.maximum(count, 1))


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class Thompson(_Bandit):
    """Each batch size twice, then a draw of each mean from N(x̄, s²/n): no pruning.

    Source: as in :class:`Zeus`, whose second half it is.
    """

    visits = 2

    def score(self, memory: Memory, who: Indices, noise: Floats) -> Floats:
        return memory.mean[who] + noise * memory.standard_error(who)


class _MeansPlayer(Player):
    def __init__(self, task: Task, policy: _Bandit) -> None:
        self.policy, self.limits = policy, task.profiled_limits
        self.order = outward(task.shape[1], task.default_index)
        self.memory = Memory(task.shape)
        self.decided = np.zeros(task.shape)
        self.cheapest = np.full(task.num_seeds, np.inf)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        rounds = np.floor(self.decided[who].min(1, keepdims=True))
        untried = (self.decided[who] == rounds)[:, self.order]
        early = rounds[:, 0] < self.policy.visits
        seen = self.memory.count[who] > 0
        scores = self.policy.score(self.memory, who, noise)
        batch = cheapest(scores, seen, int(self.order[0]))
        batch = np.where(early, self.order[untried.argmax(1)], batch)
        self.decided[who, batch] += 1
        return batch, self.limits[batch]

    def observe(self, who: Indices, outcome: Outcome) -> None:
        ok, cost = outcome.reached, outcome.cost_j
        self.cheapest[who[ok]] = np.minimum(self.cheapest[who[ok]], cost[ok])
        again = np.where(ok | np.isinf(self.cheapest[who]), 0.0, self.cheapest[who])
        self.memory.add(who, outcome.batch, cost + again)
