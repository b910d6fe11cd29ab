"""The event loop: microseconds of CPU a job, beside Tiresias's and ElasticFlow's simulators.

``make bench`` runs it; nothing here asserts a time.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from labkit import cluster
from tests.oracles import elasticflow_simulator as elasticflow
from tests.oracles.tiresias_simulator import GPUS_PER_NODE, NODES, POLICIES, STORED
from tests.published import Need


def cpu_us_a_job(trace: cluster.Trace, gpus: cluster.Cluster, policy: cluster.Policy) -> float:
    cluster.simulate(trace.head(2), gpus, policy)  # compiles, or loads what was compiled
    start = time.process_time()
    cluster.simulate(trace, gpus, policy)
    return (time.process_time() - start) / len(trace) * 1e6


def beside(
    benchmark: Any,
    trace: cluster.Trace,
    gpus: cluster.Cluster,
    policy: Any,
    *,
    peer: str,
    stored: Path,
    schedule: str,
) -> None:
    """Our CPU of a job beside the peer's, stored with its answers."""
    ours_us = cpu_us_a_job(trace, gpus, policy)
    benchmark(cluster.simulate, trace, gpus, policy)
    stored_s = json.loads(stored.read_text())["schedules"][schedule]["cpu_s"]
    peer_us = stored_s / len(trace) * 1e6
    benchmark.extra_info |= {
        "ours_us_a_job": round(ours_us, 2),
        f"{peer}_us_a_job": round(peer_us),
    }
    print(f"\n{schedule}: {ours_us:.2f} µs a job; {peer}'s own, when stored, {peer_us:,.0f}")


@pytest.mark.parametrize("schedule", POLICIES)
def test_recorded_jobs(benchmark: Any, published_data: Need, schedule: str) -> None:
    published_data("itp-elasticflow", ["data/raw-traces.tar.gz"])
    trace = cluster.load("itp-elasticflow", part="06")
    gpus = cluster.Cluster.nodes(NODES, gpus=GPUS_PER_NODE)
    how = {"peer": "tiresias", "stored": STORED, "schedule": schedule}
    beside(benchmark, trace, gpus, POLICIES[schedule], **how)


@pytest.mark.parametrize("schedule", elasticflow.SCHEDULES)
def test_jobs_with_deadlines(benchmark: Any, published_data: Need, schedule: str) -> None:
    published_data("elasticflow-asplos23")
    trace, policies = elasticflow.policies()
    how = {"peer": "elasticflow", "stored": elasticflow.STORED, "schedule": schedule}
    beside(benchmark, trace, elasticflow.GPUS, policies[schedule], **how)


# EASY's reservations know numbers of GPUs, not where they are, so it takes no other placement.
PLACED = [("any", name) for name in cluster.POLICIES]
PLACED += [("consolidated", name) for name in cluster.POLICIES if name != "easy"]


@pytest.mark.parametrize("num_jobs", [1000, pytest.param(100_000, marks=pytest.mark.large)])
@pytest.mark.parametrize(("placement", "name"), PLACED)
def test_a_thousand_gpus(benchmark: Any, placement: str, name: str, num_jobs: int) -> None:
    gpus = cluster.Cluster.nodes(125)
    policy = cluster.named(name)
    trace = cluster.generate(num_jobs, num_gpus=1000, load=0.95, rng=0)
    benchmark.pedantic(
        cluster.simulate, args=(trace, gpus, policy), kwargs={"placement": placement}, rounds=1
    )
    ours_us = cpu_us_a_job(trace, gpus, policy)
    benchmark.extra_info |= {"ours_us_a_job": round(ours_us, 2)}
    print(f"\n{num_jobs:,} jobs, {placement}, {name}: {ours_us:.1f} µs of CPU a job")
