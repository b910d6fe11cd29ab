"""The gradient noise scale where it is known: normal gradients, a linear regression."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.tuning import noise


def gradients(rng: np.random.Generator, count: int, batch: int) -> np.ndarray:
    """Batch gradients with |G|² = 9 + 16 and, for one example, tr(Σ) = 4 + 100 + 1."""
    mean, spread = np.array([3.0, 4.0, 0.0]), np.array([2.0, 10.0, 1.0])
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
    norms = true.expected_sqr([small, large])
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
def test_replicas_agree_with_the_truth_and_the_interval_holds_it(replicas: int) -> None:
    rng = np.random.default_rng(replicas)
    found = [noise.from_replicas(gradients(rng, replicas, 5), 5) for _ in range(4000)]
    assert noise.average(found).noise_scale == pytest.approx(4.2, rel=0.1)
    low, high = noise.interval(found, level=0.99)
    assert low < 4.2 < high


def test_successive_steps_stand_for_replicas_while_the_gradient_rests() -> None:
    found = noise.from_successive(gradients(np.random.default_rng(2), 8000, 5), 5)
    assert len(found) == 7999
    assert noise.average(found).noise_scale == pytest.approx(4.2, rel=0.1)


def test_no_gradient_left_is_all_noise() -> None:
    assert noise.GradientNoise(grad_sqr=0.0, covariance_trace=1.0).noise_scale == np.inf
    assert noise.GradientNoise(grad_sqr=1.0, covariance_trace=-1.0).noise_scale == 0


def test_smoothing_averages_terms_and_corrects_its_start() -> None:
    table = pd.DataFrame({"batch_size": 10, "grad_sqr": [2.0] * 5, "covariance_trace": [8.0] * 5})
    assert np.allclose(noise.smoothed(table, over_examples=500)["noise_scale"], 4)
    alternating = table.assign(grad_sqr=[1.0, 3.0, 1.0, 3.0, 1.0])
    late = noise.smoothed(alternating, over_examples=1e6)["grad_sqr"].iloc[-1]
    assert late == pytest.approx(1.8, rel=1e-3)  # decay hardly counts: the plain mean


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


# ---------------------------------------------------------------- real training


def test_training_a_linear_regression_measures_its_noise_scale() -> None:
    """Held at fixed weights (rate 0), every example's gradient is at hand: the exact answer."""
    torch = pytest.importorskip("torch")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(500, 6, generator=draw)
    y = x @ torch.arange(6.0)[:, None] + 2 * torch.randn(500, 1, generator=draw)
    model = torch.nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    each = (2 * (x @ model.weight.T - y) * x).detach().double().numpy()
    exact = np.trace(np.cov(each.T, ddof=0)) / np.sum(each.mean(0) ** 2)
    for replicas in (1, 4):
        table = noise.train(
            model,
            torch.nn.functional.mse_loss,
            x,
            y,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            batch_size=16,
            num_replicas=replicas,
            num_steps=3000,
        )
        assert len(table) == 3000 - (replicas == 1)
        found = noise.smoothed(table, over_examples=1e9)["noise_scale"].iloc[-1]
        assert found == pytest.approx(exact, rel=0.1)


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
    torch = pytest.importorskip("torch")
    dim = 8
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(60_000, dim, generator=draw)
    y = x @ torch.full((dim, 1), distance / dim**0.5)
    y += sigma * torch.randn(60_000, 1, generator=draw)
    model = torch.nn.Linear(dim, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    table = noise.train(
        model,
        torch.nn.functional.mse_loss,
        x,
        y,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        batch_size=64,
        num_replicas=4,
        num_steps=1500,
    )
    mean = table[["grad_sqr", "covariance_trace"]].mean()
    trace = 4 * ((dim + 1) * distance**2 + sigma**2 * dim)
    assert mean["grad_sqr"] == pytest.approx(4 * distance**2, rel=0.05)
    assert mean["covariance_trace"] == pytest.approx(trace, rel=0.05)
    known = dim + 1 + sigma**2 * dim / distance**2
    assert noise.smoothed(table, over_examples=1e9)["noise_scale"].iloc[-1] == pytest.approx(
        known, rel=0.1
    )


def test_a_small_network_learns_digits_while_its_noise_scale_grows() -> None:
    """The gradient shrinks faster than its noise, as every measured run has it."""
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(data.data / 16, dtype=torch.float32)
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    table = noise.train(
        model,
        torch.nn.functional.cross_entropy,
        x,
        y,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        batch_size=64,
        num_replicas=4,
        num_steps=400,
    )
    assert (model(x).argmax(1) == y).float().mean() > 0.95
    scale = noise.smoothed(table, over_examples=1500)["noise_scale"]
    assert 1 < scale.iloc[30] < 500
    assert scale.iloc[-100:].median() > 3 * scale.iloc[20:60].median()


def test_training_follows_the_optimizer_as_plain_torch_does() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.randn(64, 3), torch.randn(64, 1)
    ours, plain = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    plain.load_state_dict(ours.state_dict())
    step = {m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, plain)}
    noise.train(
        ours, torch.nn.functional.mse_loss, x, y,
        optimizer=step[ours], batch_size=8, num_replicas=2, num_steps=20, seed=5,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(5)
    for _ in range(20):
        chosen = torch.randint(64, (8,), generator=draw)
        step[plain].zero_grad()
        torch.nn.functional.mse_loss(plain(x[chosen]), y[chosen]).backward()
        step[plain].step()
    assert torch.allclose(ours.weight, plain.weight, atol=1e-5)
