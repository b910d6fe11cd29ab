"""Gathers and a reduce-scatter for ranks whose traffic is counted.

Gloo's own reduce-scatter moves what an all-reduce moves, so the ring is written out.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.adam import adam


def gather(part: Tensor, group: Any = None) -> Tensor:
    """The parts of all ranks of ``group`` (None: of all there are), one after another."""
    whole = part.new_empty(len(part) * dist.get_world_size(group), *part.shape[1:])
    dist.all_gather_single(whole, part.contiguous(), group=group)
    return whole


def ring_reduce_scatter(values: Tensor) -> Tensor:
    """This rank's part of the sum over all ranks; each sends n − 1 parts to the next rank.

    Args:
        values: this rank's own, which divide among the ranks.
    """
    rank = dist.get_rank()
    size = dist.get_world_size()
    parts = list(values.view(size, -1).clone())
    for hop in range(size - 1):
        leaving = (rank - hop - 1) % size
        arriving = (rank - hop - 2) % size
        arrived = torch.empty_like(parts[arriving])
        moves = [
            dist.P2POp(dist.isend, parts[leaving], (rank + 1) % size),
            dist.P2POp(dist.irecv, arrived, (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        parts[arriving] += arrived
    return parts[rank]


class Adam:
    """torch's Adam on one tensor, in place.

    Its class would load torch's compiler at the first step, in each process, which takes longer
    than to load torch.
    """

    def __init__(self, weights: Tensor, lr: float = 1e-3) -> None:
        self.weights = weights
        self.lr = lr
        self._step = torch.zeros(())
        self._moments = [torch.zeros_like(weights)], [torch.zeros_like(weights)]

    def step(self, gradient: Tensor) -> None:
        """Move the weights by one gradient."""
        usual: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0, "eps": 1e-8}
        state: Any = [self.weights], [gradient], *self._moments, [], [self._step]
        adam(*state, amsgrad=False, lr=self.lr, maximize=False, **usual)
