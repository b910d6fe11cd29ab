"""Gittins indices and time slices: formulas by hand, and what theory says."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import BadValue
from labkit.papers import tiresias

ONE = cluster.Cluster.nodes(1, gpus=1)


def by_hand(service: np.ndarray, levels: list[float], at: int) -> float:
    """The formula as it is written: every Δ, the mean over the jobs that are left."""
    left = service[service > levels[at]]
    best = 0.0
    for until in [*levels[at + 1 :], np.inf]:
        quantum = until - levels[at]
        spent = np.minimum(left - levels[at], quantum).mean()
        best = max(best, (left <= until).mean() / spent)
    return float(best)


@pytest.mark.parametrize("seed", range(4))
def test_the_index_is_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    service = rng.lognormal(0, 2, 200)
    levels = [0.0, *np.geomspace(0.01, 20, 12)]
    ours = tiresias.gittins_index(service, levels)
    assert ours == pytest.approx([by_hand(service, levels, at) for at in range(13)], rel=1e-9)


def test_one_duration_makes_the_index_rise_and_a_heavy_tail_makes_it_fall() -> None:
    levels = np.linspace(0, 0.9, 10)
    assert (np.diff(tiresias.gittins_index(np.ones(50), levels)) > 0).all()
    tail = (1 - (np.arange(4000) + 0.5) / 4000) ** -1.0 - 1  # Pareto: the hazard falls
    assert (np.diff(tiresias.gittins_index(tail, np.geomspace(0.1, 50, 10))) < 0).all()


def test_nothing_is_known_above_the_sample() -> None:
    assert tiresias.gittins_index([1.0, 2.0], [0, 2, 5])[1:].tolist() == [0, 0]


def mean(trace: cluster.Trace, policy: cluster.Policy) -> float:
    return float(cluster.simulate(trace, ONE, policy).jct_s.mean())


def test_it_beats_what_knows_less_and_not_what_knows_more() -> None:
    """Two durations, 1 and 100: fifo delays the short, attained service stops the long."""
    rng = np.random.default_rng(0)
    duration = rng.choice([1.0, 100.0], 40_000, p=[0.9, 0.1])
    arrival = np.cumsum(rng.exponential(duration.mean() / 0.8, duration.size))
    trace = cluster.Trace(arrival_s=arrival, duration_s=duration, gpus=np.ones(duration.size))
    index = tiresias.gittins(duration, queues=24)
    fine = cluster.las2d(*index.thresholds)
    assert mean(trace, cluster.srsf()) < mean(trace, index) < mean(trace, fine)
    assert mean(trace, index) < 0.5 * mean(trace, cluster.fifo())


def test_one_duration_is_served_first_come_first_served() -> None:
    """The index rises: who has begun goes on, as optimal theory says."""
    trace = cluster.generate(
        3000, num_gpus=1, load=0.9, mean_duration_s=1.0, sigma=0.0, gpus={1: 1.0}
    )
    run = cluster.simulate(trace, ONE, tiresias.gittins(np.ones(9)))
    assert run.preemptions.sum() == 0
    assert run.jct_s.mean() == pytest.approx(mean(trace, cluster.fifo()))


def test_short_slices_are_processor_sharing() -> None:
    """M/G/1-PS: the mean is E[S] / (1 - load), whatever the distribution."""
    means = []
    for seed in range(3):
        trace = cluster.generate(
            20_000, num_gpus=1, load=0.5, mean_duration_s=1.0, gpus={1: 1.0}, sigma=1.0, rng=seed
        )
        means.append(mean(trace, tiresias.slices(0.02, longest_s=40)))
    assert np.mean(means) == pytest.approx(2, rel=0.05)


def test_a_slice_must_outlast_a_restart() -> None:
    with pytest.raises(BadValue, match="restart_s 60 must be below quantum_s 60"):
        tiresias.slices(60, longest_s=600, restart_s=60)


@pytest.mark.parametrize("sample", [[], [0.0], [1.0, np.inf]])
def test_a_sample_without_durations_is_refused(sample: list[float]) -> None:
    with pytest.raises(BadValue, match="sample must be finite"):
        tiresias.gittins(sample)


def test_an_experiment_is_the_engine_on_nodes_of_eight() -> None:
    trace = cluster.generate(300, num_gpus=16, load=1.0, gpus={1: 0.7, 8: 0.3}, rng=1)
    usual = tiresias.Experiment(trace=trace, known_jobs=100)
    policies = {
        tiresias.Method.LAS2D: cluster.las2d(),
        tiresias.Method.SRSF: cluster.srsf(),
        tiresias.Method.GITTINS: tiresias.gittins(trace.work_gpu_s[:100]),
    }
    for method, policy in policies.items():
        run = cluster.simulate(trace, cluster.Cluster.nodes(2), policy, placement="consolidated")
        assert usual.run(method, 16).end_s.tolist() == run.end_s.tolist()
        assert usual.mean_s(method, 16) >= usual.bound(16).mean_jct_s
    assert usual.over(tiresias.Method.FIFO, tiresias.Method.FIFO, 16) == 1


def test_jobs_that_are_dealt_anew_are_the_same_jobs() -> None:
    trace = cluster.generate(50, num_gpus=8, load=1.0, rng=0)
    jobs = sorted(zip(trace.column("duration_s"), trace.column("gpus"), strict=True))
    first, second = tiresias.dealt_anew(trace, seeds=2)
    for dealt in (first, second):
        assert sorted(zip(dealt.column("duration_s"), dealt.column("gpus"), strict=True)) == jobs
        assert dealt.column("arrival_s").tolist() == trace.column("arrival_s").tolist()
    assert first.column("duration_s").tolist() != second.column("duration_s").tolist()


def test_the_picture_of_the_idea_shows_every_second_of_every_job() -> None:
    trace = cluster.Trace(
        arrival_s=[0, 600], duration_s=[3600, 600], gpus=[4, 1], ids=("large", "small")
    )
    figure = tiresias.figure_idea(trace, num_gpus=4)
    minutes = {"large": 0.0, "small": 0.0}
    for bar in figure.data:
        if bar.y[0] is not None:
            minutes[bar.y[0]] += bar.x[0]
    assert minutes == pytest.approx({"large": 2 * 60, "small": 2 * 10})
