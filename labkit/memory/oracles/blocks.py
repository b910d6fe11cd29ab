"""Layers of decoders, as people write them: attention, latent attention, MLPs and experts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from labkit.memory.oracles import kernels
from labkit.memory.oracles.older import NormOfInput, OwnTablesAttention
from labkit.memory.tape.mode import Mode
from labkit.models import Model

NORM_EPS = 1e-5
TANH_SCALE = math.sqrt(2.0 / math.pi)

Product = Callable[[], Tensor]
# Not `use_reentrant=True`: torch advises against it, and it keeps the output of every unit as well.
recomputed = partial(checkpoint, use_reentrant=False)
KEPT_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.labkit.attention.default,
}


def saving(sizes: dict[Any, int], own: Iterable[Tensor]) -> Any:
    """A context that notes the bytes of each storage torch's graph saves in it, but ``own`` ones.

    Storages are known by weak references, which keep an address from being used again, not bytes.

    Args:
        sizes: where they are noted, by storage.
        own: tensors whose storages do not count.
    """
    known = {StorageWeakRef(tensor.untyped_storage()) for tensor in own}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (reference := StorageWeakRef(storage)) not in known:
            sizes.setdefault(reference, storage.nbytes())
        return tensor

    return saved_tensors_hooks(pack, lambda tensor: tensor)


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in fp32: one kernel, or the usual five lines."""

    def __init__(self, size: int, *, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return kernels.rms_norm(x, self.weight, NORM_EPS)[0]
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPS)
        return self.weight * (wide * scale).to(x.dtype)


def norm_of(model: Model, mode: Mode) -> nn.Module:
    """The norm between the parts of the model's blocks."""
    if model.norm == "rmsnorm" and "norm-of-input" in mode.older and not mode.norm_fused:
        return NormOfInput(model.hidden, NORM_EPS, wide="norm-wide" in mode.older)
    if model.norm == "rmsnorm":
        return RmsNorm(model.hidden, fused=mode.norm_fused)
    return nn.LayerNorm(model.hidden, eps=NORM_EPS)


def products_and_attention() -> Any:
    """Contexts of a checkpoint that keeps attention's output and every second matrix product's.

    Source: torchtitan's selective activation checkpointing of operators.
    """
    counts: Counter[bool] = Counter()

    def keep(ctx: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        kept = operator in KEPT_ATTENTION
        if operator is torch.ops.aten.mm.default:
            counts[ctx.is_recompute] += 1
            kept = counts[ctx.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keep)


def written_out_gelu(x: Tensor) -> Tensor:
    """GELU's tanh approximation, operator by operator (Hugging Face's NewGELUActivation)."""
    half = x * 0.5
    return half * (torch.tanh((x + torch.pow(x, 3.0) * 0.044715) * TANH_SCALE) + 1.0)


def attend_eagerly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    mask_bytes: int = 0,
    wide: bool = False,
) -> Tensor:
    """Causal attention written out; all s × s scores exist. Shapes are (batch, heads, seq, width).

    Args:
        mask: (seq, seq), added to the scores; without it, later positions are masked here.
        mask_bytes: of an element of dropout's mask; 0 for no dropout.
        wide: whether the softmax is in fp32.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.shape[-1]))
    seq = q.shape[-2]
    if mask is not None:
        scores = scores + mask
    else:
        future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32 if wide else None).to(q.dtype)
    return kernels.dropout(weights, mask_bytes) @ v


def attend(q: Tensor, k: Tensor, v: Tensor, *, repeated: bool = False) -> Tensor:
    """Causal attention by torch's kernel, which keeps one number a row instead of the scores.

    Args:
        repeated: whether keys and values are copied for all query heads before the kernel.
    """
    groups = q.shape[1] // k.shape[1]
    if repeated and groups > 1:
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def attend_narrowly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by a kernel whose values may be narrower than its keys."""
    return kernels.attention(q, k, v)[0]


def core(mode: Mode, *, latent: bool = False) -> Any:
    """Attention as ``mode`` wants it, its inside recomputed if that is the choice.

    A flash kernel's own dropout keeps its random state only, and is left out.
    """
    function: Any = attend_narrowly if latent else partial(attend, repeated=mode.repeat_kv)
    if mode.attention == "eager":
        function = partial(
            attend_eagerly, mask_bytes=mode.dropout_mask_bytes, wide=mode.softmax_fp32
        )
    return partial(recomputed, function) if mode.recompute == "selective" else function


