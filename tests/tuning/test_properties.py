"""What must hold for any job, whatever its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from labkit import tuning
from labkit.errors import BadValue, UsageError
from tests.amounts import amounts
from tests.tuning.conftest import make_job, random_job
from tests.tuning.test_policies import ONE, flat_job, outcome, play, start

RANDOM = ("epsilon-greedy", "ucb", "thompson", "random", "halving", "zeus", "cost-curve")
NEVER = 1e3  # an early-stop factor that stops nothing: one lucky run cannot make the rest fail


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), amounts(1), amounts(1))
def test_more_weight_on_energy_never_asks_for_more_of_it(
    seed: int, one: float, other: float
) -> None:
    """Weighted sums: as η grows the optimum's energy cannot rise nor its time fall."""
    job = random_job(seed)
    low, high = (tuning.optimum(job, eta=eta) for eta in sorted((one, other)))
    assert high.energy_to_accuracy_j <= low.energy_to_accuracy_j * (1 + 1e-9)
    assert high.time_to_accuracy_s >= low.time_to_accuracy_s * (1 - 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), amounts(1), amounts(1))
def test_cost_falls_with_eta(seed: int, one: float, other: float) -> None:
    """Nothing draws more than the highest limit here, so energy is the cheaper currency."""
    job = random_job(seed)
    job = replace(job, power_limits_w=(*job.power_limits_w[:-1], 200.0))
    low, high = (tuning.epoch_cost_j(job, eta) for eta in sorted((one, other)))
    assert (high <= low * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1, 100), min_size=1, max_size=30), st.integers(2, 6))
def test_a_window_is_the_posterior_of_the_last_costs(costs: list[float], window: int) -> None:
    player = start(tuning.Zeus(num_pruning_rounds=0, window=window), flat_job(1, 0))
    play(player, 1, lambda turn, arm: (costs[turn], True), len(costs))
    kept = costs[-window:]
    assert player.memory.mean[0, 0] == pytest.approx(np.mean(kept))
    error = np.std(kept) / np.sqrt(len(kept))
    assert player.memory.standard_error(ONE)[0, 0] == pytest.approx(error, abs=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(RANDOM), st.integers(1, 3))
def test_seeds_do_not_see_each_other(seed: int, policy: str, concurrency: int) -> None:
    job = random_job(seed, reliable=True)
    options = {"policy": policy, "recurrences": 20, "concurrency": concurrency, "beta": NEVER}
    many = (
        tuning.simulate(job, seeds=[3, seed, 5], **options)
        .frame()
        .query("seed == @seed")
        .reset_index(drop=True)
    )
    alone = tuning.simulate(job, seeds=[seed], **options).frame()
    assert many["batch_size"].tolist() == alone["batch_size"].tolist()
    assert many["cost_j"].to_numpy() == pytest.approx(alone["cost_j"].to_numpy())


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(RANDOM))
def test_nobody_beats_the_oracle_in_expectation(seed: int, policy: str) -> None:
    """Wald: a recurrence's expected cost is at least the least of any configuration's.

    Only where runs are not stopped midway, which may pay when epochs vary (a restart redraws
    them): one recorded run a batch size, and no profile to gain from.
    """
    job = random_job(seed, num_limits=1, num_runs=1, reliable=True)
    regret = tuning.simulate(job, policy=policy, seeds=range(3), recurrences=15).regret_j()
    steps = np.diff(regret, axis=1, prepend=0)
    assert (steps >= -1e-9 * tuning.optimum(job).cost_j).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(RANDOM), st.integers(2, 5))
def test_concurrent_recurrences_all_end_once(seed: int, policy: str, concurrency: int) -> None:
    job = random_job(seed, reliable=True)
    runs = tuning.simulate(
        job, policy=policy, seeds=range(3), recurrences=17, concurrency=concurrency, beta=NEVER
    ).frame()
    ended = runs[runs["reached"]].groupby(["seed", "recurrence"]).size()
    assert (ended == 1).all()
    assert len(ended) == 3 * 17


def test_while_zeus_walks_others_run_the_best_known() -> None:
    """Three in flight: the first waits for b0 and so do all; then one walks, two stay."""
    job = make_job([[5.0]] * 4, [[8.0], [6.0], [5.0], [4.0]], [[50.0]] * 4, default=1)
    runs = tuning.simulate(job, policy="zeus", seeds=[0], recurrences=12, concurrency=3)
    sizes = runs.frame().sort_values("recurrence")["batch_size"].tolist()
    assert sizes[:3] == [4, 4, 4]
    assert sizes[3:6] == [2, 4, 4]  # the walk went down; its companions keep to b0
    assert sizes[6:9] == [8, 4, 4]


