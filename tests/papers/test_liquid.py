"""Workers on racks: traffic by hand, placements that keep the rules, speeds that follow links."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import BadValue
from labkit.papers import liquid

RACKS = liquid.Racks(racks=2, nodes=2, gpus=4, node_bytes_per_s=10.0, rack_bytes_per_s=20.0)
FAST = liquid.Racks(racks=2, nodes=2, gpus=4, node_bytes_per_s=1e10, rack_bytes_per_s=2e10)
WAYS = [*liquid.Way]


def test_traffic_by_hand() -> None:
    """Two workers on the server's node, one beside it, one in the other rack."""
    loads = RACKS.traffic(np.array([2, 1, 0, 1]))
    assert loads.tolist() == [2, 1, 0, 1, 1, 1]  # nodes, then racks
    assert RACKS.traffic(np.array([4, 0, 0, 0])).sum() == 0
    both = np.array([loads, RACKS.traffic(np.array([0, 1, 0, 1]))])
    step_s = RACKS.step_s(both, [1.0, 1.0], [10.0, 5.0])
    # The first job's server link is its own: 2 models of 10 bytes at 10 bytes a second. The second
    # job's links are shared by both jobs: one of 5 bytes at half of 10.
    assert step_s.tolist() == [1.0 + 2.0, 1.0 + 1.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.data())
def test_a_placement_takes_free_gpus(free: list[int], data: Any) -> None:
    if not sum(free):
        return
    gpus = data.draw(st.integers(1, sum(free)))
    way = data.draw(st.sampled_from(WAYS))
    held = liquid.place(RACKS, np.array(free), gpus, way)
    assert held.sum() == gpus
    assert ((held >= 0) & (held <= free)).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(1, 8))
def test_best_fit_is_never_dearer_than_packing_or_spreading(free: list[int], gpus: int) -> None:
    """By its own cost, against the other ways; and near the least of all placements."""
    if sum(free) < gpus:
        return
    cost = {
        way: (RACKS.traffic(liquid.place(RACKS, np.array(free), gpus, way)) / RACKS.rate).max()
        for way in (liquid.Way.SPREAD, liquid.Way.PACK, liquid.Way.BEST_FIT)
    }
    every = (np.array(held) for held in product(*(range(k + 1) for k in free)) if sum(held) == gpus)
    least = min((RACKS.traffic(held) / RACKS.rate).max() for held in every)
    assert cost[liquid.Way.BEST_FIT] >= least
    assert cost[liquid.Way.BEST_FIT] <= 2 * least + 1e-9
    assert (
        cost[liquid.Way.BEST_FIT] <= min(cost.values()) + 0.1
    )  # one worker more over a node's link


def test_alone_on_a_node_a_job_takes_its_own_seconds() -> None:
    jobs = liquid.draw_workers(FAST, num_jobs=30, load=1e-6, rng=0)
    run = liquid.simulate(jobs, FAST, liquid.Way.BEST_FIT)
    small = jobs.trace.column("gpus") <= 4
    computing = jobs.trace.column("duration_s")
    assert run.execution_s[small] == pytest.approx(computing[small])
    assert (run.execution_s[~small] > computing[~small]).all()  # eight cross a link
    assert run.jct_s == pytest.approx(run.execution_s)  # nobody waits at so little load


@pytest.mark.parametrize("way", WAYS)
def test_faster_links_and_none(way: liquid.Way) -> None:
    """Nobody runs faster than it computes, and without a network everybody does just that."""
    jobs = liquid.draw_workers(RACKS, num_jobs=40, load=0.8, rng=3)
    least = jobs.trace.column("duration_s")
    means = []
    for rate in (1e9, 1e10, 1e18):
        racks = liquid.Racks(
            racks=2, nodes=2, gpus=4, node_bytes_per_s=rate, rack_bytes_per_s=2 * rate
        )
        run = liquid.simulate(jobs, racks, way)
        assert (run.execution_s >= least * (1 - 1e-9)).all()
        assert (run.jct_s >= run.execution_s * (1 - 1e-9)).all()
        means.append(run.execution_s.mean())
    assert means[0] > means[1] > means[2]
    assert means[2] == pytest.approx(least.mean(), rel=1e-6)


