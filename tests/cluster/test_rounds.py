"""Allocators in rounds: nothing is lost, nothing used twice, and orders run as event by event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue
from labkit.kit.describe import description
from tests.cluster.reference import clusters, overlaps, traces

ORDERS = [cluster.fifo(), cluster.fifo(blocks=False), cluster.sjf(), cluster.srsf()]


@description
@dataclass(frozen=True, kw_only=True, eq=False)
class Whims(cluster.Allocator):
    """Hands out any GPUs that fit, now these, now those."""

    name: str = "whims"
    seed: int = 0

    def decide(self, state: cluster.State) -> np.ndarray:
        rng = np.random.default_rng(self.seed + int(state.now_s))
        free, given = state.capacity.copy(), np.zeros((state.jobs.size, state.capacity.size), int)
        for row in rng.permutation(state.jobs.size):
            column = int(rng.integers(free.size))
            given[row, column] = rng.integers(free[column] + 1)
            free[column] -= given[row, column]
        return given


@st.composite
def runs(draw: st.DrawFn) -> cluster.Run:
    machines = draw(clusters())
    trace = draw(traces(room=machines.num_gpus))
    whims = Whims(
        seed=draw(st.integers(0, 99)),
        round_s=draw(st.sampled_from([0.5, 1.0, 3.0])),
        restart_s=draw(st.sampled_from([0.0, 0.25])),
        by=draw(st.sampled_from(["pools", "nodes"])),
        ends=draw(st.sampled_from(["within", "boundary"])),
    )
    return cluster.simulate(trace, machines, whims)


@given(run=runs())
@settings(max_examples=25, deadline=None)
def test_no_gpu_is_used_twice_and_no_work_is_lost(run: cluster.Run) -> None:
    segments, held, pools = run.segments, run.held, run.cluster.pools
    whole = run.placement == "consolidated"
    room = np.repeat(
        [p.gpus_per_node if whole else p.num_gpus for p in pools],
        [p.nodes if whole else 1 for p in pools],
    )
    moments = np.unique(segments["start_s"])
    running = (segments["start_s"] <= moments[:, None]) & (segments["end_s"] > moments[:, None])
    for node in range(room.size):
        on = held["node"] == node
        used = running[:, held["segment"][on]] @ held["gpus"][on]
        assert used.max(initial=0) <= room[node]
    assert run.ran.all()
    spans = segments["end_s"] - segments["start_s"]
    for job in range(len(run.trace)):
        own = segments["job"] == job
        assert not overlaps([*zip(segments["start_s"][own], segments["end_s"][own], strict=True)])
        total = spans[own].sum() + run.waits_s[job].sum()
        assert total == pytest.approx(run.jct_s[job], abs=1e-6)


@given(run=runs())
@settings(max_examples=25, deadline=None)
def test_work_is_resumed_where_it_stopped(run: cluster.Run) -> None:
    """GPU-seconds of progress at each pool's speed are the job's work, or a round more."""
    segments, pools = run.segments, run.cluster.pools
    spans = segments["end_s"] - segments["start_s"]
    sizes = [1 if run.placement == "any" else pool.nodes for pool in pools]
    pool_of = np.repeat(np.arange(len(pools)), sizes)
    kind = run.trace.kind or ("",) * len(run.trace)
    speed = np.array([[pool.speed_of(name) for pool in pools] for name in kind])
    for job in range(len(run.trace)):
        own = np.flatnonzero(segments["job"] == job)
        if run.restart_s[job] > 0 or run.policy.ends == "boundary":
            continue
        done = sum(
            spans[s] * gpus * speed[job, pool_of[node]]
            for s, node, gpus in zip(*run.held.values(), strict=True)
            if s in own
        )
        assert done == pytest.approx(run.trace.work_gpu_s[job], rel=1e-6)


@pytest.mark.parametrize("policy", ORDERS, ids=lambda policy: policy.name)
@given(trace=traces(room=8))
@settings(max_examples=25, deadline=None)
def test_an_order_asked_at_events_ends_jobs_as_the_event_loop_does(
    policy: cluster.Policy, trace: cluster.Trace
) -> None:
    machines = cluster.Cluster.nodes(1, gpus=8)
    asked = cluster.InOrder(name=policy.name, policy=policy, ask="events")
    ours, theirs = (cluster.simulate(trace, machines, p) for p in (asked, policy))
    assert ours.end_s == pytest.approx(theirs.end_s, abs=1e-5)


def test_a_round_decides_late_charges_a_restart_and_ends_within() -> None:
    trace = cluster.Trace(arrival_s=[5, 30], duration_s=[100, 20], gpus=[2, 2])
    order = cluster.InOrder(name="srtf", policy=cluster.srtf(), round_s=60, restart_s=10, start_s=3)
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=2), order)
    assert run.start_s.tolist() == [120, 60]
    assert run.end_s.tolist() == [120 + 3 + 100, 60 + 3 + 20]
    late = cluster.simulate_rounds(
        trace, cluster.Cluster.nodes(1, gpus=2),
        cluster.InOrder(name="srtf", policy=cluster.srtf(), ends="boundary"), round_s=50,
    )  # fmt: skip
    assert late.end_s.tolist() == [200, 100]
    assert late.waits_s[0, cluster.CAUSES.index("round")] == 45


def test_a_table_of_rates_and_refusals() -> None:
    rates = cluster.Rates(
        kinds=("a", "b"), gpus=(1, 2), work_per_s=[[[1.0], [1.5]], [[1.0], [2.0]]]
    )
    trace = cluster.Trace(arrival_s=[0, 0, 0], duration_s=[30, 30, 9], gpus=[2, 2, 2],
                          kind=("a", "b", "b"))  # fmt: skip
    run = cluster.simulate_rounds(
        trace, cluster.Cluster.nodes(1, gpus=4), cluster.InOrder(name="f", policy=cluster.fifo()),
        rates, round_s=10, admit=lambda state, new: trace.column("duration_s")[new] > 10,
    )  # fmt: skip
    assert run.end_s[:2].tolist() == [20, 15]
    assert run.refused is not None
    assert run.refused.tolist() == [False, False, True]
    assert "refused" in run.why(2)
    assert run.summary()["utilisation_fraction"] == pytest.approx(70 / 80)
    with pytest.raises(BadValue, match="lacks 'c'"):
        cluster.simulate_rounds(
            cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[1], kind=("c",)),
            cluster.Cluster.nodes(1), cluster.InOrder(name="f", policy=cluster.fifo()), rates,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Fixed(cluster.Allocator):
    name: str = "fixed"
    gpus: int = 0

    def decide(self, state: cluster.State) -> np.ndarray:
        return np.full((state.jobs.size, 1), self.gpus)


@pytest.mark.parametrize(("gpus", "says"), [(5, "at most 4"), (0, "for ever"), (-1, "from 0")])
def test_a_decision_that_cannot_be_is_refused(gpus: int, says: str) -> None:
    trace = cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[1])
    with pytest.raises(BadValue, match=says):
        cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=4), Fixed(gpus=gpus))
