from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy import stats
from zeus._legacy.job import Job as PeerJob
from zeus._legacy.policy.optimizer import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
from zeus._legacy.simulate import HistoryEntry, Simulator

from labkit import tuning
from labkit.errors import LabkitError, UsageError
from tests.tuning.conftest import make_job, published_trace, random_job

Tables = tuple[pd.DataFrame, pd.DataFrame]


def peer_history(
    tables: Tables, job: tuning.Job, seed: int, recurrences: int
) -> list[HistoryEntry]:
    """What zeus-ml's own simulator does with the same job on the same tables."""
    spec = tuning.PUBLISHED[job.name]
    train, power = (table[table["dataset"] == job.name] for table in tables)  # it is slow enough
    peer = Simulator(
        train,
        power,
        PruningGTSBatchSizeOptimizer(seed=seed, verbose=False),
        JITPowerLimitOptimizer(verbose=False),
        seed=seed,
        verbose=False,
    )
    peer_job = PeerJob(
        job.name,
        spec.network,
        spec.optimizer,
        job.target_metric,
        job.max_epochs,
        job.default_batch_size,
    )
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a variance of zero: its precision is infinite
        return peer.simulate_one_job(peer_job, recurrences, beta_knob=2.0, eta_knob=0.5)


@pytest.mark.parametrize("name", list(tuning.PUBLISHED))
def test_where_nothing_is_random_exploration_equals_the_peers_run_by_run(
    name: str, tables: Tables, both: Callable[[pd.DataFrame], tuning.TrainingTrace]
) -> None:
    """One recorded run a batch size: batch, limit, energy, time and success, to the last digit."""
    train = (
        tables[0]
        .sort_values("target_epoch")
        .drop_duplicates(["dataset", "network", "optimizer", "batch_size", "target_metric"])
    )
    job = both(train).job(name)
    ours = tuning.simulate(job, seeds=[0], recurrences=2 * len(job.batch_sizes)).frame()
    theirs = peer_history((train, tables[1]), job, 0, 2 * len(job.batch_sizes))
    ran = ours[ours["time_s"] > 0]
    first_rounds = _length_of_exploration(ours)
    assert first_rounds >= 2
    for (_, run), entry in zip(ran.head(first_rounds).iterrows(), theirs, strict=False):
        assert (run["batch_size"], run["power_limit_w"]) == (entry.bs, entry.pl)
        assert run["energy_j"] == pytest.approx(entry.energy, rel=1e-12)
        assert run["time_s"] == pytest.approx(entry.time, rel=1e-12)
        assert bool(run["reached"]) == bool(entry.reached)


