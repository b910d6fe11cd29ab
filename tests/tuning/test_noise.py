"""The gradient noise scale where it is known: normal gradients, a linear regression."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.tuning import noise


def gradients(rng: np.random.Generator, count: int, batch: int) -> np.ndarray:
    """Batch gradients with |G|² = 9 + 16 and, for one example, tr(Σ) = 4 + 100 + 1."""
    mean = np.array([3.0, 4.0, 0.0])
    spread = np.array([2.0, 10.0, 1.0])
    return mean + spread * rng.standard_normal((count, 3)) / np.sqrt(batch)


def test_two_batch_sizes_give_both_terms_without_bias() -> None:
    rng = np.random.default_rng(0)
    small = np.sum(gradients(rng, 40_000, 8) ** 2, axis=1).mean()
    large = np.sum(gradients(rng, 40_000, 64) ** 2, axis=1).mean()
    found = noise.from_two_batches(small_sqr=small, small_batch=8, large_sqr=large, large_batch=64)
    assert found.grad_sqr == pytest.approx(25, rel=0.02)
    assert found.covariance_trace == pytest.approx(105, rel=0.02)
    assert found.noise_scale == pytest.approx(4.2, rel=0.03)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 50), st.integers(51, 500))
def test_expected_norms_are_inverted_exactly(
    grad: float, trace: float, small: int, large: int
) -> None:
    true = noise.GradientNoise(grad_sqr=grad, covariance_trace=trace)
    norms = [true.grad_sqr + true.covariance_trace / size for size in (small, large)]
    found = noise.from_two_batches(
        small_sqr=norms[0], small_batch=small, large_sqr=norms[1], large_batch=large
    )
    assert found.noise_scale == pytest.approx(true.noise_scale, rel=1e-6)


def test_single_examples_give_the_sample_covariance() -> None:
    rows = np.random.default_rng(1).standard_normal((30, 5)) + 1
    found = noise.from_replicas(rows, 1)
    assert found.covariance_trace == pytest.approx(np.trace(np.cov(rows.T)))
    unbiased = np.sum(rows.mean(0) ** 2) - found.covariance_trace / 30
    assert found.grad_sqr == pytest.approx(unbiased)


@pytest.mark.parametrize("replicas", [2, 4, 16])
def test_replicas_agree_with_the_truth(replicas: int) -> None:
    rng = np.random.default_rng(replicas)
    found = [noise.from_replicas(gradients(rng, replicas, 5), 5) for _ in range(4000)]
    assert noise.average(found).noise_scale == pytest.approx(4.2, rel=0.1)


def test_no_gradient_left_is_all_noise() -> None:
    assert noise.GradientNoise(grad_sqr=0.0, covariance_trace=1.0).noise_scale == np.inf
    assert noise.GradientNoise(grad_sqr=1.0, covariance_trace=-1.0).noise_scale == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise.from_replicas(np.ones((1, 3)), 4), r"shape \(1, 3\)"),
        (lambda: noise.average([]), "no estimate"),
        (
            lambda: noise.from_two_batches(small_sqr=1, small_batch=8, large_sqr=1, large_batch=8),
            "8 and 8",
        ),
    ],
)
def test_too_little_to_tell_is_refused(call: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(("distance", "sigma"), [(1.0, 2.0), (3.0, 0.5)])
def test_the_noise_scale_of_a_linear_regression_is_the_analytic_one(
    distance: float, sigma: float
) -> None:
    """x standard normal in d dimensions, y = w·x + σε, and weights at δ from w.

    A gradient is 2(x·δ + σε)x: its mean 2δ, its mean square 4((d + 2)|δ|² + σ²d), by the fourth
    moment of a normal. So tr(Σ)/|G|² = d + 1 + σ²d/|δ|². One step's |g|² has a standard deviation
    of 2√((8|δ|² + 4σ²)/64)/|2δ|, 0.61 of it at most here, so 1,500 steps leave 1.6 %: 5 % is three
    of them.
    """
    dim = 8
    replicas = 4
    examples = 16
    rng = np.random.default_rng(3)
    delta = np.full(dim, distance / dim**0.5)
    estimates = []
    for _ in range(1500):
        x = rng.standard_normal((replicas, examples, dim))
        residual = x @ delta + sigma * rng.standard_normal((replicas, examples))
        gradients = (2 * residual[..., None] * x).mean(axis=1)
        estimates.append(noise.from_replicas(gradients, examples))
    mean = noise.average(estimates)
    trace = 4 * ((dim + 1) * distance**2 + sigma**2 * dim)
    assert mean.grad_sqr == pytest.approx(4 * distance**2, rel=0.05)
    assert mean.covariance_trace == pytest.approx(trace, rel=0.05)
    assert mean.noise_scale == pytest.approx(dim + 1 + sigma**2 * dim / distance**2, rel=0.1)
