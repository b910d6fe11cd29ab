"""What holds on any trace under any policy: no GPU is used twice, no work is lost."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit import cluster
from tests.cluster.reference import POLICIES, clusters, overlaps, schedule, traces

PLACEMENTS = st.sampled_from(["any", "consolidated"])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.name}{policy.thresholds}")
@given(trace=traces())
@example(trace=cluster.Trace(arrival_s=[0, 0, 12], duration_s=[11, 1, 1], gpus=[5, 6, 4]))
@settings(max_examples=100, deadline=None)
def test_ends_are_those_of_the_plain_scheduler(
    trace: cluster.Trace, policy: cluster.Policy
) -> None:
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=8), policy)
    assert run.end_s == pytest.approx([float(end) for end in schedule(trace, 8, policy)], abs=1e-5)


@st.composite
def runs(draw: st.DrawFn) -> cluster.Run:
    machines = draw(clusters())
    trace = draw(traces(room=machines.num_gpus))
    policy = draw(st.sampled_from(POLICIES))
    if policy.preemptive:
        again = {name: getattr(policy, name) for name in ("order", "key", "thresholds")}
        cost = draw(st.sampled_from([0.0, 0.5, 3.0]))
        policy = cluster.Policy(name=policy.name, preemptive=True, restart_s=cost, **again)
    return cluster.simulate(trace, machines, policy, placement=draw(PLACEMENTS))


@given(run=runs())
@settings(max_examples=200, deadline=None)
def test_no_gpu_is_used_twice(run: cluster.Run) -> None:
    sizes = [
        size
        for pool in run.cluster.pools
        for size in (
            [pool.gpus_per_node] * pool.nodes
            if run.placement == "consolidated"
            else [pool.num_gpus]
        )
    ]
    usage = defaultdict(list)
    for segment, node, gpus in zip(*run.held.values(), strict=True):
        start = run.segments["start_s"][segment]
        end = run.segments["end_s"][segment]
        usage[node] += [(end, -gpus), (start, gpus)]
    for node, changes in usage.items():
        assert max(np.cumsum([gpus for _, gpus in sorted(changes)])) <= sizes[node]


@given(run=runs())
@settings(max_examples=200, deadline=None)
def test_a_job_holds_what_it_asked_for_and_no_more(run: cluster.Run) -> None:
    segments = run.segments
    gpus = run.trace.column("gpus")
    held = np.bincount(run.held["segment"], run.held["gpus"], minlength=segments["job"].size)
    assert held.tolist() == gpus[segments["job"]].tolist()
    for job in np.unique(segments["job"]):
        own = segments["job"] == job
        assert not overlaps([*zip(segments["start_s"][own], segments["end_s"][own], strict=True)])
    if run.placement == "consolidated":
        size = np.array([pool.gpus_per_node for pool in run.cluster.pools])[segments["pool"]]
        nodes = np.bincount(run.held["segment"])
        assert nodes.tolist() == (-(-gpus[segments["job"]] // size)).tolist()


@given(run=runs())
@settings(max_examples=200, deadline=None)
def test_no_work_is_lost_and_every_second_has_a_reason(run: cluster.Run) -> None:
    ran = run.ran
    of = run.segments["job"]
    spans = run.segments["end_s"] - run.segments["start_s"]
    speed = np.array([pool.speed for pool in run.cluster.pools])[run.segments["pool"]]
    num = len(run.trace)
    on_gpus = np.bincount(of, spans, minlength=num)
    waited = run.waits_s.sum(axis=1)
    assert (waited + on_gpus)[ran] == pytest.approx(run.jct_s[ran])
    assert (run.waits_s >= 0).all()
    if len(run.cluster.pools) == 1:  # elsewhere a restart costs work by the pool it is paid in
        work = np.bincount(of, spans * speed, minlength=num) - run.restart_s * speed[:1]
        assert work[ran] == pytest.approx(run.trace.column("duration_s")[ran])
    most = run.policy.restart_s * run.preemptions
    assert (run.restart_s <= most + 1e-9).all()
    assert not run.preemptions.any() or run.policy.preemptive


@given(run=runs())
@settings(max_examples=300, deadline=None)
def test_only_what_fits_in_no_pool_never_runs(run: cluster.Run) -> None:
    largest = max(pool.num_gpus for pool in run.cluster.pools)
    assert (run.ran == (run.trace.column("gpus") <= largest)).all()
    for job in np.flatnonzero(~run.ran):
        assert "can never run" in run.why(int(job))


@given(trace=traces(), policy=st.sampled_from([p for p in POLICIES if not p.blocks]))
@settings(max_examples=300, deadline=None)
def test_no_job_waits_beside_gpus_that_are_enough_for_it(
    trace: cluster.Trace, policy: cluster.Policy
) -> None:
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=8), policy)
    start = run.segments["start_s"]
    end = run.segments["end_s"]
    of = run.segments["job"]
    gpus = trace.column("gpus")
    arrival = trace.column("arrival_s")
    moments = np.unique(np.concatenate([arrival, start, end]))
    for now in (moments[:-1] + moments[1:]) / 2:
        running = of[(start < now) & (now < end)]
        waiting = (arrival < now) & (now < run.end_s)
        waiting[running] = False
        free = 8 - gpus[running].sum()
        assert (gpus[waiting] > free).all()


@given(trace=traces(), policy=st.sampled_from(POLICIES), placement=PLACEMENTS)
@settings(max_examples=200, deadline=None)
def test_twice_the_seconds_is_the_same_run_at_half_the_pace(
    trace: cluster.Trace, policy: cluster.Policy, placement: str
) -> None:
    gpus = cluster.Cluster.nodes(2, gpus=4)
    slow = cluster.Trace(
        arrival_s=2 * trace.column("arrival_s"),
        duration_s=2 * trace.column("duration_s"),
        gpus=trace.gpus,
    )
    doubled = [2 * threshold for threshold in policy.thresholds]
    slower = cluster.Policy(
        name="x",
        order=policy.order,
        key=policy.key,
        thresholds=doubled,
        preemptive=policy.preemptive,
        blocks=policy.blocks,
    )
    run = cluster.simulate(trace, gpus, policy, placement=placement)
    again = cluster.simulate(slow, gpus, slower, placement=placement)
    assert 2 * run.end_s == pytest.approx(again.end_s)
