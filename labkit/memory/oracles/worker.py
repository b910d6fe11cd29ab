"""The measuring side: what each rank trains for real under each scheme, and what it reports of it.

Data parallelism as torch itself does it, and by hand what torch does not have: ZeRO's stages 1 and
2 in equal slices, where parameters stay whole on every rank and each rank updates its own part. At
stage 2 a gradient is reduced as soon as it is there, kept by the ranks that own it, and dropped by
all others.

Loads torch: :func:`labkit.memory.oracles.oracle.measure` calls it on every rank, by name, and the
tracker's functions import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch._dynamo  # every optimizer loads it at first use: once here, not once a rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from labkit.kit.meters import CollectiveMeter, received_bytes
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.oracles import networks
from labkit.memory.oracles.oracle import GROUPED, SECOND_COPY, parallel_of
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.step import Phase
from labkit.memory.traced.ranks import mesh_of
from labkit.models import Model


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes allocated behind ``tensors`` on this rank, each storage once, padding included."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    sizes = {part.data_ptr(): part.nbytes() for part in (t.untyped_storage() for t in local)}
    return sum(size for address, size in sizes.items() if address)


# Adam divides by √v + eps. A larger eps than the default keeps parameters whose gradient is zero
# but for rounding (a key's bias) from amplifying the order of summation into a visible step.
ADAM: dict[str, Any] = {"lr": 1e-4, "eps": 1e-6, "fused": True}


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Every scheme is stepped by this AdamW."""
    return torch.optim.AdamW(parameters, **ADAM)


class Run(NamedTuple):
    """One scheme on the first ranks, which this rank is one of: what is spread, and its process
    groups.
    """

    scheme: str
    parallel: Parallel
    rank: int
    group: Any
    mesh: Any


def runs(rank: int, ranks: list[int], names: list[str], size: int) -> Iterator[Run]:
    """Yield this rank's part of every scheme at every number of ranks, in one order on every rank.

    Groups are formed by all ranks together, members or not: that is gloo's rule.

    Args:
        rank: the number of this rank.
        ranks: how many ranks each scheme runs on, in turn.
        names: of the schemes.
        size: so many ranks share the states, or the second shard, of the schemes in
            :data:`GROUPED`, which sit out where it does not divide the ranks.
    """
    for num_ranks in ranks:
        group = dist.new_group(list(range(num_ranks)))
        for name in names:
            if name in GROUPED and (num_ranks % size or num_ranks <= size):
                continue
            parallel = parallel_of(name, num_ranks, group=size)
            mesh = mesh_of(parallel)
            if rank < num_ranks:
                yield Run(name, parallel, rank, group, mesh)


class Trainer:
    """Trains a network by an optimizer, and knows what this rank keeps of both."""

    def __init__(self, network: nn.Module, plain: nn.Module, optimizer: Any) -> None:
        self.network = network
        self.plain = plain
        self.optimizer = optimizer

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update the weights this rank is responsible for."""
        self.optimizer.step()

    def gradients(self) -> list[Tensor]:
        """The gradients that this rank holds after a backward pass."""
        return [p.grad for p in self.plain.parameters() if p.grad is not None]

    def optimizer_bytes(self) -> tuple[int, int]:
        """How many bytes Adam's two moments take on this rank, and how many its step counters."""
        local = getattr(self.optimizer, "optim", self.optimizer)  # ZeroRedundancyOptimizer's own
        states = local.state.values()
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return storage_bytes(moments), sum(state["step"].nbytes for state in states)

    def full_weights(self) -> list[Tensor]:
        """The whole weights, gathered from the ranks that share them."""
        whole = (p.full_tensor() if isinstance(p, DTensor) else p for p in self.plain.parameters())
        return [tensor.detach() for tensor in whole]


