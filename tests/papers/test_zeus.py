"""What Zeus's figures show: hindsight, curves, regret; no gap of a trace stops them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit import tuning
from labkit.papers import zeus
from tests.tuning.conftest import STANDIN, make_job, published_trace, random_job
from tests.tuning.test_holes import punched

pytestmark = pytest.mark.filterwarnings("ignore::labkit.tuning.TraceWarning")


@pytest.fixture(scope="module")
def standin() -> tuning.TrainingTrace:
    return tuning.TrainingTrace.from_csv(*STANDIN, gpu="v100")


@pytest.fixture(scope="module")
def published() -> tuning.TrainingTrace:
    return published_trace("v100")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_a_larger_eta_never_costs_energy_nor_saves_time(seed: int) -> None:
    sweep = zeus.eta_sweep(random_job(seed), np.linspace(0, 1, 21))
    assert (np.diff(sweep["energy_to_accuracy_j"]) <= 1e-6).all()
    assert (np.diff(sweep["time_to_accuracy_s"]) >= -1e-6).all()


def test_the_papers_motivating_savings(published: tuning.TrainingTrace) -> None:
    """§1 and Fig. 1: 23.8-74.7 % with both knobs, 3.0-31.5 % with the power limit alone."""
    table = zeus.potential_savings(published.jobs())
    assert table["both_fraction"].min() == pytest.approx(0.238, abs=0.0015)
    assert table["both_fraction"].max() == pytest.approx(0.747, abs=0.0015)
    assert table["power_only_fraction"].min() == pytest.approx(0.030, abs=0.0015)
    assert table["power_only_fraction"].max() == pytest.approx(0.315, abs=0.0015)


def test_two_knobs_save_at_least_what_one_saves(standin: tuning.TrainingTrace) -> None:
    table = zeus.potential_savings(standin.jobs())
    one = table[["power_only_fraction", "batch_only_fraction"]].max(axis=1)
    assert (table["both_fraction"] >= one - 1e-12).all()
    assert (one >= 0).all()


def test_a_cap_on_slowdown_only_takes_choices_away(standin: tuning.TrainingTrace) -> None:
    jobs = standin.jobs()
    saved = [
        zeus.potential_savings(jobs, max_slowdown=cap)["both_fraction"]
        for cap in (0.0, 0.1, np.inf)
    ]
    assert (saved[0] >= 0).all()
    assert (saved[0] <= saved[1]).all()
    assert (saved[1] <= saved[2]).all()
    never_slower = zeus.potential_savings(jobs, max_slowdown=0.0)
    for job, row in zip(jobs, never_slower.itertuples(), strict=True):
        table = tuning.outcomes(job).set_index(["batch_size", "power_limit_w"])
        time_s = table.loc[(row.batch_size, row.power_limit_w), "time_to_accuracy_s"]
        assert time_s <= tuning.default_choice(job).time_to_accuracy_s


def test_hindsight_leaves_out_what_cannot_be_compared() -> None:
    """A default that never reaches the target has no saving; a target nobody reaches no choice."""
    job = make_job([[200.0], [5.0]], [[1.0]] * 2, [[10.0]] * 2)
    nobody = make_job([[200.0], [200.0]], [[1.0]] * 2, [[10.0]] * 2)
    fine = make_job([[20.0], [5.0]], [[1.0]] * 2, [[10.0]] * 2)
    table = zeus.hindsight([job, nobody, fine])
    assert table["energy_saving_fraction"].isna().tolist() == [True, True, False]
    assert table["batch_size"].isna().tolist() == [False, True, False]
    assert table["energy_saving_fraction"].iloc[2] == pytest.approx(0.75)


def test_the_batch_curve_is_what_the_map_leaves_at_the_best_limits(
    standin: tuning.TrainingTrace,
) -> None:
    for job in standin.jobs():
        curve = zeus.batch_curves([job], eta=0.3)
        best = tuning.outcomes(job, eta=0.3).groupby("batch_size")["cost_j"].min()
        assert curve["cost_j"].to_numpy() == pytest.approx(best.to_numpy())
        assert curve["relative_cost"].min() == 1.0


def test_shares_of_runs_fall_as_the_target_hardens(standin: tuning.TrainingTrace) -> None:
    for name in standin.names:
        shares = zeus.reach_shares(standin.each_target(name))
        assert list(shares.columns) == [f"{t:g}" for t in standin.targets(name)]
        assert (shares.diff(axis=1).iloc[:, 1:] <= 0).all(axis=None)


def test_the_saving_is_least_where_the_default_is_the_best_batch_size(
    standin: tuning.TrainingTrace,
) -> None:
    """In cost: the best limit's share is left, and no default can leave less than none."""
    table = zeus.hindsight(standin.each_default()).dropna()
    assert (table["energy_saving_fraction"] >= 0).all()
    share = {
        job.title: 1 - job.epoch_energy_j[row].min() / job.epoch_energy_j[row, -1]
        for job in standin.jobs()
        for row in [job.batch_sizes.index(tuning.optimum(job, eta=1.0).batch_size)]
    }
    for row in table[table["relative_default"] == 1].itertuples():
        assert row.energy_saving_fraction == pytest.approx(share[row.workload])


