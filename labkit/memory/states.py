"""Model states: what parameters, gradients and optimizer states cost each data-parallel rank.

Two counts stand side by side. The papers' arithmetic divides by the number of ranks and is exact
only where everything divides evenly (:func:`even_states`). The shards that implementations store
are whole elements of whole tensors (:func:`shard_elements`), and that is what a rank allocates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labkit.models import TensorShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

Stage = Literal[0, 1, 2, 3]
Sharding = Literal["even", "flat", "dim0", "tensor"]

STAGE_NAMES: dict[int, str] = {0: "Baseline DP", 1: "Pos", 2: "Pos+g", 3: "Pos+g+p"}
COMPONENTS = ("parameters", "gradients", "optimizer")
# The first ZeRO stage that shards each component.
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}

SHARDINGS: dict[str, str] = {
    "even": "Ψ/N of every state, as the papers count (exact only where all divides evenly)",
    "flat": "one flat buffer cut into N slices of ceil(Ψ/N) elements (ZeRO §5.1, DeepSpeed)",
    "dim0": "ceil(d0/N) rows of every tensor, padded (PyTorch FSDP2)",
    "tensor": "whole tensors, largest first to the emptiest rank (PyTorch ZeroRedundancyOptimizer)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Bytes that one parameter costs, by what they hold.

    ``optimizer`` names each state the optimizer keeps; its sum is the paper's K, which counts the
    fp32 master copy among the optimizer states. ``sent_parameter_bytes`` and
    ``sent_gradient_bytes`` are what one parameter costs on the wire where that is not what it costs
    in memory (quantised, or one of several copies). Source: ZeRO §3.1.

    >>> Recipe.mixed_adam().optimizer_bytes, Recipe.mixed_adam().bytes_per_param
    (12, 16)
    """

    name: str
    parameter_bytes: int = 2
    gradient_bytes: int = 2
    optimizer: tuple[tuple[str, int], ...] = (("master", 4), ("momentum", 4), ("variance", 4))
    sent_parameter_bytes: float | None = None
    sent_gradient_bytes: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        sizes = (self.parameter_bytes, self.gradient_bytes, *(size for _, size in self.optimizer))
        if self.parameter_bytes < 1 or min(sizes) < 0:
            raise ValueError(f"bytes must not be negative, got {sizes} in recipe {self.name!r}")

    @classmethod
    def mixed_adam(cls) -> Recipe:
        """fp16 or bf16 parameters and gradients, fp32 master, momentum and variance: 16 bytes."""
        return cls(name="mixed-precision Adam", source="ZeRO §3.1")

    @classmethod
    def fp32_adam(cls) -> Recipe:
        """Everything fp32, no master copy: also 16 bytes, and what FSDP2 keeps in shards."""
        states = (("momentum", 4), ("variance", 4))
        return cls(name="fp32 Adam", parameter_bytes=4, gradient_bytes=4, optimizer=states)

    @classmethod
    def mixed_adam_fp32_gradients(cls) -> Recipe:
        """As :meth:`mixed_adam`, gradients accumulated in fp32: 18 bytes."""
        return cls(
            name="mixed-precision Adam, fp32 gradients",
            gradient_bytes=4,
            source="Megatron-LM, distributed optimizer (18 bytes; 6 + 12/d sharded)",
        )

    @classmethod
    def mixed_adam_two_gradients(cls) -> Recipe:
        """As :meth:`mixed_adam` with an fp16 and an fp32 copy of the gradients: 20 bytes."""
        return cls(
            name="mixed-precision Adam, two copies of the gradients",
            gradient_bytes=6,
            sent_gradient_bytes=2,
        )

    @classmethod
    def mixed_adam_quantised(cls) -> Recipe:
        """As :meth:`mixed_adam`, but int8 weights and int4 gradients on the wire (qwZ, qgZ)."""
        return cls(
            name="mixed-precision Adam, quantised collectives",
            sent_parameter_bytes=1,
            sent_gradient_bytes=0.5,
            source="ZeRO++ §3",
        )

    @classmethod
    def mixed_sgd(cls, *, momentum: bool = True) -> Recipe:
        """Mixed precision with SGD: K = 8 with momentum, 4 without."""
        states = (("master", 4), ("momentum", 4)) if momentum else (("master", 4),)
        return cls(name="mixed-precision SGD", optimizer=states)

    @property
    def scales(self) -> tuple[float, float]:
        """What is sent over what is held, of parameters and of gradients."""
        sent = (self.sent_parameter_bytes, self.sent_gradient_bytes)
        held = (self.parameter_bytes, self.gradient_bytes)
        parameters, gradients = (
            1.0 if wire is None or not kept else wire / kept
            for wire, kept in zip(sent, held, strict=True)
        )
        return parameters, gradients

    @property
    def optimizer_bytes(self) -> int:
        """The paper's K."""
        return sum(size for _, size in self.optimizer)

    @property
    def bytes_per_param(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def bytes_of(self, component: str) -> int:
        return {
            "parameters": self.parameter_bytes,
            "gradients": self.gradient_bytes,
            "optimizer": self.optimizer_bytes,
        }[component]


def is_sharded(component: str, zero: int) -> bool:
    """Whether ZeRO stage ``zero`` shards ``component``."""
    return zero >= SHARDED_FROM[component]


def even_states(num_params: Any, *, dp: Any, zero: int, recipe: Recipe) -> dict[str, Any]:
    """Bytes a rank holds of each component, everything dividing evenly.

    ``num_params`` (Ψ) and ``dp`` (N_d) may be arrays that broadcast. Source: ZeRO §5, Fig. 1.

    >>> states = even_states(7.5e9, dp=64, zero=2, recipe=Recipe.mixed_adam())
    >>> sum(states.values()) / 1e9
    16.640625
    """
    return {
        component: recipe.bytes_of(component)
        * num_params
        / (dp if is_sharded(component, zero) else 1)
        for component in COMPONENTS
    }


def rows_on_rank(rows: int, num_ranks: int, rank: int) -> tuple[int, int]:
    """The half-open range of rows that ``rank`` holds when chunks of ceil(rows/N) are dealt out.

    The last ranks get less, or nothing: this is ``torch.chunk``'s rule, which FSDP2 follows.

    >>> [rows_on_rank(50, 4, rank) for rank in range(4)]
    [(0, 13), (13, 26), (26, 39), (39, 50)]
    >>> rows_on_rank(5, 4, 3)
    (5, 5)
    """
    chunk = -(-rows // num_ranks)
    return min(rank * chunk, rows), min((rank + 1) * chunk, rows)


def owners(tensors: Sequence[TensorShape], num_ranks: int) -> tuple[int, ...]:
    """The rank that owns each whole tensor: largest first, to the rank with the least so far.

    Ties keep the tensors' order and go to the lowest rank. Source: the rule documented for
    PyTorch's ``ZeroRedundancyOptimizer`` ("sorted-greedy").
    """
    load = [0] * num_ranks
    owner = [0] * len(tensors)
    for index in sorted(range(len(tensors)), key=lambda i: -tensors[i].numel):
        owner[index] = load.index(min(load))
        load[owner[index]] += tensors[index].numel
    return tuple(owner)


def shard_elements(
    tensors: Sequence[TensorShape], *, num_ranks: int, sharding: Sharding
) -> NDArray[np.int64]:
    """Elements of the model on each rank (length ``num_ranks``), padding left out; sums to Ψ.

    ``even`` has no whole elements to give out, so it is refused.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be >= 1, got {num_ranks}")
    ranks = np.arange(num_ranks, dtype=np.int64)
    if sharding == "flat":
        return _chunks(sum(tensor.numel for tensor in tensors), ranks)
    if sharding == "dim0":
        held = np.zeros(num_ranks, dtype=np.int64)
        for tensor in tensors:
            held += _chunks(tensor.shape[0], ranks) * (tensor.numel // tensor.shape[0])
        return held
    if sharding == "tensor":
        sizes = [tensor.numel for tensor in tensors]
        return np.bincount(owners(tensors, num_ranks), sizes, num_ranks).astype(np.int64)
    raise ValueError(f"sharding must be flat, dim0 or tensor, got {sharding!r}")


def _chunks(rows: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    chunk = -(-rows // len(ranks))
    return np.clip(rows - ranks * chunk, 0, chunk)


def stored_elements(tensors: Sequence[TensorShape], *, num_ranks: int, sharding: Sharding) -> int:
    """Elements that the fullest rank allocates for its shard, padding included.

    Under ``dim0`` this is Σ ceil(d0/N)·rest, and every rank allocates it; it never falls below one
    row of every tensor however many ranks there are. O(tensors), whatever ``num_ranks``.

    >>> from labkit.models import Model
    >>> tensors = Model.preset("gpt2-1.5b").tensors()
    >>> round(stored_elements(tensors, num_ranks=1024, sharding="dim0") * 1024 / 1557611200, 3)
    1.165
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be >= 1, got {num_ranks}")
    if sharding == "dim0":
        return sum(
            -(-tensor.shape[0] // num_ranks) * (tensor.numel // tensor.shape[0])
            for tensor in tensors
        )
    if sharding == "flat":
        return -(-sum(tensor.numel for tensor in tensors) // num_ranks)
    return int(shard_elements(tensors, num_ranks=num_ranks, sharding=sharding).max())