def _length_of_exploration(frame: pd.DataFrame) -> int:
    """Runs until some batch size is run a third time: Thompson sampling has begun by then."""
    counts = frame[frame["time_s"] > 0].groupby("batch_size").cumcount()
    third = np.flatnonzero(counts.to_numpy() == 2)
    return int(third[0]) if len(third) else len(counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet", "squad"])
def test_savings_agree_with_the_peers_over_seeds(
    name: str, tables: Tables, both: Callable[[pd.DataFrame], tuning.TrainingTrace]
) -> None:
    """Mean energy and time of the last five runs: Welch's t-test does not tell us apart."""
    job = both(tables[0]).job(name)
    theirs = [peer_history(tables, job, seed, 40)[-5:] for seed in range(10)]
    runs = tuning.simulate(job, seeds=range(500), recurrences=40)
    last = runs.frame().query("reached").groupby("seed").tail(5).groupby("seed")
    for ours, peers in (
        (last["energy_j"].mean(), [np.mean([e.energy for e in h]) for h in theirs]),
        (last["time_s"].mean(), [np.mean([e.time for e in h]) for h in theirs]),
    ):
        if ours.std() < 1e-9 * ours.mean():
            assert peers == pytest.approx([ours.mean()] * len(peers))
        else:
            assert stats.ttest_ind(ours, peers, equal_var=False).pvalue > 0.001


PEERS_SAVINGS = {  # zeus-ml's simulator, seeds 1 to 5, last five runs: energy saved
    "v100": (0.748, 0.204, 0.191, 0.383, 0.646, 0.209),
    "a40": (0.667, 0.134, 0.168, 0.663, 0.619, 0.206),
}


@pytest.mark.parametrize("place", range(6), ids=list(tuning.PUBLISHED))
@pytest.mark.parametrize("gpu", list(PEERS_SAVINGS))
def test_published_savings_of_the_peer(gpu: str, place: int) -> None:
    """Its mean over five seeds lies where the mean of five of our seeds would."""
    name = list(tuning.PUBLISHED)[place]
    job = published_trace(gpu).job(name)
    runs = tuning.simulate(job, seeds=range(200))
    base = tuning.default_choice(job).energy_to_accuracy_j
    saved = 1 - runs.per_recurrence("energy_j")[:, -5:].mean(1) / base
    spread = saved.std(ddof=1) / np.sqrt(5)
    assert abs(PEERS_SAVINGS[gpu][place] - saved.mean()) <= 3 * spread + 0.0005


def test_a_seed_gives_the_same_runs_whatever_else_is_simulated(
    standin: tuning.TrainingTrace,
) -> None:
    job = standin.job("librispeech")
    many = tuning.simulate(job, seeds=range(6), recurrences=30)
    alone = tuning.simulate(job, seeds=[4], recurrences=30).frame()
    pd.testing.assert_frame_equal(many.of_seed(4), alone)


def test_a_path_holds_every_change_of_configuration(standin: tuning.TrainingTrace) -> None:
    runs = tuning.simulate(standin.job("cifar100"), seeds=range(2), recurrences=30)
    path, walked = runs.path(1), runs.of_seed(1)
    pairs = list(zip(walked["batch_size"], walked["power_limit_w"], strict=True))
    changes = [b for a, b in pairwise([None, *pairs]) if a != b]
    assert list(zip(path["batch_size"], path["power_limit_w"], strict=True)) == changes
    for place, pair in enumerate(changes):
        assert path["visit"].iloc[place] == changes[:place].count(pair)


def test_different_seeds_differ(standin: tuning.TrainingTrace) -> None:
    runs = tuning.simulate(standin.job("cifar100"), seeds=range(2), recurrences=30)
    one, other = runs.per_recurrence("energy_j")
    assert not np.array_equal(one, other)


def test_the_mean_over_seeds_is_the_expectation(standin: tuning.TrainingTrace) -> None:
    job = standin.job("cifar100")
    runs = tuning.simulate(job, policy="default", seeds=range(400), recurrences=20)
    energy = runs.per_recurrence("energy_j").ravel()
    error = energy.std() / np.sqrt(len(energy))
    assert abs(energy.mean() - tuning.default_choice(job).energy_to_accuracy_j) < 4 * error


def test_retries_cost_what_the_renewal_formula_says() -> None:
    """A batch size that fails in two runs of three, run until it succeeds."""
    job = make_job([[3.0, np.inf, 30.0], [50.0]], [[2.0]] * 2, [[7.0]] * 2, max_epochs=10)
    runs = tuning.simulate(job, policy="default", seeds=range(1000), recurrences=10)
    energy = runs.per_recurrence("energy_j").ravel()
    expected = tuning.default_choice(job).energy_to_accuracy_j
    assert abs(energy.mean() - expected) < 4 * energy.std() / np.sqrt(len(energy))
    assert runs.frame()["time_s"].isin([6.0, 20.0]).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.1, 4), st.floats(0, 1))
def test_no_run_exceeds_its_bound(seed: int, beta: float, eta: float) -> None:
    """Early stopping: a run never costs more than beta times the cheapest success before it."""
    job = random_job(seed)
    try:
        runs = tuning.simulate(job, seeds=[seed], beta=beta, eta=eta, recurrences=25)
    except LabkitError:  # one lucky run may set a bound that no later run can keep
        reject()
    frame = runs.frame()
    cheapest, spent = np.inf, 0.0
    for _, run in frame.iterrows():
        if run["profiling_energy_j"] == 0:
            assert run["cost_j"] <= beta * cheapest * (1 + 1e-9)
        spent += run["cost_j"]
        if run["reached"]:
            cheapest, spent = min(cheapest, spent), 0.0


