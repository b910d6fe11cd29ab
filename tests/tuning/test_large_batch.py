"""Large batches against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.tuning import large_batch as lb
from tests.amounts import amounts


@given(st.floats(1, 1e4), amounts(1e6), st.lists(st.floats(1, 1e4), min_size=2, max_size=8))
def test_efficiency_is_one_at_the_initial_size_and_falls(
    init: float, noise: float, factors: list[float]
) -> None:
    batch = init * np.array([1.0, *sorted(factors)])
    worth = lb.efficiency(batch, init_batch_size=init, noise_scale=noise)
    assert worth[0] == pytest.approx(1)
    assert (np.diff(worth) <= 1e-12).all()
    assert np.allclose(worth, (noise + init) / (noise + batch))
    gain = lb.adascale_gain(batch, init_batch_size=init, noise_scale=noise)
    assert (gain >= 1 - 1e-12).all()
    assert (gain <= batch / init * (1 + 1e-12)).all()


def test_all_noise_is_linear_scaling_and_none_is_no_gain() -> None:
    both = {"init_batch_size": 32, "init_learning_rate": 0.2}
    for noise, rule in ((np.inf, "linear"), (0.0, "none")):
        adapted = lb.learning_rate("adascale", [32, 128], noise_scale=noise, **both)
        assert np.allclose(adapted, lb.learning_rate(rule, [32, 128], **both))  # type: ignore[arg-type]
    root = lb.learning_rate("sqrt-adascale", [32, 128], noise_scale=np.inf, **both)
    assert np.allclose(root, lb.learning_rate("sqrt", [32, 128], **both))
    assert np.allclose(root, [0.2, 0.4])


def test_adascale_keeps_the_expected_progress_of_a_quadratic_step() -> None:
    """One step at gain × rate moves as far along G as that many small ones, with E|g|² to match.

    The gain is E|g|² at M0 over E|g|² at M: what the rate may grow by while the expected squared
    length of rate · gradient grows no faster than the expected step along G.
    """
    from labkit.tuning.goodput.noise import GradientNoise

    known = GradientNoise(grad_sqr=2.0, covariance_trace=640.0)
    small, large = (known.grad_sqr + known.covariance_trace / size for size in (32, 256))
    gain = lb.adascale_gain(256, init_batch_size=32, noise_scale=known.noise_scale)
    assert gain == pytest.approx(small / large)
