"""The gradient noise scale: how large a batch must be before its gradient stops being mostly noise.

With G the true gradient and Σ the covariance of one example's gradient, the gradient of a batch of
B examples has squared norm |G|² + tr(Σ)/B in expectation. Two batch sizes tell both terms apart,
and their ratio tr(Σ)/|G|², a number of examples, is the noise scale. Replicas (or microbatches) of
one step are the usual two sizes: their own gradients, and the mean that the step takes.

Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), §2.2 and App. A.1;
Pollux (OSDI'21), §3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import UsageError
from labkit.kit.describe import Positive, checked, description

MOST_GRADIENT = 1e100
"""The size of a gradient's part whose square, and a sum of many, are still numbers."""


@description(slots=True)
class GradientNoise:
    """Squared norm of the true gradient, and trace of the covariance of one example's.

    Estimates are unbiased, so either may come out negative where the noise is large; average
    several (:func:`average`) before dividing.
    """

    grad_sqr: float
    covariance_trace: float

    @property
    def noise_scale(self) -> float:
        """tr(Σ)/|G|² in examples: 0 without noise, infinite where no gradient is left.

        Source: McCandlish et al. 2018, §2.2 (the simple noise scale); Pollux §3.1 (φ).

        >>> GradientNoise(grad_sqr=2.0, covariance_trace=100.0).noise_scale
        50.0
        """
        if self.grad_sqr <= 0:
            return math.inf
        return max(self.covariance_trace, 0.0) / self.grad_sqr


@checked
def from_two_batches(
    *, small_sqr: float, small_batch: Positive, large_sqr: float, large_batch: Positive
) -> GradientNoise:
    """Estimate both terms from squared gradient norms (or their means) at two batch sizes;
    unbiased.

    Args:
        small_sqr, large_sqr: squared norms of the gradient at each batch size.
        small_batch, large_batch: the batch sizes, in examples.

    Source: McCandlish et al. 2018, App. A.1.

    >>> from_two_batches(small_sqr=3.0, small_batch=10, large_sqr=2.0, large_batch=20)
    GradientNoise(grad_sqr=1.0, covariance_trace=20.0)
    """
    if not small_batch < large_batch:
        raise UsageError(
            f"two batch sizes, 0 < small_batch < large_batch, are needed, got {small_batch} and "
            f"{large_batch}"
        )
    span = large_batch - small_batch
    return GradientNoise(
        grad_sqr=(large_batch * large_sqr - small_batch * small_sqr) / span,
        covariance_trace=(small_sqr - large_sqr) * small_batch * large_batch / span,
    )


@checked
def from_replicas(gradients: ArrayLike, examples_each: Positive) -> GradientNoise:
    """Estimate both terms from the gradients of replicas of one step.

    The mean of their squared norms and the squared norm of their mean are the two batch sizes. With
    a row an example and ``examples_each=1`` this is the sample covariance.

    Args:
        gradients: one row a replica, each the mean over examples of its own.
        examples_each: how many examples a replica's gradient is the mean over.

    Source: Pollux §4.1 (its estimator where there are several replicas).
    """
    rows = np.asarray(gradients, dtype=float)
    if rows.ndim != 2 or len(rows) < 2 or not rows.size:
        raise UsageError(f"gradients must be a table of at least two rows, got shape {rows.shape}")
    if not (np.abs(rows) < MOST_GRADIENT).all():
        raise UsageError(f"gradients must be numbers below {MOST_GRADIENT:g} in size")
    return from_two_batches(
        small_sqr=float(np.mean(np.sum(rows**2, axis=1))),
        small_batch=examples_each,
        large_sqr=float(np.sum(rows.mean(0) ** 2)),
        large_batch=examples_each * len(rows),
    )


@checked
def average(estimates: Iterable[GradientNoise]) -> GradientNoise:
    """Average estimates term by term: the ratio of means is far less biased than the mean of
    ratios.

    Source: McCandlish et al. 2018, App. A.1.
    """
    terms = np.array([(e.grad_sqr, e.covariance_trace) for e in estimates])
    if not len(terms):
        raise UsageError("estimates holds no estimate of the gradient noise to average")
    grad_sqr, trace = terms.mean(0)
    return GradientNoise(grad_sqr=float(grad_sqr), covariance_trace=float(trace))