def test_greedy_strays_as_often_as_it_says() -> None:
    """Everyone has seen the same costs; a share ε draws any of four, the rest the cheapest."""
    seeds = 40_000
    epsilon = 0.3
    player = start(tuning.EpsilonGreedy(epsilon=epsilon), flat_job(4, 0), seeds)
    everyone = np.arange(seeds)
    for _ in range(4):
        batch, _ = player.decide(everyone, np.zeros((seeds, 4)))
        player.observe(everyone, outcome(batch, 5.0 - batch, np.ones(seeds, dtype=bool)))
    noise = np.random.default_rng(0).standard_normal((seeds, 4))
    batch, _ = player.decide(everyone, noise)
    shares = np.bincount(batch, minlength=4) / seeds
    expected = np.array([epsilon / 4] * 3 + [1 - 0.75 * epsilon])
    assert shares == pytest.approx(expected, abs=4 * np.sqrt(0.25 / seeds))
    assert ndtr(noise[:, 0]).mean() == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / seeds))


def test_the_bound_is_ucb1_turned_round() -> None:
    policy = tuning.LowerConfidenceBound(width=0.2)
    player = start(policy, flat_job(3, 0))
    costs = {0: [4.0, 6.0], 1: [7.0], 2: [3.0, 5.0, 4.0]}
    for arm, seen in costs.items():
        for cost in seen:
            player.observe(ONE, outcome(np.array([arm]), np.array([cost]), np.array([True])))
    score = player.score(ONE, np.zeros((1, 3)))[0]  # type: ignore[attr-defined]
    for arm, seen in costs.items():
        radius = 0.2 * 4.0 * np.sqrt(2 * np.log(6) / len(seen))
        assert score[arm] == pytest.approx(np.mean(seen) - radius)


def test_random_search_tries_each_once_b0_first() -> None:
    job = make_job([[5.0]] * 5, [[4.0], [3.0], [2.0], [5.0], [6.0]], [[50.0]] * 5, default=3)
    runs = tuning.simulate(job, policy="random", seeds=range(50), recurrences=9)
    for _, rows in runs.frame().groupby("seed"):
        sizes = rows["batch_size"].tolist()
        assert sizes[0] == 16
        assert sorted(sizes[:5]) == [2, 4, 8, 16, 32]
        assert set(sizes[5:]) == {8}
    seconds = runs.frame().query("recurrence == 2")["batch_size"]
    assert seconds.nunique() == 4


def _drifting() -> tuple[tuning.Job, tuning.Job]:
    """The best batch size moves from the smallest to the largest."""
    times = [[10.0]] * 3
    before = make_job([[5.0, 6.0], [6.0, 7.0], [8.0, 9.0]], times, [[50.0]] * 3, default=1)
    after = make_job([[9.0, 9.5], [7.0, 8.0], [4.0, 5.0]], times, [[50.0]] * 3, default=1)
    return before, after


def test_a_window_finds_the_new_best_of_a_job_that_drifts() -> None:
    """Steady means mislead for long after a change; a window forgets them."""
    before, after = _drifting()
    regret = {
        window: tuning.simulate(
            before, policy=tuning.Zeus(window=window), drift=[after], recurrences=160
        ).regret_j()[:, -1]
        for window in (None, 4)
    }
    gain = regret[None] - regret[4]
    assert gain.mean() > 3 * gain.std(ddof=1) / np.sqrt(len(gain))


def test_regret_and_baseline_follow_the_drift() -> None:
    before, after = _drifting()
    runs = tuning.simulate(before, policy="default", drift=[after], recurrences=10, seeds=range(9))
    assert runs.experiment.slice_per_recurrence.tolist() == [0] * 5 + [1] * 5
    frame = runs.frame()
    assert set(frame[frame["recurrence"] <= 5]["time_s"]) == {60.0, 70.0}
    assert set(frame[frame["recurrence"] > 5]["time_s"]) == {70.0, 80.0}
    cost = runs.per_recurrence("cost_j")
    best = [tuning.optimum(job).cost_j for job in (before, after)]
    assert runs.regret_j()[:, -1] == pytest.approx(cost.sum(1) - 5 * sum(best))


def test_a_seed_given_twice_is_refused() -> None:
    """Fifty copies of two seeds would be an interval fifteen times as narrow."""
    with pytest.raises(BadValue, match=r"seeds must be .*, each once; got \(1, 2, 1, 2"):
        tuning.simulate(random_job(1), seeds=[1, 2] * 50, recurrences=2, policy="default")


def test_a_drift_to_other_choices_is_refused() -> None:
    job = random_job(1)
    with pytest.raises(UsageError, match=r"drift only among the same choices, but .* batch_sizes"):
        tuning.simulate(job, drift=[random_job(1, num_sizes=5)])
    with pytest.raises(UsageError, match="the oracle stays"):
        tuning.simulate(job, policy="oracle", drift=[job])
    with pytest.raises(UsageError, match=r"concurrency must be .* at least 1, .*; got 0"):
        tuning.simulate(job, concurrency=0)


def test_a_selector_moves_the_limit_of_every_run(standin: tuning.TrainingTrace) -> None:
    job = standin.job("librispeech")
    for selector in ("energy", "time"):
        limits = tuning.best_power_limits(job, 0.5, selector=selector)
        runs = tuning.simulate(job, selector=selector, seeds=range(2), recurrences=8)
        assert (runs.power == limits[runs.batch]).all()
