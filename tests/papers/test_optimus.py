"""Parameter servers: fits that recover, divisions of tasks, gains and shares by a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue
from labkit.papers import optimus
from tests.published import Need

NODES = cluster.Cluster.nodes(5, gpus=4)
ROOM = NODES.num_gpus


def laws(seed: int, jobs: int) -> list[optimus.ServerSpeed]:
    draws = np.random.default_rng(seed).uniform(0.01, 1, (jobs, 4)) * [10, 3, 0.3, 0.3]
    names = ("compute_s", "exchange_s", "worker_s", "server_s")
    return [optimus.ServerSpeed(**dict(zip(names, row.tolist(), strict=True))) for row in draws]


def table(speeds: list[optimus.ServerSpeed], split: str) -> dict[str, np.ndarray]:
    """Each law's step times, the kind named by its place: as :func:`together` names jobs."""
    return {str(place): law.by_tasks(ROOM, split) for place, law in enumerate(speeds)}


def together(hours: list[float]) -> cluster.Trace:
    """Jobs that arrive at once, of kinds 0, 1, …; hours on one worker and one server."""
    count = len(hours)
    return cluster.Trace(
        arrival_s=np.zeros(count),
        gpus=np.full(count, 2),
        kind=tuple(map(str, range(count))),
        duration_s=[3600.0 * hour for hour in hours],
    )


def first_tasks(hours: list[float], policy: Callable) -> list[int]:
    trace = together(hours)
    run = cluster.simulate(trace, NODES, policy(trace))
    segments = run.segments
    at_once = segments["start_s"] == 0
    tasks = np.bincount(segments["job"][at_once], segments["gpus"][at_once], len(trace))
    return tasks.astype(int).tolist()


def test_a_step_is_the_formula() -> None:
    law = optimus.ServerSpeed(compute_s=12, fixed_s=1, exchange_s=3, worker_s=0.5, server_s=0.25)
    assert float(law.step_s(4, 2)) == 12 / 4 + 1 + 3 * 4 / 2 + 0.5 * 4 + 0.25 * 2
    with pytest.raises(BadValue, match="at least 1 each"):
        law.step_s(1, 0)


def test_one_to_one_is_fastest_at_the_root_of_compute_over_overhead() -> None:
    """C/w + E + (δ + δ')·w has its least at √(C / (δ + δ'))."""
    law = optimus.ServerSpeed(compute_s=18, exchange_s=5, worker_s=0.25, server_s=0.25)
    even = law.by_tasks(40, "even")
    assert np.nanargmin(even) + 1 == 2 * 6
    assert np.isnan(even[::2]).all()
    assert np.isfinite(even[1::2]).all()


@given(seed=st.integers(0, 500))
@settings(max_examples=25, deadline=None)
def test_divisions_of_tasks(seed: int) -> None:
    law = laws(seed, 1)[0]
    best = law.by_tasks(14, "best")
    gains = law.by_tasks(14, "gains")
    w = 1
    p = 1
    for n in range(2, 15):
        assert best[n - 1] == min(float(law.step_s(k, n - k)) for k in range(1, n))
        assert gains[n - 1] == float(law.step_s(w, p))
        worker = float(law.step_s(w + 1, p))
        server = float(law.step_s(w, p + 1))
        w, p = (w + 1, p) if worker < server else (w, p + 1)
    assert np.isnan(best[0])
    assert np.isnan(gains[0])


def plain_gains(speeds: list[optimus.ServerSpeed], hours: list[float]) -> list[list[int]]:
    """Optimus's loop as it is written: both kinds of tasks, all jobs looked at again each time."""
    held = [[1, 1] for _ in speeds]
    while sum(map(sum, held)) < ROOM:
        offers = []
        for job, (law, (w, p)) in enumerate(zip(speeds, held, strict=True)):
            steps = hours[job] / float(law.step_s(1, 1))
            for kind, after in enumerate(((w + 1, p), (w, p + 1))):
                offers.append((steps * float(law.step_s(w, p) - law.step_s(*after)), job, kind))
        saved, job, kind = max(offers)
        if saved <= 0:
            break
        held[job][kind] += 1
    return held


