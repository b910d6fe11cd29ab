"""The parameters of a rank from the sizes: how many, how many tensors, how large each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from labkit.memory.tape.shapes import Shape, get, has_bias, is_fused, num_dense
from labkit.memory.tape.sizes import Numbers, units
from labkit.memory.tape.tape import UNITS

WHOLE = Numbers(seq=1, micro_batch=1)  # nothing is cut


class Tensors(NamedTuple):
    """Elements of each trained tensor in order: before the layers, of one layer of either kind,
    after them. A layer's experts are stacked."""

    first: list[Any]
    dense: list[Any]
    routed: list[Any]
    last: list[Any]


def tensors(shape: Shape, numbers: Numbers) -> Tensors:
    """A router's correction (``router_bias``) is not among them: it is kept with the buffers."""
    value = dict(zip(UNITS, units(shape, numbers), strict=True))
    norm = [value["h"]] * (1 if shape.norm == "rmsnorm" else 2)
    attention = [*norm, *_attention(shape, value), *norm]
    inward = (2 if shape.mlp == "swiglu" else 1) * _linear(value["h·f"], value["f"], shape, "mlp")
    dense = [*attention, *inward, *_linear(value["h·f"], value["h"], shape, "mlp")]
    routed: list[Any] = []
    if get(shape, "num_experts"):
        shared = 3 * [value["h·m"]] if shape.shared_experts else []
        routed = [*attention, value["h·x"], *3 * [value["y·h·g"]], *shared]
    positions = [value["h·p"]] if np.any(np.asarray(shape.positions) > 0) else []
    head = [] if shape.tied else [value["h·v"]]
    return Tensors([value["h·v"], *positions], dense, routed, [*norm, *head])


def _attention(shape: Shape, value: dict[str, Any]) -> list[Any]:
    out = _linear(value["h·w" if get(shape, "kv_rank") else "h·q"], value["h"], shape, "out")
    if get(shape, "kv_rank"):
        query = [value["h·q"]]
        if shape.q_rank:
            query = [*_linear(value["h·i"], value["i"], shape, "qkv"), value["i"], value["i·q"]]
        down = _linear(value["h·j"], value["j"], shape, "qkv")
        return [*query, *down, value["l"], value["l·z"], *out]
    norms = 2 * [value["d"]] if get(shape, "qk_norm") else []
    wide, narrow = (value["h·q"], value["q"]), (value["h·k"], value["k"])
    if is_fused(shape):
        both = _linear(wide[0] + 2 * narrow[0], wide[1] + 2 * narrow[1], shape, "qkv")
        return [*both, *norms, *out]
    each = [*_linear(*wide, shape, "qkv"), *2 * _linear(*narrow, shape, "qkv")]
    return [*each, *norms, *out]


def _linear(weight: Any, shift: Any, shape: Shape, where: str) -> list[Any]:
    return [weight, shift] if has_bias(shape, where) else [weight]


def num_params(shape: Shape, numbers: Numbers = WHOLE) -> Any:
    """Parameters that gradients train."""
    return over_layers(shape, tensors(shape, numbers), sum)


def num_tensors(shape: Shape) -> Any:
    """Parameter tensors, each of which has a step counter in AdamW."""
    return over_layers(shape, tensors(shape, WHOLE), len)


def over_layers(shape: Shape, parts: Tensors, of: Callable[[list[Any]], Any]) -> Any:
    """What ``of`` (``sum``, ``len``) says of all tensors."""
    first, dense, routed, last = map(of, parts)
    number = num_dense(shape)
    return first + number * dense + (shape.num_layers - number) * routed + last


def num_corrections(shape: Shape) -> Any:
    """Numbers that correct routers' choices, in all layers."""
    if not get(shape, "router_bias"):
        return 0
    return (shape.num_layers - num_dense(shape)) * shape.num_experts


def sizes(shape: Shape, numbers: Numbers) -> list[Any]:
    """Elements of the parameters in their order, two layers of each kind (the second shows what
    follows the first)."""
    parts, dense = tensors(shape, numbers), num_dense(shape)
    layers = 2 * parts.dense if np.any(np.asarray(dense) > 0) else []
    if np.any(np.asarray(shape.num_layers - dense) > 0):
        layers = [*layers, *2 * parts.routed]
    return [*parts.first, *layers, *parts.last]
