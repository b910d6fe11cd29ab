"""What kind of network a shape asks for: the one reader of sizes that not every shape has.

A shape is a :class:`labkit.models.Model`, or anything with its sizes; each may be an array.
What is missing has the value of a plain block: no experts, no latents, no norms of heads.
"""

from __future__ import annotations

from typing import Any

from labkit.errors import UsageError

Shape = Any

# Sizes and choices that a shape may leave out.
ABSENT: dict[str, Any] = {
    **dict.fromkeys(("num_experts", "experts_per_token", "expert_ffn", "shared_experts"), 0),
    **dict.fromkeys(("dense_layers", "q_rank", "kv_rank", "rope_head_dim", "value_head_dim"), 0),
    **{"router_bias": False, "qk_norm": False, "fused_qkv": None},
    **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), None),
}
DENSE, EXPERTS, MIXED = "dense", "experts", "mixed"


def get(shape: Shape, name: str) -> Any:
    """A size or choice that the shape may leave out."""
    return getattr(shape, name, ABSENT[name])


def has_bias(shape: Shape, where: str) -> bool:
    """Whether the linear layers of ``where`` (``"qkv"``, ``"out"`` or ``"mlp"``) have a bias."""
    chosen = get(shape, f"{where}_bias")
    return bool(shape.bias if chosen is None else chosen)


def is_fused(shape: Shape) -> bool:
    """Whether query, key and value come from one matrix; where not said, as GPT and Llama do."""
    fused = get(shape, "fused_qkv")
    return bool(shape.mlp != "swiglu" if fused is None else fused)


def num_dense(shape: Shape) -> Any:
    """Layers with an MLP; the rest have experts."""
    return get(shape, "dense_layers") if get(shape, "num_experts") else shape.num_layers


def stack(shape: Shape) -> str:
    """Which kinds of layers there are: ``"dense"``, ``"experts"``, or ``"mixed"``: both.

    Raises:
        UsageError: an array of layers has some configurations of one kind and some of both.
    """
    if not get(shape, "num_experts"):
        return DENSE
    both = shape.num_layers > num_dense(shape)
    answers = {bool(both)} if not hasattr(both, "all") else {bool(both.all()), bool(both.any())}
    if len(answers) > 1:
        raise UsageError(
            f"num_layers must exceed dense_layers ({num_dense(shape)}) for all configurations of"
            " one call or for none"
        )
    if not answers.pop():
        return DENSE
    return MIXED if num_dense(shape) else EXPERTS


def supported(shape: Shape) -> None:
    """Refuse what these formulas do not cover.

    Raises:
        UsageError: the layers are not known, a block mixes GPT's parts and Llama's, or experts,
            latents or normalised heads are in a block other than Llama's.
    """
    if getattr(shape, "layout", ()):
        raise UsageError("layout must be empty: activations follow from sizes, not from tensors")
    pair = (shape.mlp, getattr(shape, "norm", None))
    if pair not in {("gelu", "layernorm"), ("swiglu", "rmsnorm")}:
        raise UsageError(
            f"mlp and norm must be gelu and layernorm, or swiglu and rmsnorm, got {pair}"
        )
    parts = ("num_experts", "kv_rank", "qk_norm")
    if shape.mlp == "gelu" and (there := [name for name in parts if get(shape, name)]):
        raise UsageError(
            f"mlp must be swiglu where {there[0]}={get(shape, there[0])!r}: experts, latent"
            " attention and normalised heads are known in Llama's blocks only"
        )
    if get(shape, "num_experts") and has_bias(shape, "mlp"):
        raise UsageError("mlp_bias must be False where there are experts: they are known without")
    if get(shape, "qk_norm") and is_fused(shape):
        raise UsageError(
            "fused_qkv must be False where qk_norm is True: heads are normalised alone"
        )
    if get(shape, "kv_rank") and get(shape, "qk_norm"):
        raise UsageError("qk_norm must be False where kv_rank is not 0: latents have norms")
