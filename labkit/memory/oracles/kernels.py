"""Kernels of a GPU as operators that a CPU has too: their outputs, and what they keep.

Each is one operator on any device, on fake tensors too, so that a tracker sees the storages that a
GPU's kernel would make; on real numbers it computes the same by other means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

DROP = 0.1  # the probability; it decides no size


def _operator(outputs: Callable[..., Any], *, mutates: tuple[str, ...] = ()) -> Any:
    """A decorator that makes a function one operator, which on fake tensors allocates ``outputs``
    only.
    """

    def register(run: Callable[..., Any]) -> Any:
        name = f"labkit::{run.__name__}"
        operator = torch.library.custom_op(name, run, mutates_args=mutates)
        operator.register_fake(outputs)
        return operator

    return register


def _differentiate(
    operator: Any, keep: Callable[..., tuple[Tensor, ...]], backward: Callable[..., Any]
) -> None:
    """Give an operator gradients.

    ``keep(inputs, output)`` is saved, and ``backward`` gets the first output's gradient and what
    was saved. Nobody asks for gradients of other outputs.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*keep(inputs, output))
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, grad: Tensor, *_: None) -> Any:
        return backward(grad, *ctx.saved_tensors)

    operator.register_autograd(gradients, setup_context=setup)


def _number_a_row(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An fp32 tensor of one number a row of x."""
    return x.new_empty(shape, dtype=torch.float32)


@_operator(lambda x, weight, eps: (torch.empty_like(x), _number_a_row(x, (*x.shape[:-1], 1))))
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What a fused kernel returns: the normalised tensor, and 1/rms of each row in fp32."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype), scale


@_operator(lambda grad, x, scale, weight: (torch.empty_like(x), torch.empty_like(weight)))
def rms_norm_backward(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight."""
    unit = x.float() * scale
    pulled = grad.float() * weight.float()
    inner = (pulled * unit).mean(-1, keepdim=True)
    grad_x = (scale * (pulled - unit * inner)).to(x.dtype)
    return grad_x, (grad.float() * unit).flatten(0, -2).sum(0).to(weight.dtype)


_differentiate(
    rms_norm,
    keep=lambda inputs, output: (inputs[0], output[1], inputs[1]),
    backward=lambda grad, *kept: (*rms_norm_backward(grad, *kept), None),
)


@_operator(lambda gate, up: torch.empty_like(up))
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU of the gate times up."""
    return (functional.silu(gate.float()) * up.float()).to(up.dtype)


@_operator(lambda grad, gate, up: (torch.empty_like(gate), torch.empty_like(up)))
def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of both inputs, from the inputs alone."""
    wide = gate.float()
    share = torch.sigmoid(wide)
    to_gate = grad.float() * up.float() * share * (1 + wide * (1 - share))
    return to_gate.to(gate.dtype), (grad.float() * wide * share).to(up.dtype)


_differentiate(
    swiglu,
    keep=lambda inputs, output: inputs,
    backward=lambda grad, *kept: swiglu_backward(grad, *kept),
)


def dropout(x: Tensor, mask_bytes: int) -> Tensor:
    """Dropout by one kernel, which keeps a mask of one byte an element, or none."""
    return torch.native_dropout(x, DROP, True)[0] if mask_bytes else x


def _by_rows(x: Tensor) -> Tensor:
    """Put x, (batch, heads, seq, width), in memory as (batch, seq, heads, width), as a flash
    kernel has it.
    """
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _rows_like(x: Tensor) -> Tensor:
    """An empty tensor that lies so."""
    rows = x.transpose(1, 2)
    return rows.new_empty(rows.shape).transpose(1, 2)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention's scores."""
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1])
    ahead = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(ahead, float("-inf"))


