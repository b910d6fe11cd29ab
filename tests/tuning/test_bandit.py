from __future__ import annotations

import random
from importlib import metadata
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy import stats

from labkit import tuning
from labkit.errors import LabkitError, UsageError
from tests.amounts import amounts
from tests.oracles import zeus_simulator as peer
from tests.tuning.conftest import make_job, published_trace, random_job, trace_files

EXPLORATIONS = [case for case in peer.cases() if case.first_runs]
SAMPLE = random.Random(peer.digest(peer.STORED)).sample(EXPLORATIONS, 2)


@pytest.mark.parametrize("case", EXPLORATIONS, ids=peer.name_of)
def test_where_nothing_is_random_exploration_equals_the_peers_run_by_run(case: peer.Case) -> None:
    """One recorded run a batch size: batch, limit, energy, time and success, to the last digit."""
    files = trace_files(case.trace, case.gpu)
    theirs = peer.stored_runs(*files, case)
    job = peer.job_of(*files, case)
    ours = tuning.simulate(job, seeds=[0], recurrences=case.recurrences).frame()
    first_rounds = _length_of_exploration(ours)
    assert first_rounds >= 2
    ours = ours[ours["time_s"] > 0].head(min(first_rounds, len(theirs))).reset_index(drop=True)
    theirs = theirs.head(len(ours))
    for column in ("batch_size", "power_limit_w", "reached"):
        assert ours[column].tolist() == theirs[column].tolist()
    for column in ("energy_j", "time_s"):
        assert ours[column].to_numpy() == pytest.approx(theirs[column].to_numpy(), rel=1e-12)


@pytest.mark.parametrize("case", SAMPLE, ids=peer.name_of)
def test_a_sample_of_what_is_stored_is_what_the_peer_does_today(case: peer.Case) -> None:
    files = trace_files(case.trace, case.gpu)
    pd.testing.assert_frame_equal(
        peer.kept(case, peer.simulate(*files, case)).reset_index(drop=True),
        peer.stored_runs(*files, case),
    )


def test_what_is_stored_says_which_simulator_ran() -> None:
    assert peer.stored()["versions"]["zeus-ml"] == metadata.version("zeus-ml")
    assert set(peer.stored()["runs"]) == {peer.name_of(case) for case in peer.cases()}


def _length_of_exploration(frame: pd.DataFrame) -> int:
    """Runs until some batch size is run a third time: Thompson sampling has begun by then."""
    counts = frame[frame["time_s"] > 0].groupby("batch_size").cumcount()
    third = np.flatnonzero(counts.to_numpy() == 2)
    return int(third[0]) if len(third) else len(counts)


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
    pd.testing.assert_frame_equal(many.frame().query("seed == 4").reset_index(drop=True), alone)


def test_a_path_holds_every_change_of_configuration(standin: tuning.TrainingTrace) -> None:
    runs = tuning.simulate(standin.job("cifar100"), seeds=range(2), recurrences=30)
    path = runs.path(1)
    walked = runs.frame().query("seed == 1").reset_index(drop=True)
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
@given(st.integers(0, 10**6), st.floats(1.1, 4), amounts(1))
def test_no_run_exceeds_its_bound(seed: int, beta: float, eta: float) -> None:
    """Early stopping: a run never costs more than beta times the cheapest success before it."""
    job = random_job(seed)
    try:
        runs = tuning.simulate(job, seeds=[seed], beta=beta, eta=eta, recurrences=25)
    except LabkitError:  # one lucky run may set a bound that no later run can keep
        reject()
    frame = runs.frame()
    cheapest = np.inf
    spent = 0.0
    for _, run in frame.iterrows():
        if run["profiling_energy_j"] == 0:
            assert run["cost_j"] <= beta * cheapest * (1 + 1e-9)
        spent += run["cost_j"]
        if run["reached"]:
            cheapest = min(cheapest, spent)
            spent = 0.0


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
        for energy_j in (runs["energy_j"].iloc[0] - expected, *runs["energy_j"].iloc[1:2]):
            epochs = energy_j / epoch_j[limits[size]]
            assert epochs == pytest.approx(round(epochs))


def test_regret_grows_by_the_distance_from_the_oracle(standin: tuning.TrainingTrace) -> None:
    job = standin.job("sentiment140")  # every run takes the same epochs: nothing is random
    gap = tuning.default_choice(job).cost_j - tuning.optimum(job).cost_j
    regret = tuning.simulate(job, policy="default", seeds=[0, 1], recurrences=9).regret_j()
    assert regret == pytest.approx(np.tile(gap * np.arange(1, 10), (2, 1)))
    oracle = tuning.simulate(job, policy="oracle", seeds=[0], recurrences=9).regret_j()
    assert oracle == pytest.approx(0, abs=1e-6 * gap)


def test_no_policy_beats_the_oracle_in_expectation(standin: tuning.TrainingTrace) -> None:
    for job in (standin.job("squad"), standin.job("cifar100")):
        for name in tuning.POLICIES:
            runs = tuning.simulate(job, policy=name, seeds=range(20), recurrences=50)
            regret = runs.regret_j()[:, -1]
            assert regret.mean() >= -4 * regret.std() / np.sqrt(len(regret)) - 1e-6 * regret.std()
            assert runs.summary()["excess_cost_fraction"] >= -1e-12


def test_the_summary_is_means_with_student_intervals(standin: tuning.TrainingTrace) -> None:
    job = standin.job("squad")
    runs = tuning.simulate(job, seeds=range(30))
    summary = runs.summary()
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
    pairs = len(job.batch_sizes) * len(job.power_limits_w)
    assert frame["recurrence"].max() == 2 * pairs
    assert frame.groupby("recurrence")["reached"].last().all()


def test_a_sweep_has_a_row_for_every_job_and_policy(standin: tuning.TrainingTrace) -> None:
    jobs = [standin.job("squad"), standin.job("imagenet")]
    table = tuning.sweep(jobs, ["default", "zeus"], seeds=range(3))
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
        ({"eta": 1.5}, r"eta must be .* at most 1; got 1\.5"),
        ({"beta": 1.0}, "beta must be a finite number, above 1; got 1"),
        ({"recurrences": 0}, "recurrences must be .* or None; got 0"),
        ({"seeds": []}, "Experiment.seeds must be .*, not empty"),
    ],
)
def test_knobs_out_of_range_are_refused(knobs: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tuning.simulate(random_job(1), **knobs)
