from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import truncnorm

from labkit import tuning
from labkit.kit.stats import mean_interval
from labkit.tuning.policies import cost_curve
from labkit.tuning.policies.cost_curve import Belief, Spread, knowledge_gradient, theory_prior
from tests.tuning.conftest import make_job, task_of

OCTAVES = np.arange(-3.0, 4.0)
ONE = np.array([0])


def test_the_prior_is_the_theory_s_over_unknown_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of sampled curves 1 + b/B_noise + b_small/b and 1 + b_sat/b, truncated at 3 sd."""
    monkeypatch.setattr(cost_curve, "_ROUGHNESS", 1e-6)
    draws = truncnorm(-3, 3).rvs((3, 100_000), random_state=0) * cost_curve._SCALE_OCTAVES
    noise, small, sat = 2.0**draws
    small = small * 2.0**-cost_curve._SMALL_OCTAVES
    size = 2.0 ** OCTAVES[:, None]
    curves = np.log(1 + size / noise + small / size), np.log(1 + sat / size)
    for (mean, cov), sampled in zip(theory_prior(OCTAVES), curves, strict=True):
        centred = sampled - sampled[3]
        assert mean == pytest.approx(centred.mean(axis=1), abs=0.03)
        assert cov - cov[3, 3] == pytest.approx(np.cov(centred), rel=0.05, abs=0.03)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_the_posterior_is_the_gaussian_s(seed: int) -> None:
    """Against the textbook form with the observed rows only: K₊(K₊₊ + N)⁻¹."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 5))
    mean = rng.normal(size=5)
    cov = root @ root.T + 0.1 * np.eye(5)
    seen = np.flatnonzero(rng.random(5) < 0.6)
    noise = rng.uniform(0.1, 2, len(seen))
    values = rng.normal(size=len(seen))
    belief = Belief(1, mean, cov)
    belief.precision[0, seen] = 1 / noise
    belief.evidence[0, seen] = values / noise
    gain = cov[:, seen] @ np.linalg.inv(cov[np.ix_(seen, seen)] + np.diag(noise))
    after, after_cov = belief.posterior(ONE)
    assert after[0] == pytest.approx(mean + gain @ (values - mean[seen]))
    assert after_cov[0] == pytest.approx(cov - gain @ cov[seen])


def test_the_knowledge_gradient_is_the_expected_fall_of_the_least_cost() -> None:
    """By drawing what one observation of the second would show, a hundred thousand times."""
    mean = np.array([0.0, 0.1, 0.3])
    cov = np.array([[0.02, 0.01, 0.0], [0.01, 0.2, 0.1], [0.0, 0.1, 0.3]])
    noise = 0.05
    ours = knowledge_gradient(mean[None], cov[None], cov[None], np.array([noise]))[0]
    rng = np.random.default_rng(0)
    shown = rng.normal(mean[1], np.sqrt(cov[1, 1] + noise), 100_000)
    gain = cov[:, 1] / (cov[1, 1] + noise)
    after = mean + (shown - mean[1])[:, None] * gain
    left = np.diag(cov) - cov[:, 1] * gain
    least = np.exp(after + left / 2).min(axis=1)
    fall = np.exp(mean + np.diag(cov) / 2).min() - least
    assert ours[1] == pytest.approx(fall.mean(), abs=5 * fall.std() / np.sqrt(len(fall)) + 2e-3)
    assert (ours >= 0).all()


def test_knowing_already_teaches_nothing() -> None:
    mean = np.zeros((1, 3))
    cov = np.zeros((1, 3, 3))
    assert knowledge_gradient(mean, cov, cov, np.array([0.1])) == pytest.approx(0, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(0.1, 9), min_size=2, max_size=6), min_size=1, max_size=4))
