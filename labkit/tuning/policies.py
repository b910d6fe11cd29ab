"""Who decides: policies for a recurring job, from the default to the oracle.

A policy maps what it has seen of a job's recurrences to the next batch size and power limit. It
knows neither the clock nor the trace. All seeds of an experiment are decided at once: ``who``
holds the indices of the seeds whose turn it is, and every array beside it has one entry for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from labkit.errors import UsageError
from labkit.tuning.power import best_power_limits, optimum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labkit.tuning.trace import Job

    Indices = NDArray[np.intp]
    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]


class Player(Protocol):
    """A policy at play: its memory of every seed's recurrences."""

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        """Indices of the batch size and power limit each seed of ``who`` runs next.

        ``noise``: standard normal draws, seeds × batch sizes, for policies that randomise.
        """

    def observe(
        self, who: Indices, batch: Indices, power: Indices, cost: Floats, ok: Flags
    ) -> None:
        """Learn what the runs just decided cost (J), and which of them reached the target."""


class Policy(Protocol):
    """How to decide; :meth:`start` gives a fresh player with an empty memory."""

    @property
    def stops_early(self) -> bool:
        """Whether runs end when they exceed β times the cheapest success so far."""

    @property
    def profiles_power(self) -> bool:
        """Whether the power limit comes from a just-in-time profile (charged when first needed)."""

    def start(self, job: Job, eta: float, num_seeds: int) -> Player: ...


