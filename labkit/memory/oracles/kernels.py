"""Kernels of a GPU as operators that a CPU has too: their outputs, and what they keep.

Loads torch: only :mod:`labkit.memory.oracles.blocks` and :mod:`labkit.memory.oracles.networks`
import it.

Each is one operator on any device, on fake tensors too, so that a tracker sees the storages that a
GPU's kernel would make; on real numbers it computes the same by other means.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

DROP = 0.1  # the probability; it decides no size


@torch.library.custom_op("labkit::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What a fused kernel returns: the normalised tensor and 1/rms of each row, in fp32.

    ``F.rms_norm`` is one kernel on a GPU (``aten::_fused_rms_norm``), but falls apart into seven
    on a CPU; this operator has the kernel's outputs everywhere.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype), scale


@rms_norm.register_fake
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


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1], inputs[1])
    ctx.set_materialize_grads(False)  # nobody asks for the gradient of the scale


def _norm_backward(ctx: Any, grad: Tensor, _grad_scale: None) -> tuple[Tensor, Tensor, None]:
    x, scale, weight = ctx.saved_tensors
    return *_rms_norm_backward(grad, x, scale, weight), None


rms_norm.register_autograd(_norm_backward, setup_context=_keep_norm)


@torch.library.custom_op("labkit::dropout", mutates_args=())
def _dropout(x: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """What a GPU's kernel returns (``aten::native_dropout``): the output, and a mask in bytes."""
    mask = torch.rand_like(x, dtype=torch.float32) >= probability
    return x * mask / (1 - probability), mask


@_dropout.register_fake
def _(x: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@torch.library.custom_op("labkit::dropout_backward", mutates_args=())
def _dropout_backward(grad: Tensor, mask: Tensor, probability: float) -> Tensor:
    return grad * mask / (1 - probability)


@_dropout_backward.register_fake
def _(grad: Tensor, mask: Tensor, probability: float) -> Tensor:
    return torch.empty_like(grad)


def _keep_mask(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.probability = inputs[1]
    ctx.set_materialize_grads(False)


def _through_mask(ctx: Any, grad: Tensor, _grad_mask: None) -> tuple[Tensor, None]:
    return _dropout_backward(grad, *ctx.saved_tensors, ctx.probability), None


_dropout.register_autograd(_through_mask, setup_context=_keep_mask)


def dropout(x: Tensor, mask_bytes: int) -> Tensor:
    """Dropout that keeps a mask of one byte an element as a GPU does, or one of x's own width.

    The second is torch's own on a CPU: it keeps the scaled mask, in the format of ``x``.
    """
    if not mask_bytes:
        return x
    return _dropout(x, DROP)[0] if mask_bytes == 1 else functional.dropout(x, DROP)


def _by_rows(x: Tensor) -> Tensor:
    """As (batch, heads, seq, width) lying as (batch, seq, heads, width): a flash kernel's."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1])
    ahead = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(ahead, float("-inf"))


@torch.library.custom_op("labkit::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention whose values are narrower than its keys: output, log of sums a row.

    Flash kernels of GPUs take such heads as they are (cuDNN's, FlashAttention 3's); torch's own for
    a CPU wants all three alike.
    """
    scores = _scores(q, k)
    sums = scores.logsumexp(-1)
    out = (scores - sums[..., None]).exp() @ v.float()
    return _by_rows(out.to(q.dtype)), sums


def _rows_like(x: Tensor) -> Tensor:
    batch, heads, seq, width = x.shape
    return x.new_empty(batch, seq, heads, width).transpose(1, 2)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _rows_like(v), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("labkit::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (_scores(q, k) - sums[..., None]).exp()
    wide = grad.float()
    to_weights = wide @ v.float().transpose(-2, -1)
    inner = (wide * out.float()).sum(-1, keepdim=True)
    to_scores = weights * (to_weights - inner) / math.sqrt(q.shape[-1])
    found = (
        to_scores @ k.float(),
        to_scores.transpose(-2, -1) @ q.float(),
        weights.transpose(-2, -1) @ wide,
    )
    to_q, to_k, to_v = (_by_rows(x.to(q.dtype)) for x in found)
    return to_q, to_k, to_v


@_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _rows_like(q), _rows_like(k), _rows_like(v)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _through_attention(ctx: Any, grad: Tensor, _grad_sums: None) -> tuple[Tensor, Tensor, Tensor]:
    return _attention_backward(grad, *ctx.saved_tensors)


attention.register_autograd(_through_attention, setup_context=_keep_attention)


@torch.library.custom_op("labkit::cross_entropy_", mutates_args=("logits",))
def _cross_entropy_(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """The sum of the rows' losses times ``scale``; the logits become its gradient.

    Row by row in registers, as a GPU's kernel does it: nothing of the logits' size is allocated.
    """
    scores = functional.log_softmax(logits.float(), dim=-1)
    loss = -scale * scores.gather(1, targets[:, None]).sum()
    gradient = scores.exp()
    gradient.scatter_add_(1, targets[:, None], -torch.ones_like(gradient[:, :1]))
    logits.copy_(scale * gradient)
    return loss


@_cross_entropy_.register_fake
def _(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    return logits.new_empty((), dtype=torch.float32)


class FusedLoss(torch.autograd.Function):
    """Head and mean cross-entropy in one, and their gradients with them, some rows at a time.

    Logits exist for one part of the rows only and turn into their gradient in place; from the
    forward pass on, the gradients of the head's input and of its weight are what is kept.
    Source: Hsu et al. 2024 (Liger Kernel), FusedLinearCrossEntropy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, chunks: int) -> Tensor:
        to_x, to_weight = torch.empty_like(x), torch.zeros_like(weight)
        narrow = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else x.dtype
        total = x.new_zeros((), dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            matrix = weight.to(narrow)
            pieces = zip(x.chunk(chunks), targets.chunk(chunks), to_x.chunk(chunks), strict=True)
            for part, wanted, out in pieces:
                total += FusedLoss.part(part, wanted, out, matrix, to_weight, 1 / len(targets))
        ctx.save_for_backward(to_x, to_weight)
        return total

    @staticmethod
    def part(
        rows: Tensor, wanted: Tensor, out: Tensor, matrix: Tensor, to_weight: Tensor, scale: float
    ) -> Tensor:
        rows = rows.to(matrix.dtype)
        logits = rows @ matrix.T
        loss = _cross_entropy_(logits, wanted, scale)
        out.copy_(logits @ matrix)
        if to_weight.dtype == logits.dtype:
            to_weight.addmm_(logits.T, rows)
        else:
            to_weight += logits.T @ rows
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_x, to_weight = ctx.saved_tensors
        return to_x.mul_(grad), to_weight.mul_(grad), None, None