def spread(run: Run, network: Any) -> Trainer:
    """Spread ``network`` over the run's ranks by its scheme, and give it AdamW."""
    parallel = run.parallel
    if parallel.zero == 3:
        shard(network, parallel, run.mesh)
        return Trainer(network, network, adamw(network.parameters()))
    if parallel.zero and parallel.shard_rule == "flat":
        return FlatSlices(network, run)
    wrapped = DistributedDataParallel(
        network, process_group=run.group, gradient_as_bucket_view=True
    )
    if not parallel.zero:
        return Trainer(wrapped, network, adamw(network.parameters()))
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW, run.group, **ADAM)
    return Trainer(wrapped, network, optimizer)


FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def shard(
    network: Any,
    parallel: Parallel,
    mesh: DeviceMesh,
    *,
    policy: tuple[str, str] | None = None,
) -> None:
    """Wrap a :class:`~labkit.memory.oracles.networks.Decoder` in FSDP2, unit by unit as
    ``Model.units`` lists them.

    Each layer is a unit. Both ends are one unit where they share the embedding or where ``wrap`` is
    ``"blocks"``; else each is one.

    Args:
        policy: formats in which parameters are gathered and gradients are reduced; None for those
            in which they are.
    """
    casts: dict[str, Any] = {}
    if policy is not None:
        gathered, reduced = (FORMATS[name] for name in policy)
        casts["mp_policy"] = MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=reduced)
    ends: dict[str, list[nn.Module]] = {}
    if parallel.wrap == "parts" and network.output.weight is not network.token.weight:
        first = [network.token, *([network.position] if network.position is not None else [])]
        ends = {"embedding": first, "head": [network.norm, network.output]}
    units = {str(number): block for number, block in enumerate(network.blocks)} | ends
    kept: str = parallel.keep_gathered
    kept = {"last block": str(len(network.blocks) - 1)}.get(kept, kept)
    reshard = parallel.secondary_group or parallel.reshard_after_forward
    for name, unit in (*units.items(), ("root", network)):
        stays = False if name == kept else reshard
        fully_shard(unit, mesh=mesh, reshard_after_forward=stays, **casts)


