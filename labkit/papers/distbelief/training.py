"""A small network on scikit-learn's digits, trained by many replicas whose clock is virtual.

Gradients, weights and accuracies are real; how long a replica computes and sends is drawn. All
weights are one vector, as a parameter server holds them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.kit.randomness import Rng
from labkit.tuning.recording.training import read_digits

Vector = NDArray[np.float64]

NUM_TRAINED = 1280  # samples to train on; the other 517 test
PIXELS = 64
HIDDEN = 32
CLASSES = 10
NUM_WEIGHTS = (PIXELS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES

_FIRST_END = PIXELS * HIDDEN
_BIAS_END = _FIRST_END + HIDDEN
_SECOND_END = _BIAS_END + HIDDEN * CLASSES


@dataclass(frozen=True, kw_only=True)
class Data:
    """Images of 64 values in [0, 1] and their digits, to train on and to test."""

    images: Vector
    digits: NDArray[np.int64]
    test_images: Vector
    test_digits: NDArray[np.int64]


@description
class Cluster:
    """Describes the replicas and their virtual clock.

    Args:
        replicas: of the model; each computes on its own.
        sample_s: seconds of computing per sample.
        message_s: seconds until fetched weights, or a pushed gradient, arrive.
        spread: sigma of the lognormal factor, of mean 1, on the computing of each minibatch.
    """

    replicas: Count = 1
    sample_s: Positive = 1e-3
    message_s: NonNegative = 4e-3
    spread: NonNegative = 0.25

    def computing_s(self, samples: int, rng: np.random.Generator) -> float:
        """Draw how long a replica computes on some samples."""
        factor = np.exp(self.spread * rng.standard_normal() - self.spread**2 / 2)
        return float(samples * self.sample_s * factor)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a training did.

    Args:
        time_s: virtual time at which the accuracy was reached; None where it was not.
        curve: virtual seconds and test accuracy, at each look.
        updates: of the weights.
        samples: that replicas worked through.
        staleness: mean number of updates between a fetch and the push of its gradient.
        rate: the rule's rate; None where it has none.
    """

    time_s: float | None
    curve: list[tuple[float, float]]
    updates: int
    samples: int
    staleness: float = 0.0
    rate: float | None = None


class Rule(Protocol):
    """Changes the server's weights by a gradient; it may remember earlier ones."""

    rate: float

    def apply(self, weights: Vector, gradient: Vector) -> None:
        """Change ``weights`` in place."""


@dataclass
class Fixed:
    """One rate for all weights and all times (the paper's eta)."""

    rate: float

    def apply(self, weights: Vector, gradient: Vector) -> None:
        weights -= self.rate * gradient


@dataclass
class Adagrad:
    """A rate for each weight: gamma over the root of the sum of its squared gradients.

    Source: §4.1.
    """

    rate: float
    squares: Vector = field(default_factory=lambda: np.full(NUM_WEIGHTS, 1e-12))

    def apply(self, weights: Vector, gradient: Vector) -> None:
        self.squares += gradient * gradient
        weights -= self.rate * gradient / np.sqrt(self.squares)


@dataclass
class Decaying:
    """One rate for all weights that falls as Adagrad's do: by the root of the updates so far."""

    rate: float
    updates: int = 0

    def apply(self, weights: Vector, gradient: Vector) -> None:
        self.updates += 1
        weights -= self.rate / np.sqrt(self.updates) * gradient


@checked
def read_data(rng: Rng = 0) -> Data:
    """Read the digits and shuffle them; the first 1,280 are to train on.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    pixels, digits = read_digits()
    order = np.random.default_rng(rng).permutation(len(pixels))
    images = pixels[order] / 16
    return Data(
        images=images[:NUM_TRAINED],
        digits=digits[order][:NUM_TRAINED],
        test_images=images[NUM_TRAINED:],
        test_digits=digits[order][NUM_TRAINED:],
    )


@checked
def first_weights(rng: Rng = 0) -> Vector:
    """Draw weights of one over the root of a unit's inputs; biases are 0."""
    generator = np.random.default_rng(rng)
    first = generator.standard_normal((PIXELS, HIDDEN)) / np.sqrt(PIXELS)
    second = generator.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN)
    parts = [first.ravel(), np.zeros(HIDDEN), second.ravel(), np.zeros(CLASSES)]
    return np.concatenate(parts)


