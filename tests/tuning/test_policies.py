from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from zeus._legacy.policy.mab import GaussianTS
from zeus._legacy.policy.optimizer import PruningExploreManager

from labkit import tuning
from labkit.errors import UsageError
from labkit.tuning import Policy
from tests.tuning.conftest import make_job, random_job, task_of

ONE = np.array([0])


def flat_job(num_sizes: int, default: int) -> tuning.Job:
    return make_job([[1.0]] * num_sizes, [[1.0]] * num_sizes, [[1.0]] * num_sizes, default=default)


def start(policy: Policy, job: tuning.Job, num_seeds: int = 1) -> Policy:
    return policy.start(task_of(job, num_seeds))


def outcome(
    batch: np.ndarray, cost: np.ndarray, ok: np.ndarray, power: np.ndarray | None = None
) -> tuning.Outcome:
    """Runs whose epochs cost 1 J each."""
    return tuning.Outcome(
        batch=batch,
        power=batch * 0 if power is None else power,
        cost_j=cost,
        epochs=cost,
        reached=ok,
    )


def play(
    player: Policy, num_sizes: int, answer: Callable[[int, int], tuple[float, bool]], turns: int
) -> list[int]:
    """Arms the player of one seed chooses, when ``answer(turn, arm)`` tells cost and success."""
    chosen = []
    for turn in range(turns):
        batch, power = player.decide(ONE, np.zeros((1, num_sizes)))
        cost, ok = answer(turn, int(batch[0]))
        player.observe(ONE, outcome(batch, np.array([cost]), np.array([ok]), power))
        chosen.append(int(batch[0]))
    return chosen


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(0, 8), st.integers(0, 10**6))
def test_exploration_follows_the_peers_order(num_sizes: int, default: int, seed: int) -> None:
    """Every batch size tried, in order, and who survives two rounds, as zeus-ml's own manager."""
    default %= num_sizes
    rng = np.random.default_rng(seed)
    costs = rng.uniform(1, 9, (2 * num_sizes, num_sizes))
    succeeds = rng.random((2 * num_sizes, num_sizes)) < 0.8
    succeeds[:, default] = True
    peer = PruningExploreManager(list(range(num_sizes)), default)
    expected = []
    try:
        for turn in range(2 * num_sizes + 1):
            arm = peer.next_batch_size()
            expected.append(arm)
            peer.report_batch_size_result(arm, costs[turn, arm], bool(succeeds[turn, arm]))
    except StopIteration as done:
        survivors = done.value
    ours = start(tuning.Zeus(), flat_job(num_sizes, default))
    answer = lambda turn, arm: (costs[turn, arm], bool(succeeds[turn, arm]))  # noqa: E731
    assert play(ours, num_sizes, answer, len(expected)) == expected
    assert (ours.round == 2).all()
    if survivors:
        assert np.flatnonzero(ours.alive[0]).tolist() == survivors


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 10), st.integers(0, 9), st.integers(0, 9), st.floats(0.05, 1.5))
def test_pruning_keeps_the_best_of_a_convex_curve(
    num_sizes: int, best: int, default: int, steepness: float
) -> None:
    best = best % num_sizes
    default = default % num_sizes
    cost = 1 + steepness * (np.arange(num_sizes) - best) ** 2
    cheapest = np.inf

    def answer(turn: int, arm: int) -> tuple[float, bool]:
        nonlocal cheapest
        ok = bool(cost[arm] <= 2 * cheapest)
        cheapest = min(cheapest, cost[arm]) if ok else cheapest
        return cost[arm], ok

    player = start(tuning.Zeus(), flat_job(num_sizes, default))
    chosen = play(player, num_sizes, answer, 2 * num_sizes + 5)
    assert player.alive[0, best]
    assert chosen[-1] == best


def test_a_round_that_leaves_nothing_keeps_the_cheapest_of_the_one_before() -> None:
    player = start(tuning.Zeus(), flat_job(3, 1))
    chosen = play(player, 3, lambda turn, arm: ([5.0, 3.0, 4.0][arm], turn < 3), 7)
    assert chosen[:3] == [1, 0, 2]
    assert chosen[3:] == [1, 2, 1, 1]  # b=1 fails at once, then upwards, then nothing else is left


def test_a_default_that_may_miss_the_target_is_refused() -> None:
    job = make_job([[3.0, np.inf], [2.0]], [[1.0]] * 2, [[1.0]] * 2)
    with pytest.raises(UsageError, match="2 reaches 1 in only 1 of 2 recorded runs"):
        tuning.simulate(job, policy="zeus")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1, 100), min_size=2, max_size=20))
def test_the_posterior_is_the_closed_form_and_the_peers(costs: list[float]) -> None:
    """Flat prior, known variance s²: the mean is N(x̄, s²/n)."""
    player = start(tuning.Zeus(num_pruning_rounds=0), flat_job(1, 0))
    play(player, 1, lambda turn, arm: (costs[turn], True), len(costs))
    mean = player.memory.mean[0, 0]
    error = player.memory.standard_error(ONE)[0, 0]
    assert mean == pytest.approx(np.mean(costs))
    assert error == pytest.approx(np.std(costs) / np.sqrt(len(costs)), abs=1e-9)
    if np.std(costs) > 1e-3:
        peer = GaussianTS([1], reward_precision=1 / np.var(costs), verbose=False)
        peer.fit_arm(1, -np.array(costs), reset=True)
        assert -peer.arm_param_mean[1] == pytest.approx(mean)
        assert peer.arm_param_prec[1] ** -0.5 == pytest.approx(error)


