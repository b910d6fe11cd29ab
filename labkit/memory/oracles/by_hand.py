"""ZeRO's stages 1 and 2 written out, by either rule of cutting: what torch itself does not have.

Loads torch: only :mod:`labkit.memory.oracles.schemes` imports it. Parameters stay whole on every
rank; each rank updates its own part of them. At stage 2 a gradient is reduced as soon as it is
there, kept by the ranks that own it, and dropped by all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.memory.jobs.states import rows_on_rank
from labkit.memory.oracles.trainer import Adam, Run, Slice, Trainer


class Piece(NamedTuple):
    """Where a rank's slice of the flat buffer meets a parameter: offsets in both, and a length."""

    owner: int
    in_parameter: int
    in_slice: int
    size: int


class FlatSlices(Trainer):
    """Equal slices of one flat buffer, padded at its end (ZeRO §5.1, §5.2, §7.2.1)."""

    def __init__(self, network: nn.Module, run: Run, adam: Adam, *, stage: int) -> None:
        self.stage = stage
        self.group, self.rank, self.num_ranks = run.group, run.rank, run.num_ranks
        self.whole = list(network.parameters())
        self.size = -(-sum(p.numel() for p in self.whole) // self.num_ranks)
        self.flat = torch.zeros(self.size * self.num_ranks)
        # Stage 1 keeps all gradients until the step; stage 2 this rank's slice of them.
        self.kept = torch.zeros_like(self.flat) if stage == 1 else torch.zeros(self.size)
        self.start = self.rank * self.size
        for p, offset in self._offsets():
            part = self.flat[offset : offset + p.numel()]
            part.copy_(p.detach().flatten())
            p.data = part.view(p.shape)
            if stage == 1:
                p.grad = self.kept[offset : offset + p.numel()].view(p.shape)
            else:
                p.register_post_accumulate_grad_hook(self._reduce(offset))
        self.mine = nn.Parameter(self.flat[self.start : self.start + self.size])
        super().__init__(network, network, adam.over([self.mine]))

    def _offsets(self) -> Iterator[tuple[nn.Parameter, int]]:
        offset = 0
        for p in self.whole:
            yield p, offset
            offset += p.numel()

    def _reduce(self, offset: int) -> Any:
        """Send each piece of a gradient to the rank whose slice it belongs to."""

        def hook(p: Tensor) -> None:
            assert p.grad is not None
            gradient = p.grad.flatten()
            for piece in pieces(offset, p.numel(), self.size):
                part = gradient[piece.in_parameter : piece.in_parameter + piece.size].clone()
                dist.reduce(part, piece.owner, group=self.group)
                if piece.owner == self.rank:
                    self.kept[piece.in_slice : piece.in_slice + piece.size] += part
            p.grad = None

        return hook

    def zero_grad(self) -> None:
        self.kept.zero_()

    def step(self) -> None:
        if self.stage == 1:
            reduced = torch.empty(self.size)
            dist.reduce_scatter_single(reduced, self.kept, group=self.group)
        else:
            reduced = self.kept
        self.mine.grad = reduced / self.num_ranks
        self.optimizer.step()
        self.mine.grad = None
        dist.all_gather_single(self.flat, self.mine.detach().clone(), group=self.group)

    def gradients(self) -> list[Tensor]:
        return [self.kept]

    def slices(self) -> list[Slice]:
        """The rows this rank's slice touches; the first and last may be shared with a neighbour."""
        found, names = [], [name for name, _ in self.plain.named_parameters()]
        for name, (p, offset) in zip(names, self._offsets(), strict=True):
            width = p.numel() // p.shape[0]
            for piece in pieces(offset, p.numel(), self.size):
                if piece.owner == self.rank:
                    end = piece.in_parameter + piece.size
                    found.append((name, piece.in_parameter // width, -(-end // width)))
        return found


def pieces(offset: int, numel: int, size: int) -> Iterator[Piece]:
    """How ``numel`` elements from ``offset`` on fall into slices of ``size``.

    >>> [tuple(piece) for piece in pieces(5, 6, 4)]
    [(1, 0, 1, 3), (2, 3, 0, 3)]
    """
    at, end = offset, offset + numel
    while at < end:
        owner = at // size
        stop = min(end, (owner + 1) * size)
        yield Piece(owner, at - offset, at - owner * size, stop - at)
        at = stop


class RowSlices(Trainer):
    """ceil(d0/N) rows of every tensor, padded where they are sent: FSDP2's rule at lower stages."""

    def __init__(self, network: nn.Module, run: Run, adam: Adam, *, stage: int) -> None:
        self.stage = stage
        self.group, self.rank, self.num_ranks = run.group, run.rank, run.num_ranks
        self.whole = list(network.parameters())
        self.rows = [rows_on_rank(p.shape[0], self.num_ranks, self.rank) for p in self.whole]
        self.kept: dict[nn.Parameter, Tensor] = {}
        self.mine = [
            nn.Parameter(p.detach()[first:last].clone())
            for p, (first, last) in zip(self.whole, self.rows, strict=True)
        ]
        if stage == 2:
            for p in self.whole:
                p.register_post_accumulate_grad_hook(self._reduce)
        super().__init__(network, network, adam.over(self.mine))

    def _padded(self, tensor: Tensor) -> Tensor:
        rows = -(-tensor.shape[0] // self.num_ranks) * self.num_ranks
        found = tensor.new_zeros(rows, *tensor.shape[1:])
        found[: tensor.shape[0]] = tensor
        return found

    def _reduced(self, gradient: Tensor) -> Tensor:
        whole = self._padded(gradient)
        own = whole.new_empty(whole.shape[0] // self.num_ranks, *whole.shape[1:])
        dist.reduce_scatter_single(own, whole, group=self.group)
        return own

    def _reduce(self, p: nn.Parameter) -> None:
        assert p.grad is not None
        self.kept[p] = self._reduced(p.grad)
        p.grad = None

    def zero_grad(self) -> None:
        self.kept.clear()
        for p in self.whole:
            p.grad = None

    def step(self) -> None:
        for p, own in zip(self.whole, self.mine, strict=True):
            if self.stage == 1:
                assert p.grad is not None
            reduced = self.kept[p] if self.stage == 2 else self._reduced(p.grad)  # type: ignore[arg-type]
            own.grad = reduced[: own.shape[0]] / self.num_ranks
        self.optimizer.step()
        for p, own in zip(self.whole, self.mine, strict=True):
            own.grad = None
            rows = -(-p.shape[0] // self.num_ranks)
            sent = own.new_zeros(rows, *p.shape[1:])
            sent[: own.shape[0]] = own.detach()
            whole = sent.new_empty(rows * self.num_ranks, *p.shape[1:])
            dist.all_gather_single(whole, sent, group=self.group)
            p.data.copy_(whole[: p.shape[0]])

    def gradients(self) -> list[Tensor]:
        if self.stage == 2:
            return list(self.kept.values())
        return [p.grad for p in self.whole if p.grad is not None]

    def slices(self) -> list[Slice]:
        names = [name for name, _ in self.plain.named_parameters()]
        return [(name, *rows) for name, rows in zip(names, self.rows, strict=True)]
