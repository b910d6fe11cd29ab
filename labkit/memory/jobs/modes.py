"""From descriptions to what the formulas of saved tensors and moments take.

Blocks are taken as they are, experts, latent attention and normalised heads included; what that
takes for granted is said in sentences.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.tape import shapes
from labkit.memory.tape.mode import Mode, SequenceGather
from labkit.models import Model

_SIZES = (
    *("num_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions", "tied"),
    *("bias", "mlp"),
)


class Plain(NamedTuple):
    """The sizes of a model on a tensor-parallel rank, and what is taken for granted about it."""

    sizes: dict[str, Any]
    notes: tuple[str, ...]

    def shape(self, **changes: Any) -> Any:
        """What :func:`labkit.memory.tape.moments.moments` takes; sizes may be arrays."""
        return SimpleNamespace(**(self.sizes | changes))


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
def plain(model: Model, tp: int) -> Plain:
    """The sizes of ``model`` on a rank of ``tp``.

    Raises:
        UsageError: the model's layers are not known.
    """
    model.require_shapes()
    notes: list[str] = []
    llama = model.mlp == "swiglu"
    sizes: dict[str, Any] = {name: getattr(model, name) for name in (*_SIZES, *shapes.ABSENT)}
    # Fewer key heads than ranks are copied, so that each rank has one.
    sizes["kv_heads"] = max(model.kv_heads, tp)
    sizes["norm"] = "rmsnorm" if llama else "layernorm"
    if model.norm != sizes["norm"]:
        notes.append(f"{model.norm} is taken as {sizes['norm']}")
    if model.num_experts:
        notes += _experts(model, tp)
    if model.kv_rank:
        notes.append(
            "latent attention: values are narrower than keys to the kernel, which takes them as"
            " they are; projections down and their norms are whole on every tensor-parallel rank"
        )
    return Plain(sizes, tuple(notes))


def _experts(model: Model, tp: int) -> list[str]:
    """What is taken for granted about experts."""
    few = model.experts_per_token
    notes = [
        f"tokens are spread evenly: an expert has ceil(tokens · {few} / experts) places, as one"
        " batched product over all experts of a rank runs them",
        "the router's matrix is in the compute format, its scores are in fp32",
    ]
    if tp > 1:
        notes.append("tensor parallelism cuts every expert's width; all ranks see all its tokens")
    return notes
