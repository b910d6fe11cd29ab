"""Planning time beside trying all plans, and of chains as long as the largest published graph.

``make bench`` runs it; nothing here asserts a time.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from labkit import planner
from tests.oracles import dapple_planner
from tests.oracles.all_plans import best_of_all, num_plans


def random_chain(layers: int) -> planner.Chain:
    rng = np.random.default_rng(7)
    return planner.Chain(
        forward_s=tuple(rng.random(layers)),
        backward_s=tuple(rng.random(layers)),
        activation_bytes=tuple(rng.random(layers) * 1e7),
        cut_bytes=tuple(rng.random(layers) * 1e7),
        parameter_bytes=tuple(rng.random(layers) * 1e7),
    )


@pytest.mark.parametrize("layers", [8, pytest.param(10, marks=pytest.mark.large)])
def test_stages_beside_trying_all(benchmark: Any, layers: int) -> None:
    chain = random_chain(layers)
    fabric = planner.Fabric.flat(6, bandwidth_bytes_per_s=1e8)
    start = time.process_time()
    best = best_of_all(chain, fabric)
    all_s = time.process_time() - start
    plan = benchmark(planner.plan, chain, fabric)
    assert plan.cost_s == pytest.approx(best.cost_s)
    benchmark.extra_info |= {"plans": num_plans(layers, 6), "all_cpu_s": round(all_s, 2)}


@pytest.mark.parametrize(
    ("layers", "devices"), [(40, 16), (176, 16), pytest.param(1495, 16, marks=pytest.mark.large)]
)
def test_stages_of_long_chains(benchmark: Any, layers: int, devices: int) -> None:
    fabric = planner.Fabric.flat(devices, bandwidth_bytes_per_s=1e8)
    chain = random_chain(layers)
    plan = benchmark.pedantic(planner.plan, (chain, fabric), rounds=2, iterations=1)
    assert chain.time_s / devices <= plan.cost_s <= chain.time_s


@pytest.mark.parametrize("layers", [40, pytest.param(176, marks=pytest.mark.large)])
def test_two_levels(benchmark: Any, layers: int) -> None:
    level = [planner.Level(count=4, bandwidth_bytes_per_s=rate) for rate in (1e9, 1e8)]
    fabric = planner.Fabric(levels=tuple(level))
    chain = random_chain(layers)
    plan = benchmark.pedantic(planner.plan, (chain, fabric), rounds=1, iterations=1)
    assert plan.cost_s >= chain.time_s / 16


def test_exact_search_beside_dapples_program(benchmark: Any) -> None:
    """All random jobs in the cost of DAPPLE's program; its seconds were measured with its plans."""
    jobs = dapple_planner.random_jobs()
    answers = json.loads(dapple_planner.STORED.read_text(encoding="utf-8"))["answers"]

    def search() -> list[float]:
        return [dapple_planner.best_s(job) for job in jobs]

    ours = benchmark.pedantic(search, rounds=1, iterations=1)
    pairs = zip(jobs, answers, strict=True)
    theirs = [sum(job.compute_s) / answer["speedup"] for job, answer in pairs]
    ratios = np.divide(theirs, ours)
    assert ratios.min() >= 1 - 1e-9
    benchmark.extra_info |= {
        "jobs": len(jobs),
        "jobs_found_better": int((ratios > 1 + 1e-9).sum()),
        "median_ratio": round(float(np.median(ratios)), 3),
        "largest_ratio": round(float(ratios.max()), 3),
        "their_cpu_s": round(sum(answer["cpu_s"] for answer in answers), 2),
    }