def test_bands_are_student_s_intervals_in_runs_of_the_optimum(
    standin: tuning.TrainingTrace,
) -> None:
    job = standin.job("squad")
    runs = tuning.simulate(job, seeds=range(12), recurrences=15)
    bands = zeus.regret_bands([runs])
    regret = runs.regret_j() / tuning.optimum(job).cost_j
    low, high = stats.t.interval(0.95, 11, regret.mean(0), stats.sem(regret))
    assert np.allclose(bands["regret"], regret.mean(0))
    assert np.allclose(bands["regret_low"], low)
    assert np.allclose(bands["regret_high"], high)
    assert bands["recurrence"].tolist() == list(range(1, 16))


def test_bands_lie_around_their_lines(standin: tuning.TrainingTrace) -> None:
    job = standin.job("cifar100")
    runs = [tuning.simulate(job, policy=name, seeds=range(8)) for name in ("zeus", "cost-curve")]
    bands = zeus.regret_bands(runs)
    fig = zeus.figure_regret_bands(bands)
    for place, (_, rows) in enumerate(bands.groupby("policy", sort=False)):
        band, line = fig.data[2 * place : 2 * place + 2]
        count = len(rows)
        assert len(band.y) == 2 * count
        high = np.array(band.y[:count])
        low = np.array(band.y[count:][::-1])
        middle = np.array(line.y)
        assert (low <= middle + 1e-4).all()
        assert (middle <= high + 1e-4).all()
        assert np.allclose(high + low, 2 * middle, atol=1e-3)
        assert band.fillcolor == line.line.color
    assert {note.text for note in fig.layout.annotations} == {"Zeus", "cost-curve"}


def test_no_configuration_saves_more_energy_than_the_bound(standin: tuning.TrainingTrace) -> None:
    jobs = standin.jobs()
    bound = zeus.least_energy(jobs)
    both = zeus.potential_savings(jobs)["both_fraction"]
    assert bound["energy_reduction"].to_numpy() == pytest.approx(both.to_numpy())
    assert (bound["time_reduction"] < 1).all()


def test_single_simulations_scatter_around_the_mean(standin: tuning.TrainingTrace) -> None:
    jobs = standin.jobs()
    runs = [tuning.simulate(job, seeds=range(20)) for job in jobs]
    alone = zeus.single_simulations(runs)
    means = [run.summary()["energy_reduction"] for run in runs]
    assert len(alone) == 20
    assert alone["least energy saved"].mean() <= min(means) + 1e-12
    assert alone["most energy saved"].mean() >= max(means) - 1e-12


