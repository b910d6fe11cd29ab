"""From descriptions to what the formulas of saved tensors and moments take.

Plain GPT and Llama blocks are taken as they are. Experts, latent attention and normalised heads are
taken as the plain block nearest to them, and what that leaves out is said in a sentence.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from labkit.memory.batch import Batch
from labkit.memory.recipe import Recipe
from labkit.memory.saved import Mode
from labkit.models import Model


class Plain(NamedTuple):
    """The sizes of the plain block that stands for a model's.

    ``extra`` counts elements that a layer keeps for each token beyond the plain block's; ``notes``
    say what is approximate, and are empty for plain models.
    """

    sizes: dict[str, Any]
    extra: int
    notes: tuple[str, ...]

    def shape(self, **changes: Any) -> Any:
        """What :func:`labkit.memory.moments.moments` takes; sizes may be arrays."""
        return SimpleNamespace(**(self.sizes | changes))


@lru_cache(maxsize=256)
def mode_of(recipe: Recipe, batch: Batch) -> Mode:
    """Which operators a recipe and a batch run."""
    narrow = "fp32" if recipe.compute_bytes == 4 else "bf16"
    return Mode(
        dtype="autocast" if recipe.autocast else narrow,  # type: ignore[arg-type]
        attention="eager" if batch.attention == "eager" else "sdpa",
        recompute=_recompute(batch),  # type: ignore[arg-type]
        norm_fused=batch.norm_fused,
        # A fused loss keeps no fp32 logits: nearest to logits used as they are.
        loss="plain" if batch.loss == "fused" else batch.loss,
    )


def _recompute(batch: Batch) -> str:
    if isinstance(batch.recompute, int):
        return "full" if batch.recompute == 1 else "every"
    return batch.recompute


@lru_cache(maxsize=256)
def plain(model: Model, tp: int) -> Plain:
    """The plain block that stands for ``model``'s on a rank of ``tp``.

    Raises:
        UsageError: the model's layers are not known.
    """
    model.require_shapes()
    notes: list[str] = []
    llama = model.mlp == "swiglu"
    sizes: dict[str, Any] = {
        name: getattr(model, name)
        for name in ("num_layers", "hidden", "heads", "vocab", "positions", "tied", "ffn")
    }
    # Fewer key heads than ranks are copied, so that each rank has one.
    sizes |= {"kv_heads": max(model.kv_heads, tp), "head_dim": model.head_dim}
    sizes |= {"mlp": model.mlp, "norm": "rmsnorm" if llama else "layernorm"}
    sizes["bias"] = model.bias
    extra = _experts(model, sizes, notes) + _latent(model, sizes, notes)
    if model.norm != sizes["norm"]:
        notes.append(f"{model.norm} is taken as {sizes['norm']}")
    if model.qk_norm:
        notes.append("the norms of queries and keys keep nothing of their own here")
    uneven = any(model.has_bias(where) != model.bias for where in ("qkv", "out", "mlp"))
    if uneven:
        notes.append("all linear layers have a bias or none: casts of biases are approximate")
    return Plain(sizes, extra, tuple(notes))


def _experts(model: Model, sizes: dict[str, Any], notes: list[str]) -> int:
    """A token's experts as one MLP of their total width, and its copies on the way to them."""
    if not model.num_experts:
        return 0
    routed = model.experts_per_token
    sizes["ffn"] = (routed + model.shared_experts) * model.expert_ffn
    notes.append(
        f"a token's {routed} experts count as one MLP of width {sizes['ffn']:,}, its {routed}"
        " copies on the way there and back as kept; tokens are routed evenly, the router's scores"
        " are left out"
    )
    return 2 * routed * model.hidden


def _latent(model: Model, sizes: dict[str, Any], notes: list[str]) -> int:
    """Latent attention as heads of their full width, and the latents themselves."""
    if not model.kv_rank:
        return 0
    sizes |= {"kv_heads": model.heads, "head_dim": model.head_dim + model.rope_head_dim}
    notes.append(
        f"latent attention counts as plain heads of width {sizes['head_dim']} with its latents kept"
        " beside them"
    )
    return model.q_rank + model.kv_rank + model.rope_head_dim