def test_the_spread_is_pooled_within_batch_sizes(groups: list[list[float]]) -> None:
    spread = Spread((1, len(groups)))
    for place, values in enumerate(groups):
        for value in values:
            spread.add(ONE, np.array([place]), np.array([value]))
    squares = sum(np.var(values) * len(values) for values in groups)
    free = sum(len(values) - 1 for values in groups)
    expected = (2.0 * 0.1**2 + squares) / (2.0 + free)
    assert spread.variance(ONE)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_stopped_run_counts_as_at_least_so_many_epochs() -> None:
    """The moments of the epochs' posterior are those of the truncated Gaussian, by drawing it."""
    job = make_job([[20.0], [20.0]], [[1.0]] * 2, [[50.0]] * 2)
    player = tuning.CostCurve().start(task_of(job))
    first = tuning.Outcome(
        batch=ONE,
        power=ONE,
        cost_j=np.array([100.0]),
        epochs=np.array([20.0]),
        reached=np.array([True]),
    )
    player.in_flight[0, 0] = 1
    player.observe(ONE, first)
    _, _, cov, spread = player._log_cost(ONE)
    mean = player._epochs_mean[0, 1]
    sd = np.sqrt(cov[0, 1, 1])
    stopped = replace(
        first, batch=np.array([1]), epochs=np.array([60.0]), reached=np.array([False])
    )
    player.in_flight[0, 1] = 1
    player.observe(ONE, stopped)
    _, _, cov, _ = player._log_cost(ONE)
    rng = np.random.default_rng(0)
    latent = rng.normal(mean, sd, 2_000_000)
    kept = latent[latent + rng.normal(0, np.sqrt(spread[0]), latent.size) > np.log(60)]
    error = 5 * kept.std() / np.sqrt(len(kept))
    assert player._epochs_mean[0, 1] == pytest.approx(kept.mean(), abs=error)
    assert np.sqrt(cov[0, 1, 1]) == pytest.approx(kept.std(), abs=error)


def test_it_settles_on_the_best_of_a_curve_it_was_not_told() -> None:
    """Noise-free, theory's shape with scales far from b0, six doublings away from the best."""
    sizes = 2.0 ** np.arange(1, 11)
    epochs = [[float(round(10 * (1 + size / 16)))] for size in sizes]
    time_s = [[100 * (1 + 32 / size)] for size in sizes]
    job = make_job(epochs, time_s, [[100.0]] * 10, default=9, max_epochs=2000)
    runs = tuning.simulate(job, policy="cost-curve", seeds=[0], recurrences=40).frame()
    best = tuning.optimum(job)
    assert set(runs["batch_size"].tail(20)) == {best.batch_size}
    assert runs["batch_size"].nunique() < 8  # neighbours speak for each other


def test_a_hopeless_batch_size_costs_one_epoch_only() -> None:
    """Its epoch alone is dearer than whole runs of the rest: given up after the profile."""
    times = [[1000.0], [10.0], [9.0], [8.5]]
    job = make_job([[9.0], [9.0], [9.0], [9.0]], times, [[100.0]] * 4, default=1)
    frame = tuning.simulate(job, policy="cost-curve", seeds=[0], recurrences=30).frame()
    tried = frame[frame["batch_size"] == 2]
    assert (tried["time_s"] <= 1000.0).all()
    assert len(tried) <= 1


def test_concurrent_decisions_differ_until_results_are_in() -> None:
    """In flight counts as about to be known, so that not all explore the same."""
    job = make_job([[9.0]] * 6, [[float(t)] for t in (30, 20, 14, 10, 8, 7)], [[100.0]] * 6)
    runs = tuning.simulate(job, policy="cost-curve", seeds=[0], recurrences=12, concurrency=3)
    sizes = runs.frame().sort_values("recurrence")["batch_size"].tolist()
    assert sizes[:3] == [2, 2, 2]  # nothing is known: the default is safe
    assert len(set(sizes[3:6])) > 1


@pytest.mark.parametrize("gpu", ["v100", "a40"])
def test_it_beats_the_published_policy(gpu: str) -> None:
    """Less cumulative cost on five of six workloads at least: the 95 % interval below 1."""
    from tests.tuning.conftest import published_trace

    highs = []
    for job in published_trace(gpu).jobs():
        ours, zeus = (
            tuning.simulate(job, policy=name, seeds=range(30)).per_recurrence("cost_j").sum(axis=1)
            for name in ("cost-curve", "zeus")
        )
        highs.append(mean_interval(ours / zeus.mean() - zeus / zeus.mean())[2])
    assert np.sum(np.array(highs) < 0) >= 5
    assert max(highs) < 0.01