# ---------------------------------------------------------------- without learning


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Always the same batch size and power limit (indices)."""

    batch: int
    power: int
    stops_early: bool = False
    profiles_power: bool = False

    def start(self, job: Job, eta: float, num_seeds: int) -> Player:
        return _FixedPlayer(self.batch, self.power)


@dataclass(frozen=True, slots=True)
class _FixedPlayer:
    batch: int
    power: int

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        return np.full(len(who), self.batch), np.full(len(who), self.power)

    def observe(
        self, who: Indices, batch: Indices, power: Indices, cost: Floats, ok: Flags
    ) -> None:
        """Nothing to learn."""


# ---------------------------------------------------------------- grid search


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch:
    """Tries one pair of batch size and power limit per recurrence, then keeps the cheapest.

    Starts at b0 and goes through smaller, then larger batch sizes, each from the highest power
    limit down. A batch size that missed the target is pruned: its other power limits are skipped.
    With ``stops_early`` a run may also end for its cost, which prunes only that pair. A recurrence
    whose trial failed is finished with the cheapest pair known.

    Source: Zeus §6.1 (the baseline; the paper's own order of trial is not stated in what we read).
    """

    stops_early: bool = False
    profiles_power: bool = False

    def start(self, job: Job, eta: float, num_seeds: int) -> Player:
        return _GridPlayer(job, num_seeds, prunes_batch=not self.stops_early)


class _GridPlayer:
    def __init__(self, job: Job, num_seeds: int, *, prunes_batch: bool) -> None:
        num_limits = len(job.power_limits_w)
        outward = _outward(len(job.batch_sizes), job.default_index)
        self.batch = np.repeat(outward, num_limits)
        self.power = np.tile(np.arange(num_limits)[::-1], len(outward))
        self.place = np.empty((len(outward), num_limits), dtype=np.intp)
        self.place[self.batch, self.power] = np.arange(len(self.batch))
        self.tried = np.zeros((num_seeds, len(self.batch)), dtype=bool)
        self.pruned = np.zeros((num_seeds, len(outward)), dtype=bool)
        self.cost = np.full((num_seeds, len(self.batch)), np.inf)
        self.retries = np.zeros(num_seeds, dtype=bool)
        self.prunes_batch = prunes_batch

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        left = ~self.tried[who] & ~self.pruned[who][:, self.batch]
        settles = self.retries[who] & np.isfinite(self.cost[who]).any(1)
        explores = left.any(1) & ~settles
        place = np.where(explores, left.argmax(1), self.cost[who].argmin(1))
        return self.batch[place], self.power[place]

    def observe(
        self, who: Indices, batch: Indices, power: Indices, cost: Floats, ok: Flags
    ) -> None:
        place = self.place[batch, power]
        first = ~self.tried[who, place]
        self.cost[who[first & ok], place[first & ok]] = cost[first & ok]
        self.cost[who[~ok], place[~ok]] = np.inf
        self.tried[who, place] = True
        self.retries[who] = ~ok
        if self.prunes_batch:
            self.pruned[who[~ok], batch[~ok]] = True


# ---------------------------------------------------------------- successive halving


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """Successive halving over batch sizes: run each survivor once, keep the cheaper half, repeat.

    Uses the just-in-time power profile and early stopping as Zeus does, so what differs is only
    how the batch size is chosen: no pruning order, no posterior, no randomness.

    Source: Karnin, Koren, Somekh, "Almost optimal exploration in multi-armed bandits", ICML'13.
    """

    stops_early: bool = True
    profiles_power: bool = True

    def start(self, job: Job, eta: float, num_seeds: int) -> Player:
        return _HalvingPlayer(job, best_power_limits(job, eta), num_seeds)


class _HalvingPlayer:
    def __init__(self, job: Job, best_power: Indices, num_seeds: int) -> None:
        shape = (num_seeds, len(job.batch_sizes))
        self.order = _outward(shape[1], job.default_index)
        self.best_power = best_power
        self.alive = np.ones(shape, dtype=bool)
        self.played = np.zeros(shape, dtype=bool)
        self.memory = _Memory(shape)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        left = (self.alive[who] & ~self.played[who])[:, self.order]
        cheapest = np.where(self.alive[who], self.memory.mean[who], np.inf).argmin(1)
        batch = np.where(left.any(1), self.order[left.argmax(1)], cheapest)
        return batch, self.best_power[batch]

    def observe(
        self, who: Indices, batch: Indices, power: Indices, cost: Floats, ok: Flags
    ) -> None:
        self.memory.add(who, batch, cost)
        self.played[who, batch] = True
        self._drop(who[~ok], batch[~ok])
        over = ~(self.alive[who] & ~self.played[who]).any(1) & (self.alive[who].sum(1) > 1)
        self._halve(who[over])

    def _drop(self, who: Indices, batch: Indices) -> None:
        """Forget a batch size that failed, unless it is the last one left."""
        others = self.alive[who].sum(1) > 1
        self.alive[who[others], batch[others]] = False

    def _halve(self, who: Indices) -> None:
        mean = np.where(self.alive[who], self.memory.mean[who], np.inf)
        rank = mean.argsort(axis=1, kind="stable").argsort(axis=1)
        self.alive[who] &= rank < (self.alive[who].sum(1, keepdims=True) + 1) // 2
        self.played[who] = False


# ---------------------------------------------------------------- Zeus


@dataclass(frozen=True, slots=True, kw_only=True)
class Zeus:
    """Prune by exploring from b0 down, then up, twice; then Gaussian Thompson sampling.

    A round walks from its start to ever smaller batch sizes until one fails, then from the next
    larger one up until one fails; a run fails when it misses the target or is stopped early. Only
    batch sizes that succeeded stay, and the cheapest of them starts the next round. Afterwards
    every recurrence draws, for each survivor, a mean cost from N(x̄, s²/n) (the posterior under a
    flat prior, s² the plain variance of its n observed costs) and runs the one with the lowest.

    Should a later round leave nothing, the cheapest batch size of the round before stays.

    Source: Zeus §4.3, Alg. 1 and 2; order and constants as in zeus-ml's simulator.
    """

    num_pruning_rounds: int = 2
    stops_early: bool = True
    profiles_power: bool = True

    def start(self, job: Job, eta: float, num_seeds: int) -> Player:
        reached = np.array(job.epochs_to_target[job.default_index]) <= job.max_epochs
        if not reached.all():
            raise UsageError(
                f"job {job.name!r}: Zeus assumes that the default batch size always reaches the "
                f"target, but {job.default_batch_size} reaches {job.target_metric:g} in only "
                f"{int(reached.sum())} of {len(reached)} recorded runs within {job.max_epochs} "
                "epochs; choose another default_batch_size or target_metric"
            )
        return _ZeusPlayer(job, best_power_limits(job, eta), num_seeds, self.num_pruning_rounds)


class _ZeusPlayer:
    def __init__(self, job: Job, best_power: Indices, num_seeds: int, rounds: int) -> None:
        shape = (num_seeds, len(job.batch_sizes))
        self.best_power, self.rounds = best_power, rounds
        self.memory = _Memory(shape)
        self.alive = np.ones(shape, dtype=bool)
        self.good = np.zeros(shape, dtype=bool)
        self.round = np.zeros(num_seeds, dtype=np.intp)
        self.going_up = np.zeros(num_seeds, dtype=bool)
        self.origin = np.full(num_seeds, job.default_index)
        self.expected = self.origin.copy()
        self.best = self.origin.copy()
        self.best_cost = np.full(num_seeds, np.inf)

    @property
    def survivors(self) -> Flags:
        """Batch sizes not (yet) pruned, seeds × batch sizes."""
        return self.alive

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        sampled = self.memory.mean[who] + noise * self.memory.standard_error(who)
        thompson = np.where(self.alive[who], sampled, np.inf).argmin(1)
        batch = np.where(self.round[who] < self.rounds, self.expected[who], thompson)
        return batch, self.best_power[batch]

    def observe(
        self, who: Indices, batch: Indices, power: Indices, cost: Floats, ok: Flags
    ) -> None:
        self.memory.add(who, batch, cost)
        exploring = self.round[who] < self.rounds
        who, batch, cost, ok = who[exploring], batch[exploring], cost[exploring], ok[exploring]
        self.good[who, batch] = ok
        better = ok & (cost < self.best_cost[who])
        self.best[who[better]], self.best_cost[who[better]] = batch[better], cost[better]
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
        nothing = who[~self.good[who].any(1)]
        self.good[nothing, self.best[nothing]] = True
        self.alive[who], self.good[who] = self.good[who], False
        self.origin[who] = self.expected[who] = self.best[who]
        self.round[who] += 1
        self.going_up[who], self.best_cost[who] = False, np.inf


class _Memory:
    """Count, mean and variance of the costs seen, seeds × batch sizes (Welford's update)."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.count = np.zeros(shape)
        self.mean = np.zeros(shape)
        self._squares = np.zeros(shape)

    def add(self, who: Indices, batch: Indices, cost: Floats) -> None:
        self.count[who, batch] += 1
        before = cost - self.mean[who, batch]
        self.mean[who, batch] += before / self.count[who, batch]
        self._squares[who, batch] += before * (cost - self.mean[who, batch])

    def standard_error(self, who: Indices) -> Floats:
        """√(s²/n) with s² the variance over n (not n − 1); 0 where nothing was seen."""
        return np.sqrt(self._squares[who]) / np.maximum(self.count[who], 1)


def _outward(count: int, start: int) -> Indices:
    """``start`` and what is below it, downwards, then what is above it, upwards.

    >>> _outward(5, 2).tolist()
    [2, 1, 0, 3, 4]
    """
    return np.array([*range(start, -1, -1), *range(start + 1, count)])


# ---------------------------------------------------------------- by name


POLICIES: dict[str, str] = {
    "default": "the user's batch size b0 at the highest power limit",
    "tuned-power": "b0 at the power limit a just-in-time profile finds",
    "grid": "grid search over both, pruning batch sizes that miss the target",
    "grid-early-stop": "grid search that also stops a run at β times the cheapest so far",
    "halving": "successive halving over batch sizes, profiled power, early stopping",
    "zeus": "pruning from b0 down then up, Thompson sampling, profiled power, early stopping",
    "oracle": "the configuration of least expected cost, known beforehand",
}
"""Policies by name, with what they do."""


def policy_named(name: str, job: Job, eta: float) -> Policy:
    """The policy called ``name`` (one of :data:`POLICIES`) for this job."""
    if name not in POLICIES:
        raise UsageError(f"no policy {name!r}; there are: {', '.join(POLICIES)}")
    b0, highest = job.default_index, len(job.power_limits_w) - 1
    if name == "oracle":
        best = optimum(job, eta=eta)
        return Fixed(
            batch=job.batch_sizes.index(best.batch_size),
            power=job.power_limits_w.index(best.power_limit_w),
        )
    if name == "tuned-power":
        power = int(best_power_limits(job, eta)[b0])
        return Fixed(batch=b0, power=power, profiles_power=True)
    simple: dict[str, Policy] = {
        "default": Fixed(batch=b0, power=highest),
        "grid": GridSearch(),
        "grid-early-stop": GridSearch(stops_early=True),
        "halving": Halving(),
        "zeus": Zeus(),
    }
    return simple[name]
