"""The parameter tensors of a transformer, whole or cut for tensor and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from labkit.errors import BadValue
from labkit.models.sizes import Sizes
from labkit.models.tensors import Cut, Role, TensorShape, Unit


@lru_cache(maxsize=4096)
def units(model: Sizes, cut: Cut) -> tuple[Unit, ...]:
    """The distinct units of a part of ``model`` in the order of the forward pass.

    Time: linear in the tensors of the distinct units, whatever the number of layers.
    """
    check(model, cut)
    dense = range(cut.first_layer, min(cut.end_layer, model.num_dense_layers))
    sparse = range(max(cut.first_layer, model.num_dense_layers), cut.end_layer)
    before, after = _ends(model, cut)
    units = [
        Unit(name=name, count=len(layers), tensors=tuple(_block(model, cut, layers[0], experts)))
        for name, layers, experts in (("block", dense, False), ("expert block", sparse, True))
        if layers
    ]
    if _is_whole(model, cut):
        return (Unit(name="root", count=1, tensors=(*before, *after)), *units)
    first = [Unit(name="embedding", count=1, tensors=before)] if before else []
    last = [Unit(name="head", count=1, tensors=after)] if after else []
    return (*first, *units, *last)


def whole(model: Sizes) -> tuple[Unit, ...]:
    """The distinct units of all of ``model``, not cut."""
    return units(model, Cut(end_layer=model.num_layers))


def check(model: Sizes, cut: Cut) -> None:
    """Refuse a cut that leaves part of a head, of the MLP or of an expert.

    Keys and values may be fewer than ``tp`` where they divide it: they are then copied.

    Raises:
        BadValue: a size does not divide; the message names both.
    """
    tp = cut.tp
    ep = cut.ep
    sizes = {"heads": (model.heads, "tp", tp), "experts": (model.num_experts, "ep", ep)}
    if model.num_dense_layers:
        sizes["ffn"] = (model.ffn, "tp", tp)
    if model.num_experts:
        sizes["expert_ffn"] = (model.expert_ffn, "tp", tp)
    for name, (size, degree, parts) in sizes.items():
        if parts < 1 or size % parts:
            raise BadValue(f"{model.name}: {name} ({size}) must divide by {degree} ({parts})")
    if model.kv_heads % tp and tp % model.kv_heads:
        raise BadValue(
            f"{model.name}: kv_heads ({model.kv_heads}) must divide by tp ({tp}), or tp by it"
        )
    if ep > 1 and not model.num_experts:
        raise BadValue(f"{model.name} has no experts: ep must be 1, got {ep}")


@lru_cache(maxsize=64)
def in_order(model: Sizes, cut: Cut) -> tuple[TensorShape, ...]:
    """Every tensor of a part of the model, in the order of the forward pass."""
    check(model, cut)
    before, after = _ends(model, cut)
    layers = range(cut.first_layer, cut.end_layer)
    blocks = (_block(model, cut, layer, layer >= model.num_dense_layers) for layer in layers)
    return (*before, *chain.from_iterable(blocks), *after)


def _is_whole(model: Sizes, cut: Cut) -> bool:
    """Whether embedding and head are one tensor here: a tied model's, both on this rank."""
    return model.tied and cut.embedding and cut.head


