"""Selective recomputation: a transformer block cut over real ranks, and what each rank keeps.

The block is cut by tensor parallelism as Megatron-LM lays it out, with or without sequence
parallelism, and its attention's core is recomputed or not. :func:`measure` runs on the ranks of
:func:`labkit.kit.ranks.on_ranks`, as ``"labkit.papers.reduce_act_recomp.block:measure"``.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
§4.2 and §5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from labkit.memory.oracles import blocks
from labkit.memory.oracles.blocks import recomputed, saving
from labkit.memory.oracles.collective import gather
from labkit.memory.tape.mode import Mode
from labkit.models import Model

DROP = 0.1


def scatter_sum(partial: Tensor) -> Tensor:
    """This rank's slice of the sum over the ranks."""
    part = partial.new_empty(partial.shape[0] // dist.get_world_size(), *partial.shape[1:])
    dist.reduce_scatter_tensor(part, partial.contiguous())
    return part


def summed(partial: Tensor) -> Tensor:
    """The sum over the ranks, which each of them gets."""
    whole = partial.clone()
    dist.all_reduce(whole)
    return whole


class ColumnProduct(Function):
    """A product with this rank's columns.

    A sliced input is gathered, and once more in the backward pass, so that only the slice is kept
    (the paper's g; without slices its f).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sliced: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sliced = sliced
        return (gather(x) if sliced else x) @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        x = gather(x) if ctx.sliced else x
        to_x = grad @ weight.t()
        to_weight = x.flatten(0, 1).t() @ grad.flatten(0, 1)
        return (scatter_sum if ctx.sliced else summed)(to_x), to_weight, None


class RowProduct(Function):
    """A product with this rank's rows, then the sum over the ranks, of all tokens or of a slice.

    These are the paper's f̄ and ḡ. Without ``reduce`` each rank keeps its own share: wrong on
    purpose.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sliced: bool, reduce: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sliced = sliced
        share = x @ weight
        if not reduce:
            return share.chunk(dist.get_world_size())[dist.get_rank()] if sliced else share
        return (scatter_sum if sliced else summed)(share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        grad = gather(grad) if ctx.sliced else grad
        to_weight = x.flatten(0, 1).t() @ grad.flatten(0, 1)
        return grad @ weight.t(), to_weight, None, None


def dropout(x: Tensor, mask: Tensor) -> Tensor:
    """Dropout by a mask that is given, so that cut and whole block drop alike.

    One byte a number is kept.
    """
    return x * mask / (1 - DROP)


class Block:
    """One rank's part of a block, or with ``degree`` 1 the whole of it.

    Tensors are (sequence, batch, width). Norms, dropouts and sums of the stream are cut along the
    sequence where ``sliced``; products and heads along their width.
    """

    def __init__(
        self, whole: dict[str, Tensor], *, heads: int, degree: int, rank: int, sliced: bool
    ) -> None:
        def part(name: str, dim: int, *, cut: bool = True) -> Tensor:
            return whole[name].chunk(degree if cut else 1, dim)[rank if cut else 0].clone()

        self.sliced = sliced
        self.heads = heads // degree
        self.degree = degree
        self.x = part("x", 0, cut=sliced).requires_grad_()
        self.gradient = part("gradient", 0, cut=sliced)  # of the output
        columns = [third.chunk(degree, 1)[rank] for third in whole["qkv"].chunk(3, 1)]
        self.weights = {
            "norm1": whole["norm1"].clone(),
            "norm2": whole["norm2"].clone(),
            "qkv": torch.cat(columns, 1),
            "out": part("out", 0),
            "up": part("up", 1),
            "down": part("down", 0),
        }
        for weight in self.weights.values():
            weight.requires_grad_()
        self.masks = [part(name, 0, cut=sliced) for name in ("mask1", "mask2")]
        self.core_mask = part("core_mask", 1)

    def forward(self, *, selective: bool = False, reduce: bool = True) -> Tensor:
        x = self.x
        for norm, sublayer, mask in zip(
            ("norm1", "norm2"), (self.attention, self.mlp), self.masks, strict=True
        ):
            normed = functional.layer_norm(x, x.shape[-1:], self.weights[norm])
            x = x + dropout(sublayer(normed, selective, reduce), mask)
        return x

    def attention(self, x: Tensor, selective: bool, reduce: bool) -> Tensor:
        qkv = self._columns(x, "qkv").unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 1, 3, 0, 4)  # (batch, heads, sequence, width)
        out = (partial(recomputed, self.core) if selective else self.core)(q, k, v)
        return self._rows(out.permute(2, 0, 1, 3).flatten(2), "out", reduce)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scores, softmax, dropout, and the sum of values: what selective recomputation drops."""
        future = torch.full(q.shape[-2:-1] * 2, -math.inf, dtype=q.dtype).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + future
        return dropout(scores.softmax(-1), self.core_mask) @ v

    def mlp(self, x: Tensor, _: bool, reduce: bool) -> Tensor:
        return self._rows(functional.gelu(self._columns(x, "up")), "down", reduce)

    def _columns(self, x: Tensor, name: str) -> Tensor:
        if self.degree == 1:
            return x @ self.weights[name]
        return ColumnProduct.apply(x, self.weights[name], self.sliced)

    def _rows(self, x: Tensor, name: str, reduce: bool) -> Tensor:
        if self.degree == 1:
            return x @ self.weights[name]
        return RowProduct.apply(x, self.weights[name], self.sliced, reduce)


def tensors(
    hidden: int, heads: int, seq: int, samples: int, dtype: torch.dtype, rng: int
) -> dict[str, Tensor]:
    """Input, weights, masks and the output's gradient of a whole block.

    Args:
        hidden, heads, seq, samples: the block's sizes; a stream is seq × samples × hidden.
        dtype: of all numbers but the masks, which are booleans.
        rng: a seed; the same one gives the same tensors.
    """
    generator = torch.Generator().manual_seed(rng)

    def normal(*shape: int) -> Tensor:
        scale = 1 if len(shape) == 3 else shape[0] ** -0.5
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    def mask(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) >= DROP

    stream = (seq, samples, hidden)
    return {
        "x": normal(*stream),
        "gradient": normal(*stream),
        "norm1": torch.ones(hidden, dtype=dtype),
        "norm2": torch.ones(hidden, dtype=dtype),
        "qkv": normal(hidden, 3 * hidden),
        "out": normal(hidden, hidden),
        "up": normal(hidden, 4 * hidden),
        "down": normal(4 * hidden, hidden),
        "mask1": mask(*stream),
        "mask2": mask(*stream),
        "core_mask": mask(samples, heads, seq, seq),
    }


def kept_bytes(block: Block, **how: bool) -> tuple[Tensor, int]:
    """The output, and the bytes of all storages that autograd keeps for it, weights left out.

    Args:
        how: ``selective`` and ``reduce`` of :meth:`Block.forward`.
    """
    sizes: dict[Any, int] = {}
    with saving(sizes, block.weights.values()):
        out = block.forward(**how)
    return out, sum(sizes.values())


def measure(
    rank: int,
    sizes: dict[str, int],
    ways: Sequence[dict[str, bool]],
    rng: int = 0,
) -> list[dict[str, float]]:
    """One rank's bytes and differences for each way of cutting a block.

    Args:
        rank: of ``torch.distributed``.
        sizes: ``hidden, heads, seq, samples``; all but samples divide by the number of ranks.
        ways: each with ``sequence_parallel`` and, where wanted, ``selective`` and ``reduce``.
        rng: a seed, the same on each rank.

    Returns:
        Of each way ``kept_bytes``, in 16-bit numbers, and ``difference``, in 32-bit: the largest
        of output and gradients from the whole block, relative to the largest value of each.
    """
    narrow, wide = (
        tensors(**sizes, dtype=dtype, rng=rng) for dtype in (torch.bfloat16, torch.float32)
    )
    uncut = trained(Block(wide, heads=sizes["heads"], degree=1, rank=0, sliced=False))
    rows = []
    for way in ways:
        how = {"selective": way.get("selective", False), "reduce": way.get("reduce", True)}
        cut: dict[str, Any] = {"heads": sizes["heads"], "sliced": way["sequence_parallel"]}
        cut |= {"degree": dist.get_world_size(), "rank": rank}
        _, kept = kept_bytes(Block(narrow, **cut), **how)
        ours = trained(Block(wide, **cut), **how)
        theirs = Block(wide | uncut, **cut)
        rows.append({"kept_bytes": kept, "difference": _difference(ours, theirs)})
    return rows


def _difference(ours: dict[str, Tensor], theirs: Block) -> float:
    """The largest difference over the ranks, relative to the largest value of each tensor.

    ``theirs`` holds what is expected in the places of a block.
    """
    expected = {"x": theirs.x, "gradient": theirs.gradient} | theirs.weights
    errors = []
    for name, value in expected.items():
        largest = (ours[name] - value).abs().max()
        errors.append(largest / value.abs().max())
    worst = torch.stack(errors).max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def trained(block: Block, **how: bool) -> dict[str, Tensor]:
    """Gradients of the input and of the weights by name, and as ``"gradient"`` the output.

    Args:
        how: ``selective`` and ``reduce`` of :meth:`Block.forward`.
    """
    out = block.forward(**how)
    out.backward(block.gradient)
    grads: dict[str, Any] = {name: weight.grad for name, weight in block.weights.items()}
    if block.sliced:  # a rank has seen its own tokens only
        grads |= {name: summed(grads[name]) for name in ("norm1", "norm2")}
    return grads | {"x": block.x.grad, "gradient": out.detach()}


def budgeted(block: Block, budget: float) -> dict[str, float]:
    """What torch's partitioner keeps of a whole block under a memory budget, and what it costs.

    It chooses itself what to compute again, operator by operator, as ``torch.compile`` does.

    Args:
        budget: the share of the bytes that it may keep (1: all it would; 0: inputs only).

    Returns:
        ``kept_bytes`` and ``operations`` of the step.
    """
    from torch._functorch import config, partitioners
    from torch._functorch.aot_autograd import aot_function, make_boxed_func
    from torch.utils.flop_counter import FlopCounterMode

    kept: list[int] = []

    def as_it_is(gm: Any, example_inputs: Any) -> Any:
        return make_boxed_func(gm.forward)

    def see(gm: Any, example_inputs: Any) -> Any:
        (returned,) = gm.graph.find_nodes(op="output")[0].args
        kept.append(sum(n.meta["val"].nbytes for n in returned[1:] if n.op != "placeholder"))
        return as_it_is(gm, example_inputs)

    def run(x: Tensor, masks: list[Tensor], weights: dict[str, Tensor]) -> Tensor:
        block.x = x
        block.weights = weights
        (*block.masks, block.core_mask) = masks
        return block.forward()

    inputs = (block.x, [*block.masks, block.core_mask], block.weights)
    cut = partitioners.min_cut_rematerialization_partition
    with config.patch(activation_memory_budget=budget):
        out = aot_function(run, see, as_it_is, partition_fn=cut)(*inputs)
    with FlopCounterMode(display=False) as counter:
        run(*inputs)  # as many operations as the forward pass above, which traced as well
        out.backward(block.gradient)
    block.x = inputs[0]
    block.weights = inputs[2]
    (*block.masks, block.core_mask) = inputs[1]
    return {"kept_bytes": kept[0], "operations": counter.get_total_flops()}


def operations(model: Model, mode: Mode, *, seq: int, micro_batch: int = 1) -> int:
    """Operations of one dense layer's forward and backward pass, as torch counts products.

    Args:
        mode: how the layer attends, and what of it is recomputed.
        seq, micro_batch: tokens of a sample, and samples.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        block: Any = blocks.Block(model, mode, experts=False)
        x = torch.empty(micro_batch, seq, model.hidden, requires_grad=True)
        if mode.recompute == "full":
            block = partial(recomputed, block)
        block(x).sum().backward()
    return int(counter.get_total_flops())