def test_each_batch_size_pays_for_its_profile_once(standin: tuning.TrainingTrace) -> None:
    job = standin.job("imagenet")
    frame = tuning.simulate(job, seeds=range(5)).frame()
    limits = dict(zip(job.batch_sizes, tuning.best_power_limits(job, 0.5), strict=True))
    for (_, size), runs in frame.groupby(["seed", "batch_size"]):
        row = job.batch_sizes.index(size)
        epoch_j = job.epoch_energy_j[row]
        expected = epoch_j.mean() - epoch_j[limits[size]]
        assert runs["profiling_energy_j"].iloc[0] == pytest.approx(expected)
        assert (runs["profiling_energy_j"].iloc[1:] == 0).all()
        first, later = runs.iloc[0], runs.iloc[1]
        epochs = (first["energy_j"] - expected) / epoch_j[limits[size]]
        assert epochs == pytest.approx(round(epochs))
        assert (later["energy_j"] / epoch_j[limits[size]]) == pytest.approx(
            round(later["energy_j"] / epoch_j[limits[size]])
        )


def test_regret_grows_by_the_distance_from_the_oracle(standin: tuning.TrainingTrace) -> None:
    job = standin.job("sentiment140")  # every run takes the same epochs: nothing is random
    gap = tuning.default_choice(job).cost_j - tuning.optimum(job).cost_j
    regret = tuning.simulate(job, policy="default", seeds=[0, 1], recurrences=9).regret_j()
    assert regret == pytest.approx(np.tile(gap * np.arange(1, 10), (2, 1)))
    oracle = tuning.simulate(job, policy="oracle", seeds=[0], recurrences=9).regret_j()
    assert oracle == pytest.approx(0, abs=1e-6 * gap)


def test_no_policy_beats_the_oracle_in_expectation(standin: tuning.TrainingTrace) -> None:
    for job in standin.jobs():
        for name in tuning.POLICIES:
            runs = tuning.simulate(job, policy=name, seeds=range(20))
            regret = runs.regret_j()[:, -1]
            assert regret.mean() >= -4 * regret.std() / np.sqrt(len(regret)) - 1e-6 * regret.std()
            assert runs.summary()["excess_cost_fraction"] >= -1e-12


def test_the_summary_is_means_with_student_intervals(standin: tuning.TrainingTrace) -> None:
    job = standin.job("squad")
    runs = tuning.simulate(job, seeds=range(30))
    summary = runs.summary(last=5)
    base = tuning.default_choice(job)
    saved = 1 - runs.per_recurrence("time_s")[:, -5:].mean(1) / base.time_to_accuracy_s
    low, high = stats.t.interval(0.95, 29, saved.mean(), stats.sem(saved))
    assert summary["time_reduction"] == pytest.approx(saved.mean())
    assert summary["time_reduction_low"] == pytest.approx(low)
    assert summary["time_reduction_high"] == pytest.approx(high)
    assert np.isnan(tuning.simulate(job, seeds=[1]).summary()["energy_reduction_low"])


def test_the_paper_s_number_of_recurrences_is_the_default(standin: tuning.TrainingTrace) -> None:
    job = standin.job("imagenet")
    frame = tuning.simulate(job, seeds=[0]).frame()
    assert frame["recurrence"].max() == 2 * 4 * 7
    assert frame.groupby("recurrence")["reached"].last().all()


def test_a_sweep_has_a_row_for_every_job_and_policy(standin: tuning.TrainingTrace) -> None:
    jobs = [standin.job("squad"), standin.job("imagenet")]
    table = tuning.sweep(jobs, ["default", "zeus"], seeds=range(3), recurrences=12)
    assert list(zip(table["policy"], table["workload"], strict=True)) == [
        ("default", "BERT, SQuAD"),
        ("default", "ResNet-50, ImageNet"),
        ("zeus", "BERT, SQuAD"),
        ("zeus", "ResNet-50, ImageNet"),
    ]


def test_a_target_out_of_reach_ends_with_an_error_that_says_so() -> None:
    job = make_job([[np.inf]], [[1.0]], [[1.0]])
    fixed = tuning.Fixed(batch=0, power=0)
    with pytest.raises(LabkitError, match="seed 7: recurrence 1 missed the target 20 times"):
        tuning.simulate(job, policy=fixed, seeds=[7], recurrences=2)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"eta": 1.5}, r"eta must lie in \[0, 1\], got 1\.5"),
        ({"beta": 1.0}, "beta must be above 1"),
        ({"recurrences": 0}, "recurrences must be >= 1, got 0"),
        ({"seeds": []}, "at least one seed"),
    ],
)
def test_knobs_out_of_range_are_refused(knobs: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tuning.simulate(random_job(1), **knobs)