@_operator(lambda q, k, v: (_rows_like(v), _number_a_row(q, q.shape[:-1])))
def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention, whose values may be narrower than its keys; it returns its output and the
    logarithm of each row's sum.
    """
    scores = _scores(q, k)
    sums = scores.logsumexp(-1)
    out = (scores - sums[..., None]).exp() @ v.float()
    return _by_rows(out.to(q.dtype)), sums


@_operator(lambda grad, q, k, v, out, sums: (_rows_like(q), _rows_like(k), _rows_like(v)))
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    weights = (_scores(q, k) - sums[..., None]).exp()
    wide = grad.float()
    to_weights = wide @ v.float().transpose(-2, -1)
    inner = (wide * out.float()).sum(-1, keepdim=True)
    to_scores = weights * (to_weights - inner) / math.sqrt(q.shape[-1])
    to_q = to_scores @ k.float()
    to_k = to_scores.transpose(-2, -1) @ q.float()
    to_v = weights.transpose(-2, -1) @ wide
    return _by_rows(to_q.to(q.dtype)), _by_rows(to_k.to(q.dtype)), _by_rows(to_v.to(q.dtype))


_differentiate(
    attention, keep=lambda inputs, output: (*inputs, *output), backward=attention_backward
)


@_operator(
    lambda logits, targets, scale: logits.new_empty((), dtype=torch.float32), mutates=("logits",)
)
def cross_entropy_(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """The sum of the rows' losses times ``scale``; the logits become its gradient.

    Row by row in registers, as a GPU's kernel does it: nothing of the logits' size is allocated.
    """
    scores = functional.log_softmax(logits.float(), dim=-1)
    loss = -scale * scores.gather(1, targets[:, None]).sum()
    gradient = scores.exp()
    gradient.scatter_add_(1, targets[:, None], -torch.ones_like(gradient[:, :1]))
    logits.copy_(scale * gradient)
    return loss


class FusedLoss(torch.autograd.Function):
    """Head and mean cross-entropy in one, and their gradients with them, some rows at a time.

    Logits exist for one part of the rows only and turn into their gradient in place; from the
    forward pass on, the gradients of the head's input and of its weight are what is kept.
    Source: Hsu et al. 2024 (Liger Kernel), FusedLinearCrossEntropy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, chunks: int) -> Tensor:
        to_x = torch.empty_like(x)
        to_weight = torch.zeros_like(weight)
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
        """Compute the loss of some rows, writes their gradients to ``out`` and adds to
        ``to_weight``.
        """
        rows = rows.to(matrix.dtype)
        logits = rows @ matrix.T
        loss = cross_entropy_(logits, wanted, scale)
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


class VocabParallelLoss(torch.autograd.Function):
    """Cross-entropy of each row in place on fp32 logits (Megatron-LM) or on a copy (nanotron).

    They become the exponentials in the forward pass and the gradient in the backward pass.
    Written for one rank; on several each has its part of the vocabulary and the sums are reduced.
    Source: Megatron-LM, ``tensor_parallel/cross_entropy.py``; nanotron,
    ``tensor_parallel/functional.py``.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, copy: bool) -> Tensor:
        scores = logits.clone() if copy else logits
        scores -= scores.amax(dim=-1, keepdim=True)
        places = targets.clone()
        mine = targets < 0
        wanted = scores.gather(1, places[:, None]).squeeze(1)
        scores.exp_()
        sums = scores.sum(dim=-1)
        scores /= sums[:, None]
        ctx.save_for_backward(scores, mine, places)
        return sums.log_().sub_(wanted)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        scores, mine, places = ctx.saved_tensors
        scores.scatter_add_(1, places[:, None], mine[:, None].float() - 1.0)
        return scores.mul_(grad[:, None]), None, None


class LossParallel(torch.autograd.Function):
    """Mean cross-entropy by the steps that DTensors sharded over the vocabulary take, on one rank.

    Source: torch 2.13, ``distributed/tensor/parallel/loss.py``.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        shifted = logits - logits.amax(dim=-1, keepdim=True)
        scores = shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
        ctx.save_for_backward(scores, targets)
        return -scores.gather(1, targets[:, None]).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scores, targets = ctx.saved_tensors
        wanted = torch.zeros_like(scores)
        wanted.scatter_(1, targets[:, None], -1.0)
        return (wanted + scores.exp()) * (grad / len(targets)), None
