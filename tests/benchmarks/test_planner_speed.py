"""Planning time beside trying all plans, and of chains as long as the largest published graph.

``make bench`` runs it; nothing here asserts a time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from labkit import planner
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
