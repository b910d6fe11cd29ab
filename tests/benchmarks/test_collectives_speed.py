"""Pricing collectives beside a plain re-statement of the same model, as ratios of CPU seconds.

``make bench`` runs it; nothing here asserts a time. No simulator of collectives that an index has
runs without building one, so the peer is the model as one writes it down first: a loop over the
rows of a program, step by step. That executed bytes are the program's exactly is a test
(``tests/collectives/test_executing.py``), and is checked here once more where a program runs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from labkit import collectives
from labkit.collectives.programs import Action, Program
from tests.benchmarks.clock import median_cpu_s

FABRICS = {
    "flat": collectives.Fabric.flat(64, bandwidth_bytes_per_s=1.25e9, latency_s=2e-5),
    "machines": collectives.Fabric.machines(
        8, 8, inside_bytes_per_s=50e9, between_bytes_per_s=12.5e9, latency_s=5e-6
    ),
}
ALGORITHMS = [("ring", "all-reduce"), ("recursive-halving", "all-reduce"), ("direct", "all-to-all")]


def level_of(fabric: collectives.Fabric, source: int, destination: int) -> int:
    """The innermost level whose unit above holds both ranks."""
    sizes = [*fabric.group_sizes[1:], fabric.num_devices]
    return next(n for n, size in enumerate(sizes) if source // size == destination // size)


def by_hand_s(program: Program, fabric: collectives.Fabric) -> float:
    """Seconds of a program, row by row.

    1. What a pair of ranks exchanges in a step is one message on its level's links.
    2. A link takes its messages one after another; a step ends with its slowest link.
    3. Then the busiest rank adds up.
    """
    sizes = program.wire_bytes.tolist()
    messages: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    added: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    table = np.stack(program.rows, axis=1).tolist()
    for step, source, destination, chunk, action in table:
        messages[step][source, destination] += sizes[chunk]
        if action == Action.ADD:
            added[step][destination] += program.chunk_bytes[chunk]
    total_s = 0.0
    for step, pairs in messages.items():
        links: dict[tuple[int, int, str], float] = defaultdict(float)
        for (source, destination), num_bytes in pairs.items():
            number = level_of(fabric, source, destination)
            level = fabric.levels[number]
            seconds = level.latency_s + num_bytes / level.bandwidth_bytes_per_s
            links[number, source // fabric.group_sizes[number], "out"] += seconds
            links[number, destination // fabric.group_sizes[number], "in"] += seconds
        total_s += max(links.values())
        total_s += max(added[step].values(), default=0.0) / fabric.add_bytes_per_s
    return total_s


@pytest.mark.parametrize("fabric", ["flat", pytest.param("machines", marks=pytest.mark.large)])
@pytest.mark.parametrize(("name", "op"), ALGORITHMS)
def test_pricing_a_program_beside_a_loop(benchmark: Any, name: str, op: str, fabric: str) -> None:
    links = FABRICS[fabric]
    program = collectives.program(name, links.num_devices, 1 << 24, op=op)
    assert collectives.cost(program, links).time_s == pytest.approx(by_hand_s(program, links))
    ours_s = median_cpu_s(lambda: collectives.cost(program, links).time_s)
    loop_s = median_cpu_s(lambda: by_hand_s(program, links))
    benchmark(lambda: collectives.cost(program, links).time_s)
    rows = len(program.rows.step)
    benchmark.extra_info |= {
        "rows": rows,
        "rows_a_cpu_s": round(rows / ours_s),
        "times_faster_than_a_loop": round(loop_s / ours_s, 1),
    }
    print(
        f"\n{name}, {fabric}, {rows:,} rows: {rows / ours_s:,.0f} rows a CPU second, "
        f"{loop_s / ours_s:,.1f} times a loop's"
    )


@pytest.mark.parametrize("fabric", ["flat", pytest.param("machines", marks=pytest.mark.large)])
@pytest.mark.parametrize(("name", "op"), ALGORITHMS)
def test_closed_forms_a_second(benchmark: Any, name: str, op: str, fabric: str) -> None:
    """The aim is 10^5 a second; beside pricing the program anew for each size."""
    links = FABRICS[fabric]
    seconds = collectives.message_time(name, links, op=op)
    sizes = 4 * links.num_devices**2 * np.arange(1, 10**5 + 1)
    program = collectives.program(name, links.num_devices, int(sizes[9]), op=op)
    assert seconds(sizes)[9] == pytest.approx(by_hand_s(program, links))

    def anew() -> float:
        again = collectives.program(name, links.num_devices, int(sizes[9]), op=op)
        return collectives.cost(again, links).time_s

    ours_s = median_cpu_s(lambda: seconds(sizes)) / len(sizes)
    anew_s = median_cpu_s(anew)
    benchmark(seconds, sizes)
    benchmark.extra_info |= {
        "costs_a_cpu_s": round(1 / ours_s),
        "times_faster_than_pricing_anew": round(anew_s / ours_s),
    }
    print(
        f"\n{name}, {fabric}: {1 / ours_s:,.0f} costs a CPU second, "
        f"{anew_s / ours_s:,.0f} times as many as by pricing the program anew"
    )


def test_a_ring_s_closed_form_beside_its_formula(benchmark: Any) -> None:
    """The textbook's line for a ring, which knows neither links nor other algorithms."""
    links = FABRICS["flat"]
    n = links.num_devices
    level = links.levels[0]
    sizes = 4 * n * np.arange(1, 10**5 + 1)
    seconds = collectives.message_time("ring", links)

    def formula() -> np.ndarray:
        return 2 * (n - 1) * (level.latency_s + sizes / n / level.bandwidth_bytes_per_s)

    assert seconds(sizes) == pytest.approx(formula())
    ratio = median_cpu_s(lambda: seconds(sizes)) / median_cpu_s(formula)
    benchmark(seconds, sizes)
    benchmark.extra_info["times_the_formula_s_seconds"] = round(ratio, 1)
    print(f"\nring, flat: {ratio:.1f} times the seconds of its own formula")


@pytest.mark.parametrize("workers", [4, pytest.param(16, marks=pytest.mark.large)])
def test_executing_on_threads(benchmark: Any, workers: int) -> None:
    """A ring that really adds, beside adding the same tensors in one place."""
    program = collectives.program("ring", workers, 4 << 20)
    draws = np.random.default_rng(0)
    tensors = [draws.integers(-9, 9, 1 << 20).astype(np.float32) for _ in range(workers)]
    run = benchmark.pedantic(collectives.execute, (program, tensors), rounds=3)
    assert (run.sent_bytes == program.sent_bytes).all(), "executed bytes are the program's"
    total = np.sum(tensors, axis=0)
    assert all((output == total).all() for output in run.outputs)
    ours_s = median_cpu_s(lambda: collectives.execute(program, tensors))
    adding_s = median_cpu_s(lambda: np.sum(tensors, axis=0))
    benchmark.extra_info["times_adding_in_one_place"] = round(ours_s / adding_s, 1)
    print(f"\nring of {workers} threads: {ours_s / adding_s:.1f} times one sum's CPU seconds")
