"""Model states, the ZeRO stage that shards each of them, and the rules by which tensors are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labkit.models import TensorShape

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


def is_sharded(component: str, zero: int) -> bool:
    """Whether ZeRO stage ``zero`` shards ``component``."""
    return zero >= SHARDED_FROM[component]


def shard_shapes(
    tensors: Sequence[TensorShape], *, num_ranks: int, rank: int = 0
) -> tuple[TensorShape, ...]:
    """What ``rank`` has of every tensor where chunks of ceil(rows/N) are dealt out, maybe no rows.

    The last ranks get less, or nothing: this is ``torch.chunk``'s rule, which FSDP2 follows.
    For states that depend on shapes: ``state_bytes(shard_shapes(...), recipe)``.

    >>> from labkit.models import Model
    >>> [t.shape for t in shard_shapes(Model.preset("tiny-gpt").tensors()[:2], num_ranks=4, rank=3)]
    [(62, 50), (6, 50)]
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank must be in 0..{num_ranks - 1}, got {rank}")
    shards = []
    for tensor in tensors:
        rows, *rest = tensor.shape
        chunk = -(-rows // num_ranks)
        held = max(0, min(chunk, rows - rank * chunk))
        shards.append(replace(tensor, shape=(held, *rest)))
    return tuple(shards)


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
