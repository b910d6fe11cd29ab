"""Training steps on which predictions are set beside torch: whole models, shards, a GPU's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from labkit.memory.jobs.adapter import Adapter, Target
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.plans.plan import Plan
from labkit.models import Model

RECIPES = {
    "bf16": Recipe(name="bf16 Adam", master=None, states="bf16"),
    "fp32": Recipe.fp32_adam(),
    "autocast": Recipe.preset("bf16-autocast"),
}
TINY_LLAMA = Model(
    name="tiny-llama",
    num_layers=2,
    hidden=40,
    heads=4,
    kv_heads=2,
    ffn=54,
    vocab=101,
    tied=False,
    bias=False,
    mlp="swiglu",
    norm="rmsnorm",
    fused_qkv=False,
)
# Model, recipe, the optimizer's step, tokens a sample, samples, other choices of the batch.
Row = tuple[Model, str, str, int, int, dict[str, Any]]


def _plans(rows: Iterable[Row]) -> tuple[Plan, ...]:
    """A plan of each row's model, recipe and batch."""
    return tuple(
        Plan(
            model=model,
            recipe=replace(RECIPES[recipe], step=step),  # type: ignore[arg-type]
            batch=Batch(seq=seq, micro_batch=samples, **choices),
        )
        for model, recipe, step, seq, samples, choices in rows
    )


def on_one_rank(*, every: bool = False) -> tuple[Plan, ...]:
    """Steps of whole models with six different moments at the peak.

    Args:
        every: those that a GPU is measured with as well.
    """
    preset = Model.preset
    wide = Model(name="gpt-1.3b", num_layers=24, hidden=2048, heads=16, vocab=50257, positions=2048)
    full = {"recompute": "full", "loss": "chunked"}
    # Of the largest, a few layers: there is one byte count a kind of layer to get right.
    qwen, mixtral = (preset(n).resized(num_layers=4) for n in ("qwen3-8b", "mixtral-8x7b"))
    deepseek = preset("deepseek-v3").resized(num_layers=5)
    plans = _plans(
        (
            (preset("gpt2-124m"), "bf16", "foreach", 1024, 8, {}),
            (preset("gpt2-124m"), "bf16", "foreach", 1024, 16, {"attention": "eager", **full}),
            (preset("gpt2-355m"), "autocast", "foreach", 1024, 16, full),
            (preset("gpt2-1.5b"), "fp32", "fused", 128, 1, {}),
            (wide, "bf16", "fused", 2048, 4, full),
            (preset("llama-2-7b"), "bf16", "foreach", 4096, 1, {}),
            (qwen, "bf16", "foreach", 4096, 1, {}),
            (mixtral, "bf16", "foreach", 4096, 1, {"loss": "fused"}),
            (deepseek, "bf16", "foreach", 4096, 1, {"recompute": "full"}),
        )
    )
    return (*plans, *on_a_gpu()[1:]) if every else plans


def on_a_gpu() -> tuple[Plan, ...]:
    """What a GPU is measured with; all need less than 24 GiB.

    They are GPTs and Llamas of several sizes, with and without recomputation, in fp32, bf16 and
    autocast, by each way of running Adam's step.
    """
    medium = Model.preset("gpt2-355m")
    small = Model.preset("gpt2-124m")
    llama = Model.preset("llama-2-7b").resized(name="llama-2-7b, 4 layers", num_layers=4)
    return _plans(
        (
            (small, "bf16", "foreach", 1024, 8, {}),
            (small, "fp32", "fused", 1024, 4, {}),
            (small, "autocast", "foreach", 1024, 8, {}),
            (small, "autocast", "fused", 1024, 8, {"recompute": "full"}),
            (medium, "autocast", "fused", 1024, 4, {}),
            (medium, "bf16", "for-loop", 1024, 8, {"recompute": "full"}),
            (medium, "fp32", "foreach", 512, 2, {"attention": "eager"}),
            (llama, "bf16", "foreach", 2048, 1, {}),
            (llama, "bf16", "fused", 4096, 2, {"recompute": "full"}),
            (llama, "autocast", "fused", 2048, 1, {}),
            (llama, "fp32", "foreach", 128, 1, {}),
        )
    )


def with_adapters(*, every: bool = False) -> tuple[Plan, ...]:
    """Steps of whole models of which adapters are trained.

    Args:
        every: more formats and targets.
    """
    llama, gpt = (Model.preset(name) for name in ("llama-2-7b", "gpt2-124m"))
    mistral = Model.preset("mistral-7b")
    linear: tuple[Target, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    narrow = {"gradients": "bf16", "states": "bf16"}
    cast = {"parameters": "fp32", "compute": "bf16", "autocast": True}
    rows: list[tuple[Model, Adapter, dict[str, Any], Batch]] = [
        (mistral, Adapter(), {}, Batch(seq=2048)),
        (mistral, Adapter(targets=linear), {}, Batch(seq=4096, recompute="full")),
        (llama, Adapter(rank=64, targets=linear, dropout=True), narrow, Batch(seq=1024)),
        (gpt, Adapter(rank=8, targets=("qkv",)), cast, Batch(seq=1024, micro_batch=8)),
    ]
    if every:
        rows += [
            (llama, Adapter(rank=8, dropout=True), cast, Batch(seq=512, recompute="full")),
            (gpt, Adapter(targets=("qkv", "o", "up", "down")), {}, Batch(seq=512)),
        ]
    return tuple(
        Plan(model=model, recipe=Recipe.preset("lora", adapter=adapter, **formats), batch=batch)
        for model, adapter, formats, batch in rows
    )


def at_stage_3(*, every: bool = False) -> tuple[Plan, ...]:
    """Steps under FSDP2, with collectives' buffers."""
    narrow, cast = (replace(RECIPES[name], step="fused") for name in ("bf16", "autocast"))
    small = Model.preset("gpt2-124m")
    large = Model.preset("llama-2-7b")
    rows: list[tuple[Model, dict[str, Any], Recipe, Batch]] = [
        (small, {"dp": 8}, cast, Batch(seq=1024, micro_batch=4)),
        (small, {"dp": 8, "replicate": 2}, narrow, Batch(seq=64, micro_batch=1)),
        (large.resized(num_layers=8), {"dp": 16}, narrow, Batch(seq=2048, recompute="full")),
    ]
    if every:
        rows += [
            (Model.preset("gpt2-1.5b"), {"dp": 8}, narrow, Batch(seq=1024, micro_batch=4)),
            (large, {"dp": 64}, narrow, Batch(seq=4096)),
            (large, {"dp": 64}, cast, Batch(seq=4096, recompute="full")),
            (large, {"dp": 64, "reshard_after_forward": False}, narrow, Batch(seq=4096)),
        ]
    return tuple(
        Plan(model=model, parallel=Parallel(zero=3, **degrees), recipe=recipe, batch=batch)
        for model, degrees, recipe, batch in rows
    )