@pytest.mark.parametrize("seed", range(6))
def test_gains_are_those_of_the_plain_loop(seed: int) -> None:
    speeds = laws(seed, 4)
    hours = np.random.default_rng(seed).uniform(1, 20, 4).tolist()
    policy = optimus.marginal_gains(table(speeds, "gains"), round_s=60.0)
    assert first_tasks(hours, policy) == [*map(sum, plain_gains(speeds, hours))]


def test_gains_are_optimal_where_each_task_helps_less() -> None:
    """On convex step times the greedy division has the least sum of remaining times."""
    speeds = laws(3, 3)
    hours = [3.0, 8.0, 1.0]
    at = [0, 1, 4, ROOM - 1]
    share = np.array([9e9, 1, 0.6, 0.5])
    first = [float(law.step_s(1, 1)) for law in speeds]
    convex = np.array([np.interp(np.arange(ROOM), at, share * step) for step in first])
    convex[:, 0] = np.nan
    times = dict(zip("012", convex, strict=True))
    tasks = first_tasks(hours, optimus.marginal_gains(times, round_s=60.0))
    value = [[hour * t / row[1] for t in row] for hour, row in zip(hours, convex, strict=True)]
    ways = [w for w in product(range(2, ROOM), repeat=3) if sum(w) <= ROOM]
    least = min(sum(v[n - 1] for v, n in zip(value, way, strict=True)) for way in ways)
    ours = sum(v[n - 1] for v, n in zip(value, tasks, strict=True))
    assert ours == pytest.approx(least)


def test_lengths_count_as_much_as_their_power() -> None:
    same = table([optimus.ServerSpeed(compute_s=8, exchange_s=1)] * 2, "gains")
    hours = [1.0, 16.0]

    def tasks(power: float, misjudged: object = 1.0) -> list[int]:
        policy = optimus.marginal_gains(same, length_power=power, misjudged=misjudged, round_s=60.0)
        return first_tasks(hours, policy)

    long_first = tasks(1.0)
    alike = tasks(0.0)
    short_first = tasks(-1.0)
    assert long_first[1] > long_first[0]
    assert short_first == long_first[::-1]
    assert abs(alike[0] - alike[1]) <= 1
    assert tasks(1.0, [16.0, 1.0]) == alike  # a misjudged length is a length


