"""Allocators in rounds: nothing is lost, nothing used twice, and decisions come at boundaries."""

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


@description(eq=False)
class Whims(cluster.Allocator):
    """Hands out any GPUs that fit, now these, now those."""

    name: str = "whims"
    seed: int = 0

    def decide(self, state: cluster.State) -> np.ndarray:
        rng = np.random.default_rng(self.seed + int(state.now_s))
        free = state.capacity.copy()
        given = np.zeros((state.jobs.size, state.capacity.size), int)
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
    )
    return cluster.simulate(trace, machines, whims)


@given(run=runs())
@settings(max_examples=25, deadline=None)
def test_no_gpu_is_used_twice_and_no_work_is_lost(run: cluster.Run) -> None:
    segments = run.segments
    held = run.held
    pools = run.cluster.pools
    room = np.repeat([p.gpus_per_node for p in pools], [p.nodes for p in pools])
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
    segments = run.segments
    pools = run.cluster.pools
    spans = segments["end_s"] - segments["start_s"]
    pool_of = np.repeat(np.arange(len(pools)), [pool.nodes for pool in pools])
    kind = run.trace.kind or ("",) * len(run.trace)
    speed = np.array([[pool.speed_of(name) for pool in pools] for name in kind])
    for job in range(len(run.trace)):
        own = np.flatnonzero(segments["job"] == job)
        if run.restart_s[job] > 0:
            continue
        done = sum(
            spans[s] * gpus * speed[job, pool_of[node]]
            for s, node, gpus in zip(*run.held.values(), strict=True)
            if s in own
        )
        assert done == pytest.approx(run.trace.work_gpu_s[job], rel=1e-6)


@dataclass(frozen=True, kw_only=True, eq=False)
class LeastLeftFirst(cluster.Allocator):
    """One node; each job what it asked for, the least work left first."""

    name: str = "least left"

    def decide(self, state: cluster.State) -> np.ndarray:
        asked = state.trace.column("gpus")[state.jobs]
        free = int(state.capacity[0])
        given = np.zeros((state.jobs.size, 1), dtype=int)
        for row in np.argsort(state.progress.left[state.jobs], kind="stable"):
            if asked[row] <= free:
                given[row] = asked[row]
                free = free - asked[row]
        return given


def test_a_round_decides_late_charges_a_restart_and_ends_within() -> None:
    trace = cluster.Trace(arrival_s=[5, 30, 70], duration_s=[200, 100, 20], gpus=[2, 2, 2])
    order = LeastLeftFirst(round_s=60, restart_s=3)
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=2), order)
    assert run.start_s.tolist() == [240, 60, 120]
    assert run.end_s.tolist() == [240 + 3 + 200, 180 + 3 + 100 - 57, 120 + 3 + 20]
    assert run.preemptions.tolist() == [0, 1, 0]
    assert run.waits_s[:, cluster.CAUSES.index("round")].tolist() == [55, 30, 50]


def test_rates_may_be_a_function_of_jobs_and_gpus() -> None:
    trace = cluster.Trace(arrival_s=[0], duration_s=[200], gpus=[2])
    order = LeastLeftFirst(
        round_s=60, restart_s=3, rates=lambda trace, gpus: lambda jobs, held: 1.0 * held.sum(1)
    )
    assert cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=2), order).end_s == [3 + 200 / 2]


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
