"""Queueing theory and SimPy as oracles of the event loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import simpy

from labkit import cluster

LOAD = 0.8


def poisson(num_jobs: int, gpus: int, kind: str, seed: int) -> cluster.Trace:
    """Durations of mean 1, ``exponential`` or ``constant``."""
    trace = cluster.generate(
        num_jobs, num_gpus=gpus, load=LOAD, mean_duration_s=1.0, sigma=0.0, gpus={1: 1.0}, rng=seed
    )
    if kind == "constant":
        return trace
    drawn = np.random.default_rng([seed, 1]).exponential(1.0, num_jobs)
    return trace.changed(duration_s=drawn)


def mean_jct(trace: cluster.Trace, gpus: int) -> float:
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=gpus), cluster.fifo())
    return float(run.summary(warmup=0.01)["mean_jct_s"])


def test_m_d_1() -> None:
    """Pollaczek and Khinchine: the mean wait is load / (2 (1 - load)) services."""
    measured = np.mean([mean_jct(poisson(500_000, 1, "constant", seed), 1) for seed in range(4)])
    assert measured == pytest.approx(1 + LOAD / (2 * (1 - LOAD)), rel=0.005)


@pytest.mark.parametrize("servers", [4, 16])
def test_m_m_c(servers: int) -> None:
    """Erlang: the chance to wait over the rate at which full servers catch up."""
    offered = LOAD * servers
    full = offered**servers / math.factorial(servers) / (1 - LOAD)
    waits = full / (sum(offered**k / math.factorial(k) for k in range(servers)) + full)
    measured = mean_jct(poisson(1_000_000, servers, "exponential", 0), servers)
    assert measured == pytest.approx(1 + waits / (servers * (1 - LOAD)), rel=0.005)


def in_simpy(trace: cluster.Trace, gpus: int, preemptive: bool | None) -> list[float]:
    """Ends in SimPy: a container first come first served, or a (pre-emptive) priority resource."""
    env = simpy.Environment()
    ends = [math.nan] * len(trace)
    arrival, work, wide = (trace.column(n).tolist() for n in ("arrival_s", "duration_s", "gpus"))
    pool = simpy.Container(env, gpus, init=gpus)
    kinds = {False: simpy.PriorityResource, True: simpy.PreemptiveResource}
    servers: Any = kinds[bool(preemptive)](env, gpus)

    def counted(job: int) -> Any:
        yield env.timeout(arrival[job])
        yield pool.get(wide[job])
        yield env.timeout(work[job])
        yield pool.put(wide[job])
        ends[job] = env.now

    def ranked(job: int) -> Any:
        yield env.timeout(arrival[job])
        left = work[job]
        while left > 0:
            with servers.request(priority=work[job]) as request:
                yield request
                start = env.now
                try:
                    yield env.timeout(left)
                    left = 0
                except simpy.Interrupt:
                    left -= env.now - start
        ends[job] = env.now

    for job in range(len(trace)):
        env.process(counted(job) if preemptive is None else ranked(job))
    env.run()
    return ends


def test_simpy_agrees_on_jobs_of_several_gpus() -> None:
    trace = cluster.generate(3000, num_gpus=16, load=0.95, rng=3)
    run = cluster.simulate(trace, cluster.Cluster.nodes(2, gpus=8), cluster.fifo())
    assert run.end_s == pytest.approx(in_simpy(trace, 16, None))
    assert run.waits_s.sum() > 0


@pytest.mark.parametrize("preemptive", [False, True])
def test_simpy_agrees_on_shortest_first(preemptive: bool) -> None:
    trace = cluster.generate(3000, num_gpus=6, load=0.95, gpus={1: 1.0}, rng=4)
    policy = cluster.priority_policy(
        "shortest", lambda jobs: jobs.duration_s, preemptive=preemptive
    )
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=6), policy)
    assert run.end_s == pytest.approx(in_simpy(trace, 6, preemptive))
    assert bool(run.preemptions.any()) is preemptive


def test_generated_jobs_offer_the_load_asked_for() -> None:
    trace = cluster.generate(200_000, num_gpus=64, load=0.7, sigma=1.0, slack=0.5, rng=1)
    assert trace.offered_load(64) == pytest.approx(0.7, rel=0.02)
    slack = trace.column("deadline_s") - trace.column("arrival_s")
    ratio = slack / trace.column("duration_s")
    assert ratio.min() >= 1
    assert ratio.max() <= 2
    assert ratio.mean() == pytest.approx(1.5, rel=0.01)
