"""Tensors as a few bits a value and a scale a block: what low-precision collectives send.

    value ≈ code × scale of its block,    scale = largest |value| of the block / (2^(bits − 1) − 1)

Loads torch where it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from labkit.errors import BadValue

if TYPE_CHECKING:
    from torch import Tensor

Bits = Literal[4, 8]


def pack(values: Tensor, *, bits: Bits = 8, block: int = 256) -> Tensor:
    """``values`` as bytes: a 16-bit scale a block, then codes of ``bits`` bits, block by block.

    Symmetric around zero; half steps round to even. Scales round up to bfloat16, so that no code
    is out of range. A last block that is not full counts as full of zeros.

    Raises:
        BadValue: ``bits`` is neither 4 nor 8, or ``block`` is not even and positive.

    >>> import torch
    >>> len(pack(torch.ones(512), bits=4, block=256))  # half a byte a value, two bytes a block
    260
    """
    import torch

    _check(bits, block)
    codes, scales = _coded(values, bits, block)
    codes = codes.to(torch.int8).flatten()
    if bits == 4:
        codes = (codes[::2] & 15) | (codes[1::2] << 4)
    return torch.cat([scales.flatten().view(torch.uint8), codes.view(torch.uint8)])


def unpack(packed: Tensor, size: int, *, bits: Bits = 8, block: int = 256) -> Tensor:
    """The ``size`` values that :func:`pack` was given, as near as their codes say.

    Raises:
        BadValue: as :func:`pack`, or ``packed`` has another length than ``size`` values take.

    >>> import torch
    >>> unpack(pack(torch.tensor([1.0, -0.5]), block=2), 2, block=2).round(decimals=2).tolist()
    [1.0, -0.5]
    """
    import torch

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
    """``values`` as they arrive, packed and unpacked, in their own shape; no bytes are made."""
    _check(bits, block)
    codes, scales = _coded(values, bits, min(block, max(values.numel(), 1)))  # fewer zeros to pad
    return codes.mul_(scales.float()).flatten()[: values.numel()].view_as(values)


def _coded(values: Tensor, bits: Bits, block: int) -> tuple[Tensor, Tensor]:
    """Whole numbers block by block, and the scale of each block."""
    import torch

    flat = values.detach().flatten().float()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    top = 2 ** (bits - 1) - 1
    scales = (blocks.abs().amax(1, keepdim=True) / top * (1 + 2**-8)).bfloat16()
    steps = scales.float().where(scales > 0, torch.ones(()))
    return (blocks / steps).round_().clamp_(-top, top), scales


def ring_sum(gradients: Tensor, *, bits: Bits = 4, block: int = 256) -> Tensor:
    """The sum over the first axis as a ring of low-precision messages has it: a part is rounded
    again at each of its n − 1 hops."""
    import torch

    num_ranks = len(gradients)
    parts = []
    for part, of_ranks in enumerate(zip(*(g.chunk(num_ranks) for g in gradients), strict=True)):
        total = of_ranks[part]
        for hop in range(1, num_ranks):
            total = rounded(total, bits=bits, block=block) + of_ranks[(part + hop) % num_ranks]
        parts.append(total)
    return torch.cat(parts)


def two_hop_sum(gradients: Tensor, nodes: int, *, bits: Bits = 4, block: int = 256) -> Tensor:
    """The same by all-to-alls, first in ``nodes`` nodes and then between them (ZeRO++'s qgZ): a
    part is rounded twice, and added in full precision."""
    num_ranks, size = gradients.shape
    if num_ranks % nodes or size % num_ranks:
        raise BadValue(
            f"{size} values must divide among {num_ranks} ranks, and these by {nodes} nodes"
        )
    # Sender's node and place in it; receiver's node and place; the receiver's values.
    cut = gradients.view(nodes, num_ranks // nodes, nodes, num_ranks // nodes, -1)
    messages = cut.movedim(2, 3).flatten(0, 2).flatten(1)  # of a hop in the node, one a row
    arrived = _each(messages, bits, block).view(
        nodes, num_ranks // nodes, num_ranks // nodes, nodes, -1
    )
    sums = arrived.sum(1)  # by node, place and the receiver's node
    arrived = _each(sums.flatten(0, 2), bits, block).view_as(sums)
    return arrived.sum(0).movedim(1, 0).flatten()


def _each(messages: Tensor, bits: Bits, block: int) -> Tensor:
    """Every row rounded as a message of its own."""
    from torch.nn.functional import pad

    size = messages.shape[1]
    return rounded(pad(messages, (0, -size % block)), bits=bits, block=block)[:, :size]