def split_heads(x: Tensor, heads: int) -> Tensor:
    """A view from (batch, seq, heads·width) to (batch, heads, seq, width)."""
    batch, seq, _ = x.shape
    return x.view(batch, seq, heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """From (batch, heads, seq, width) back to (batch, seq, heads·width)."""
    return x.transpose(1, 2).flatten(2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of numbers (i, i + width/2) of each head by its position's angle."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Attention(nn.Module):
    """Attention with queries, keys and values from one matrix or three, turned where tables are
    given.
    """

    def __init__(self, model: Model, mode: Mode) -> None:
        super().__init__()
        hidden = model.hidden
        bias = model.has_bias("qkv")
        self.heads = model.heads
        self.kv_heads = model.kv_heads
        self.core = core(mode)
        self.parts = [model.query_size, model.kv_size, model.kv_size]
        self.qkv = nn.Linear(hidden, sum(self.parts), bias=bias) if model.fused_qkv else None
        if not model.fused_qkv:
            self.query, self.key, self.value = (
                nn.Linear(hidden, size, bias=bias) for size in self.parts
            )
        self.query_norm, self.key_norm = (
            RmsNorm(model.head_dim, fused=mode.norm_fused) if model.qk_norm else None
            for _ in range(2)
        )
        self.out = nn.Linear(model.query_size, hidden, bias=model.has_bias("out"))

    def forward(self, x: Tensor, *tables: Tensor, mask: tuple[Tensor, ...] = ()) -> Tensor:
        if self.qkv is not None:
            q, k, v = self.qkv(x).split(self.parts, dim=-1)
            q = self.by_heads(q, self.heads, self.query_norm, tables)
            k = self.by_heads(k, self.kv_heads, self.key_norm, tables)
        else:
            q = self.by_heads(self.query(x), self.heads, self.query_norm, tables)
            k = self.by_heads(self.key(x), self.kv_heads, self.key_norm, tables)
            v = self.value(x)
        return self.out(merge_heads(self.core(q, k, split_heads(v, self.kv_heads), *mask)))

    def by_heads(self, x: Tensor, heads: int, norm: Any, tables: tuple[Tensor, ...]) -> Tensor:
        """Heads apart, each normalised where there is a norm, then turned."""
        if norm is not None:
            x = norm(x.unflatten(-1, (heads, -1))).transpose(1, 2)
        else:
            x = split_heads(x, heads)
        return rotate(x, *tables) if tables else x


class LatentAttention(nn.Module):
    """Multi-head latent attention: what is per head comes from normalised low-rank latents.

    Part of every query and key carries its position; of keys that part is one for all heads.
    Source: DeepSeek-V2 §2.1; DeepSeek-V3 §2.1.1.
    """

    def __init__(self, model: Model, mode: Mode) -> None:
        super().__init__()
        bias = model.has_bias("qkv")
        hidden = model.hidden
        fused = mode.norm_fused
        self.heads = model.heads
        self.rank = model.kv_rank
        self.core = core(mode, latent=True)
        self.flat = model.head_dim
        self.turned = model.rope_head_dim
        self.values = model.value_head_dim
        self.query_rank = model.q_rank
        if model.q_rank:
            self.query_down = nn.Linear(hidden, model.q_rank, bias=bias)
            self.query_norm = RmsNorm(model.q_rank, fused=fused)
        self.query = nn.Linear(model.q_rank or hidden, model.query_size, bias=False)
        self.kv_down = nn.Linear(hidden, model.kv_rank + model.rope_head_dim, bias=bias)
        self.kv_norm = RmsNorm(model.kv_rank, fused=fused)
        wide = model.heads * (model.head_dim + model.value_head_dim)
        self.kv_up = nn.Linear(model.kv_rank, wide, bias=False)
        columns = model.heads * model.value_head_dim
        self.out = nn.Linear(columns, hidden, bias=model.has_bias("out"))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: tuple[Tensor, ...] = ()) -> Tensor:
        q = self.queries(x, cos, sin)
        k, v = self.keys_and_values(x, cos, sin)
        return self.out(merge_heads(self.core(q, k, v, *mask)))

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries by heads, from a normalised latent or from the stream."""
        if self.query_rank:
            x = self.query_norm(self.query_down(x))
        flat, turned = split_heads(self.query(x), self.heads).split((self.flat, self.turned), -1)
        return torch.cat((flat, rotate(turned, cos, sin)), dim=-1)

    def keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values by heads, from a normalised latent; all heads share the key's turned
        part.
        """
        latent, turned = self.kv_down(x).split((self.rank, self.turned), dim=-1)
        wide = split_heads(self.kv_up(self.kv_norm(latent)), self.heads)
        flat, v = wide.split((self.flat, self.values), dim=-1)
        turned = rotate(turned.unsqueeze(1), cos, sin).expand(-1, self.heads, -1, -1)
        return torch.cat((flat, turned), dim=-1), v


class Mlp(nn.Module):
    """An MLP: up, GELU, down."""

    def __init__(self, model: Model, *, fused: bool) -> None:
        super().__init__()
        bias = model.has_bias("mlp")
        self.up = nn.Linear(model.hidden, model.ffn, bias=bias)
        self.down = nn.Linear(model.ffn, model.hidden, bias=bias)
        self.gelu = functional.gelu if fused else written_out_gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gelu(self.up(x)))


def gated_of(*, fused: bool) -> Callable[[Product, Product], Tensor]:
    """SiLU of a product times another: one kernel after both products, or two."""
    if fused:
        return lambda gate, up: kernels.swiglu(gate(), up())
    return lambda gate, up: functional.silu(gate()) * up()


