"""Tensors as a few bits a value and a scale a block, and the sums that such messages give.

    value ≈ code × scale of its block,    scale = largest |value| of the block / (2^(bits − 1) − 1)

Gradients are added up in two ways: by a ring, and by the paper's two hops.

Source: ZeRO++ §3.1 (qwZ) and §3.3 (qgZ).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from labkit.errors import BadValue

Bits = Literal[4, 8]


def pack(values: Tensor, *, bits: Bits = 8, block: int = 256) -> Tensor:
    """``values`` as bytes: a 16-bit scale a block, then codes of ``bits`` bits, block by block.

    Codes are symmetric around zero, and half steps round to even. Scales round up to bfloat16, so
    that no code is out of range. A last block that is not full counts as full of zeros.

    Args:
        bits: of a code, 4 or 8.
        block: values that share a scale, an even number.

    Raises:
        BadValue: ``bits`` is neither 4 nor 8, or ``block`` is not even and positive.

    Source: ZeRO++ §3.1 (blocked quantisation).

    >>> len(pack(torch.ones(512), bits=4, block=256))  # half a byte a value, two bytes a block
    260
    """
    _check(bits, block)
    codes, scales = _coded(values, bits, block)
    codes = codes.to(torch.int8).flatten()
    if bits == 4:
        codes = (codes[::2] & 15) | (codes[1::2] << 4)
    return torch.cat([scales.flatten().view(torch.uint8), codes.view(torch.uint8)])


def unpack(packed: Tensor, size: int, *, bits: Bits = 8, block: int = 256) -> Tensor:
    """The ``size`` values that :func:`pack` was given, as near as their codes say.

    Args:
        packed, bits, block: what :func:`pack` made, with the same settings.
        size: number of values.

    Raises:
        BadValue: as :func:`pack`, or ``packed`` has another length than ``size`` values take.

    >>> unpack(pack(torch.tensor([1.0, -0.5]), block=2), 2, block=2).round(decimals=2).tolist()
    [1.0, -0.5]
    """
    _check(bits, block)
    num_blocks = -(-size // block)
    num_codes = num_blocks * block * bits // 8
    if len(packed) != num_codes + 2 * num_blocks:
        raise BadValue(
            f"packed must have {num_codes + 2 * num_blocks} bytes for {size} values of {bits} bits"
            f" in blocks of {block}, got {len(packed)}"
        )
    scales = packed[: 2 * num_blocks].view(torch.bfloat16)
    codes = packed[2 * num_blocks :].view(torch.int8)
    if bits == 4:
        low = (codes << 4) >> 4
        high = codes >> 4  # shifts of int8 keep the sign
        codes = torch.stack([low, high], 1).flatten()
    return (codes.view(-1, block) * scales.float().unsqueeze(1)).flatten()[:size]


def _check(bits: int, block: int) -> None:
    if bits not in (4, 8):
        raise BadValue(f"bits must be 4 or 8, got {bits}")
    if block < 2 or block % 2:
        raise BadValue(f"block must be even and at least 2, got {block}")


def rounded(values: Tensor, *, bits: Bits = 8, block: int = 256) -> Tensor:
    """``values`` as they arrive, packed and unpacked, in their own shape; no bytes are made.

    Args:
        bits, block: as :func:`pack` takes them.
    """
    _check(bits, block)
    codes, scales = _coded(values, bits, min(block, max(values.numel(), 1)))  # fewer zeros to pad
    return codes.mul_(scales.float()).flatten()[: values.numel()].view_as(values)


def _coded(values: Tensor, bits: Bits, block: int) -> tuple[Tensor, Tensor]:
    """Whole numbers block by block, and the scale of each block."""
    flat = values.detach().flatten().float()
    blocks = functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    top = 2 ** (bits - 1) - 1
    scales = (blocks.abs().amax(1, keepdim=True) / top * (1 + 2**-8)).bfloat16()
    steps = scales.float().where(scales > 0, torch.ones(()))
    return (blocks / steps).round_().clamp_(-top, top), scales


def ring_sum(gradients: Tensor, *, bits: Bits = 4, block: int = 256) -> Tensor:
    """The sum over ranks as a ring of quantised messages has it.

    A part of the sum is rounded again at each of its n − 1 hops.

    Args:
        gradients: ranks × values.
        bits, block: as :func:`pack` takes them.
    """
    num_ranks = len(gradients)
    parts = []
    for part, of_ranks in enumerate(zip(*(g.chunk(num_ranks) for g in gradients), strict=True)):
        total = of_ranks[part]
        for hop in range(1, num_ranks):
            total = rounded(total, bits=bits, block=block) + of_ranks[(part + hop) % num_ranks]
        parts.append(total)
    return torch.cat(parts)


def two_hop_sum(gradients: Tensor, nodes: int, *, bits: Bits = 4, block: int = 256) -> Tensor:
    """The sum over ranks by two quantised all-to-alls, in each node and then between nodes (qgZ).

    A part of the sum is rounded twice, and added in full precision.

    Args:
        gradients: ranks × values; ranks of a node stand together.
        nodes: number of nodes, which divide the ranks.
        bits, block: as :func:`pack` takes them.

    Raises:
        BadValue: the nodes do not divide the ranks, or these the values.

    Source: ZeRO++ §3.3.
    """
    num_ranks, size = gradients.shape
    if num_ranks % nodes or size % num_ranks:
        raise BadValue(
            f"{size} values must divide among {num_ranks} ranks, and these by {nodes} nodes"
        )
    per_node = num_ranks // nodes
    # 1. A message for each receiver: sender's node and place, receiver's node and place, values.
    cut = gradients.view(nodes, per_node, nodes, per_node, -1)
    # 2. In a node each rank sends one message a place: what all nodes' ranks at that place want.
    messages = cut.movedim(2, 3).flatten(0, 2).flatten(1)
    arrived = _each_rounded(messages, bits, block).view(nodes, per_node, per_node, nodes, -1)
    sums = arrived.sum(1)  # by node, place and the receiver's node
    # 3. Between nodes each rank sends its sums to the ranks at its place.
    arrived = _each_rounded(sums.flatten(0, 2), bits, block).view_as(sums)
    return arrived.sum(0).movedim(1, 0).flatten()


def _each_rounded(messages: Tensor, bits: Bits, block: int) -> Tensor:
    """Every row rounded as a message of its own."""
    size = messages.shape[1]
    padded = functional.pad(messages, (0, -size % block))
    return rounded(padded, bits=bits, block=block)[:, :size]
