"""A policy that fits one curve of cost over batch sizes and explores what is still worth it.

Cost to the target is epochs × cost of an epoch. Theory gives both a shape over the batch size b:
steps to a target fall as 1 + B_noise/b, so epochs rise as 1 + b/B_noise; an epoch costs
1 + b_sat/b, a fixed price a step beside one a sample; and below some size, noise makes epochs rise
again. All of it is convex in log b, whatever the scales are. A Gaussian process that has the mean
and covariance of such curves over unknown scales lets every run speak about its neighbours.

Source: McCandlish et al., "An empirical model of large-batch training" (2018), §2 (steps to a
target); Frazier, Powell, Dayanik, "The knowledge-gradient policy for correlated normal beliefs",
INFORMS J. Computing 21 (2009); Ryzhov, Powell, Frazier, "The knowledge gradient algorithm for a
general class of online learning problems", Operations Research 60 (2012). The prior, the profile
as half of the answer and the use of unfinished runs are this project's.
"""

from __future__ import annotations

import numpy as np

from labkit.kit.describe import description
from labkit.tuning.policies.policy import Floats, Indices, Memory, Outcome, Policy, Task

_LEVEL_SD = 10.0  # nats: nothing is known of a job's cost before its first run
_DENT_SD = 0.03  # nats: one batch size apart from its neighbours, for kernels that suit or do not
_PROFILE_SD = 1e-3  # nats: how exactly a profile tells the cost of an epoch
_SCALE_OCTAVES = 3.0  # one standard deviation of B_noise and b_sat, in doublings around b0
_SMALL_OCTAVES = 6.0  # so many doublings lower, small batches cost epochs again
_ROUGHNESS = 0.3  # nats: how far the true curve strays from theory's (by a third)
_SMOOTHNESS_OCTAVES = 1.0  # over so many doublings it strays alike
_RUN_SPREAD = 0.1  # nats: of epochs between equal runs, as believed at first
_SPREAD_WEIGHT = 2.0  # runs that this belief counts for
_PATIENCE_FACTOR = 2.0  # β
_LOOKS = (1, 4, 16)  # one run may be too few to change a decision that several would
_MAX_TRIALS = 2  # failed trials of a recurrence before the best known finishes it
_NODES = 9


