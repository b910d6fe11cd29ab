"""Building and simulating schedules beside torch's own builders, as ratios, in one run.

``make bench`` runs it; nothing here asserts a time. CPU seconds, single-threaded.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from labkit.pipeline import Costs, Schedule, build, simulate
from tests.oracles.torch_orders import torch_schedule

UNIT = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)


def cpu_s(make: Any, *arguments: Any, repeats: int = 1, **options: Any) -> float:
    """The fewest CPU seconds of a few calls."""
    took = []
    for _ in range(repeats):
        start = time.process_time()
        make(*arguments, **options)
        took.append(time.process_time() - start)
    return min(took)


def build_and_simulate(name: str, stages: int, microbatches: int, **options: Any) -> Schedule:
    schedule = build(name, stages, microbatches, **options)
    simulate(schedule, UNIT)
    return schedule


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "options"),
    [
        pytest.param("1f1b", 16, 256, {}, marks=pytest.mark.large),
        pytest.param("interleaved-1f1b", 16, 256, {"num_chunks": 2}, marks=pytest.mark.large),
        pytest.param("interleaved-zb", 16, 256, {"num_chunks": 2}, marks=pytest.mark.large),
        ("zb-v", 8, 64, {}),
        ("dualpipe-v", 8, 64, {}),
    ],
)
def test_beside_torch(
    benchmark: Any, name: str, stages: int, microbatches: int, options: dict[str, int]
) -> None:
    pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    torch_schedule("gpipe", 2, 2)  # imports are not what is measured
    peer_s = cpu_s(torch_schedule, name, stages, microbatches, **options)
    ours_s = cpu_s(build_and_simulate, name, stages, microbatches, **options, repeats=5)
    schedule = benchmark(build_and_simulate, name, stages, microbatches, **options)
    assert len(schedule) >= 2 * stages * microbatches
    benchmark.extra_info |= {
        "ours_cpu_ms": round(ours_s * 1e3, 1),
        "torch_cpu_ms": round(peer_s * 1e3, 1),
        "times_faster": round(peer_s / ours_s, 1),
    }
    print(
        f"\n{name}, {stages} x {microbatches}: torch builds in {peer_s * 1e3:,.0f} ms, ours builds "
        f"and simulates in {ours_s * 1e3:,.1f} ms: {peer_s / ours_s:,.0f} times faster"
    )


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "stages", "microbatches"),
    [("1f1b", 64, 1024), ("zb-h1", 64, 1024), ("dualpipe", 64, 1024), ("chimera", 16, 256)],
)
def test_large_schedules(benchmark: Any, name: str, stages: int, microbatches: int) -> None:
    schedule = benchmark(build_and_simulate, name, stages, microbatches)
    ours_s = cpu_s(build_and_simulate, name, stages, microbatches, repeats=3)
    benchmark.extra_info |= {"instructions": len(schedule), "cpu_s": round(ours_s, 3)}
    print(f"\n{name}, {stages} x {microbatches}: {len(schedule):,} in {ours_s:.3f} CPU s")
