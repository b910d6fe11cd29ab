"""Ranks that share a sequence: buffers of keys and values beside torch's context parallelism."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from labkit import memory
from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.oracles import ways
from labkit.memory.tape.mode import Mode
from tests.memory.steps import GPT, LLAMA
from tests.memory.test_recipes import plan_of

LONG = GPT.resized(positions=1600)
SEQ = 200  # tokens of a rank
CASES: list[tuple[Model, dict[str, Any]]] = [
    (LONG, {}),
    (LONG, {"dtype": "fp32", "recompute": "full"}),
    (LLAMA.resized(kv_heads=4), {}),
    (LLAMA.resized(kv_heads=4), {"recompute": "full"}),
    (LONG, {"recompute": "full", "dtype": "autocast"}),
    (LLAMA, {"repeat_kv": True, "dtype": "autocast"}),
    (LLAMA, {"repeat_kv": True, "recompute": "selective"}),
]


def told(model: Model, mode: Mode, ranks: int, exchange: Any) -> Plan:
    """The plan of the step that :func:`seen` runs."""
    if mode.repeat_kv:
        model = model.resized(operators=("repeat-kv",))
    plan = plan_of(model, mode, "fused", seq=SEQ * ranks, micro_batch=2)
    shared = Parallel(cp=ranks, cp_exchange=exchange)
    return Plan(model=model, parallel=shared, recipe=plan.recipe, batch=plan.batch)


@cache
def seen(model: Model, mode: Mode, ranks: int, rank: int, exchange: str) -> Any:
    """torch's own program on one of the ranks, the others not there."""
    shared = ways.Shared(ranks, rank, gathers=exchange == "all-gather")
    return ways.track(model, mode, seq=SEQ, micro_batch=2, step="fused", shared=shared)


@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize(("model", "choices"), CASES)
def test_every_moment_is_torchs_on_a_rank_in_the_middle(
    model: Model, choices: dict[str, Any], ranks: int, exchange: str
) -> None:
    pytest.importorskip("torch")
    mode = Mode(**choices)
    plan = told(model, mode, ranks, exchange)
    tracked = seen(model, mode, ranks, 1, exchange)
    assert plan.peak_bytes == tracked.peak_bytes
    ours = plan.moments()["total"]
    for moment, parts in tracked.moments.items():
        if moment in ours:
            assert ours[moment] == parts["Total"], moment


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("model", "choices"), CASES)
def test_the_peak_is_that_of_the_fullest_rank(
    model: Model, choices: dict[str, Any], ranks: int
) -> None:
    pytest.importorskip("torch")
    mode = Mode(**choices)
    peaks = [seen(model, mode, ranks, rank, "all-gather").peak_bytes for rank in range(ranks)]
    assert told(model, mode, ranks, "all-gather").peak_bytes == max(peaks)


@pytest.mark.parametrize(("ranks", "least_mb"), [(8, 268), (64, 2147)])
def test_gathered_keys_and_values_grow_with_the_sequence(ranks: int, least_mb: float) -> None:
    """One layer's keys and values of the whole sequence: 2·seq·1024·2 bytes."""
    model = Model(
        **{"num_layers": 2, "hidden": 1024, "heads": 8, "kv_heads": 8, "vocab": 1000},
        **{"tied": True, "bias": False, "mlp": "swiglu", "norm": "rmsnorm"},
    )

    def peak(ranks: int, exchange: Any = "all-gather") -> float:
        batch = Batch(seq=8192 * ranks, recompute="full", loss="chunked", loss_chunks=512)
        plan = Plan(
            model=model,
            parallel=Parallel(cp=ranks, cp_exchange=exchange),
            recipe=Recipe.fp32_adam(compute="bf16"),
            batch=batch,
        )
        return plan.peak_bytes / 1e6

    assert peak(ranks) - peak(1) == pytest.approx(least_mb, rel=0.02)
    assert peak(ranks, "all-to-all") - peak(1) < 60  # whatever the number of ranks
    assert peak(ranks, "ring") >= peak(1)


def test_a_ring_keeps_keys_values_and_outputs_of_all_steps() -> None:
    """TransformerEngine's list of buffers, by hand: it is the forward pass that grows."""
    model = Model.preset("llama-3-8b").resized(num_layers=2)

    def rows(ranks: int) -> Any:
        plan = Plan(
            model=model,
            parallel=Parallel(cp=ranks, cp_exchange="ring"),
            batch=Batch(seq=4096 * ranks, recompute="full"),
        )
        return plan.moments()["activations"]

    grown = rows(16)["forward, first"] - rows(8)["forward, first"]
    keys_and_values = 2 * 2 * 1024
    outputs = 2 * 4096
    log_sums = 4 * 32
    assert grown == 8 * 4096 * (keys_and_values + outputs + log_sums)


def test_who_has_context_parallelism_and_by_which_exchange() -> None:
    model = Model.preset("llama-3-8b")
    plans = {
        name: memory.FRAMEWORKS[name].plan(model, cp=2, seq=8192)
        for name in ("torchtitan", "hf-trainer", "megatron")
    }
    found = [plan.parallel.cp_exchange for plan in plans.values()]
    assert found == ["all-gather", "all-gather", "ring"]
    assert any("not run" in note for note in plans["megatron"].assumptions)
    for name in ("deepspeed", "nanotron"):
        with pytest.raises(UsageError, match=f"cp must be 1 under {name}, got 2"):
            memory.FRAMEWORKS[name].plan(model, cp=2, seq=8192)
    eager = Plan(model=model, parallel=Parallel(cp=2), batch=Batch(seq=64, attention="eager"))
    with pytest.raises(UsageError, match="attention must be sdpa or flash where cp is 2"):
        _ = eager.peak_bytes