def _layers(weights: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    # Slices: numpy.split takes longer than a minibatch's gradient.
    first = weights[:_FIRST_END].reshape(PIXELS, HIDDEN)
    bias = weights[_FIRST_END:_BIAS_END]
    second = weights[_BIAS_END:_SECOND_END].reshape(HIDDEN, CLASSES)
    return first, bias, second, weights[_SECOND_END:]


def loss_and_gradient(
    weights: Vector, images: Vector, digits: NDArray[np.int64]
) -> tuple[float, Vector]:
    """The mean cross-entropy of a network with one hidden layer of sigmoids, and its gradient.

    Args:
        weights: all weights as one vector.
        images: samples × 64.
        digits: one a sample.
    """
    first, bias, second, last_bias = _layers(weights)
    hidden = special.expit(images @ first + bias)
    scores = hidden @ second + last_bias
    scores -= scores.max(1, keepdims=True)
    shares = np.exp(scores)
    totals = shares.sum(1, keepdims=True)
    rows = np.arange(len(digits))
    loss = float((np.log(totals[:, 0]) - scores[rows, digits]).mean())

    # Backward: the softmax's slope, then the sigmoid's.
    slope = shares / totals
    slope[rows, digits] -= 1
    slope /= len(digits)
    below = slope @ second.T * hidden * (1 - hidden)
    to_first = (images.T @ below).ravel()
    to_second = (hidden.T @ slope).ravel()
    return loss, np.concatenate([to_first, below.sum(0), to_second, slope.sum(0)])


def gradient(weights: Vector, images: Vector, digits: NDArray[np.int64]) -> Vector:
    """The gradient alone, of the mean cross-entropy."""
    return loss_and_gradient(weights, images, digits)[1]


def accuracy(weights: Vector, images: Vector, digits: NDArray[np.int64]) -> float:
    """The share of images whose digit has the highest score."""
    first, bias, second, last_bias = _layers(weights)
    scores = special.expit(images @ first + bias) @ second + last_bias
    return float((scores.argmax(1) == digits).mean())


@checked
def warm_start(
    data: Data, *, updates: Count = 200, rate: Positive = 0.5, batch: Count = 16, rng: Rng = 0
) -> Vector:
    """Train by plain SGD on one replica, to start all ways from the same weights.

    Source: §5, "warmstart".
    """
    generator = np.random.default_rng(rng)
    weights = first_weights(generator)
    for _ in range(updates):
        rows = generator.integers(len(data.digits), size=batch)
        weights -= rate * gradient(weights, data.images[rows], data.digits[rows])
    return weights


@dataclass(kw_only=True)
class _Watch:
    """Looks at the accuracy every so many updates, and says when a training ends.

    Attributes:
        hopeless_after: updates after which a training that is no better than at its start is
            given up.
        curve: virtual time and accuracy of each look.
        reached_s: virtual time at which the target was reached; None before.
    """

    data: Data
    target: float
    every: int
    hopeless_after: int
    first_share: float
    curve: list[tuple[float, float]] = field(default_factory=list)
    reached_s: float | None = None

    @classmethod
    def begin(
        cls, data: Data, weights: Vector, target: float, replicas: int, patience: int
    ) -> _Watch:
        """Watch a training from its first weights on."""
        return cls(
            data=data,
            target=target,
            every=max(10, replicas // 2),
            hopeless_after=max(1_000, patience * replicas),
            first_share=accuracy(weights, data.test_images, data.test_digits),
        )

    def ends(self, weights: Vector, updates: int, now_s: float) -> bool:
        if updates % self.every:
            return False
        share = accuracy(weights, self.data.test_images, self.data.test_digits)
        self.curve.append((now_s, share))
        if share >= self.target:
            self.reached_s = now_s
            return True
        return updates >= self.hopeless_after and share <= self.first_share


def downpour(
    data: Data,
    weights: Vector,
    rule: Rule,
    *,
    cluster: Cluster,
    target: float,
    batch: int = 16,
    limit_s: float = 60.0,
    max_updates: int = 20_000,
    patience: int = 20,
    rng: Rng = 0,
) -> Run:
    """Replicas fetch weights, compute a minibatch's gradient and push it, none waiting for others.

    The server applies a gradient as it arrives, and sends the replica the weights of that moment.
    One replica alone is plain SGD.

    Args:
        data: the digits.
        weights: where it starts; they are copied.
        rule: how a gradient changes the weights.
        cluster: replicas and their clock.
        target: test accuracy at which it ends.
        batch: samples of a minibatch.
        limit_s: virtual time at which it ends at the latest.
        max_updates: after which it ends at the latest.
        patience: updates of each replica after which a run that is no better than at its start is
            given up, and at least 1,000 in all.
        rng: of minibatches and of times.

    Source: §4.1, with n_fetch = n_push = 1.
    """
    generator = np.random.default_rng(rng)
    weights = weights.copy()
    shards = np.array_split(np.arange(len(data.digits)), cluster.replicas)
    fetched = [(weights.copy(), 0) for _ in shards]
    arrivals = [
        (2 * cluster.message_s + cluster.computing_s(batch, generator), replica)
        for replica in range(cluster.replicas)
    ]
    heapq.heapify(arrivals)
    watch = _Watch.begin(data, weights, target, cluster.replicas, patience)
    updates = 0
    stale = 0
    while updates < max_updates:
        # 1. The next gradient arrives; it was computed on weights fetched a while ago.
        now_s, replica = heapq.heappop(arrivals)
        if now_s > limit_s:
            break
        seen, version = fetched[replica]
        rows = shards[replica][generator.integers(len(shards[replica]), size=batch)]
        rule.apply(weights, gradient(seen, data.images[rows], data.digits[rows]))
        stale += updates - version
        updates += 1
        # 2. The replica fetches the weights of this moment and goes on.
        fetched[replica] = (weights.copy(), updates)
        next_s = now_s + 2 * cluster.message_s + cluster.computing_s(batch, generator)
        heapq.heappush(arrivals, (next_s, replica))
        # 3. Look at the accuracy now and then.
        if watch.ends(weights, updates, now_s):
            break
    return Run(
        time_s=watch.reached_s,
        curve=watch.curve,
        updates=updates,
        samples=updates * batch,
        staleness=stale / max(updates, 1),
        rate=rule.rate,
    )


def at_best_rate(
    train: Callable[[float, float], Run], rates: Iterable[float], *, limit_s: float = 60.0
) -> Run:
    """Try each rate, and return the run that reached the accuracy first.

    Where none did, it is the one that ended at the highest accuracy.

    Args:
        train: called with a rate and with the virtual time at which the run may give up.
        rates: to try.
        limit_s: virtual time of the first try; later ones end where they cannot be faster.
    """
    best: Run | None = None
    for rate in rates:
        run = train(rate, limit_s)
        if run.time_s is not None:
            best = run
            limit_s = run.time_s
        elif best is None or (best.time_s is None and run.curve[-1][1] > best.curve[-1][1]):
            best = run
    if best is None:
        raise ValueError("at_best_rate: rates is empty; give one rate or more")
    return best


def pass_s(
    cluster: Cluster, *, samples: int = NUM_TRAINED, portion: int | None = None, rng: Rng = 0
) -> float:
    """Virtual time in which the replicas work through a batch, handed out in portions.

    Args:
        cluster: replicas and their clock.
        samples: of the batch.
        portion: samples that a free replica gets next; by default an eighth of its even share.
        rng: of times.

    Source: §4.2, load balancing. Copies of late portions are left out.
    """
    generator = np.random.default_rng(rng)
    size = portion or max(1, samples // (8 * cluster.replicas))
    free_s = [0.0] * cluster.replicas
    ends_s = 0.0
    for start in range(0, samples, size):
        now_s = heapq.heappop(free_s)
        now_s += cluster.computing_s(min(size, samples - start), generator)
        heapq.heappush(free_s, now_s)
        ends_s = max(ends_s, now_s)
    return ends_s + 2 * cluster.message_s


def sandblaster(
    data: Data,
    weights: Vector,
    *,
    cluster: Cluster,
    target: float,
    max_iterations: int = 200,
    rng: Rng = 0,
) -> Run:
    """L-BFGS on the whole batch, whose gradient the replicas compute in portions.

    Its vectors lie on the servers, so that only weights and gradients travel, once an evaluation.
    What the coordinator's commands cost is left out.

    Args:
        data: the digits.
        weights: where it starts.
        cluster: replicas and their clock.
        target: test accuracy at which it ends.
        max_iterations: after which it ends at the latest.
        rng: of times.

    Source: §4.2.
    """
    generator = np.random.default_rng(rng)
    curve: list[tuple[float, float]] = []
    passes_s: list[float] = []

    def evaluate(now: Vector) -> tuple[float, Vector]:
        passes_s.append(pass_s(cluster, rng=generator))
        return loss_and_gradient(now, data.images, data.digits)

    def look(intermediate_result: optimize.OptimizeResult) -> None:
        share = accuracy(intermediate_result.x, data.test_images, data.test_digits)
        curve.append((sum(passes_s), share))
        if share >= target:
            raise StopIteration

    optimize.minimize(
        evaluate,
        weights,
        jac=True,
        method="L-BFGS-B",
        callback=look,
        options={"maxiter": max_iterations, "maxcor": 10},
    )
    time_s, share = curve[-1]
    return Run(
        time_s=time_s if share >= target else None,
        curve=curve,
        updates=len(curve),
        samples=len(passes_s) * len(data.digits),
    )
