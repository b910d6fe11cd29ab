"""Parameter tensors and what they are gathered in; which part of a model a rank holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from labkit.kit.describe import Count, Whole, description

Role = Literal["hidden", "embedding", "head", "router", "expert"]

TUNERS = (".lora_", ".ia3_l.", "prompt_encoder.")
"""Parts of the names that peft gives matrices, factors and virtual tokens beside a base."""
COPIES = ".modules_to_save."
"""The part of a name that peft gives a trained copy of a base's own module."""
BESIDE = (*TUNERS, COPIES)


@description(slots=True)
class TensorShape:
    """One parameter tensor: its name, its shape, and the unit it belongs to.

    A unit is what FSDP gathers at once; tied models keep embedding and head in one, the root.
    ``role`` tells apart what some optimizers and layouts treat differently: embeddings, the output
    head, an expert layer's router, and the routed experts. One that is not ``trained`` has neither
    gradients nor optimizer states. ``dropout``: it is an adapter's, whose input goes through that.
    """

    name: str
    shape: tuple[Whole, ...]
    unit: str
    role: Role = "hidden"
    trained: bool = True
    dropout: bool = False

    @property
    def is_beside(self) -> bool:
        """Whether it was put beside a base: an adapter's matrix, a copy of a module, a prompt."""
        return any(part in self.name for part in BESIDE)

    @property
    def numel(self) -> int:
        """How many elements the tensor has."""
        return prod(self.shape)

    @property
    def is_hidden_matrix(self) -> bool:
        """Whether this is a matrix inside a layer: what Muon updates."""
        return len(self.shape) == 2 and self.role in {"hidden", "expert"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Tensors that are gathered together, and how many units of the model are just like this.

    ``name`` is one of ``root``, ``embedding``, ``block``, ``expert block`` and ``head``; the
    tensors' own ``unit`` is that of the first such unit.
    """

    name: str
    count: int
    tensors: tuple[TensorShape, ...]
    numel: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numel", sum(tensor.numel for tensor in self.tensors))


@description(slots=True)
class Cut:
    """Says which part of the model is meant.

    It is a range of layers, with or without the ends, 1/tp wide, with 1/ep of the routed experts in
    each expert layer.
    """

    tp: Count = 1
    ep: Count = 1
    first_layer: Whole = 0
    end_layer: Whole
    embedding: bool = True
    head: bool = True


def by_unit(tensors: Iterable[TensorShape]) -> dict[str, tuple[TensorShape, ...]]:
    """Sort tensors by the unit they belong to, in the order they come."""
    members: dict[str, list[TensorShape]] = {}
    for tensor in tensors:
        members.setdefault(tensor.unit, []).append(tensor)
    return {unit: tuple(parts) for unit, parts in members.items()}
