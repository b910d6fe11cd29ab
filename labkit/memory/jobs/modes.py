"""From descriptions to what the tape takes: which operators a job runs, on which sizes."""

from __future__ import annotations

from functools import lru_cache

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.tape.mode import Mode, SequenceGather
from labkit.memory.tape.sizes import Shape, shape_of
from labkit.models import Model


@lru_cache(maxsize=256)
def mode_of(model: Model, recipe: Recipe, batch: Batch, gather: SequenceGather = "again") -> Mode:
    """Which operators a job runs."""
    narrow = "fp32" if recipe.compute_bytes == 4 else "bf16"
    again = batch.recompute
    if isinstance(again, int):
        again = "full" if again == 1 else "every"  # type: ignore[assignment]
    return Mode(
        dtype="autocast" if recipe.autocast else narrow,  # type: ignore[arg-type]
        attention="eager" if batch.attention == "eager" else "sdpa",
        recompute=again,  # type: ignore[arg-type]
        norm_fused=batch.norm_fused and "norm" not in model.operators,
        gelu_fused="gelu" not in model.operators,
        repeat_kv="repeat-kv" in model.operators,
        mask_added="mask" in model.operators,
        softmax_fp32="softmax-fp32" in model.operators,
        loss=batch.loss,
        logits_held=batch.logits_held,
        sequence_gather=gather,
        gpu=batch.gpu,
        dropout_mask_bytes=batch.dropout_mask_bytes,
    )


@lru_cache(maxsize=256)
def rank_shape(model: Model, tp: int) -> Shape:
    """The sizes of ``model`` on a rank of ``tp``, each norm as its kind of block has it.

    Raises:
        UsageError: the model's layers are not known, or not by the tape.
    """
    norm = "rmsnorm" if model.mlp == "swiglu" else "layernorm"
    # Fewer key heads than ranks are copied, so that each rank has one.
    kv_heads = max(model.kv_heads, tp)
    return shape_of(model.require_shapes(), layout=(), norm=norm, kv_heads=kv_heads)