def test_thompson_plays_an_arm_as_often_as_it_is_likely_the_best() -> None:
    """Two arms with known posteriors: P(first is cheaper) = Φ((μ₂ - μ₁)/√(σ₁² + σ₂²))."""
    seeds = 40_000
    player = start(tuning.Zeus(num_pruning_rounds=0), flat_job(2, 0), seeds)
    everyone = np.arange(seeds)
    seen = {0: [9.0, 11.0, 10.5, 9.5], 1: [9.5, 12.0, 10.0]}
    for arm, costs in seen.items():
        for cost in costs:
            arms = np.full(seeds, arm)
            all_ok = np.ones(seeds, dtype=bool)
            player.observe(everyone, outcome(arms, np.full(seeds, cost), all_ok))
    noise = np.random.default_rng(0).standard_normal((seeds, 2))
    share = (player.decide(everyone, noise)[0] == 0).mean()
    gap = np.mean(seen[1]) - np.mean(seen[0])
    spread = np.sqrt(sum(np.var(c) / len(c) for c in seen.values()))
    likely = norm.cdf(gap / spread)
    assert share == pytest.approx(likely, abs=4 * np.sqrt(likely * (1 - likely) / seeds))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_grid_search_tries_every_pair_once_and_keeps_the_cheapest(seed: int) -> None:
    job = random_job(seed, num_sizes=3, num_limits=4, num_runs=1, reliable=True)
    runs = tuning.simulate(job, policy="grid", recurrences=15, seeds=[0]).frame()
    pairs = list(zip(runs["batch_size"], runs["power_limit_w"], strict=True))
    assert pairs[0] == (job.default_batch_size, job.max_power_w)
    assert len(set(pairs[:12])) == 12
    best = runs.iloc[runs["cost_j"].argmin()]
    assert set(pairs[12:]) == {(best["batch_size"], best["power_limit_w"])}


def test_grid_search_skips_a_batch_size_that_missed_the_target() -> None:
    job = make_job([[1.0], [np.inf], [2.0]], [[1.0, 1.0]] * 3, [[5.0, 5.0]] * 3, max_epochs=9)
    runs = tuning.simulate(job, policy="grid", recurrences=8, seeds=[0]).frame()
    assert (runs["batch_size"] == 4).sum() == 1
    failed = runs[~runs["reached"]].iloc[0]
    retry = runs[(runs["recurrence"] == failed["recurrence"]) & runs["reached"]].iloc[0]
    assert failed["time_s"] == 9.0  # all the epochs it may
    assert retry["batch_size"] == 2  # the recurrence ends with what is known to work


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_halving_ends_with_the_cheapest_where_nothing_is_random(seed: int) -> None:
    """One recorded run a batch size, and one power limit, so that profiling changes no cost."""
    job = random_job(seed, num_sizes=6, num_limits=1, num_runs=1, reliable=True)
    frame = tuning.simulate(job, policy="halving", recurrences=20, seeds=[0]).frame()
    best = tuning.optimum(job)
    assert set(frame["batch_size"].iloc[-5:]) == {best.batch_size}
    assert frame["cost_j"].iloc[-1] == pytest.approx(best.cost_j)


def test_halving_halves_the_field() -> None:
    job = make_job([[float(e)] for e in (8, 7, 6, 5, 4)], [[1.0]] * 5, [[9.0]] * 5, default=2)
    runs = tuning.simulate(job, policy="halving", recurrences=12, seeds=[0]).frame()
    assert runs["batch_size"].tolist() == [8, 4, 2, 16, 32, 8, 16, 32, 16, 32, 32, 32]


@pytest.mark.parametrize("name", ["default", "oracle", "tuned-power"])
def test_fixed_policies_never_change_their_mind(name: str, standin: tuning.TrainingTrace) -> None:
    job = standin.job("cifar100")
    runs = tuning.simulate(job, policy=name, recurrences=6, seeds=range(3)).frame()
    assert runs[["batch_size", "power_limit_w"]].drop_duplicates().shape[0] == 1
    first = runs.iloc[0]
    if name == "oracle":
        best = tuning.optimum(job)
        assert (first["batch_size"], first["power_limit_w"]) == (
            best.batch_size,
            best.power_limit_w,
        )
    else:
        assert first["batch_size"] == job.default_batch_size
        assert (first["power_limit_w"] == job.max_power_w) == (name == "default")


def test_an_unknown_policy_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no policy 'zues'; did you mean 'zeus'\?"):
        tuning.simulate(random_job(0), policy="zues")


def test_a_policy_of_ones_own_that_does_not_decide_is_told_so() -> None:
    class Silent(tuning.Policy):
        pass

    with pytest.raises(UsageError, match="policy Silent has no method decide"):
        tuning.simulate(flat_job(2, 0), policy=Silent())
