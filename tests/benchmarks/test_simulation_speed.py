"""Building and simulating schedules, beside torch building the same order, as CPU seconds.

``make bench`` runs it; nothing here asserts a time. Torch only builds: its schedules come without
durations, so what is compared is all of our work against a part of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from labkit.pipeline import Costs, Network, build, simulate
from tests.benchmarks.clock import median_cpu_s

WORK = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
NETWORK = Network(latency_s=0.1, overlap=False)


def run(name: str, stages: int, microbatches: int, network: Network | None = None) -> float:
    """From the name to the makespan, nothing kept from an earlier run."""
    return simulate(build(name, stages, microbatches), WORK, network=network).makespan_s


@pytest.mark.large
@pytest.mark.parametrize("network", [None, NETWORK], ids=["plain", "network"])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_64_stages_and_1024_microbatches(benchmark: Any, name: str, network: Any) -> None:
    took_s = median_cpu_s(lambda: run(name, 64, 1024, network))
    benchmark.pedantic(run, args=(name, 64, 1024, network), rounds=3)
    benchmark.extra_info["cpu_s"] = round(took_s, 3)
    print(f"\n{name}, 64 x 1024 built and simulated: {took_s:.2f} CPU s")


@pytest.mark.large
def test_every_result_of_64_stages_and_1024_microbatches(benchmark: Any) -> None:
    """Slack, idle time by cause, memory over time, critical path and table, built once."""
    schedule = build("1f1b", 64, 1024)

    def results() -> None:
        line = simulate(schedule, WORK, network=NETWORK)
        _ = line.frame(), line.idle_frame(), line.memory_frame(), line.critical_share

    took_s = median_cpu_s(results)
    benchmark.pedantic(results, rounds=3)
    benchmark.extra_info["cpu_s"] = round(took_s, 3)
    print(f"\n1f1b, 64 x 1024, everything told: {took_s:.2f} CPU s")


@pytest.mark.parametrize(
    ("stages", "microbatches"), [(8, 64), pytest.param(16, 256, marks=pytest.mark.large)]
)
def test_interleaved_beside_torch(benchmark: Any, stages: int, microbatches: int) -> None:
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    rows = visualizer.get_schedule_ops("Interleaved1F1B", stages, microbatches)
    schedule = build("interleaved-1f1b", stages, microbatches)
    assert len(schedule) == sum(action is not None for row in rows for action in row)

    peer_s = median_cpu_s(
        lambda: visualizer.get_schedule_ops("Interleaved1F1B", stages, microbatches)
    )
    ours_s = median_cpu_s(lambda: run("interleaved-1f1b", stages, microbatches))
    benchmark.pedantic(run, args=("interleaved-1f1b", stages, microbatches), rounds=3)
    benchmark.extra_info |= {
        "ours_cpu_s": round(ours_s, 4),
        "torch_cpu_s": round(peer_s, 4),
        "times_faster": round(peer_s / ours_s, 1),
    }
    print(
        f"\ninterleaved, {stages} x {microbatches}: ours builds and simulates in {ours_s:.4f} CPU "
        f"s, torch builds in {peer_s:.3f}: {peer_s / ours_s:,.0f} times faster"
    )
