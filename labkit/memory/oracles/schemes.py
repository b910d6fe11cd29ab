"""Data parallelism as torch itself does it, and by hand where it does not, on real ranks.

Loads torch: only :mod:`labkit.memory.oracles.worker` imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from labkit.memory.jobs.states import rows_on_rank
from labkit.memory.oracles.by_hand import FlatSlices, RowSlices
from labkit.memory.oracles.meters import local
from labkit.memory.oracles.trainer import Adam, Run, Slice, Trainer

GROUPED = ("mics", "hpz")
BY_HAND: dict[str, tuple[Any, int]] = {
    "zero1": (FlatSlices, 1),
    "zero1-rows": (RowSlices, 1),
    "zero2-flat": (FlatSlices, 2),
    "zero2-rows": (RowSlices, 2),
}


def runs(rank: int, ranks: list[int], names: list[str], size: int) -> Iterator[Run]:
    """Every scheme at every number of ranks, in the same order on every rank.

    Groups are made by all ranks together, members or not: that is gloo's rule. ``size`` ranks share
    the states, or the second shard, of the schemes in :data:`GROUPED`; they sit out where it does
    not divide the ranks.
    """
    for num_ranks in ranks:
        group = dist.new_group(list(range(num_ranks)))
        flat = DeviceMesh("cpu", list(range(num_ranks)), mesh_dim_names=("shard",))
        for name in names:
            if name in GROUPED and (num_ranks % size or num_ranks <= size):
                continue
            mesh = flat
            if name == "mics":
                groups = [list(range(at, at + size)) for at in range(0, num_ranks, size)]
                mesh = DeviceMesh("cpu", groups, mesh_dim_names=("replicate", "shard"))
            member = group if rank < num_ranks else None
            yield Run(
                scheme=name, num_ranks=num_ranks, rank=rank, group=member, mesh=mesh, size=size
            )


class WholeTensors(Trainer):
    """Stage 1 as torch has it: all-reduce, each tensor updated by one rank, then broadcast."""

    optimizer: ZeroRedundancyOptimizer

    def _inner(self) -> torch.optim.Optimizer:
        return self.optimizer.optim

    def slices(self) -> list[Slice]:
        mine = {id(p) for group in self._inner().param_groups for p in group["params"]}
        return [(name, 0, p.shape[0]) for name, p in self.plain.named_parameters() if id(p) in mine]


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
    if run.scheme in BY_HAND:
        kind, stage = BY_HAND[run.scheme]
        return kind(network, run, adam, stage=stage)
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
    reshard: dict[str, bool | int] = {"zero2": False, "zero3": True, "mics": True, "hpz": run.size}
    shard(network, run.mesh, reshard[run.scheme])
    return Rows(network, network, adam.over(network.parameters()))


def shard(network: Any, mesh: Any, reshard: bool | int, **options: Any) -> None:
    """FSDP2 over a :class:`~labkit.memory.oracles.networks.Decoder`, unit by unit
    as ``Model.units`` has it: each layer, and both ends, one unit where they share the embedding,
    else one each."""
    ends: list[list[nn.Module]] = []
    if network.output.weight is not network.token.weight:
        first = [network.token, *([network.position] if network.position is not None else [])]
        ends = [first, [network.norm, network.output]]
    for unit in (*network.blocks, *ends, network):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, **options)
