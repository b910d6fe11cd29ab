"""Plain GPT and Llama networks, as people write them: what the formulas are checked against.

Loads torch: only :mod:`labkit.memory.tracker` imports it, inside its functions.

The networks have the tensors of ``Model``; what they keep for the backward pass follows from torch
itself. :class:`~labkit.memory.saved.Mode` chooses how they compute.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from labkit.memory.saved import Mode, supported
from labkit.models import Model

ROTARY_BASE = 10_000.0
NORM_EPS = 1e-5

# Not `use_reentrant=True`: torch advises against it, and it keeps the output of every unit as well.
recomputed = partial(checkpoint, use_reentrant=False)


@torch.library.custom_op("labkit::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What a fused kernel returns: the normalised tensor and 1/rms of each row, in fp32.

    ``F.rms_norm`` is one kernel on a GPU (``aten::_fused_rms_norm``), but falls apart into seven
    on a CPU; this operator has the kernel's outputs everywhere.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype), scale


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.custom_op("labkit::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    unit = x.float() * scale
    pulled = grad.float() * weight.float()
    inner = (pulled * unit).mean(-1, keepdim=True)
    grad_x = (scale * (pulled - unit * inner)).to(x.dtype)
    return grad_x, (grad.float() * unit).flatten(0, -2).sum(0).to(weight.dtype)


@_rms_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1], inputs[1])
    ctx.set_materialize_grads(False)  # nobody asks for the gradient of the scale


def _backward(ctx: Any, grad: Tensor, _grad_scale: None) -> tuple[Tensor, Tensor, None]:
    x, scale, weight = ctx.saved_tensors
    return *_rms_norm_backward(grad, x, scale, weight), None


_rms_norm.register_autograd(_backward, setup_context=_keep)


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in fp32: one kernel, or the usual five lines."""

    def __init__(self, hidden: int, *, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return _rms_norm(x, self.weight, NORM_EPS)[0]
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPS)
        return self.weight * (wide * scale).to(x.dtype)


def attend_eagerly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention written out; all s × s scores exist. Shapes (batch, heads, seq, width)."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.shape[-1]))
    seq = q.shape[-2]
    future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    return functional.softmax(scores, dim=-1) @ v


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by torch's kernel, which keeps one number a row instead of the scores."""
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def core(mode: Mode) -> Any:
    """Attention as ``mode`` wants it, its inside recomputed if that is the choice."""
    function = attend_eagerly if mode.attention == "eager" else attend
    return partial(recomputed, function) if mode.recompute == "selective" else function


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, seq, heads·width) to (batch, heads, seq, width), a view."""
    batch, seq, _ = x.shape
    return x.view(batch, seq, heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, seq, width) to (batch, seq, heads·width)."""
    return x.transpose(1, 2).flatten(2)


