"""Cells: whatever a tenant's reservation holds can be placed, and a private cluster looks alike."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue, LabkitError
from labkit.papers import hived
from tests.published import Need

LEVELS = hived.Hierarchy(sizes={"GPU": 1, "switch": 2, "socket": 4, "node": 8, "rack": 24})
NODES = hived.Hierarchy()


@st.composite
def reservations(draw: Any) -> tuple[int, dict[str, dict[str, int]]]:
    """Tenants with cells of all levels, and racks for them with less than one to spare."""
    names = list(LEVELS.sizes)
    tenants = {
        f"tenant {i}": {name: draw(st.integers(0, 3)) for name in names}
        for i in range(draw(st.integers(1, 4)))
    }
    total = sum(LEVELS.sizes[n] * k for cells in tenants.values() for n, k in cells.items())
    return -(-max(total, 1) // 24), tenants


def place(racks: int, tenants: dict[str, dict[str, int]]) -> bool:
    physical = hived.Buddies(LEVELS, {"rack": racks})
    wanted = [LEVELS.level(n) for t in tenants.values() for n, k in t.items() for _ in range(k)]
    return physical.allocate_all(sorted(wanted, reverse=True)) is not None


@settings(max_examples=60, deadline=None)
@given(reservations(), st.integers(0, 2**32 - 1))
def test_what_fits_a_reservation_always_finds_hardware(
    case: tuple[int, dict[str, dict[str, int]]], seed: int
) -> None:
    """The safety theorem: requests within reservations that fit are met, in any order."""
    racks, tenants = case
    assert place(racks, tenants)  # each size divides the next: larger ones first leave no gap
    physical = hived.Buddies(LEVELS, {"rack": racks})
    rng = np.random.default_rng(seed)
    alone = {name: hived.Buddies(LEVELS, cells) for name, cells in tenants.items()}
    owned = {name: hived.Reserved(LEVELS, cells, physical) for name, cells in tenants.items()}
    running: list[tuple[str, Any, Any]] = []
    for _ in range(80):
        if running and rng.random() < 0.45:
            name, held, private = running.pop(int(rng.integers(len(running))))
            owned[name].release(held)
            for cell in private:
                alone[name].release(*cell)
        else:
            name = str(rng.choice(list(tenants)))
            levels = [int(rng.integers(5))] * int(rng.integers(1, 3))
            private = alone[name].allocate_all(levels)
            held = owned[name].allocate(levels)
            assert (held is None) == (private is None)  # as on a cluster of its own
            if held is not None:
                running.append((name, held, private))
        gpus = [
            gpu
            for name, held, _ in running
            for level, start in owned[name].hardware(held)
            for gpu in range(start, start + LEVELS.gpus[level])
        ]
        assert len(set(gpus)) == len(gpus)  # nobody shares a GPU
        assert not gpus or max(gpus) < physical.num_gpus
    for name, held, _ in running:
        owned[name].release(held)
    assert physical.free[-1] == {24 * rack for rack in range(racks)}  # all merged again


def test_without_buddies_the_theorem_fails() -> None:
    """Cutting the largest free cell, as spreading does, refuses a node that is reserved."""
    outcomes = []
    for largest_first in (False, True):
        physical = hived.Buddies(NODES, {"node": 2}, largest_first=largest_first)
        ours = hived.Reserved(NODES, {"GPU": 4}, physical)
        node = hived.Reserved(NODES, {"node": 1}, physical)
        assert all(ours.allocate([0]) for _ in range(2))
        outcomes.append(node.allocate([3]) is not None)
    assert outcomes == [True, False]


def test_a_job_that_finds_only_part_of_its_cells_takes_none() -> None:
    buddies = hived.Buddies(NODES, {"node": 2})
    assert buddies.allocate(0) == 0
    assert buddies.allocate_all([3, 3]) is None
    assert [len(cells) for cells in buddies.free] == [1, 1, 1, 1]


@pytest.mark.parametrize("sizes", [{}, {"GPU": 2}, {"GPU": 1, "b": 4, "c": 6}, {"a": 1, "node": 1}])
def test_sizes_divide(sizes: dict[str, int]) -> None:
    with pytest.raises(LabkitError):
        hived.Hierarchy(sizes=sizes)


def test_the_authors_example_fits_and_asks_for_the_cells_it_says(published_data: Need) -> None:
    """Their design example: three racks of DGX-2 hold the virtual clusters, and a group of 44 GPUs
    needs a cell of three nodes, one of 2 × 3 GPUs (rounded to 4) a cell of 8."""
    name = "hived-osdi20/example/config/design/hivedscheduler.yaml"
    config = yaml.safe_load(published_data(name).path(name.partition("/")[2]).read_text())
    types = config["physicalCluster"]["cellTypes"]
    numbers = [
        types[f"DGX2-V100-NODE{end}"]["childCellNumber"]
        for end in ("-2-GPU", "-4-GPU", "-8-GPU", "")
    ] + [types["4-DGX2-V100-NODE"]["childCellNumber"]] * 2
    sizes = accumulate(numbers, lambda size, children: size * children, initial=1)
    dgx2 = hived.Hierarchy(sizes=dict(zip("abcdefg", sizes, strict=True)), node="g")
    assert dgx2.gpus == (1, 2, 4, 8, 16, 32, 64)
    assert dgx2.shape(1 * 16 + 3 * 8 + 1 * 4) == [6]  # 44 GPUs: in this tree, four nodes
    assert dgx2.shape(2 * dgx2.gpus[dgx2.shape(3)[0]]) == [3]
    cells = config["virtualClusters"]["VC1"]["virtualCells"]
    in_fours = [c for c in cells if c["cellType"].startswith("4-DGX2")]
    nodes = sum(
        c["cellNumber"] * (1 if c["cellType"].endswith(".DGX2-V100-NODE") else 2) for c in in_fours
    )
    physical = hived.Buddies(dgx2, {"g": 2})
    owned = hived.Reserved(dgx2, {"e": 2, "f": 1 + 1}, physical)  # 2 nodes, 1 pair, 1 pinned pair
    assert nodes == 4
    assert owned.allocate([4, 4, 5, 5]) is not None


def tenants(seed: int, num_jobs: int = 120) -> cluster.Trace:
    draw = np.random.default_rng(seed)
    trace = cluster.generate(
        num_jobs, num_gpus=32, load=0.9, rng=seed, gpus={1: 4, 3: 1, 8: 1, 16: 1}
    )
    return cluster.Trace(
        arrival_s=trace.arrival_s,
        duration_s=trace.duration_s,
        gpus=trace.gpus,
        tenant=tuple(draw.choice(["a", "b"], num_jobs).tolist()),
    )


CELLS = {"a": {"node": 3}, "b": {"node": 2}}
ORDERS = [cluster.fifo(), cluster.fifo(blocks=False), cluster.sjf()]


@pytest.mark.parametrize("policy", ORDERS, ids=lambda policy: policy.name)
@pytest.mark.parametrize("seed", range(3))
def test_reserved_cells_are_a_private_cluster(policy: cluster.Policy, seed: int) -> None:
    trace = tenants(seed)
    private, cells = (
        hived.simulate(trace, CELLS, policy, how)
        for how in (hived.Sharing.PRIVATE, hived.Sharing.CELLS)
    )
    assert np.array_equal(private.start_s, cells.start_s)
    low = ("b",)  # and whatever jobs of low priority do
    scavenged = hived.simulate(
        trace, {**CELLS, "b": {"GPU": 8}}, policy, hived.Sharing.CELLS, low_priority=low
    )
    ours = np.array(trace.tenant) == "a"
    assert np.array_equal(private.start_s[ours], scavenged.start_s[ours])
    ran_s = scavenged.end_s - scavenged.start_s  # some gave their GPUs back
    assert (ran_s > trace.column("duration_s") + 1e-6)[~ours].any()
    assert not np.isnan(scavenged.end_s).any()


@pytest.mark.parametrize("how", list(hived.Sharing))
def test_one_tenant_of_single_gpus_is_the_event_engine(how: hived.Sharing) -> None:
    trace = cluster.generate(300, num_gpus=16, load=1.1, rng=1, gpus={1: 1})
    for policy in ORDERS:
        run = cluster.simulate(trace, cluster.Cluster.nodes(2), policy)
        shared = hived.simulate(trace, {"": {"node": 2}}, policy, how)
        assert shared.end_s == pytest.approx(run.end_s)
        assert shared.jct_s.sum() == pytest.approx(run.jct_s.sum())


def test_gpu_seconds_are_kept() -> None:
    trace = tenants(5)
    run = hived.simulate(
        trace, {**CELLS, "b": {"GPU": 8}}, ORDERS[1], hived.Sharing.CELLS, low_priority=("b",)
    )
    last = float(run.trace.column("arrival_s")[-1])
    assert 0 < run.utilisation_fraction <= 1
    spread = hived.simulate(trace, CELLS, ORDERS[0], hived.Sharing.QUOTA, spread_slowdown=5.0)
    ran_s = spread.end_s - spread.start_s
    times = ran_s / trace.column("duration_s")  # on scattered GPUs: five
    assert np.minimum(abs(times - 1), abs(times - 5)).max() < 1e-6
    assert {*times.round(3).tolist()} == {1.0, 5.0}
    inside = np.clip(np.minimum(spread.end_s, last) - spread.start_s, 0, None)
    assert spread.busy_gpu_s == pytest.approx(float(inside @ trace.column("gpus")))


def test_what_cannot_be_is_said() -> None:
    trace = tenants(0)
    with pytest.raises(BadValue, match="tenant 'b' needs 16 GPUs"):
        hived.simulate(trace, {"a": {"node": 3}, "b": {"node": 1}}, ORDERS[0], hived.Sharing.CELLS)
    with pytest.raises(BadValue, match="preempts"):
        hived.simulate(trace, CELLS, cluster.las2d(), hived.Sharing.CELLS)
    with pytest.raises(BadValue, match="no job"):
        hived.merge_tenants([("a", trace, 1e6)], 1.0)


def test_days_of_traces_lie_over_each_other() -> None:
    week = cluster.Trace(arrival_s=[0, 86400, 90000], duration_s=[5, 6, 7], gpus=[1, 2, 4])
    both = hived.merge_tenants([("x", week, 0), ("y", week, 1)], 1)
    assert both.arrival_s.tolist() == [0, 0, 3600]  # type: ignore[union-attr]
    assert both.tenant == ("x", "y", "y")
    assert hived.nodes_for(both, 0.5, gpus=2) == {"x": {"node": 1}, "y": {"node": 2}}


MIXED = {"a": {"GPU": 6, "socket": 2, "node": 2}, "b": {"GPU": 2, "node": 2}}


@pytest.mark.parametrize("seed", range(3))
def test_only_buddies_keep_mixed_cells_private(seed: int) -> None:
    """Where tenants reserve more than nodes, the order of cutting decides."""
    trace = tenants(seed, num_jobs=400)
    starts = {}
    for sharing in hived.Sharing:
        starts[sharing] = hived.simulate(trace, MIXED, ORDERS[1], sharing).start_s
    private = starts[hived.Sharing.PRIVATE]
    assert np.array_equal(private, starts[hived.Sharing.CELLS])
    assert np.array_equal(private, starts[hived.Sharing.FIXED_CELLS])
    assert not np.array_equal(private, starts[hived.Sharing.CELLS_LARGEST_FIRST])


def test_cells_of_each_level_hold_its_work_and_its_largest_job() -> None:
    """Two jobs of one GPU for a day each offer two GPUs; a job of 16 takes two nodes."""
    trace = cluster.Trace(
        arrival_s=[0, 0, 0, 43200, 86400],
        duration_s=[86400, 86400, 60, 43200, 1],
        gpus=[1, 1, 3, 16, 2],
        tenant=("x", "x", "x", "x", "y"),
    )
    assert hived.cells_for(trace, 1.0) == {
        "x": {"GPU": 2, "socket": 1, "node": 2},
        "y": {"switch": 1},
    }
    assert hived.cells_for(trace, 0.4)["x"] == {"GPU": 5, "socket": 1, "node": 3}
    reservations = hived.cells_for(trace, 1.0).values()
    assert hived.num_nodes(reservations, hived.Hierarchy()) == 3  # 2 + 4 + 16 + 2 GPUs


def test_a_fixed_partition_lends_too_and_evicts() -> None:
    trace = tenants(5)
    cells = {**CELLS, "b": {"GPU": 8}}
    runs = [
        hived.simulate(trace, cells, ORDERS[1], sharing, low_priority=("b",))
        for sharing in (hived.Sharing.CELLS, hived.Sharing.FIXED_CELLS)
    ]
    ours = np.array(trace.tenant) == "a"
    assert np.array_equal(runs[0].start_s[ours], runs[1].start_s[ours])
    assert all(run.num_evictions > 0 for run in runs)
    with pytest.raises(BadValue, match="low_priority needs cells"):
        hived.simulate(trace, cells, ORDERS[1], hived.Sharing.QUOTA, low_priority=("b",))


def test_a_week_runs_its_orders_and_keeps_them() -> None:
    week = hived.Week(first_day=31)
    assert week.run("shortest first", hived.Sharing.CELLS) is week.run(
        "shortest first", hived.Sharing.CELLS
    )
    assert set(week.longest_min(hived.Sharing.CELLS).values()) == {0.0}
    with pytest.raises(LabkitError, match="order"):
        week.run("last", hived.Sharing.CELLS)
    with pytest.raises(LabkitError, match="sharing"):
        week.run("shortest first", "cells")  # type: ignore[arg-type]


def test_figures_say_what_they_show() -> None:
    delays = {"quotas": [{"fifo": 10.0}, {"fifo": 20.0}], "cells": [{"fifo": 0.0}, {"fifo": 0.0}]}
    figure = hived.figure_delays(delays, paper_min=1000.0, title="A title")
    markers = figure.data[-1]
    assert [*markers.y] == [10, 20, 0, 0]
    assert "1,000" in figure.data[0].name
    idea = hived.figure_idea()
    widths = {name: sum(sum(bar.x) for bar in idea.data if name in bar.y) for name in ("by cells",)}
    assert widths == {"by cells": 8}
