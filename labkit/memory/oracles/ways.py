"""Ways to train that change what lives when, under torch's memory tracker: what others build on.

A step inside the backward pass (torch's hooks, and LOMO's), saved tensors kept on the host, a head
whose logits are made part by part, and ranks that share the sequence. Each is the network of
:mod:`labkit.memory.oracles.networks` with torch's own mechanism around it.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from labkit.memory.oracles import tracker
from labkit.memory.oracles.tracker import Tracked
from labkit.memory.tape.mode import Mode
from labkit.memory.traced import ranks
from labkit.models import Model


class Shared(NamedTuple):
    """Ranks that share a sequence: how many, which of them this is, and whether keys and values
    are gathered at once.
    """

    ranks: int
    rank: int
    gathers: bool = True


def track(
    model: Model,
    mode: Mode,
    *,
    seq: int,
    micro_batch: int,
    step: str = "foreach",
    offload: bool = False,
    shared: Shared | None = None,
    **sizes: int,
) -> Tracked:
    """Run one step on fake tensors and count, as :func:`tracker.track` does.

    Args:
        mode: which operators run.
        seq, micro_batch: tokens of a sample, and samples.
        step: one of ``Recipe.step``; inside the backward pass it is torch's hooks that call
            AdamW, or LOMO's rule.
        offload: keep saved tensors on the host, as ``torch.autograd.graph.save_on_cpu`` does.
        shared: ranks that share the sequence; ``seq`` is one rank's part of it.
        sizes: ``period``, ``group`` and ``chunks``.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.oracles import networks

    is_inside = step not in {"foreach", "fused", "for-loop"}
    with ExitStack() as contexts:
        if shared is not None:
            contexts.enter_context(ranks.fake_group(shared.ranks, shared.rank))
        contexts.enter_context(FakeTensorMode())
        network: Any = networks.build(model, mode, seq=seq, **sizes)
        if shared is not None:
            _share(network, shared)
        if mode.loss == "chunked-output":
            network.loss = partial(_loss_of_parts, network)
        optimizer = _optimizer(network, step)
        batch = [torch.zeros(micro_batch, seq, dtype=torch.int64) for _ in range(2)]
        alike = {name: sizes[name] for name in ("group", "period") if name in sizes}
        return tracker.step_of(
            network,
            optimizer,
            batch,
            mode=mode,
            stretch=partial(tracker.stretch_of, model, mode, **alike),
            observe=(lambda *_: _away()) if offload else None,
            inside=partial(_inside, network, optimizer, step) if is_inside else None,
        )


def _optimizer(network: Any, step: str) -> Any:
    """AdamW over all parameters, or where the step is inside the backward pass what runs there."""
    import torch

    from labkit.memory.oracles import networks

    if step == "lomo":  # it has no states: the tracker wants an optimizer all the same
        return torch.optim.SGD(network.parameters(), lr=0.1)
    ways = {"backward": "foreach", "backward-fused": "fused"}
    return networks.adamw(network, ways.get(step, step))


def _inside(network: Any, optimizer: Any, step: str) -> Any:
    """Have each parameter stepped when its gradient is there; returns what to do at the end."""
    import torch

    if step == "lomo":
        return _lomo(network)
    group = optimizer.param_groups[0]

    def update(parameter: Any) -> None:
        optimizer.param_groups = [{**group, "params": [parameter]}]
        optimizer.step()
        parameter.grad = None

    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return torch.no_grad  # nothing is left to do


def _lomo(network: Any) -> Any:
    """LOMO's rule: a gradient is used up when the next one is made, by fp32 copies."""
    import torch

    parameters = list(network.parameters())

    def update(gradient: Any = None) -> Any:
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is None:
                    continue
                wide = parameter.grad.to(torch.float32)
                parameter.grad = None
                copy = parameter.data.to(torch.float32)
                copy.add_(wide, alpha=-0.1)
                parameter.data.copy_(copy)
        return gradient

    for parameter in parameters:
        parameter.register_hook(update)
    return update


def _away() -> Any:
    """Saved tensors on a host that is not tracked: what comes back is a tensor of the same size.

    ``save_on_cpu`` copies every tensor it is given, each time, and on the way back makes a new
    one; the copies on the host are left out here, since all is on a CPU.
    """
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    def pack(tensor: Any) -> tuple[Any, Any]:
        return tensor.size(), tensor.dtype

    def unpack(packed: tuple[Any, Any]) -> Any:
        size, dtype = packed
        return torch.empty(size, dtype=dtype)

    return saved_tensors_hooks(pack, unpack)


def _share(network: Any, shared: Shared) -> None:
    """Have the network's attention run over the keys and values of all ranks, by torch's own
    program on this device's kernel.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _attention

    from labkit.memory.oracles.blocks import recomputed

    group: Any = dist.group.WORLD
    kernels = torch.ops.aten
    _attention.set_rotate_method("allgather" if shared.gathers else "alltoall")

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            run = kernels._scaled_dot_product_flash_attention_for_cpu.default
            out, sums = _attention._templated_ring_attention(group, 2, run, q, k, v, is_causal=True)
            ctx.save_for_backward(q, k, v, out, sums)
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            q, k, v, out, sums = ctx.saved_tensors

            def run(query: Any, key: Any, value: Any, **rest: Any) -> Any:
                operator = kernels._scaled_dot_product_flash_attention_for_cpu_backward.default
                kept = (rest["out"], rest["logsumexp"])
                return operator(rest["grad_out"], query, key, value, *kept, 0.0, rest["is_causal"])

            return _attention._templated_ring_attention_backward(
                group, 2, run, gradients[0], "grad_out", q, k, v, out, sums, is_causal=True
            )

    def attend(q: Any, k: Any, v: Any) -> Any:
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        return Attention.apply(q, k, v)

    again = partial(recomputed, attend)
    for block in network.blocks:
        block.attention.core = again if network.mode.recompute == "selective" else attend


def _loss_of_parts(network: Any, x: Any, targets: Any) -> Any:
    """Logits of every part of the tokens, then the loss of each, as torchtune takes them.

    Source: torchtune 0.6.1, modules/transformer.py (``chunked_output``) and
    modules/loss/ce_chunked_output_loss.py.
    """
    import torch
    from torch.nn import functional

    logits = [network.output(part) for part in x.chunk(network.chunks)]
    total = x.new_zeros((), dtype=torch.float32)
    for part, wanted in zip(logits, targets.chunk(network.chunks), strict=True):
        total = total + functional.cross_entropy(part.float(), wanted, reduction="sum")
    return total / targets.numel()
