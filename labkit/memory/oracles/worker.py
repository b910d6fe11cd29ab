"""The measuring side: what each rank trains for real, and what it reports of it.

Called on every rank by :func:`labkit.memory.oracles.oracle.measure`, by name, so that the engine
itself never loads torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch._dynamo  # every optimizer loads it at first use: once here, not once a rank
import torch.distributed as dist
from torch import Tensor

from labkit.kit.meters import CollectiveMeter, received_bytes
from labkit.memory.oracles import networks, schemes
from labkit.memory.oracles.schemes import Run, adamw, storage_bytes
from labkit.memory.tape.mode import Mode
from labkit.models import Model


def build(model: Model, spec: dict[str, Any]) -> networks.Decoder:
    """The same small weights on every rank; the tensors are those the formulas count."""
    torch.manual_seed(spec["seed"])
    network = networks.build(model, Mode(dtype="fp32"), seq=spec["seq"])
    shapes = [tuple(p.shape) for p in network.parameters()]
    assert shapes == [tensor.shape for tensor in model.tensors()]
    with torch.no_grad():
        for table in filter(None, (network.token, network.position)):
            table.weight.mul_(0.02)
    return network


def batches(model: Model, spec: dict[str, Any]) -> Iterator[Tensor]:
    """One global batch of random tokens a step, the same on every rank."""
    source = torch.Generator().manual_seed(spec["seed"] + 1)
    for _ in range(spec["steps"]):
        shape = (spec["global_batch"], spec["seq"] + 1)
        yield torch.randint(model.vocab, shape, generator=source)


def _pair(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and what should follow them."""
    return batch[:, :-1], batch[:, 1:].contiguous()


def train(trainer: schemes.Trainer, chosen: Iterable[Tensor]) -> None:
    """A step on each batch."""
    for batch in chosen:
        trainer.zero_grad()
        trainer.network(*_pair(batch)).backward()
        trainer.step()


def reference_weights(model: Model, spec: dict[str, Any]) -> list[Tensor]:
    """The weights after training on whole batches in one process: what every scheme must give."""
    network = build(model, spec)
    train(schemes.Trainer(network, network, adamw(network.parameters())), batches(model, spec))
    return [p.detach().clone() for p in network.parameters()]


def measure(model: Model, spec: dict[str, Any], run: Run, expected: list[Tensor]) -> dict:
    """Train under one scheme and report what this rank held, sent and ended with."""
    trainer = schemes.trainer(run, build(model, spec))
    share = spec["global_batch"] // run.num_ranks
    *warm_up, last = (
        batch[run.rank * share : (run.rank + 1) * share] for batch in batches(model, spec)
    )
    train(trainer, warm_up)
    trainer.zero_grad()
    dist.barrier(group=run.group)
    before = received_bytes()
    held: dict[str, int] = {}
    with CollectiveMeter() as meter:
        meter.phase = "forward"
        loss = trainer.network(*_pair(last))
        held["parameters after forward"] = storage_bytes(trainer.network.parameters())
        meter.phase = "backward"
        loss.backward()
        held["gradients"] = storage_bytes(trainer.gradients())
        meter.phase = "step"
        trainer.step()
    dist.barrier(group=run.group)
    after = received_bytes()
    held["parameters"] = storage_bytes(trainer.network.parameters())
    held["optimizer"], held["step counters"] = trainer.optimizer_bytes()
    return {
        "scheme": run.scheme,
        "ranks": run.num_ranks,
        "rank": run.rank,
        "held_bytes": held,
        "collectives": meter.summary(),
        "received_bytes": None if before is None or after is None else after - before,
        "largest_difference": _difference(trainer.full_weights(), expected),
    }


def _difference(weights: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(weights, expected, strict=True)
    return max(float((ours - whole).abs().max()) for ours, whole in pairs)


def reports(rank: int, spec: dict[str, Any]) -> list[dict]:
    """What this rank measured: every scheme on the first 2, 3, … ranks."""
    model = Model(**spec["model"])
    expected = reference_weights(model, spec)
    return [
        measure(model, spec, run, expected)
        for run in schemes.runs(rank, spec["ranks"], spec["schemes"], spec["group"])
        if run.group is not None
    ]
