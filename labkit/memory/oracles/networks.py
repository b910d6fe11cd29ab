"""Decoders, as people write them: what the formulas are checked against.

The networks have the tensors of ``Model``, but for routed experts, whose matrices are stacked into
three; what they keep for the backward pass follows from torch itself.
:class:`~labkit.memory.tape.mode.Mode` chooses how they compute.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit.memory.oracles import kernels, older
from labkit.memory.oracles.blocks import Block, norm_of, products_and_attention, recomputed
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.sizes import shape_of
from labkit.models import Model

ROTARY_BASE = 10_000.0


class Decoder(nn.Module):
    """Embedding, blocks, norm, head and the mean cross-entropy of the next token.

    The first ``num_dense_layers`` blocks have an MLP, the others experts.

    ``group`` consecutive blocks are recomputed together under ``recompute="full"``, every
    ``period``-th block under ``"every"``; ``chunks`` is how many pieces of the batch go through a
    chunked or fused head one after the other.
    """

    def __init__(
        self,
        model: Model,
        mode: Mode,
        *,
        seq: int,
        period: int = 1,
        group: int = 1,
        chunks: int = 8,
    ) -> None:
        super().__init__()
        self.mode = mode
        self.period = period
        self.group = group
        self.chunks = chunks
        self.token = nn.Embedding(model.vocab, model.hidden)
        self.position = nn.Embedding(model.positions, model.hidden) if model.positions else None
        self.blocks = nn.ModuleList(
            Block(model, mode, experts=number >= model.num_dense_layers)
            for number in range(model.num_layers)
        )
        self.norm = norm_of(model, mode)
        self.output = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied:
            self.output.weight = self.token.weight
        masked = mode.mask_added and mode.attention == "eager"
        masked = masked and "mask-a-sample" not in mode.older
        llama = model.mlp == "swiglu"
        self.mask = (added_mask(seq),) if masked else ()
        width = model.rope_head_dim or model.head_dim
        self.tables = rotary_tables(seq, width, mode) if llama else ()
        for number, buffer in enumerate((*self.mask, *self.tables)):
            self.register_buffer(f"table{number}", buffer, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = kernels.dropout(x, self.mode.dropout_mask_bytes)
        x = self.body(x, tokens)
        if self.mode.shifted:
            return self.head(x, targets)
        return self.loss(x.flatten(0, 1), targets.flatten())

    def body(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The blocks and the norm after them, with what older blocks are given beside the
        stream.
        """
        inputs = older.inputs_of(self.mode, tokens, x.dtype)
        return self.norm(self.through_blocks(x, *inputs))

    def through_blocks(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The blocks one after another, those that are recomputed as checkpoints."""
        size = self.group if self.mode.recompute == "full" else 1
        every = {"full": 1, "operators": 1, "every": self.period}.get(self.mode.recompute)
        again: Any = partial(recomputed, self.unit)
        if self.mode.recompute == "operators":
            again = partial(again, context_fn=products_and_attention)
        for first in range(0, len(self.blocks), size):
            run = again if every and (first + 1) % every == 0 else self.unit
            x = run(first, size, x, *self.tables, *inputs)
        return x

    def unit(self, first: int, size: int, x: Tensor, *tables: Tensor) -> Tensor:
        """Blocks ``first`` to ``first + size``; ``tables`` are all that they are given."""
        mask: tuple[Tensor, ...] = self.mask
        if older.has_mask(self.mode):
            mask = tables[-1:]
            tables = tables[:-1]
        for block in self.blocks[first : first + size]:
            x = block(x, *tables, mask=mask)
        return x

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss as the mode computes it: whole, or one part of the tokens at a time."""
        if self.mode.loss == "fused":
            return kernels.FusedLoss.apply(x, self.output.weight, targets, self.chunks)
        if self.mode.loss != "chunked":
            return self.head(x, targets)
        total = x.new_zeros((), dtype=torch.float32)
        for part, wanted in zip(x.chunk(self.chunks), targets.chunk(self.chunks), strict=True):
            total = total + recomputed(self.head, part, wanted) * wanted.numel()
        return total / targets.numel()

    def head(self, x: Tensor, targets: Tensor) -> Tensor:
        """Logits and their summed loss."""
        logits = self.output(x)
        if self.mode.logits_held == "compute":
            self.held = logits
        if self.mode.loss == "vocab-parallel":
            return kernels.VocabParallelLoss.apply(logits.float(), targets, False).mean()
        if self.mode.shifted and "loss-beside" in self.mode.older:
            wide = logits.float()
            if self.mode.logits_held == "fp32":
                self.held = wide
            return older.shifted_loss(wide, targets)
        if not (self.mode.shifted and "narrow-loss" in self.mode.older):
            logits = logits.float()
        if self.mode.loss == "vocab-parallel-copy":
            return kernels.VocabParallelLoss.apply(logits, targets, True).mean()
        if self.mode.logits_held == "fp32":
            self.held = logits
        if self.mode.loss == "loss-parallel":
            return kernels.LossParallel.apply(logits, targets)
        if self.mode.shifted:
            return older.shifted_loss(logits, targets)
        return functional.cross_entropy(logits, targets)


def added_mask(seq: int) -> Tensor:
    """Minus infinity, or what comes nearest, at later positions, in the default format."""
    low = torch.finfo(torch.get_default_dtype()).min
    return torch.full((seq, seq), low).triu(1)


def rotary_tables(seq: int, width: int, mode: Mode) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position's angles, (seq, width), in the dtype of the heads."""
    dtype = torch.float32 if mode.dtype == "fp32" else torch.bfloat16
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(seq, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def build(model: Model, mode: Mode, *, seq: int, **sizes: int) -> Decoder:
    """The network, its parameters in the dtype of ``mode`` from the start.

    Args:
        seq: tokens of a sample.
        sizes: ``period``, ``group`` and ``chunks`` of :class:`Decoder`.
    """
    shape_of(model)  # refuses what they lack
    with contextlib.ExitStack() as after:
        after.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.bfloat16 if mode.dtype == "bf16" else torch.float32)
        return Decoder(model, mode, seq=seq, **sizes)


def autocast(mode: Mode, device: str = "cpu") -> Any:
    """The context of a forward pass: bf16 autocast on a device, or nothing."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=mode.dtype == "autocast")


def adamw(network: nn.Module, step: str) -> torch.optim.Optimizer:
    """AdamW of what learns; it steps over all tensors at once, in one kernel, or one by one."""
    how: dict[str, Any] = {"foreach": step == "foreach", "fused": step == "fused"}
    learning = [part for part in network.parameters() if part.requires_grad]
    return torch.optim.AdamW(learning, lr=1e-4, **how)
