"""A model measured from a torch module: its tensors always, its sizes where recognised.

Recognising is cautious: a guess stands only if a model of those sizes has the same number of
parameters in every layer and outside the layers. torch is never imported here: a module says all
that is needed through its own methods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.models import huggingface
from labkit.models.layout import whole
from labkit.models.sizes import Sizes
from labkit.models.tensors import Role, TensorShape, by_unit

if TYPE_CHECKING:
    from torch import nn

_LAYER = re.compile(r"^(?P<stack>.*?)\.?(?P<layer>\d+)\.")
_HEADS = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")


def read(module: nn.Module, name: str = "") -> dict[str, Any]:
    """Read the fields of a model that has the module's own tensors, shared ones once.

    Sizes are those of the base where peft put adapters into a module.

    Args:
        module: a torch module.
        name: what the model is called; the module's class where it is empty.

    Raises:
        UsageError: the module has no parameters.
    """
    tensors = tuple(_tensors(module))
    if not tensors:
        raise UsageError(f"{type(module).__name__} has no parameters to measure")
    measured = {"name": name or type(module).__name__, "layout": tensors}
    source = f"measured from a {type(module).__name__}"
    base = tuple(tensor for tensor in tensors if not tensor.is_beside)
    sizes = _from_config(module, base) or _from_structure(module, base)
    if sizes is None:
        return measured | {"source": f"{source}: states only"}
    known = {field.name: getattr(sizes, field.name) for field in fields(Sizes)}
    source = "; ".join(filter(None, (source, sizes.source)))
    return known | measured | {"source": source}


def _tensors(module: nn.Module) -> Iterator[TensorShape]:
    """List the module's parameters; layers of a stack are units, the rest is the root."""
    roles = _roles(module)
    dropped = _dropped(module)
    for name, parameter in module.named_parameters():
        layer = _LAYER.match(name)
        unit = f"{layer['stack']}.{layer['layer']}".lstrip(".") if layer else "root"
        role = roles.get(name, "hidden")
        yield TensorShape(
            name=name,
            shape=tuple(parameter.shape),
            unit=unit,
            role=role,
            trained=parameter.requires_grad,
            dropout=name.partition(".lora_")[0] in dropped,
        )


def _dropped(module: nn.Module) -> set[str]:
    """Name the projections whose adapters have dropout."""
    return {
        name.partition(".lora_dropout")[0]
        for name, inner in module.named_modules()
        if ".lora_dropout." in name and float(getattr(inner, "p", False))
    }


def _roles(module: nn.Module) -> dict[str, Role]:
    """Tell embeddings by their modules' kind; the head is the last matrix as high as the
    vocabulary.
    """
    roles: dict[str, Role] = {}
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    for name, inner in module.named_modules():
        if type(inner).__name__ == "Embedding":
            roles[f"{name}.weight".lstrip(".")] = "embedding"
    tables = [shapes[name] for name in roles if name in shapes]
    rest = [name for name in shapes if name not in roles and not _LAYER.match(name)]
    for name in rest:
        if tables and shapes[name] == max(tables):
            roles[name] = "head"
        elif not tables and len(shapes[name]) == 2:
            roles[name] = "embedding"
    return roles


def _from_config(module: nn.Module, tensors: tuple[TensorShape, ...]) -> Sizes | None:
    """Read sizes from the configuration that transformers' modules carry; None where it does not
    fit.
    """
    config = getattr(module, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        return None
    try:
        described = Sizes(**huggingface.read(config.to_dict()))  # type: ignore[union-attr]
    except UsageError:
        return None  # not among the known kinds: its structure may still be recognised
    total = sum(tensor.numel for tensor in tensors)
    untrained = described.num_experts * (described.num_layers - described.num_dense_layers)
    every = sum(unit.count * unit.numel for unit in whole(described))
    exact = every - (untrained if described.router_bias else 0)
    return described if total in {exact, every} else None


def _from_structure(module: nn.Module, tensors: tuple[TensorShape, ...]) -> Sizes | None:
    """Infer sizes from what a stack of equal layers and the matrices around it tell."""
    layers = [members for unit, members in by_unit(tensors).items() if unit != "root"]
    roots = [tensor for tensor in tensors if tensor.unit == "root"]
    tables = [tensor.shape for tensor in roots if len(tensor.shape) == 2]
    shapes = {tuple(tensor.shape for tensor in members) for members in layers}
    if not layers or not tables or len(shapes) != 1:
        return None
    vocab, hidden = max(tables)
    if any(shape[1] != hidden for shape in tables):
        return None
    heads = _attribute(module, _HEADS)
    if heads is None or heads < 1 or hidden % heads:
        return None
    keys = (_attribute(module, _KV_HEADS) or heads) * (hidden // heads)
    wide = hidden + 2 * keys
    sizes = {
        "fused_qkv": any(wide in tensor.shape for tensor in layers[0]),
        "num_layers": len(layers),
        "hidden": hidden,
        "heads": heads,
        "vocab": vocab,
        "kv_heads": _attribute(module, _KV_HEADS) or heads,
        "positions": sum(rows for rows, _ in tables if rows != vocab),
        "tied": sum(rows == vocab for rows, _ in tables) == 1,
    }
    for guess in _guesses(sizes, layers[0]):
        if _agrees(guess, layers[0], roots):
            return guess
    return None


def _guesses(sizes: dict[str, Any], layer: tuple[TensorShape, ...]) -> Iterator[Sizes]:
    """Guess models of these sizes with every kind of MLP, norm and bias, as wide as any side there
    is.
    """
    total = sum(tensor.numel for tensor in layer)
    widths = sorted({side for tensor in layer for side in tensor.shape})
    kinds = product((("gelu", 2), ("swiglu", 3)), ("layernorm", "rmsnorm"), (True, False), widths)
    for (mlp, matrices), norm, bias, width in kinds:
        if matrices * sizes["hidden"] * width < total:
            rest: dict[str, Any] = {"ffn": width, "mlp": mlp, "norm": norm, "bias": bias}
            yield Sizes(**sizes, **rest)


def _agrees(guess: Sizes, layer: tuple[TensorShape, ...], roots: list[TensorShape]) -> bool:
    """Tell whether the guess has a layer of the same content, and as much around it."""
    units = {unit.name: unit for unit in whole(guess)}
    block = units.pop("block")
    around = sum(unit.numel for unit in units.values())
    return _content(block.tensors) == _content(layer) and around == sum(
        tensor.numel for tensor in roots
    )


def _content(tensors: tuple[TensorShape, ...]) -> tuple[int, int]:
    """Count elements in matrices, and in vectors: the same however matrices are fused or
    transposed.
    """
    matrices = sum(tensor.numel for tensor in tensors if len(tensor.shape) > 1)
    return matrices, sum(tensor.numel for tensor in tensors) - matrices


def _attribute(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """Find the one value that the inner modules give one of these attributes."""
    for name in names:
        values = Counter(
            value for inner in module.modules() if type(value := getattr(inner, name, None)) is int
        )
        if len(values) == 1:
            return next(iter(values))
    return None