def test_the_search_never_loses_to_where_it_began() -> None:
    """Its first generation holds the order of arrival; a longer search only goes on from there."""
    jobs = liquid.draw_workers(RACKS, num_jobs=10, load=1e4, rng=1)
    short, long = (
        liquid.evolve(jobs, FAST, population=8, generations=n).jct_s.mean() for n in (1, 12)
    )
    assert long <= short
    alone, again = (liquid.evolve(jobs, FAST, population=1, generations=n).jct_s for n in (1, 3))
    assert (alone == again).all()


def test_what_cannot_be_is_said() -> None:
    jobs = liquid.draw_workers(RACKS, num_jobs=10, load=1.0)
    small = liquid.Racks(racks=1, nodes=1, gpus=2, node_bytes_per_s=1.0, rack_bytes_per_s=1.0)
    with pytest.raises(BadValue, match="jobs of up to 2 GPUs"):
        liquid.simulate(jobs, small, liquid.Way.PACK)
    with pytest.raises(BadValue, match=r"Workers\.model_bytes"):
        liquid.Workers(trace=jobs.trace, model_bytes=[1.0], compute_s=jobs.compute_s)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(1, 16))
def test_the_fewest_nodes_are_the_fewest(free: list[int], gpus: int) -> None:
    if sum(free) < gpus:
        return
    held = liquid.place(RACKS, np.array(free), gpus, liquid.Way.FEWEST_NODES)
    largest_first = np.cumsum(sorted(free, reverse=True))
    assert (held > 0).sum() == int(np.argmax(largest_first >= gpus)) + 1
    if (held > 0).sum() == 1:
        assert free[int(held.argmax())] == min(count for count in free if count >= gpus)


def test_gains_are_over_the_better_of_spreading_and_packing() -> None:
    few = liquid.Experiment(gbit_per_s=50.0, num_draws=2, num_jobs=30)
    racks = liquid.two_racks(50.0)
    gains = few.gains(liquid.Way.BEST_FIT)
    for seed in range(2):
        jobs = liquid.draw_workers(racks, num_jobs=30, load=0.6, rng=seed)
        runs = {
            way: liquid.simulate(jobs, racks, way)
            for way in (liquid.Way.SPREAD, liquid.Way.PACK, liquid.Way.BEST_FIT)
        }
        best = runs.pop(liquid.Way.BEST_FIT)
        execution_s = min(run.execution_s.mean() for run in runs.values())
        jct_s = min(run.jct_s.mean() for run in runs.values())
        assert gains["execution"][seed] == pytest.approx(execution_s / best.execution_s.mean() - 1)
        assert gains["completion"][seed] == pytest.approx(1 - best.jct_s.mean() / jct_s)
    assert (few.gains("computing")["execution"] >= gains["execution"]).all()


def test_errors_of_a_law_that_is_linear_are_none_for_the_linear_regressor() -> None:
    """Logarithms of times that are a product of powers of the settings."""
    rng = np.random.default_rng(0)
    steps = pd.DataFrame(
        {
            "num_nodes": rng.integers(1, 5, 100),
            "num_gpus": rng.integers(1, 17, 100),
            "atomic_bsz": rng.integers(1, 500, 100),
        }
    )
    steps["step_time_s"] = 0.01 * steps["num_nodes"] ** 0.5 * steps["atomic_bsz"] ** 0.8
    errors = liquid.estimation_errors(steps, {"rows": np.arange(100)})
    assert errors.loc["linear", "rows"] == 0
    assert (errors.drop(index="linear")["rows"] > 0).all()
