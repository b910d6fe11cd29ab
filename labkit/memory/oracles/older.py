"""Parts of decoders as transformers' code had them before 4.49, in our own words.

Source: transformers 4.28 to 4.48, ``models/llama/modeling_llama.py``, read and run; which version
has which part stands in :mod:`labkit.models.transformers_versions`.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from labkit.memory.oracles import kernels
from labkit.memory.tape.mode import Mode
from labkit.models import Model


class NormOfInput(nn.Module):
    """Root-mean-square norm that scales its input as it is, not the fp32 copy it squares."""

    def __init__(self, size: int, eps: float, *, wide: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        x = x * scale  # in fp32
        if not self.wide:
            x = x.to(self.weight.dtype)
            return self.weight * x
        return (self.weight * x).to(dtype)


class OwnTablesAttention(nn.Module):
    """Attention that looks up rotary tables by the tokens' positions, each layer for itself."""

    def __init__(self, model: Model, mode: Mode) -> None:
        super().__init__()
        self.heads = model.heads
        self.kv_heads = model.kv_heads
        bias = model.has_bias("qkv")
        self.query = nn.Linear(model.hidden, model.query_size, bias=bias)
        self.key = nn.Linear(model.hidden, model.kv_size, bias=bias)
        self.value = nn.Linear(model.hidden, model.kv_size, bias=bias)
        self.out = nn.Linear(model.query_size, model.hidden, bias=model.has_bias("out"))
        self.core = partial(_kernel, repeated=mode.repeat_kv)
        if mode.attention == "eager":
            clamped = "clamp" in mode.older
            self.core = partial(_written_out, clamped=clamped, mask_bytes=mode.dropout_mask_bytes)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        mask: tuple[Tensor, ...] = (),
    ) -> Tensor:
        q = _by_heads(self.query(x), self.heads)
        k = _by_heads(self.key(x), self.kv_heads)
        v = _by_heads(self.value(x), self.kv_heads)
        cos = cos[positions][:, None]
        sin = sin[positions][:, None]
        q, k = _both_turned(q, k, cos, sin)
        out = self.core(q, k, v, *mask)
        out = out.transpose(1, 2).flatten(2)
        return self.out(out)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """A view from (batch, seq, heads·width) to (batch, heads, seq, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _both_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, each number turned with that half a head further."""
    new_q = q * cos + _partners(q) * sin
    new_k = k * cos + _partners(k) * sin
    return new_q, new_k


def _partners(x: Tensor) -> Tensor:
    """What each number is turned with."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _spread(x: Tensor, heads: int) -> Tensor:
    """Each key head for the query heads of its group."""
    groups = heads // x.shape[1]
    return x.repeat_interleave(groups, dim=1) if groups > 1 else x


def _kernel(q: Tensor, k: Tensor, v: Tensor, *, repeated: bool) -> Tensor:
    """Causal attention by torch's kernel, on copied keys and values or on groups."""
    if repeated:
        k = _spread(k, q.shape[1])
        v = _spread(v, q.shape[1])
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, clamped: bool, mask_bytes: int
) -> Tensor:
    """Attention under an added mask, its softmax in fp32, clamped before where it was so."""
    k = _spread(k, q.shape[1])
    v = _spread(v, q.shape[1])
    weights = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = weights + mask
    if clamped:
        weights = torch.maximum(weights, torch.tensor(torch.finfo(weights.dtype).min))
    weights = functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = kernels.dropout(weights, mask_bytes)
    return weights @ v


def mask_of_samples(batch: int, seq: int, dtype: torch.dtype) -> Tensor:
    """(batch, 1, seq, seq) to be added to scores, from which tokens are there and which ahead."""
    known = torch.ones(batch, seq, dtype=torch.bool)
    low = torch.finfo(dtype).min
    ahead = torch.full((seq, seq), low).triu_(1).to(dtype)
    spread = known[:, None, None, :].expand(batch, 1, seq, seq).to(dtype)
    padding = 1.0 - spread
    filled = padding.masked_fill(padding.to(torch.bool), low)
    return filled + ahead


def positions_of(seq: int) -> Tensor:
    """The tokens' numbers, (1, seq)."""
    return torch.arange(seq)[None]


def shifted_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of all tokens but each sample's last; logits (batch, seq, vocab)."""
    rows = logits[:, :-1].contiguous()
    wanted = targets[:, 1:].contiguous()
    return functional.cross_entropy(rows.flatten(0, 1), wanted.flatten())


def has_mask(mode: Mode) -> bool:
    """Whether a mask is made in each step."""
    return mode.attention == "eager" and "mask-a-sample" in mode.older


def inputs_of(mode: Mode, tokens: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Positions and mask that the layers are given beside the stream, where there are any."""
    batch, seq = tokens.shape
    inputs = [positions_of(seq)] if "own-tables" in mode.older else []
    if has_mask(mode):
        inputs.append(mask_of_samples(batch, seq, dtype))
    return inputs