class GptBlock(nn.Module):
    """LayerNorm, attention, LayerNorm, GELU MLP; query, key and value from one matrix."""

    def __init__(self, model: Model, mode: Mode) -> None:
        super().__init__()
        hidden, query = model.hidden, model.heads * model.head_dim
        self.heads, self.kv_heads, self.core = model.heads, model.kv_heads, core(mode)
        self.parts = [query, model.kv_size, model.kv_size]
        self.norm1 = nn.LayerNorm(hidden, eps=NORM_EPS)
        self.qkv = nn.Linear(hidden, sum(self.parts), bias=model.bias)
        self.out = nn.Linear(query, hidden, bias=model.bias)
        self.norm2 = nn.LayerNorm(hidden, eps=NORM_EPS)
        self.up = nn.Linear(hidden, model.ffn, bias=model.bias)
        self.down = nn.Linear(model.ffn, hidden, bias=model.bias)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(self.parts, dim=-1)
        q = split_heads(q, self.heads)
        k, v = split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        return self.out(merge_heads(self.core(q, k, v)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of numbers (i, i + width/2) of each head by its position's angle."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class LlamaBlock(nn.Module):
    """RMSNorm, rotary attention with grouped keys, RMSNorm, gated MLP; no biases by default."""

    def __init__(self, model: Model, mode: Mode) -> None:
        super().__init__()
        hidden, query = model.hidden, model.heads * model.head_dim
        self.heads, self.kv_heads, self.core = model.heads, model.kv_heads, core(mode)
        linear = partial(nn.Linear, bias=model.bias)
        self.norm1 = RmsNorm(hidden, fused=mode.norm_fused)
        self.query = linear(hidden, query)
        self.key = linear(hidden, model.kv_size)
        self.value = linear(hidden, model.kv_size)
        self.out = linear(query, hidden)
        self.norm2 = RmsNorm(hidden, fused=mode.norm_fused)
        self.gate = linear(hidden, model.ffn)
        self.up = linear(hidden, model.ffn)
        self.down = linear(model.ffn, hidden)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(split_heads(self.query(x), self.heads), cos, sin)
        k = rotate(split_heads(self.key(x), self.kv_heads), cos, sin)
        v = split_heads(self.value(x), self.kv_heads)
        return self.out(merge_heads(self.core(q, k, v)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        x2 = self.norm2(x)
        return x + self.down(functional.silu(self.gate(x2)) * self.up(x2))


class Decoder(nn.Module):
    """Embedding, blocks, norm, head and the mean cross-entropy of the next token.

    ``group`` consecutive blocks are recomputed together under ``recompute="full"``, every
    ``period``-th block under ``"every"``; ``chunks`` is how many pieces of the batch go through a
    chunked head one after the other.
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
        self.mode, self.period, self.group, self.chunks = mode, period, group, chunks
        llama = model.mlp == "swiglu"
        self.token = nn.Embedding(model.vocab, model.hidden)
        self.position = nn.Embedding(model.positions, model.hidden) if model.positions else None
        block = LlamaBlock if llama else GptBlock
        self.blocks = nn.ModuleList(block(model, mode) for _ in range(model.num_layers))
        self.norm = (
            RmsNorm(model.hidden, fused=mode.norm_fused)
            if model.norm == "rmsnorm"
            else nn.LayerNorm(model.hidden, eps=NORM_EPS)
        )
        self.output = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied:
            self.output.weight = self.token.weight
        self.tables = llama
        if llama:
            for name, table in rotary_tables(seq, model.head_dim, mode).items():
                self.register_buffer(name, table, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.norm(self.through_blocks(x))
        return self.loss(x.flatten(0, 1), targets.flatten())

    def through_blocks(self, x: Tensor) -> Tensor:
        tables = (self.cos, self.sin) if self.tables else ()
        if self.mode.recompute == "full":
            for first in range(0, len(self.blocks), self.group):
                x = recomputed(self.unit, first, x, *tables)
            return x
        every = self.period if self.mode.recompute == "every" else 0
        for number, block in enumerate(self.blocks, start=1):
            again = every and number % every == 0
            x = recomputed(block, x, *tables) if again else block(x, *tables)
        return x

    def unit(self, first: int, x: Tensor, *tables: Tensor) -> Tensor:
        for block in self.blocks[first : first + self.group]:
            x = block(x, *tables)
        return x

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        if self.mode.loss != "chunked":
            return self.head(x, targets)
        total = x.new_zeros((), dtype=torch.float32)
        for part, wanted in zip(x.chunk(self.chunks), targets.chunk(self.chunks), strict=True):
            total = total + recomputed(self.head, part, wanted) * wanted.numel()
        return total / targets.numel()

    def head(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.output(x)
        if self.mode.loss != "plain":
            logits = logits.float()
        return functional.cross_entropy(logits, targets)


def rotary_tables(seq: int, width: int, mode: Mode) -> dict[str, Tensor]:
    """Cosines and sines of each position's angles, (seq, width), in the dtype of the heads."""
    dtype = torch.float32 if mode.dtype == "fp32" else torch.bfloat16
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(seq, dtype=torch.float32), rates).repeat(1, 2)
    return {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(model: Model, mode: Mode, *, seq: int, **sizes: int) -> Decoder:
    """The network, its parameters in the dtype of ``mode`` from the start.

    Casting afterwards would fail under fake tensors, and would hold two copies on real ones.
    ``sizes`` are those of :class:`Decoder`.

    Raises:
        UsageError: the model has parts that these networks do not have.
    """
    supported(model)
    with default_dtype(torch.bfloat16 if mode.dtype == "bf16" else torch.float32):
        return Decoder(model, mode, seq=seq, **sizes)


def autocast(mode: Mode, device: str = "cpu") -> Any:
    """The context of a forward pass: bf16 autocast, or nothing."""
    if mode.dtype != "autocast":
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for-loop": {"foreach": False},
}


def adamw(network: nn.Module, step: str) -> torch.optim.Optimizer:
    """AdamW whose step runs as asked: all tensors at once, one kernel, or one by one."""
    return torch.optim.AdamW(network.parameters(), lr=1e-4, **OPTIMIZERS[step])
