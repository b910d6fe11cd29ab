from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zeus._legacy.job import Job as PeerJob
from zeus._legacy.policy.optimizer import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
from zeus._legacy.simulate import Simulator
from zeus.utils.metric import zeus_cost

from labkit import tuning
from labkit.errors import UsageError
from tests.amounts import amounts
from tests.tuning.conftest import make_job, random_job

pytestmark = pytest.mark.filterwarnings("ignore::labkit.tuning.TraceWarning")

ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@given(amounts(1e9), amounts(1e6), amounts(1), st.floats(1, 1000))
def test_cost_is_the_peers_cost(energy: float, time: float, eta: float, max_power: float) -> None:
    ours = tuning.cost_j(energy, time, eta=eta, max_power_w=max_power)
    assert ours == pytest.approx(zeus_cost(energy, time, eta, max_power))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ETAS))
def test_the_table_prices_time_and_energy_by_the_cost(seed: int, eta: float) -> None:
    job = random_job(seed)
    table = tuning.outcomes(job, eta=eta)
    rows = table[np.isfinite(table["energy_to_accuracy_j"])]
    expected = tuning.cost_j(
        rows["energy_to_accuracy_j"],
        rows["time_to_accuracy_s"],
        eta=eta,
        max_power_w=job.max_power_w,
    )
    assert rows["cost_j"].to_numpy() == pytest.approx(expected)
    assert np.isinf(table.drop(rows.index)["cost_j"]).all()


def test_cost_is_energy_alone_or_time_alone_at_the_ends() -> None:
    assert tuning.cost_j(7.0, 3.0, eta=1, max_power_w=250) == 7.0
    assert tuning.cost_j(7.0, 3.0, eta=0, max_power_w=250) == 750.0


@pytest.mark.parametrize("eta", [-0.1, 1.1, float("nan")])
def test_an_eta_out_of_range_is_refused(eta: float) -> None:
    with pytest.raises(UsageError, match="eta must be a finite number, at least 0, at most 1"):
        tuning.optimum(random_job(0), eta=eta)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ETAS))
def test_choosing_the_power_limit_first_loses_nothing(seed: int, eta: float) -> None:
    """The decoupling Zeus rests on: min over both = min over batch sizes of the best limit's."""
    job = random_job(seed)
    limits = tuning.best_power_limits(job, eta)
    costs = tuning.convergence(job)[1][:, None] * tuning.epoch_cost_j(job, eta)
    decoupled = costs[np.arange(len(limits)), limits].min()
    assert decoupled == pytest.approx(tuning.outcomes(job, eta=eta)["cost_j"].min())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12))
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    """Brute force on a coarse grid, so that ties in one or both quantities are common."""
    times, powers = zip(*points, strict=True)
    job = make_job([[1.0]], [[float(t) for t in times]], [[p * 60 / t for t, p in points]])
    table = tuning.outcomes(job)
    energy = table["energy_to_accuracy_j"].round(6).to_numpy()
    front = {(t, e) for t, e in zip(times, energy[table["is_pareto"]], strict=False)}
    front = set(zip(np.array(times)[table["is_pareto"]], energy[table["is_pareto"]], strict=True))
    everything = set(zip(times, energy, strict=True))
    brute = {
        (t, e)
        for t, e in everything
        if not any((u <= t and f < e) or (u < t and f <= e) for u, f in everything)
    }
    assert front == brute
    assert powers


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 0.99))
def test_the_optimum_lies_on_the_front(seed: int, eta: float) -> None:
    job = random_job(seed)
    best = tuning.optimum(job, eta=eta)
    front = tuning.outcomes(job, eta=eta).query("is_pareto").sort_values("time_to_accuracy_s")
    pairs = set(zip(front["batch_size"], front["power_limit_w"], strict=True))
    assert (best.batch_size, best.power_limit_w) in pairs
    assert front["time_to_accuracy_s"].is_monotonic_increasing
    assert front["energy_to_accuracy_j"].is_monotonic_decreasing


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_what_never_reaches_the_target_is_never_chosen(eta: float) -> None:
    """Cheapest by far per epoch, but of no use: its cost is infinite, whatever η."""
    job = make_job([[4.0], [np.inf]], [[5.0], [0.01]], [[50.0], [1.0]])
    table = tuning.outcomes(job, eta=eta)
    assert table["cost_j"].tolist() == [pytest.approx(1000.0 if eta else 2000.0), np.inf]
    assert tuning.optimum(job, eta=eta).batch_size == 2


def test_epochs_are_the_plain_mean_where_every_run_succeeds() -> None:
    reach, epochs = tuning.convergence(make_job([[3.0, 4.0, 8.0]], [[1.0]], [[1.0]]))
    assert (reach[0], epochs[0]) == (1.0, 5.0)


def test_a_failed_run_is_paid_for_and_tried_again() -> None:
    """Half the runs fail after 10 epochs, so one failure a success is expected: 3 + 10."""
    job = make_job([[3.0, np.inf], [11.0, 11.0]], [[1.0]] * 2, [[1.0]] * 2, max_epochs=10)
    reach, epochs = tuning.convergence(job)
    assert reach.tolist() == [0.5, 0.0]
    assert epochs.tolist() == [pytest.approx(13.0), np.inf]


def test_a_target_nobody_reaches_has_no_optimum() -> None:
    job = make_job([[200.0], [300.0]], [[1.0]] * 2, [[1.0]] * 2)
    with pytest.raises(UsageError, match="no recorded run reaches target 1 within 100 epochs"):
        tuning.optimum(job)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_with_a_hungry_enough_host_saving_energy_is_saving_time(seed: int) -> None:
    job = random_job(seed)
    fastest = tuning.optimum(job, eta=0.0)
    hungry = tuning.optimum(replace(job, host_power_w=1e7), eta=1.0)
    assert hungry.time_to_accuracy_s == pytest.approx(fastest.time_to_accuracy_s)


def test_of_equal_configurations_the_larger_and_faster_is_taken() -> None:
    job = make_job([[4.0], [4.0]], [[1.0, 1.0]] * 2, [[50.0, 50.0]] * 2)
    assert tuning.best_power_limits(job, 1.0).tolist() == [1, 1]
    best = tuning.optimum(job, eta=1.0)
    assert (best.batch_size, best.power_limit_w) == (4, 110.0)


@pytest.mark.parametrize("eta", ETAS)
def test_the_profile_picks_the_peers_power_limit(
    tables: tuple[pd.DataFrame, pd.DataFrame], both, eta: float
) -> None:
    trace = both(tables[0])
    for job in trace.jobs():
        spec = tuning.PUBLISHED[job.name]
        peer_job = PeerJob(
            job.name, spec.network, spec.optimizer, job.target_metric, job.max_epochs
        )
        peer = Simulator(
            *(table[table["dataset"] == job.name] for table in tables),
            PruningGTSBatchSizeOptimizer(verbose=False),
            JITPowerLimitOptimizer(verbose=False),
            verbose=False,
        )
        for size, limit in zip(job.batch_sizes, tuning.best_power_limits(job, eta), strict=True):
            chooser = JITPowerLimitOptimizer(verbose=False)
            for power, cost in peer._profile_power_limit(peer_job, size, eta).items():
                chooser.observe(peer_job, size, power, cost)
            assert job.power_limits_w[limit] == chooser.predict(peer_job, size)


def test_a_configuration_that_never_ends_divides_without_a_warning() -> None:
    """Rows hold Python's numbers, not NumPy's, which warn of what is not a number."""
    base = tuning.default_choice(replace(random_job(0), max_epochs=1))
    assert type(base.batch_size) is int
    assert type(base.cost_j) is float