class GatedMlp(nn.Module):
    """An MLP whose gate goes through SiLU and multiplies up, then down."""

    def __init__(self, model: Model, width: int, *, fused: bool = False) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=model.has_bias("mlp"))
        self.gated = gated_of(fused=fused)
        self.gate = linear(model.hidden, width)
        self.up = linear(model.hidden, width)
        self.down = linear(width, model.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gated(partial(self.gate, x), partial(self.up, x)))


class Router(nn.Module):
    """Which experts each token goes to, and with what weight: scores in fp32, the largest few.

    Softmax over all experts (Mixtral, Qwen), or with a bias that corrects the choice but not the
    weight, sigmoid (DeepSeek-V3 §2.1.2). The weights of a token's experts add up to 1.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.number = model.experts_per_token
        self.weight = nn.Parameter(torch.empty(model.num_experts, model.hidden).normal_(std=0.02))
        # No gradient reaches it: another rule updates it.
        self.bias: Tensor | None
        self.register_buffer("bias", torch.zeros(model.num_experts) if model.router_bias else None)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts, both (tokens, experts a token)."""
        scores = functional.linear(x, self.weight).float()
        if self.bias is None:
            weights, chosen = scores.softmax(dim=-1).topk(self.number, dim=-1)
        else:
            scores = scores.sigmoid()
            with torch.no_grad():
                chosen = (scores + self.bias).topk(self.number, dim=-1).indices
            weights = scores.gather(1, chosen)
        return weights / weights.sum(dim=-1, keepdim=True), chosen


class Experts(nn.Module):
    """Routed experts with the same number of places each, run as batched products, and shared ones.

    An expert has ceil(tokens · experts a token / experts) places: tokens beyond leave out that
    expert, places that stay empty count nothing (capacity factor 1: Fedus et al. 2022, §2.2).
    """

    def __init__(self, model: Model, *, fused: bool = False) -> None:
        super().__init__()
        self.number = model.num_experts
        self.gated = gated_of(fused=fused)
        width = model.expert_ffn
        self.router = Router(model)
        inward = (self.number, model.hidden, width)
        outward = (self.number, width, model.hidden)
        self.gate, self.up, self.down = (
            nn.Parameter(torch.empty(size).normal_(std=0.02)) for size in (inward, inward, outward)
        )
        shared = model.shared_experts * width
        self.shared = GatedMlp(model, shared, fused=fused) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        given = x.shape
        x = x.flatten(0, 1)
        weights, chosen = self.router(x)
        slots, filled = self.places(chosen)
        tokens = slots // chosen.shape[1]
        out = self.routed(x.index_select(0, tokens).unflatten(0, (self.number, -1)))
        share = weights.flatten().index_select(0, slots) * filled
        out = out.flatten(0, 1) * share.to(out.dtype)[:, None]
        start = torch.zeros_like(x, dtype=out.dtype) if self.shared is None else self.shared(x)
        # Not index_add: its backward pass would keep what is added, which it does not need.
        return start.scatter_add(0, tokens[:, None].expand_as(out), out).view(given)

    def routed(self, rows: Tensor) -> Tensor:
        """All experts at once on (experts, places, hidden)."""
        inner = self.gated(partial(torch.bmm, rows, self.gate), partial(torch.bmm, rows, self.up))
        return torch.bmm(inner, self.down)

    @torch.no_grad()
    def places(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """For each place of each expert: which choice fills it, and whether one does."""
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(self.number, device=chosen.device)
        starts = torch.searchsorted(experts, numbers)
        ends = torch.searchsorted(experts, numbers, right=True)
        capacity = -(-chosen.numel() // self.number)
        places = starts[:, None] + torch.arange(capacity, device=chosen.device)
        filled = places < ends[:, None]
        return order[places.clamp_(max=chosen.numel() - 1).flatten()], filled.flatten()


class Block(nn.Module):
    """A layer: norm, attention, norm, MLP or experts, with a sum after each pair."""

    def __init__(self, model: Model, mode: Mode, *, experts: bool) -> None:
        super().__init__()
        self.mask_bytes = mode.dropout_mask_bytes
        self.norm1 = norm_of(model, mode)
        attention: Any = LatentAttention if model.kv_rank else Attention
        if "own-tables" in mode.older and model.mlp == "swiglu":
            attention = OwnTablesAttention
        self.attention = attention(model, mode)
        self.norm2 = norm_of(model, mode)
        self.mlp: nn.Module
        if experts:
            self.mlp = Experts(model, fused=mode.swiglu_fused)
        elif model.mlp == "gelu":
            self.mlp = Mlp(model, fused=mode.gelu_fused)
        else:
            self.mlp = GatedMlp(model, model.ffn, fused=mode.swiglu_fused)

    def forward(self, x: Tensor, *tables: Tensor, mask: tuple[Tensor, ...] = ()) -> Tensor:
        x = x + kernels.dropout(self.attention(self.norm1(x), *tables, mask=mask), self.mask_bytes)
        return x + kernels.dropout(self.mlp(self.norm2(x)), self.mask_bytes)