def test_no_run_ends_once_all_cost_more_than_beta_times_as_much() -> None:
    job = make_job([[4.0, 6.0], [9.0]], [[1.0]] * 2, [[10.0]] * 2)
    assert zeus.share_that_ends(job, 1.0, beta=2.0) == 1.0
    assert zeus.share_that_ends(job, 1.5, beta=2.0) == 0.5  # 6 of the bound of 8; 9 is above it
    assert zeus.share_that_ends(job, 2.01, beta=2.0) == 0.0


def test_a_change_that_favours_larger_sizes_spares_the_old_best(
    standin: tuning.TrainingTrace,
) -> None:
    job = standin.job("cifar100")
    best = tuning.optimum(job)
    place = job.batch_sizes.index(best.batch_size)
    new = zeus.favour_larger(job)
    assert new.epochs_to_target[place] == pytest.approx(job.epochs_to_target[place])
    assert tuning.optimum(new).batch_size > best.batch_size
    worse = zeus.favour_larger(job, best_grows=1.5)
    assert tuning.convergence(worse)[1][place] == pytest.approx(1.5 * best.expected_epochs)


def test_another_baseline_changes_what_is_saved_not_what_is_used(
    standin: tuning.TrainingTrace,
) -> None:
    jobs = standin.jobs()
    saved = zeus.least_energy(jobs)
    same = zeus.measured_against(saved, jobs, step=0, host_w=0.0)
    for column in ("energy_reduction", "time_reduction"):
        assert same[column].to_numpy() == pytest.approx(saved[column].to_numpy())
    larger = zeus.measured_against(saved, jobs, step=1, host_w=0.0).set_index("workload")
    for job, row in zip(jobs, saved.itertuples(), strict=True):
        if job.title not in larger.index:
            continue
        table = tuning.outcomes(job).set_index(["batch_size", "power_limit_w"])
        place = min(job.default_index + 1, len(job.batch_sizes) - 1)
        base_j = table.loc[(job.batch_sizes[place], job.max_power_w), "energy_to_accuracy_j"]
        own_j = tuning.default_choice(job).energy_to_accuracy_j
        left = (1 - larger.loc[job.title, "energy_reduction"]) * base_j
        assert left == pytest.approx((1 - row.energy_reduction) * own_j)


def test_the_headline_names_each_workload_once(standin: tuning.TrainingTrace) -> None:
    bound = zeus.least_energy(standin.jobs())
    points = {"bound: least energy in hindsight": bound, "Zeus": bound}
    fig = zeus.figure_headline("Zeus", points, energy=(0.1, 0.7), time=0.6, title="")
    named = [trace for trace in fig.data if trace.text]
    assert [trace.name for trace in named] == ["Zeus"]
    assert [text.strip() for text in named[0].text] == [*bound["workload"]]


def test_pairs_that_nobody_profiled_are_passed_over() -> None:
    job = make_job([[5.0]] * 2, [[4.0, 3.0, 2.0]] * 2, [[50.0, 60.0, 70.0]] * 2)
    job = punched(job, np.array([[0, 0, 1], [0, 0, 0]], dtype=bool))
    assert (zeus.potential_savings([job]).filter(like="only") >= 0).all(axis=None)
    assert zeus.hindsight([job])["energy_saving_fraction"].notna().all()
    assert np.isfinite(zeus.batch_curves([job])["cost_j"]).all()


def test_every_figure_is_plain_json(standin: tuning.TrainingTrace) -> None:
    """No NaN, no infinity, no arrays: what notebooks store compares exactly."""
    never = make_job([[3.0], [np.inf]], [[1.0, 2.0]] * 2, [[50.0, 40.0]] * 2)
    runs = tuning.simulate(standin.job("cifar100"), seeds=[0, 1], recurrences=9)
    for fig in (
        zeus.figure_potential(zeus.potential_savings(standin.jobs())),
        zeus.figure_regret_bands(zeus.regret_bands([runs])),
        zeus.figure_batch_curves(zeus.batch_curves([never, *standin.jobs()])),
    ):
        content = fig.to_plotly_json()
        content["layout"].pop("template")
        json.dumps(content, allow_nan=False)