class FlatSlices(Trainer):
    """Trains on equal slices of one flat buffer, which is padded at its end.

    Source: ZeRO §5.1, §5.2, §7.2.1.
    """

    def __init__(self, network: nn.Module, run: Run) -> None:
        self.stage = run.parallel.zero
        self.group = run.group
        self.rank = run.rank
        self.num_ranks = run.parallel.dp
        whole = list(network.parameters())
        self.size = -(-sum(p.numel() for p in whole) // self.num_ranks)
        self.flat = torch.zeros(self.size * self.num_ranks)
        # Stage 1 keeps all gradients until the step; stage 2 this rank's slice of them.
        self.kept = torch.zeros_like(self.flat) if self.stage == 1 else torch.zeros(self.size)
        offset = 0
        for p in whole:
            part = self.flat[offset : offset + p.numel()]
            part.copy_(p.detach().flatten())
            p.data = part.view(p.shape)
            if self.stage == 1:
                p.grad = self.kept[offset : offset + p.numel()].view(p.shape)
            else:
                p.register_post_accumulate_grad_hook(self._reduce(offset))
            offset += p.numel()
        start = self.rank * self.size
        self.mine = nn.Parameter(self.flat[start : start + self.size])
        super().__init__(network, network, adamw([self.mine]))

    def _reduce(self, offset: int) -> Any:
        """Send each piece of a gradient to the rank whose slice it belongs to."""

        def hook(p: Tensor) -> None:
            assert p.grad is not None
            gradient = p.grad.flatten()
            end = offset + p.numel()
            for owner in range(offset // self.size, -(-end // self.size)):
                first = owner * self.size
                start = max(offset, first)
                stop = min(end, first + self.size)
                part = gradient[start - offset : stop - offset].clone()
                dist.reduce(part, owner, group=self.group)
                if owner == self.rank:
                    self.kept[start - first : stop - first] += part
            p.grad = None

        return hook

    def zero_grad(self) -> None:
        self.kept.zero_()

    def step(self) -> None:
        reduced = self.kept
        if self.stage == 1:
            reduced = torch.empty(self.size)
            dist.reduce_scatter_single(reduced, self.kept, group=self.group)
        self.mine.grad = reduced / self.num_ranks
        self.optimizer.step()
        self.mine.grad = None
        dist.all_gather_single(self.flat, self.mine.detach().clone(), group=self.group)

    def gradients(self) -> list[Tensor]:
        return [self.kept]


def build(model: Model, spec: dict[str, Any]) -> networks.Decoder:
    """Build the network with the same small weights on every rank; its tensors are those the
    formulas count.
    """
    torch.manual_seed(spec["rng"])
    network = networks.build(model, Mode(dtype="fp32"), seq=spec["seq"])
    shapes = [tuple(p.shape) for p in network.parameters()]
    assert shapes == [tensor.shape for tensor in model.tensors()]
    with torch.no_grad():
        for table in filter(None, (network.token, network.position)):
            table.weight.mul_(0.02)
    return network


def batches(model: Model, spec: dict[str, Any]) -> Iterator[Tensor]:
    """Yield one global batch of random tokens a step, the same on every rank."""
    source = torch.Generator().manual_seed(spec["rng"] + 1)
    for _ in range(spec["steps"]):
        shape = (spec["global_batch"], spec["seq"] + 1)
        yield torch.randint(model.vocab, shape, generator=source)


def _pair(batch: Tensor) -> tuple[Tensor, Tensor]:
    """Split a batch into the tokens a network reads and the tokens that follow them."""
    return batch[:, :-1], batch[:, 1:].contiguous()


def train(trainer: Trainer, chosen: Iterable[Tensor]) -> None:
    """Take one optimizer step on each batch."""
    for batch in chosen:
        trainer.zero_grad()
        trainer.network(*_pair(batch)).backward()
        trainer.step()


def reference_weights(model: Model, spec: dict[str, Any]) -> list[Tensor]:
    """Train on whole batches in one process: what its weights are, every scheme's must be."""
    network = build(model, spec)
    train(Trainer(network, network, adamw(network.parameters())), batches(model, spec))
    return [p.detach().clone() for p in network.parameters()]


def measure(model: Model, spec: dict[str, Any], run: Run, expected: list[Tensor]) -> dict:
    """Train under one scheme and report what this rank held, sent and ended with.

    Args:
        model: what is trained.
        spec: the settings all ranks were sent, as :func:`labkit.memory.measure` writes them.
        run: the scheme, and this rank's place in it.
        expected: the weights that training in one process leads to.
    """
    trainer = spread(run, build(model, spec))
    share = spec["global_batch"] // run.parallel.dp
    *warm_up, last = (
        batch[run.rank * share : (run.rank + 1) * share] for batch in batches(model, spec)
    )
    train(trainer, warm_up)
    trainer.zero_grad()
    dist.barrier(group=run.group)
    before = received_bytes()
    held: dict[str, int] = {}
    with CollectiveMeter() as meter:
        meter.phase = Phase.FORWARD
        loss = trainer.network(*_pair(last))
        held[SECOND_COPY] = storage_bytes(trainer.network.parameters())
        meter.phase = Phase.BACKWARD
        loss.backward()
        held["gradients"] = storage_bytes(trainer.gradients())
        meter.phase = Phase.STEP
        trainer.step()
    dist.barrier(group=run.group)
    after = received_bytes()
    held["parameters"] = storage_bytes(trainer.network.parameters())
    held["optimizer"], held["step counters"] = trainer.optimizer_bytes()
    pairs = zip(trainer.full_weights(), expected, strict=True)
    return {
        "scheme": run.scheme,
        "ranks": run.parallel.dp,
        "rank": run.rank,
        "held_bytes": held,
        "collectives": meter.summary(),
        "received_bytes": None if before is None or after is None else after - before,
        "largest_difference": max(float((ours - whole).abs().max()) for ours, whole in pairs),
    }


def reports(rank: int, model: Model, spec: dict[str, Any]) -> list[dict]:
    """Train every scheme on each number of ranks and report what this rank measured."""
    expected = reference_weights(model, spec)
    every = runs(rank, spec["ranks"], spec["schemes"], spec["group"])
    return [measure(model, spec, run, expected) for run in every]
