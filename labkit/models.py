"""Transformer shapes: which tensors a model has, and so how many parameters.

The presets stand in ``data/models.yaml``, each with its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

from labkit import files
from labkit.errors import BadFile, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """One parameter tensor: its name, its shape, and the unit it belongs to.

    A unit is what FSDP gathers at once; tied models keep embedding and head in one, the root.
    """

    name: str
    shape: tuple[int, ...]
    unit: str

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer, described by its sizes.

    ``ffn`` defaults to 4 × hidden and ``kv_heads`` to ``heads``; ``positions`` is the number of
    learnt position embeddings (0 for rotary); ``tied`` shares the embedding with the head.

    >>> Model.preset("gpt2-124m").num_params
    124439808
    """

    name: str = "custom"
    num_layers: int
    hidden: int
    heads: int
    vocab: int
    positions: int = 0
    ffn: int = 0
    kv_heads: int = 0
    tied: bool = True
    bias: bool = True
    mlp: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ffn", self.ffn or 4 * self.hidden)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        for name in ("num_layers", "hidden", "heads", "vocab", "ffn", "kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.positions < 0:
            raise ValueError(f"positions must be >= 0, got {self.positions}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must divide by heads ({self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must divide by kv_heads ({self.kv_heads})")

    @classmethod
    def preset(cls, name: str) -> Model:
        """A model of ``data/models.yaml``.

        Raises:
            UsageError: there is none of that name; the message lists those there are.
        """
        known = presets()
        if name not in known:
            raise UsageError(f"no model {name!r}; there are: {', '.join(known)}")
        return known[name]

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def num_params(self) -> int:
        return _count(self)

    @property
    def largest_unit_params(self) -> int:
        """Parameters of the largest unit: what stage 3 must hold whole at least once a layer."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors():
            sizes[tensor.unit] = sizes.get(tensor.unit, 0) + tensor.numel
        return max(sizes.values())

    def tensors(self) -> tuple[TensorShape, ...]:
        """Every parameter tensor in the order of the forward pass; linear weights are (out, in)."""
        return _tensors(self)

    def _build(self) -> tuple[TensorShape, ...]:
        first, last = ("root", "root") if self.tied else ("embedding", "head")
        found = [_tensor(first, "token", self.vocab, self.hidden)]
        if self.positions:
            found.append(_tensor(first, "position", self.positions, self.hidden))
        for layer in range(self.num_layers):
            found.extend(self._block(f"block{layer}"))
        found.extend(self._norm(last, "norm"))
        if not self.tied:
            found.append(_tensor(last, "output", self.vocab, self.hidden))
        return tuple(found)

    def _block(self, unit: str) -> Iterator[TensorShape]:
        yield from self._norm(unit, "norm1")
        yield from self._linear(unit, "qkv", self.hidden + 2 * self.kv_size, self.hidden)
        yield from self._linear(unit, "out", self.hidden, self.hidden)
        yield from self._norm(unit, "norm2")
        if self.mlp == "swiglu":
            yield from self._linear(unit, "gate", self.ffn, self.hidden)
        yield from self._linear(unit, "up", self.ffn, self.hidden)
        yield from self._linear(unit, "down", self.hidden, self.ffn)

    def _linear(self, unit: str, name: str, rows: int, columns: int) -> Iterator[TensorShape]:
        yield _tensor(unit, f"{name}.weight", rows, columns)
        if self.bias:
            yield _tensor(unit, f"{name}.bias", rows)

    def _norm(self, unit: str, name: str) -> Iterator[TensorShape]:
        yield _tensor(unit, f"{name}.weight", self.hidden)
        if self.norm == "layernorm":
            yield _tensor(unit, f"{name}.bias", self.hidden)


def _tensor(unit: str, name: str, *shape: int) -> TensorShape:
    return TensorShape(name=f"{unit}.{name}", shape=shape, unit=unit)


# A plan asks for these many times over; a model never changes.
@lru_cache(maxsize=64)
def _tensors(model: Model) -> tuple[TensorShape, ...]:
    return model._build()


@lru_cache(maxsize=1024)
def _count(model: Model) -> int:
    return sum(tensor.numel for tensor in _tensors(model))


def presets() -> dict[str, Model]:
    """The models of ``data/models.yaml`` by name."""
    return _presets(files.project_root() / "data" / "models.yaml")


@cache
def _presets(path: Path) -> dict[str, Model]:
    tree = files.load_yaml(path)
    return {name: _model(path, tree, name) for name in tree}


def _model(path: Path, tree: Any, name: str) -> Model:
    known = [field.name for field in fields(Model) if field.name != "name"]
    line = files.line_of(tree, (name,))
    for field in tree[name]:
        if field not in known:
            raise BadFile(
                path, f"unknown size of {name}", line=line, field=field, valid=", ".join(known)
            )
    try:
        return Model(name=name, **tree[name])
    except (TypeError, ValueError) as error:
        raise BadFile(path, f"{name}: {error}", line=line) from None
