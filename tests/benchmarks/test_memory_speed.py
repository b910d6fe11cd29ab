"""Estimates and sweeps beside DeepSpeed's estimators and llm-analysis, in CPU seconds, in one run.

``make bench`` runs it; nothing here asserts a time. A peer that is not installed is skipped;
DeepSpeed's formula as bare arithmetic, the quickest a peer can be, always runs. Both install on a
machine without a GPU and leave torch alone: ``DS_BUILD_OPS=0 pip install --no-deps
--no-build-isolation deepspeed==0.19.8 llm-analysis==0.2.2 hjson einops msgpack ninja
fire termcolor``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from labkit import memory
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.plans import detail, grid
from labkit.memory.plans.conventions import total_bytes
from tests.oracles.estimators import count

MODEL = Model.preset("llama-2-7b")
BATCH = Batch(seq=4096)
PLAN = Plan(model=MODEL, parallel=Parallel(dp=64, zero=3), recipe=Recipe.bf16_mixed(), batch=BATCH)


def cpu_s(call: Callable[[], Any], repeats: int = 1) -> float:
    """CPU seconds of one call, over some."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def deepspeed(zero: int) -> Callable[[], Any]:
    """DeepSpeed's own function for this job at stage 2 or 3."""
    stages = {2: "stage_1_and_2", 3: "stage3"}
    name = f"deepspeed.runtime.zero.{stages[zero]}"
    tool = pytest.importorskip(name, reason="DeepSpeed is not installed", exc_type=ImportError)
    size = PLAN.num_params
    nodes = PLAN.parallel.world_size // 8
    if zero == 2:
        run2 = tool.estimate_zero2_model_states_mem_needs
        return lambda: run2(size, 8, nodes, False, 1.5)
    largest = MODEL.vocab * MODEL.hidden
    run3 = tool.estimate_zero3_model_states_mem_needs
    return lambda: run3(size, largest, 8, nodes, False, False, True, 1.5)


def llm_analysis() -> Callable[[], Any]:
    """llm-analysis's whole answer for this job, which has latencies too, with its log off."""
    tool = pytest.importorskip("llm_analysis.analysis", reason="llm-analysis is not installed")
    config = pytest.importorskip("llm_analysis.config")
    config.logger.setLevel(logging.CRITICAL)
    gpu = config.get_gpu_config_by_name("a100-sxm-80gb")
    sizes = PLAN.parallel
    shape = config.ModelConfig(
        name="llama-2-7b",
        num_layers=MODEL.num_layers,
        n_head=MODEL.heads,
        hidden_dim=MODEL.hidden,
        vocab_size=MODEL.vocab,
        max_seq_len=BATCH.seq,
        ffn_embed_dim=MODEL.ffn,
        expansion_ratio=MODEL.ffn / MODEL.hidden,
    )
    degrees = config.ParallelismConfig(dp_size=sizes.dp)

    def run() -> Any:
        asked = tool.LLMAnalysis(shape, gpu, config.DtypeConfig(), degrees)
        return asked.training(
            batch_size_per_gpu=1, seq_len=BATCH.seq, ds_zero=tool.DSZeRO(sizes.zero)
        )

    return run


def formula() -> Callable[[], Any]:
    """DeepSpeed's bytes on a GPU at stage 3 as bare arithmetic: the quickest a peer can be."""
    size = PLAN.num_params
    ranks = PLAN.parallel.world_size
    largest = MODEL.vocab * MODEL.hidden

    def run() -> int:
        return int(4 * largest + 18 * size / ranks)

    assert run() == total_bytes(count("deepspeed", MODEL, PLAN.parallel))
    return run


# By name: the peer, and the convention that has its terms.
PEERS: dict[str, tuple[Callable[[], Callable[[], Any]], str]] = {
    "DeepSpeed, stage 2": (lambda: deepspeed(2), "deepspeed"),
    "DeepSpeed, stage 3": (lambda: deepspeed(3), "deepspeed"),
    "llm-analysis": (llm_analysis, "llm-analysis"),
    "bare formula of stage 3": (formula, "deepspeed"),
}
# Which of our components a row of theirs stands for; parameters, gradients and so on for their own.
STANDS_FOR = {
    "gathered layer": "gathered layers",
    "head and loss": "activations",
    "embedding": "activations",
}


def left_out(convention: str) -> str:
    """What we have at some moment and the peer has no row for."""
    moments = PLAN.moments()
    held = [name for name in moments.columns if name != "total" and moments[name].max() > 0]
    lines = count(convention, MODEL, PLAN.parallel, PLAN.recipe, BATCH)
    named = {STANDS_FOR.get(line.row, line.row) for line in lines if line.place == "device"}
    missing = [name for name in held if name not in named]
    return f"{', '.join(missing)}; all but one of {len(moments)} moments"


def once() -> detail.Estimate:
    """One estimate, its own cache passed by."""
    return detail.estimate.__wrapped__(MODEL, PLAN.parallel, PLAN.recipe, BATCH)


@pytest.mark.parametrize("name", PEERS)
def test_one_estimate(benchmark: Any, name: str) -> None:
    """Every moment and component of ours beside one answer of each peer's."""
    make, convention = PEERS[name]
    peer = make()
    once()
    peer()
    peer_s = cpu_s(peer, 500)
    ours_s = cpu_s(once, 200)
    assert benchmark(once).peak_bytes == PLAN.peak_bytes
    benchmark.extra_info |= {
        "ours_cpu_ms": ours_s * 1e3,
        f"{name.replace(' ', '-')}_cpu_ms": peer_s * 1e3,
        "left_out": left_out(convention),
    }
    print(
        f"\none estimate: ours {ours_s * 1e3:.3f} ms, {name} {peer_s * 1e3:.4f} ms:"
        f" ours takes {ours_s / peer_s:.3g} times as long. {name} leaves out {left_out(convention)}"
    )


@pytest.mark.parametrize(
    "zero", [0, *(pytest.param(stage, marks=pytest.mark.large) for stage in (1, 2, 3))]
)
def test_a_million_configurations(benchmark: Any, zero: int) -> None:
    axes = {
        "zero": [zero],
        "dp": range(1, 101),
        "seq": range(128, 128 * 101, 128),
        "micro_batch": range(1, 101),
    }
    formula_per_s = 1 / cpu_s(formula(), 20000)

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
        f" {1e6 / peak_s:,.0f} of peaks alone; DeepSpeed's bare formula {formula_per_s:,.0f}:"
        f" {1e6 / ours_s / formula_per_s:.2f} times as many"
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
            detail.estimate.cache_clear()
            batch = Batch(seq=4096, recompute=change["recompute"])  # type: ignore[arg-type]
            here = Plan(model=PLAN.model, parallel=change["parallel"], batch=batch)  # type: ignore[arg-type]
            slowest = max(slowest, cpu_s(lambda here=here: (here.frame(), here.moments())))  # type: ignore[misc]
        return slowest

    run()
    slowest_s = benchmark.pedantic(run, rounds=1)
    assert slowest_s > 0
    benchmark.extra_info["slowest_cpu_ms"] = slowest_s * 1e3
    print(f"\nthe slowest of {len(changes)} changes: {slowest_s * 1e3:.1f} CPU ms with its tables")