def theory_prior(octaves: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Mean and covariance of log epochs, and of log epoch cost, at batch sizes b0·2^octaves.

    They are those of ln(1 + b/B_noise + b_small/b) and ln(1 + b_sat/b), less their values at b0,
    over independent scales that are log-normal around b0, found by quadrature; the level, which is
    free, and the roughness are added.
    """
    grid = np.linspace(-3, 3, 31)
    odds = np.exp(-(grid**2) / 2)
    odds /= odds.sum()
    scale = grid * _SCALE_OCTAVES
    rising = 2.0 ** (octaves - scale[:, None])
    falling = 2.0 ** (scale[:, None] - octaves)
    small = falling * 2.0**-_SMALL_OCTAVES
    epochs = np.log1p(rising[:, None] + small[None]).reshape(-1, len(octaves))
    gap = (octaves[:, None] - octaves) / _SMOOTHNESS_OCTAVES
    rough = _ROUGHNESS**2 * np.exp(-(gap**2) / 2) + _DENT_SD**2 * np.eye(len(octaves))
    priors = []
    for curves, weight in ((epochs, np.outer(odds, odds).ravel()), (np.log1p(falling), odds)):
        centred = curves - curves[:, [int(np.abs(octaves).argmin())]]
        mean = weight @ centred
        spread = (weight[:, None] * (centred - mean)).T @ (centred - mean)
        priors.append((mean, spread + rough + _LEVEL_SD**2))
    return priors[0], priors[1]


def knowledge_gradient(mean: Floats, cov: Floats, seen_cov: Floats, noise: Floats) -> Floats:
    """How far observing one log cost lets the least expected cost fall, on average.

    It is found by Gauss-Hermite quadrature over what is observed, and never negative.

    Args:
        mean, cov: of the log costs, problems × n and problems × n × n.
        seen_cov: the part of ``cov`` that the observation is about: of a sum of two terms, one may
            be known.
        noise: variance of the observation, a problem each.

    Returns:
        problems × n, for an observation of each; costs are such that exp(mean) is one.
    """
    variance = np.diagonal(cov, axis1=1, axis2=2)
    own = np.diagonal(seen_cov, axis1=1, axis2=2) + noise[:, None]
    step = seen_cov / np.sqrt(own)[:, :, None]  # symmetric: row b is what b tells of each
    middle = (mean + variance / 2)[:, None, :] - step**2 / 2
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    later = sum(
        weight * np.exp((middle + node * step).min(axis=2))
        for node, weight in zip(nodes, weights / weights.sum(), strict=True)
    )
    now = np.exp(mean + variance / 2).min(axis=1, keepdims=True)
    return np.maximum(now - later, 0.0)


class Belief:
    """A Gaussian process over batch sizes: all seeds share its prior, each has observations of its
    own.
    """

    def __init__(self, num_seeds: int, mean: Floats, cov: Floats) -> None:
        self.mean = mean
        self.cov = cov
        self.precision = np.zeros((num_seeds, len(mean)))
        self.evidence = np.zeros((num_seeds, len(mean)))  # precision × value

    def posterior(self, who: Indices, more: Floats | None = None) -> tuple[Floats, Floats]:
        """Mean (seeds × n) and covariance (seeds × n × n) given what was seen, in O(n³) a seed.

        Args:
            who: the seeds.
            more: precision that is expected soon, of which only the covariance knows.
        """
        precision = self.precision[who]
        cov = self._shrunk(precision)
        surprise = self.evidence[who] - precision * self.mean
        mean = self.mean + np.einsum("sij,sj->si", cov, surprise)
        return mean, cov if more is None else self._shrunk(precision + more)

    def _shrunk(self, precision: Floats) -> Floats:
        """The covariance that is left after observations of this precision."""
        root = np.sqrt(precision)
        scaled = root[:, :, None] * self.cov
        inner = np.eye(len(self.mean)) + scaled * root[:, None, :]
        return self.cov - np.swapaxes(scaled, 1, 2) @ np.linalg.solve(inner, scaled)


class Spread(Memory):
    """Learns how far equal runs differ: one variance for all batch sizes, from within each."""

    def variance(self, who: Indices) -> Floats:
        """The pooled variance, shrunk to what was believed at first."""
        free = np.maximum(self.count[who] - 1, 0).sum(axis=1)
        prior = _SPREAD_WEIGHT * _RUN_SPREAD**2
        return (prior + self.squares[who].sum(axis=1)) / (_SPREAD_WEIGHT + free)


@description(frozen=False)
class CostCurve(Policy):
    """Run the batch size whose cost, less what running it teaches the recurrences left, is least.

    Log cost over log batch size is a Gaussian process (see the module). A run that ends tells the
    epochs, one that was stopped that there are more, and either's first epoch tells the cost of an
    epoch: after it, a batch size that no longer looks worth a run is given up, for one epoch's
    cost. What a run teaches is its knowledge gradient, the expected fall of the least expected
    cost, times the recurrences left. Any run ends at β times the least
    expected cost. How far equal runs differ is learned from all batch sizes together.

    Nothing is drawn at random: the runs' own spread is the only chance.
    """

    stops_early: bool = False

    def begin(self, task: Task) -> None:
        super().begin(task)
        octaves = np.log2(np.array(task.batch_sizes) / task.batch_sizes[self.default])
        epochs, each = theory_prior(octaves)
        self.epochs = Belief(task.num_seeds, *epochs)
        self.epoch_cost = Belief(task.num_seeds, *each)
        self.runs = Spread(task.shape)
        self.stopped = Belief(task.num_seeds, *epochs)  # only as a place for what stopped runs say
        self.in_flight = np.zeros(task.shape)
        self.failures = np.zeros(task.num_seeds, dtype=np.intp)
        self.left = np.full(task.num_seeds, task.num_recurrences)

    def decide(self, who: Indices, noise: Floats) -> tuple[Indices, Indices]:
        mean, cov, _, spread = self._log_cost(who, self.in_flight[who])
        mean = mean - mean[:, [self.default]]  # so that nothing overflows: only ratios matter
        cost = np.exp(mean + np.diagonal(cov, axis1=1, axis2=2) / 2)
        score = cost - self._worth(who, mean, cov, cov, spread)
        known = self.runs.count[who] > 0
        enough = (self.failures[who] >= _MAX_TRIALS)[:, None]
        score = np.where(enough, np.where(known, cost, np.inf), score)
        batch = np.where(known.any(axis=1), score.argmin(axis=1), self.default)
        self.in_flight[who, batch] += 1
        return batch, self.limits[batch]

    def patience(self, who: Indices, batch: Indices, epoch_cost_j: Floats) -> Floats:
        """Give up at β times the least expected cost, or after one epoch where the rest is not
        worth it.

        It is not worth it where finishing, less what it would teach, is dearer than to finish
        elsewhere.
        """
        rows = np.arange(len(who))
        new = self.epoch_cost.precision[who, batch] == 0
        self.epoch_cost.precision[who, batch] = _PROFILE_SD**-2
        self.epoch_cost.evidence[who, batch] = np.log(epoch_cost_j) * _PROFILE_SD**-2
        mean, cov, epochs_cov, spread = self._log_cost(who)
        mean = mean - np.log(epoch_cost_j)[:, None]  # costs in epochs of this batch size
        cost = np.exp(mean + np.diagonal(cov, axis1=1, axis2=2) / 2)
        best = np.where(self.runs.count[who] > 0, cost, np.inf).min(axis=1)
        worth = self._worth(who, mean, cov, epochs_cov, spread)[rows, batch]
        hopeless = new & np.isfinite(best) & (cost[rows, batch] - 1 - worth > best)
        bound = np.where(self.failures[who] >= _MAX_TRIALS, np.inf, best)
        return np.where(hopeless, 1.0, _PATIENCE_FACTOR * bound)

    def observe(self, who: Indices, outcome: Outcome) -> None:
        batch = outcome.batch
        ok = outcome.reached
        self.in_flight[who, batch] -= 1
        self.failures[who] = np.where(ok, 0, self.failures[who] + 1)
        self.left[who[ok]] -= 1
        self.runs.add(who[ok], batch[ok], np.log(outcome.epochs[ok]))
        long = ~ok & (outcome.epochs > 1)
        if long.any():
            self._observe_stop(who[long], batch[long], np.log(outcome.epochs[long]))

    def _observe_stop(self, who: Indices, batch: Indices, bound: Floats) -> None:
        """Learn that log epochs exceed ``bound``: the Gaussian takes the moments that the
        truncation leaves.
        """
        from scipy.special import log_ndtr

        rows = np.arange(len(who))
        _, _, epochs_cov, spread = self._log_cost(who)
        mean = self._epochs_mean[rows, batch]
        before = epochs_cov[rows, batch, batch]
        total = np.sqrt(before + spread)
        place = (bound - mean) / total
        hazard = np.exp(-(place**2) / 2 - log_ndtr(-place)) / np.sqrt(2 * np.pi)
        after = before - (before / total) ** 2 * hazard * (hazard - place)
        moved = mean + before / total * hazard
        self.stopped.precision[who, batch] += np.maximum(1 / after - 1 / before, 0.0)
        self.stopped.evidence[who, batch] += moved / after - mean / before

    def _log_cost(
        self, who: Indices, in_flight: Floats | None = None
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Mean and covariance of log cost, the epochs' part of the covariance, and the runs'
        variance.
        """
        spread = self.runs.variance(who)
        ended = self.runs.count[who] / spread[:, None]
        self.epochs.precision[who] = ended + self.stopped.precision[who]
        self.epochs.evidence[who] = ended * self.runs.mean[who] + self.stopped.evidence[who]
        soon = None
        if in_flight is not None and in_flight.any():
            soon = in_flight / spread[:, None]
        mean, cov = self.epochs.posterior(who, soon)
        each_mean, each_cov = self.epoch_cost.posterior(who)
        self._epochs_mean = mean
        return mean + each_mean, cov + each_cov, cov, spread

    def _worth(
        self, who: Indices, mean: Floats, cov: Floats, seen_cov: Floats, spread: Floats
    ) -> Floats:
        """What a run of each batch size teaches the recurrences left, seeds × batch sizes."""
        left = self.left[who]
        worth = np.zeros_like(mean)
        for looks in _LOOKS:
            gain = knowledge_gradient(mean, cov, seen_cov, spread / looks)
            worth = np.maximum(worth, np.maximum(left - looks, 0)[:, None] / looks * gain)
        return worth
