"""Large batches against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import tuning
from labkit.errors import UsageError
from labkit.tuning import large_batch as lb
from tests.tuning.conftest import make_job, random_job

sizes = st.floats(1, 1e5)


@given(st.floats(1, 1e4), st.floats(0, 1e6), st.lists(st.floats(1, 1e4), min_size=2, max_size=8))
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
    from labkit.tuning.noise import GradientNoise

    known = GradientNoise(grad_sqr=2.0, covariance_trace=640.0)
    small, large = known.expected_sqr([32, 256])
    gain = lb.adascale_gain(256, init_batch_size=32, noise_scale=known.noise_scale)
    assert gain == pytest.approx(small / large)


def test_the_published_schedule() -> None:
    rates = lb.step_schedule([0, 2.5, 5, 30, 60, 80], batch_size=8192)
    assert np.allclose(rates, [0.1, 1.65, 3.2, 0.32, 0.032, 0.0032])
    assert lb.step_schedule(0, batch_size=256) == pytest.approx(0.1)
    assert lb.momentum_correction(0.9, learning_rate=0.1, next_learning_rate=0.2) == 1.8


def test_momentum_correction_makes_both_forms_of_momentum_one() -> None:
    """v ← μv + ηg, w ← w − v against u ← mu + g, w ← w − ηu with a rate that changes."""
    rng = np.random.default_rng(0)
    rates, pulls = rng.uniform(0.1, 1, 20), rng.standard_normal(20)
    velocity, other, before = 0.0, 0.0, rates[0]
    for rate, pull in zip(rates, pulls, strict=True):
        corrected = lb.momentum_correction(0.9, learning_rate=before, next_learning_rate=rate)
        velocity = corrected * velocity + rate * pull
        other = 0.9 * other + pull
        assert velocity == pytest.approx(rate * other)
        before = rate


@given(sizes, sizes, st.floats(0.5, 1e6))
def test_steps_and_examples_trade_along_the_hyperbola(
    min_steps: float, min_examples: float, batch: float
) -> None:
    critical = lb.CriticalBatch(min_steps=min_steps, min_examples=min_examples)
    steps, examples = critical.steps(batch), critical.examples(batch)
    assert examples == pytest.approx(float(steps * batch))
    product = (steps / min_steps - 1) * (examples / min_examples - 1)
    assert product == pytest.approx(1, rel=1e-3)


@given(sizes, sizes)
def test_a_fit_recovers_the_trade_off(min_steps: float, min_examples: float) -> None:
    true = lb.CriticalBatch(min_steps=min_steps, min_examples=min_examples)
    batches = true.batch_size * np.array([0.1, 0.5, 1, 4, 10])
    found = lb.CriticalBatch.fit(batches, true.steps(batches))
    assert found.batch_size == pytest.approx(true.batch_size, rel=1e-6)
    again = lb.CriticalBatch.from_noise(
        true.batch_size, init_batch_size=batches[0], init_steps=float(true.steps(batches[0]))
    )
    assert again.min_steps == pytest.approx(min_steps, rel=1e-9)


@pytest.mark.parametrize(
    ("steps", "how"), [([100, 100], "do not fall"), ([100, 50], "in proportion")]
)
def test_a_trade_off_that_does_not_show_is_not_made_up(steps: list[float], how: str) -> None:
    with pytest.raises(UsageError, match=how):
        lb.CriticalBatch.fit([10, 20], steps)


def test_the_efficiency_of_pollux_is_the_same_trade_off() -> None:
    critical = lb.CriticalBatch.from_noise(900, init_batch_size=100, init_steps=5000)
    batches = np.array([100, 300, 2700])
    worth = lb.efficiency(batches, init_batch_size=100, noise_scale=900)
    assert np.allclose(critical.examples(batches), 5000 * 100 / worth)


@given(
    st.floats(0.01, 1), st.floats(1e-4, 1e-2), st.floats(20, 100), st.floats(0.05, 1),
    st.floats(200, 5000),
)  # fmt: skip
def test_the_batch_of_least_time_and_energy_is_the_closed_form(
    base_s: float, per_example_s: float, idle_w: float, per_example_j: float, batch: float
) -> None:
    """Steps S(1 + C/B) of a + bB seconds are least at B = √(aC/b); of c + dB joules likewise."""
    critical = lb.CriticalBatch(min_steps=1000, min_examples=1000 * batch)
    fixed_j, slope_j = idle_w * base_s, idle_w * per_example_s + per_example_j
    for a, b, column in (
        (base_s, per_example_s, "time_s"),
        (fixed_j, slope_j, "energy_j"),
    ):
        best = np.sqrt(a * batch / b)
        grid = best * 2.0 ** np.linspace(-4, 4, 161)
        step_s = base_s + per_example_s * grid
        table = lb.tradeoff(
            critical, grid, step_time_s=step_s, power_w=(fixed_j + slope_j * grid) / step_s
        )
        assert lb.pays_up_to(table, column) == pytest.approx(best, rel=0.05)  # type: ignore[arg-type]
        at_least_tenth = lb.pays_up_to(table, column, least_saving_fraction=0.1)  # type: ignore[arg-type]
        assert at_least_tenth < best


def test_a_batch_that_always_pays_pays_to_the_end() -> None:
    critical = lb.CriticalBatch(min_steps=10, min_examples=1e6)
    table = lb.tradeoff(critical, [64, 32, 128], step_time_s=1.0, power_w=100.0)
    assert table["batch_size"].tolist() == [32, 64, 128]
    assert lb.pays_up_to(table) == 128
    assert lb.pays_up_to(table, "energy_j", least_saving_fraction=0.6) == 32


# ---------------------------------------------------------------- recorded runs


def following(critical: lb.CriticalBatch) -> tuning.Job:
    """A job whose epochs follow a trade-off exactly and whose steps take 1 + B/64 seconds.

    A GPU draws 40 W plus 0.4 W an example at its highest limit; the lower limit halves the
    dynamic part and makes steps a tenth longer.
    """
    sizes = 2.0 ** np.arange(1, 11)
    epochs = critical.examples(sizes) / 50_000
    epoch_s = 50_000 / sizes * (1 + sizes / 64)
    busy_w = 0.4 * sizes
    return make_job(
        epochs[:, None].tolist(),
        np.stack([1.1 * epoch_s, epoch_s], 1).tolist(),
        np.stack([40 + busy_w / 2, 40 + busy_w], 1).tolist(),
    )


def test_recorded_runs_show_their_trade_off_and_where_it_stops_paying() -> None:
    critical = lb.CriticalBatch(min_steps=1000, min_examples=256_000)
    job = following(critical)
    row = lb.where_it_stops_paying([job]).iloc[0]
    assert row["critical_batch_size"] == pytest.approx(256, rel=1e-6)
    # steps (1 + 256/B)(1 + B/64) are least at √(256·64); times 40 + 0.4B watts is least earlier
    assert row["fastest_batch_size"] == 128
    sizes = np.array(job.batch_sizes, dtype=float)
    seconds = (1 + 256 / sizes) * (1 + sizes / 64)
    joules = {w: seconds * (40 + w * sizes) for w in (0.4, 0.2)}
    assert row["frugal_batch_size"] == sizes[joules[0.4].argmin()] < 128
    assert row["frugal_batch_size_any_limit"] == sizes[joules[0.2].argmin()]
    fastest, frugal = seconds.argmin(), joules[0.4].argmin()
    assert row["extra_energy_fraction"] == pytest.approx(
        joules[0.4][fastest] / joules[0.4][frugal] - 1
    )
    assert row["extra_time_fraction"] == pytest.approx(seconds[frugal] / seconds[fastest] - 1)


def test_a_recorded_table_is_what_the_power_engine_says() -> None:
    job = random_job(5)
    table = lb.of_job(job, power_limit_w=job.max_power_w)
    known = tuning.outcomes(job)
    known = known[
        (known["power_limit_w"] == job.max_power_w) & np.isfinite(known["time_to_accuracy_s"])
    ]
    assert np.allclose(table["time_s"], known["time_to_accuracy_s"])
    assert np.allclose(table["energy_j"], known["energy_to_accuracy_j"])
    least = tuning.outcomes(job).groupby("batch_size")["energy_to_accuracy_j"].min()
    assert np.allclose(lb.of_job(job)["energy_j"], least[np.isfinite(least)])
    with pytest.raises(UsageError, match="not profiled at 7 W"):
        lb.of_job(job, power_limit_w=7.0)


def test_published_workloads_say_where_larger_batches_stop_paying(
    standin: tuning.TrainingTrace,
) -> None:
    table = lb.where_it_stops_paying(standin.jobs())
    assert len(table) == 6
    assert (table[["extra_energy_fraction", "extra_time_fraction"]] >= 0).all(axis=None)
