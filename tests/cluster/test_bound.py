"""The bound: beaten by no schedule, reached where theory says, and worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue
from tests.cluster.reference import POLICIES, clusters, traces

PLACEMENTS = st.sampled_from(["any", "consolidated"])


@given(machines=clusters(), data=st.data(), policy=st.sampled_from(POLICIES), placement=PLACEMENTS)
@settings(max_examples=300, deadline=None)
def test_nobody_beats_it(
    machines: cluster.Cluster, data: st.DataObject, policy: cluster.Policy, placement: str
) -> None:
    trace = data.draw(traces(room=machines.num_gpus))
    run = cluster.simulate(trace, machines, policy, placement=placement)
    if not run.ran.any():
        with pytest.raises(BadValue, match="no job of trace fits in a pool"):
            cluster.bound(trace, machines)
        return
    least = cluster.bound(trace, machines)
    summary = run.summary()
    assert least.mean_jct_s <= summary["mean_jct_s"] + 1e-6  # moments a microsecond apart are one
    assert least.makespan_s <= summary["makespan_s"] + 1e-6


@given(trace=traces(room=1, most=15))
@settings(max_examples=300, deadline=None)
def test_srtf_on_one_gpu_reaches_it(trace: cluster.Trace) -> None:
    """Schrage: shortest remaining time first has the least mean completion time on one machine."""
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=1), cluster.srtf())
    least = cluster.bound(trace, cluster.Cluster.nodes(1, gpus=1))
    assert least.fluid_srpt_s == pytest.approx(run.jct_s.mean())
    assert least.makespan_s == pytest.approx(run.summary()["makespan_s"])


def test_by_hand() -> None:
    """Areas 16, 4 and 8 arrive at 0, 1 and 1 on 4 GPUs: ends at 7, 2 and 4."""
    trace = cluster.Trace(arrival_s=[0, 1, 1], duration_s=[8, 1, 4], gpus=[2, 4, 2])
    least = cluster.bound(trace, cluster.Cluster.nodes(1, gpus=4))
    assert least.durations_s == pytest.approx(13 / 3)
    assert least.fluid_srpt_s == pytest.approx((7 + 1 + 3) / 3)
    # Mean moments: (4 at 0.5, 12 at 5.5) -> 4.25; 1.5; 3. Plus half of each duration.
    assert least.busy_times_s == pytest.approx((4.25 + 4 + 0.5 + 0.5 + 2 + 2) / 3)
    assert least.makespan_s == 8
    assert least.mean_jct_s == least.busy_times_s


def test_a_faster_pool_lowers_it_and_more_gpus_never_raise_it() -> None:
    trace = cluster.generate(400, num_gpus=16, load=1.2, rng=5)
    means = [cluster.bound(trace, cluster.Cluster.nodes(n)).mean_jct_s for n in (1, 2, 4, 8)]
    assert means == sorted(means, reverse=True)
    fast = cluster.Cluster(pools=[cluster.Pool(nodes=2, gpus_per_node=8, speed=2.0)])
    halved = cluster.Trace(
        arrival_s=trace.arrival_s, duration_s=trace.column("duration_s") / 2, gpus=trace.gpus
    )
    assert cluster.bound(trace, fast) == cluster.bound(halved, cluster.Cluster.nodes(2))


def test_a_sweep_sets_every_policy_beside_it() -> None:
    trace = cluster.generate(300, num_gpus=16, load=0.9, rng=6)
    machines = [cluster.Cluster.nodes(2), cluster.Cluster.nodes(4)]
    table = cluster.sweep([trace], machines, [cluster.fifo(), cluster.srsf()])
    assert table["gpus"].tolist() == [16, 16, 32, 32]
    assert (table["times_bound_ratio"] >= 1).all()
    run = cluster.simulate(trace, machines[1], cluster.srsf())
    assert table["mean_jct_s"].iloc[3] == np.mean(run.jct_s)