@pytest.mark.parametrize("stops", [True, False])
def test_shares_are_equal_bundles_up_to_the_fastest_number(stops: bool) -> None:
    quick = optimus.ServerSpeed(
        compute_s=1, worker_s=0.25, server_s=0.25
    )  # fastest at 1 or 2 of each
    slow = optimus.ServerSpeed(compute_s=1000, worker_s=0.01, server_s=0.01)
    speeds = [quick, slow]
    pairs, stopping, *_ = optimus.task_policies(dict(zip("01", speeds, strict=True)), ROOM)
    policy = stopping if stops else pairs
    small, large = first_tasks([5.0, 5.0], policy)
    fastest = int(np.nanargmin(quick.by_tasks(ROOM, "even"))) + 1
    assert (small, large) == ((fastest, ROOM - fastest) if stops else (ROOM // 2, ROOM // 2))


def test_a_job_alone_takes_the_time_of_its_tasks() -> None:
    law = optimus.ServerSpeed(compute_s=8, exchange_s=2, worker_s=0.1, server_s=0.1)
    steps = law.by_tasks(ROOM, "gains")
    policy = optimus.marginal_gains({"0": steps}, round_s=60.0, restart_s=7.0)
    run = cluster.simulate(trace := together([4.0]), NODES, policy(trace))
    assert run.end_s[0] == pytest.approx(7 + 4 * 3600 * np.nanmin(steps) / steps[1])


def test_a_law_has_the_peaks_it_is_made_from() -> None:
    law = optimus.ServerSpeed.from_peaks(8, 12, 10)
    assert law.step_s(np.arange(1, 20), 20 - np.arange(1, 20)).argmin() + 1 == 8
    assert np.nanargmin(law.by_tasks(60, "even")) + 1 == 2 * 10
    larger = law.scaled(3.0, 2.0)
    whole = 3 * law.compute_s + 2 + law.worker_s + law.server_s
    assert float(larger.step_s(1, 1)) == pytest.approx(whole)


def test_the_better_informed_way_is_faster_for_a_job_alone() -> None:
    """Pairs that take all, pairs that stop, the best division; gains never beat the last."""
    law = optimus.ServerSpeed(compute_s=4, exchange_s=2, worker_s=0.1, server_s=0.1)
    trace = together([4.0])
    policies = optimus.task_policies({"0": law}, ROOM, round_s=60.0)
    ends = [cluster.simulate(trace, NODES, policy(trace)).end_s[0] for policy in policies]
    assert ends[0] > ends[1] > ends[2]
    assert ends[3] == pytest.approx(
        30 + 4 * 3600 * np.nanmin(law.by_tasks(ROOM)) / law.step_s(1, 1)
    )


def test_a_sweep_makes_policies_for_each_trace() -> None:
    times = table(speeds := laws(2, 3), "gains")
    traces = [
        cluster.generate(6, num_gpus=ROOM, gpus={2: 1}, kinds=tuple(times), rng=seed)
        for seed in (0, 1)
    ]
    assert all(set(trace.kind) <= set(times) for trace in traces)
    policy = optimus.marginal_gains(times, name="gains")
    rows = cluster.sweep(traces, [NODES], [policy])
    for trace in traces:
        bound = optimus.least_mean_s(dict(zip(times, speeds, strict=True)), trace, ROOM)
        assert all(
            bound <= cluster.simulate(trace, NODES, p(trace)).jct_s.mean()
            for p in (policy, optimus.equal_shares(times))
        )
    alone = [cluster.simulate(trace, NODES, policy(trace)).jct_s.mean() for trace in traces]
    assert rows["mean_jct_s"].tolist() == pytest.approx(alone)


def test_times_between_listed_rates() -> None:
    table = [[1, 4, 4], [2, 1, 0]]
    rates = cluster.Rates(kinds=("a", "b"), gpus=(1, 4, 8), work_per_s=table)
    times = rates.times(8)
    assert times["a"].tolist() == pytest.approx([1, 1 / 2, 1 / 3, *[1 / 4] * 5])
    assert times["b"][:4].tolist() == pytest.approx([1 / 2, 2**-0.5, times["b"][2], 1])
    assert np.isnan(times["b"][4:]).all()


def test_tables_that_do_not_fit_are_refused() -> None:
    steps = laws(0, 1)[0].by_tasks(ROOM - 1, "gains")
    trace = together([1.0])
    with pytest.raises(BadValue, match=f"reach {ROOM - 1} tasks"):
        cluster.simulate(trace, NODES, optimus.marginal_gains({"0": steps})(trace))
    with pytest.raises(BadValue, match="each above 0 at 1"):
        optimus.marginal_gains({"0": steps}, first=1)(trace)
    with pytest.raises(BadValue, match="kind '0' of trace; valid: other"):
        optimus.marginal_gains({"other": steps})(trace)


# Blocks of parameters on servers: conserved, near the best division, MXNet's rule by hand.

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=40)


@given(sizes=SIZES, servers=st.integers(1, 9), rule=st.sampled_from(["fit", "hash"]))
@settings(max_examples=80, deadline=None)
def test_every_parameter_has_a_server(sizes: list[int], servers: int, rule: str) -> None:
    held = optimus.place_blocks(sizes, servers, rule=rule)
    assert held.parameters.sum() == pytest.approx(sum(sizes))
    assert len(sizes) <= held.requests.sum() <= len(sizes) + servers * len(sizes)
    assert held.requests.min() >= 0


@given(sizes=SIZES, servers=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_the_fullest_server_is_a_block_above_the_mean_at_most(
    sizes: list[int], servers: int
) -> None:
    """A block that fits nowhere goes to the emptiest server, which holds no more than the mean;
    small ones, below a hundredth of it, may add up on one server."""
    held = optimus.place_blocks(sizes, servers)
    part = sum(sizes) / servers
    small = sum(size for size in sizes if size < part / 100)
    largest = min(max(sizes), part)
    assert held.parameters.max() <= part + largest + small + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_within_a_third_of_the_best_of_all_divisions(seed: int) -> None:
    """Below 4/3 − 1/(3m) of the optimum, the bound of largest first to the emptiest."""
    sizes = np.random.default_rng(seed).integers(20, 100, 9).astype(float)
    assert sizes.max() <= sizes.sum() / 3
    best = min(
        max(sum(s for s, to in zip(sizes, way, strict=True) if to == k) for k in range(3))
        for way in product(range(3), repeat=9)
    )
    assert optimus.place_blocks(sizes, 3).parameters.max() <= (4 / 3 - 1 / 9) * best + 1e-9


def test_a_block_above_the_mean_is_divided_and_requests_count_its_parts() -> None:
    held = optimus.place_blocks([10.0, 1.0, 1.0], 3)
    assert held.parameters.tolist() == pytest.approx([4, 4, 4])
    assert held.requests.sum() == 5  # three parts, two blocks
    assert optimus.place_blocks([7.0], 7).parameters.tolist() == pytest.approx([1.0] * 7)


def test_mxnet_default_by_hand() -> None:
    """Block k to server 9973·k mod 4 = k mod 4; a million or more in equal parts to all."""
    held = optimus.place_blocks([1.0, 2.0, 4e6, 8.0, 16.0], 4, rule="hash")
    assert held.parameters.tolist() == [1e6 + 17, 1e6 + 2, 1e6, 1e6 + 8]
    assert held.requests.tolist() == [3, 2, 1, 2]
    again = optimus.place_blocks(
        [1.0, 2.0, 4e6, 8.0, 16.0], 4, rule="hash", numbers=[0, 0, 0, 0, 1]
    )
    assert again.parameters.tolist() == [1e6 + 11, 1e6 + 16, 1e6, 1e6]


def test_blocks_need_sizes() -> None:
    with pytest.raises(BadValue, match="numbers above 0"):
        optimus.place_blocks([1.0, 0.0], 2)


# Forecasts and the experiment: a law that is known, and the engine's own runs.


def test_the_end_of_a_known_law() -> None:
    """1/(k + 1) falls by at most 0.05 over ten epochs where 10 / (k - 9)(k + 1) <= 0.05."""
    losses = 1 / (np.arange(60) + 1)
    first = next(k for k in range(10, 60) if 10 / ((k - 9) * (k + 1)) <= 0.05)
    assert optimus.converged_epoch(losses) == first
    assert optimus.converged_epoch(losses[:first], most=77) == 77
    assert optimus.converged_epoch(np.zeros(12)) == 10


def test_blocks_hold_every_parameter(published_data: Need) -> None:
    networks = optimus.Networks(published_data("pipedream-sosp19"))
    for chain in networks.chains.values():
        assert sum(optimus.blocks_of(chain)) == pytest.approx(sum(chain.parameter_bytes) / 4)


def test_laws_have_the_fastest_division_they_were_made_for(published_data: Need) -> None:
    networks = optimus.Networks(published_data("pipedream-sosp19"))
    for workers in (4, 6, 8):
        law = networks.laws(workers)["ResNet-50"]
        times = [float(law.step_s(count, 20 - count)) for count in range(1, 20)]
        assert int(np.argmin(times)) + 1 == workers


def test_gains_are_ratios_of_means_and_below_the_bound(published_data: Need) -> None:
    networks = optimus.Networks(published_data("pipedream-sosp19"))
    few = optimus.Experiment(laws=networks.laws(8), num_draws=2)
    assert few.gain(optimus.Method.PAIRS) == {"completion": 1, "makespan": 1}
    by_hand = []
    for trace in few.draws():
        policies = optimus.task_policies(few.laws, 39)
        means = [
            cluster.simulate(trace, few.machines, make(trace)).jct_s.mean() for make in policies
        ]
        by_hand.append(means)
    pairs_s, _, best_s, gains_s = np.mean(by_hand, axis=0)
    assert few.gain(optimus.Method.GAINS)["completion"] == pytest.approx(pairs_s / gains_s)
    assert few.gain(optimus.Method.BEST)["completion"] == pytest.approx(pairs_s / best_s)
    assert few.best_gain("all four") > pairs_s / best_s
    ratios = few.gains_by_draw(optimus.Method.GAINS, "all four")
    assert ratios == pytest.approx([row[0] / row[3] for row in by_hand])
