"""Tiresias's simulator (NSDI'19) and ours on 2,396 recorded jobs: the same to the second."""

from __future__ import annotations

import json

import numpy as np
import pytest

from labkit import cluster
from tests.oracles.tiresias_simulator import GPUS_PER_NODE, NODES, POLICIES, STORED, digest
from tests.published import Need

FILES = ["data/raw-traces.tar.gz"]
ORACLE = json.loads(STORED.read_text())["schedules"]
GPUS = cluster.Cluster.nodes(NODES, gpus=GPUS_PER_NODE)


@pytest.fixture(scope="module")
def recorded(published_data: Need) -> cluster.Trace:
    published_data("itp-elasticflow", FILES)
    return cluster.load("itp-elasticflow", part="06")


@pytest.mark.parametrize("schedule", POLICIES)
def test_every_job_ends_in_the_second_that_tiresias_simulates(
    recorded: cluster.Trace, schedule: str
) -> None:
    run = cluster.simulate(recorded, GPUS, POLICIES[schedule])
    assert run.jct_s.mean() == pytest.approx(ORACLE[schedule]["mean_jct_s"], rel=1e-12)
    assert run.end_s.max() == ORACLE[schedule]["last_end_s"]
    assert digest(run.end_s) == ORACLE[schedule]["sha256"]


def test_its_demotion_clock_is_late_and_changes_the_mean_by_per_cent(
    recorded: cluster.Trace,
) -> None:
    exact = cluster.simulate(recorded, GPUS, cluster.las2d(3250, 7200)).jct_s.mean()
    late = ORACLE["dlas-gpu"]["mean_jct_s"]
    assert (
        digest(cluster.simulate(recorded, GPUS, cluster.las2d()).end_s)
        != (ORACLE["dlas-gpu"]["sha256"])
    )
    assert 0.01 < abs(exact - late) / late < 0.10


def test_one_gpu_a_job_knows_no_difference_between_the_clocks(recorded: cluster.Trace) -> None:
    """With a GPU a job, seconds are GPU-seconds, and the published clock is right."""
    single = cluster.Trace(
        arrival_s=recorded.arrival_s, duration_s=recorded.duration_s, gpus=np.ones(len(recorded))
    )
    small = cluster.Cluster.nodes(1, gpus=8)
    exact = cluster.simulate(single, small, cluster.las2d())
    late = cluster.simulate(single, small, cluster.las2d(demotion="tiresias"))
    assert exact.end_s.tolist() == late.end_s.tolist()
    assert exact.preemptions.sum() > 0


def test_the_sample_of_sixty_jobs_never_waits_on_its_own_cluster(published_data: Need) -> None:
    published_data("tiresias-nsdi19")
    trace = cluster.load("tiresias-nsdi19")
    runs = [
        cluster.simulate(trace, cluster.Cluster.nodes(15, gpus=4), cluster.named(name))
        for name in cluster.POLICIES
    ]
    means = {round(float(run.jct_s.mean()), 1) for run in runs}
    assert means == {178.4}  # the sample's mean duration, on the 60 GPUs it was made for
    assert all(run.waits_s.sum() == 0 for run in runs)


def test_deadlines_come_with_the_drawn_traces(
    recorded: cluster.Trace, published_data: Need
) -> None:
    published_data("itp-elasticflow")
    published_data("elasticflow-asplos23")
    drawn, _ = cluster.load_elastic("06")
    assert drawn.ids == recorded.ids
    assert np.isfinite(drawn.column("deadline_s")).all()
    assert np.isinf(recorded.column("deadline_s")).all()
    testbed = cluster.load("itp-elasticflow", part="195job")
    assert len(testbed) == 195
    assert set(testbed.kind) > {"bert", "gpt2"}
