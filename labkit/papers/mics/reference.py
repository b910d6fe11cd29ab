"""MiCS: ZeRO-3's traffic of a micro-batch to compare with, and the weights it must end with.

Source: Zhang et al., "MiCS: Near-linear Scaling for Training Gigantic Model on Public Cloud",
VLDB 2022, §3.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from labkit.memory.oracles.collective import Adam, gather, ring_reduce_scatter


def zero3_micro_batch(weights: Tensor, gradient: Tensor) -> Tensor:
    """What ZeRO-3 sends for a micro-batch: the weights twice, then the gradients to their ranks.

    Runs on each rank; returns this rank's part of the summed gradient.

    Args:
        weights: all weights, the same on each rank; they divide among the ranks.
        gradient: this rank's own.
    """
    part = weights.view(dist.get_world_size(), -1)[dist.get_rank()]
    gather(part)  # forward
    gather(part)  # backward
    return ring_reduce_scatter(gradient)


def undivided_adam(start: Tensor, steps: Tensor) -> Tensor:
    """The weights after plain Adam on mean gradients: what every way of sharding must give.

    Args:
        start: the first weights.
        steps: gradients, steps × micro-batches × ranks × weights.
    """
    adam = Adam(start.clone())
    for gradients in steps:
        adam.step(gradients.flatten(0, -2).mean(0))
    return adam.weights