def _ends(model: Sizes, cut: Cut) -> tuple[tuple[TensorShape, ...], tuple[TensorShape, ...]]:
    """The tensors before the layers and after them, as far as this part has them."""
    whole = _is_whole(model, cut)
    first, last = ("root", "root") if whole else ("embedding", "head")
    tables = {"token": -(-model.vocab // cut.tp), "position": model.positions}
    before = [
        _tensor(first, name, rows, model.hidden, role="embedding")
        for name, rows in tables.items()
        if rows and cut.embedding
    ]
    after = [*_norm(model, last, "norm", model.hidden)] if cut.head else []
    if cut.head and not whole:
        after.append(_tensor(last, "output", tables["token"], model.hidden, role="head"))
    return tuple(before), tuple(after)


def _block(model: Sizes, cut: Cut, layer: int, experts: bool) -> Iterator[TensorShape]:
    unit = f"block{layer}"
    yield from _norm(model, unit, "norm1", model.hidden)
    yield from _latent(model, cut, unit) if model.kv_rank else _attention(model, cut, unit)
    yield from _norm(model, unit, "norm2", model.hidden)
    if experts:
        yield from _experts(model, cut, unit)
    else:
        bias = model.has_bias("mlp")
        yield from _mlp(model, unit, "", model.ffn // cut.tp, bias=bias, role="hidden")


def _attention(model: Sizes, cut: Cut, unit: str) -> Iterator[TensorShape]:
    queries = model.query_size // cut.tp
    keys = model.head_dim * max(1, model.kv_heads // cut.tp)
    bias = model.has_bias("qkv")
    if model.fused_qkv:
        yield from _linear(unit, "qkv", queries + 2 * keys, model.hidden, bias=bias)
    else:
        for name, rows in (("query", queries), ("key", keys), ("value", keys)):
            yield from _linear(unit, name, rows, model.hidden, bias=bias)
    if model.qk_norm:
        yield from _norm(model, unit, "query_norm", model.head_dim)
        yield from _norm(model, unit, "key_norm", model.head_dim)
    yield from _linear(unit, "out", model.hidden, queries, bias=model.has_bias("out"))


def _latent(model: Sizes, cut: Cut, unit: str) -> Iterator[TensorShape]:
    """Multi-head latent attention: queries and keys-and-values through low-rank projections.

    ``tp`` cuts what is per head and leaves the projections down whole. Source: DeepSeek-V2 §2.1.
    """
    heads = model.heads // cut.tp
    bias = model.has_bias("qkv")
    queries = heads * (model.head_dim + model.rope_head_dim)
    if model.q_rank:
        yield from _linear(unit, "query_down", model.q_rank, model.hidden, bias=bias)
        yield from _norm(model, unit, "query_norm", model.q_rank)
        yield from _linear(unit, "query_up", queries, model.q_rank, bias=False)
    else:
        yield from _linear(unit, "query", queries, model.hidden, bias=False)
    down = model.kv_rank + model.rope_head_dim
    yield from _linear(unit, "kv_down", down, model.hidden, bias=bias)
    yield from _norm(model, unit, "kv_norm", model.kv_rank)
    up = heads * (model.head_dim + model.value_head_dim)
    yield from _linear(unit, "kv_up", up, model.kv_rank, bias=False)
    columns = heads * model.value_head_dim
    yield from _linear(unit, "out", model.hidden, columns, bias=model.has_bias("out"))


def _experts(model: Sizes, cut: Cut, unit: str) -> Iterator[TensorShape]:
    yield _tensor(unit, "router.weight", model.num_experts, model.hidden, role="router")
    if model.router_bias:
        yield _tensor(unit, "router.bias", model.num_experts, role="router")
    bias = model.has_bias("mlp")
    width = model.expert_ffn // cut.tp
    for expert in range(model.num_experts // cut.ep):
        yield from _mlp(model, unit, f"expert{expert}.", width, bias=bias, role="expert")
    if model.shared_experts:
        shared = model.shared_experts * width
        yield from _mlp(model, unit, "shared.", shared, bias=bias, role="hidden")


def _mlp(
    model: Sizes, unit: str, prefix: str, width: int, *, bias: bool, role: Role
) -> Iterator[TensorShape]:
    if model.mlp == "swiglu":
        yield from _linear(unit, f"{prefix}gate", width, model.hidden, bias=bias, role=role)
    yield from _linear(unit, f"{prefix}up", width, model.hidden, bias=bias, role=role)
    yield from _linear(unit, f"{prefix}down", model.hidden, width, bias=bias, role=role)


def _linear(
    unit: str, name: str, rows: int, columns: int, *, bias: bool, role: Role = "hidden"
) -> Iterator[TensorShape]:
    yield _tensor(unit, f"{name}.weight", rows, columns, role=role)
    if bias:
        yield _tensor(unit, f"{name}.bias", rows, role=role)


def _norm(model: Sizes, unit: str, name: str, size: int) -> Iterator[TensorShape]:
    yield _tensor(unit, f"{name}.weight", size)
    if model.norm == "layernorm":
        yield _tensor(unit, f"{name}.bias", size)


def _tensor(unit: str, name: str, *shape: int, role: Role = "hidden") -> TensorShape:
    return TensorShape(name=f"{unit}.{name}", shape=shape, unit=unit, role=role)
