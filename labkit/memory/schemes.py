"""Data parallelism done six ways by torch itself (and once by hand), behind one small interface.

Loads torch: only :mod:`labkit.memory.worker` imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from labkit.memory.meters import local, storage_bytes
from labkit.memory.states import rows_on_rank

Slice = tuple[str, int, int]


class Adam(NamedTuple):
    """The two numbers of Adam that matter here."""

    lr: float
    eps: float

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, eps=self.eps, fused=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One scheme on the first ``num_ranks`` ranks; ``group`` is None on ranks that sit it out."""

    scheme: str
    num_ranks: int
    rank: int
    group: Any
    mesh: Any


def runs(rank: int, ranks: list[int], names: list[str]) -> Iterator[Run]:
    """Every scheme at every number of ranks, in the same order on every rank.

    Groups are made by all ranks together, members or not: that is gloo's rule.
    """
    for num_ranks in ranks:
        group = dist.new_group(list(range(num_ranks)))
        flat = DeviceMesh("cpu", list(range(num_ranks)), mesh_dim_names=("shard",))
        for name in names:
            if name in {"mics", "hpz"} and (num_ranks % 2 or num_ranks < 4):
                continue
            mesh = flat
            if name == "mics":
                pairs = [[first, first + 1] for first in range(0, num_ranks, 2)]
                mesh = DeviceMesh("cpu", pairs, mesh_dim_names=("replicate", "shard"))
            member = group if rank < num_ranks else None
            yield Run(scheme=name, num_ranks=num_ranks, rank=rank, group=member, mesh=mesh)


class Trainer:
    """A network, its optimizer, and what this rank keeps of both."""

    def __init__(self, network: nn.Module, plain: nn.Module, optimizer: Any) -> None:
        self.network, self.plain, self.optimizer = network, plain, optimizer

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        self.optimizer.step()

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.plain.parameters() if p.grad is not None]

    def optimizer_bytes(self) -> tuple[int, int]:
        """Bytes of Adam's two moments on this rank, and of its step counters."""
        states = self._inner().state.values()
        counters = [state["step"] for state in states]
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return storage_bytes(moments), sum(counter.nbytes for counter in counters)

    def _inner(self) -> torch.optim.Optimizer:
        return self.optimizer

    def full_weights(self) -> list[Tensor]:
        return [p.detach() for p in self.plain.parameters()]

    def slices(self) -> list[Slice]:
        """What this rank updates: tensor, first row, row after the last."""
        return [(name, 0, p.shape[0]) for name, p in self.plain.named_parameters()]


class WholeTensors(Trainer):
    """Stage 1 as torch has it: all-reduce, each tensor updated by one rank, then broadcast."""

    optimizer: ZeroRedundancyOptimizer

    def _inner(self) -> torch.optim.Optimizer:
        return self.optimizer.optim

    def slices(self) -> list[Slice]:
        mine = {id(p) for group in self._inner().param_groups for p in group["params"]}
        return [(name, 0, p.shape[0]) for name, p in self.plain.named_parameters() if id(p) in mine]


class FlatSlices(Trainer):
    """Stage 1 as the paper has it (§5.1, §7.2.1): equal slices of one flat buffer.

    Reduce-scatter the gradients, update this rank's slice, all-gather the parameters.
    """

    def __init__(self, network: nn.Module, run: Run, adam: Adam) -> None:
        self.group, self.num_ranks = run.group, run.num_ranks
        parameters = list(network.parameters())
        total = sum(p.numel() for p in parameters)
        self.size = -(-total // run.num_ranks)
        self.flat = torch.zeros(self.size * run.num_ranks)
        self.flat_gradients = torch.zeros_like(self.flat)
        offset = 0
        for p in parameters:
            end = offset + p.numel()
            self.flat[offset:end] = p.detach().flatten()
            p.data = self.flat[offset:end].view(p.shape)
            p.grad = self.flat_gradients[offset:end].view(p.shape)
            offset = end
        self.start = run.rank * self.size
        self.mine = nn.Parameter(self.flat[self.start : self.start + self.size])
        super().__init__(network, network, adam.over([self.mine]))

    def zero_grad(self) -> None:
        self.flat_gradients.zero_()

    def step(self) -> None:
        reduced = torch.empty(self.size)
        dist.reduce_scatter_single(reduced, self.flat_gradients, group=self.group)
        self.mine.grad = reduced / self.num_ranks
        self.optimizer.step()
        dist.all_gather_single(self.flat, self.mine.detach().clone(), group=self.group)

    def slices(self) -> list[Slice]:
        """The rows this rank's slice touches; the first and last may be shared with a neighbour."""
        found, offset = [], 0
        for name, p in self.plain.named_parameters():
            first = max(self.start, offset) - offset
            last = min(self.start + self.size, offset + p.numel()) - offset
            width = p.numel() // p.shape[0]
            if first < last:
                found.append((name, first // width, -(-last // width)))
            offset += p.numel()
        return found


class Rows(Trainer):
    """FSDP2: every tensor cut along its first dimension, each rank a run of rows."""

    def full_weights(self) -> list[Tensor]:
        whole = [p.full_tensor() for p in self.plain.parameters() if isinstance(p, DTensor)]
        return [tensor.detach() for tensor in whole]

    def slices(self) -> list[Slice]:
        found = []
        for name, p in self.plain.named_parameters():
            assert isinstance(p, DTensor)
            shards = p.device_mesh.size(-1)
            rows = rows_on_rank(p.shape[0], shards, p.device_mesh.get_local_rank(-1))
            assert local(p).shape[0] == rows[1] - rows[0]
            found.append((name, *rows))
        return found


def trainer(run: Run, network: Any, adam: Adam) -> Trainer:
    """``network`` spread over the run's ranks by its scheme, with AdamW."""
    if run.scheme == "zero1":
        return FlatSlices(network, run, adam)
    if run.scheme in {"ddp", "zero1-torch"}:
        wrapped = DistributedDataParallel(
            network, process_group=run.group, gradient_as_bucket_view=True
        )
        if run.scheme == "ddp":
            return Trainer(wrapped, network, adam.over(network.parameters()))
        optimizer = ZeroRedundancyOptimizer(
            network.parameters(), torch.optim.AdamW, run.group, lr=adam.lr, eps=adam.eps, fused=True
        )
        return WholeTensors(wrapped, network, optimizer)
    reshard: bool | int = {"zero2": False, "zero3": True, "mics": True, "hpz": 2}[run.scheme]
    for unit in (*network.blocks, network):
        fully_shard(unit, mesh=run.mesh, reshard_after_forward=reshard)
    return Rows(network, network, adam.over(network.parameters()))
