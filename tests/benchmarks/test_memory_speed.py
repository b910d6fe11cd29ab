"""Estimates and sweeps beside DeepSpeed's estimators, in CPU seconds, in one run.

``make bench`` runs it; nothing here asserts a time. Where DeepSpeed is not installed its formula
for stage 3 stands in as bare arithmetic, the quickest it can be; it counts model states only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from labkit import memory
from labkit.memory import Batch, Model, Parallel, Plan, Recipe, estimate, grid
from labkit.memory.conventions import count, total_bytes

PLAN = Plan(
    model=Model.preset("llama-2-7b"),
    parallel=Parallel(dp=64, zero=3),
    recipe=Recipe.bf16_mixed(),
    batch=Batch(seq=4096),
)


def cpu_s(call: Callable[[], Any], repeats: int = 1) -> float:
    """CPU seconds of one call, over some."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def deepspeed_estimator() -> tuple[str, Callable[[], Any]]:
    """DeepSpeed's own function where it can be imported, else its formula."""
    size, ranks = PLAN.num_params, PLAN.parallel.world_size
    largest = PLAN.model.vocab * PLAN.model.hidden  # type: ignore[union-attr]
    try:
        from deepspeed.runtime.zero import stage3  # type: ignore[import-not-found, unused-ignore]
    except Exception:  # it imports much that may be missing, and fails in many ways
        assert isinstance(PLAN.model, Model)
        told = total_bytes(count("deepspeed", PLAN.model, PLAN.parallel))
        assert int(formula(size, largest, ranks)) == told
        return "DeepSpeed's formula", lambda: formula(size, largest, ranks)
    run = stage3.estimate_zero3_model_states_mem_needs
    return "DeepSpeed", lambda: run(size, largest, 8, ranks // 8, False, False, True, 1.5)


def formula(num_params: int, largest: int, ranks: int) -> float:
    """Bytes on a GPU at stage 3 without offload."""
    return 4 * largest + 18 * num_params / ranks


def once() -> estimate.Estimate:
    """One estimate, its own cache passed by."""
    assert isinstance(PLAN.model, Model)
    assert PLAN.batch is not None
    return estimate.estimate.__wrapped__(PLAN.model, PLAN.parallel, PLAN.recipe, PLAN.batch)


def test_one_estimate(benchmark: Any) -> None:
    once()
    name, peer = deepspeed_estimator()
    peer()
    peer_s, ours_s = cpu_s(peer, 20000), cpu_s(once, 200)
    assert benchmark(once).peak_bytes == PLAN.peak_bytes
    benchmark.extra_info |= {"ours_cpu_ms": ours_s * 1e3, f"{name}_cpu_ms": peer_s * 1e3}
    print(
        f"\none estimate: ours {ours_s * 1e3:.3f} ms (every moment and component), {name}"
        f" {peer_s * 1e3:.4f} ms (model states, no activations): ratio {peer_s / ours_s:.4f}"
    )


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_million_configurations(benchmark: Any, zero: int) -> None:
    axes = {
        "zero": [zero],
        "dp": range(1, 101),
        "seq": range(128, 128 * 101, 128),
        "micro_batch": range(1, 101),
    }
    name, peer = deepspeed_estimator()
    peer_per_s = 1 / cpu_s(peer, 20000)

    def run() -> Any:
        return memory.sweep(PLAN, device="H100-80GB", **axes)  # type: ignore[arg-type]

    run()
    ours_s = cpu_s(run)
    plain = {key: list(values) for key, values in axes.items()}
    peak_s = cpu_s(lambda: grid.sweep(PLAN, plain, components=False))
    table = benchmark.pedantic(run, rounds=1)
    assert len(table) == 10**6
    benchmark.extra_info |= {"per_cpu_s": 1e6 / ours_s, "peaks_per_cpu_s": 1e6 / peak_s}
    print(
        f"\nstage {zero}: {1e6 / ours_s:,.0f} configurations a CPU second with components,"
        f" {1e6 / peak_s:,.0f} of peaks alone; {name} {peer_per_s:,.0f}:"
        f" {1e6 / ours_s / peer_per_s:.2f} times as many"
    )


def test_a_panel_changes(benchmark: Any) -> None:
    """What a panel asks for at each change: other stage, degrees or recomputation."""
    changes = [
        {"parallel": Parallel(dp=8 * tp, tp=tp, pp=pp, zero=zero), "recompute": recompute}
        for zero in range(4)
        for tp in (1, 8)
        for pp in (1, 4)
        for recompute in ("none", "full")
    ]

    def run() -> float:
        slowest = 0.0
        for change in changes:
            estimate.estimate.cache_clear()
            batch = Batch(seq=4096, recompute=change["recompute"])  # type: ignore[arg-type]
            here = Plan(model=PLAN.model, parallel=change["parallel"], batch=batch)  # type: ignore[arg-type]
            slowest = max(slowest, cpu_s(lambda here=here: (here.frame(), here.moments())))  # type: ignore[misc]
        return slowest

    run()
    slowest_s = benchmark.pedantic(run, rounds=1)
    assert slowest_s > 0
    benchmark.extra_info["slowest_cpu_ms"] = slowest_s * 1e3
    print(f"\nthe slowest of {len(changes)} changes: {slowest_s * 1e3:.1f} CPU ms with its tables")
