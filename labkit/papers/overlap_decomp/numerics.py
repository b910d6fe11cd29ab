"""The decomposed products with real numbers: on lists of virtual ranks, and on gloo's processes.

Operands: ``rows[rank]`` (tokens of a rank, inner width) and ``weights[rank]`` (inner width,
outputs of a rank) where rows are gathered; ``rows[rank]`` (all tokens, inner width of a rank) and
``weights[rank]`` (inner width of a rank, outputs) where the result is scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.papers.overlap_decomp.timeline import Rings

Matrices = Sequence[np.ndarray]


def _halves(workers: int, rings: Rings) -> tuple[range, range]:
    """Distances of the parts that come from the left, going right, and from the right."""
    if rings == 1:
        return range(1, workers), range(0)
    rightwards = workers // 2
    return range(1, rightwards + 1), range(1, workers - rightwards)


def gathered(rows: Matrices, weights: Matrices, *, rings: Rings = 1) -> list[np.ndarray]:
    """Each rank's columns of the result, without any rank holding all rows at once.

    1. Each rank multiplies its own rows.
    2. Parts move by one rank, to the right and, with two rings, to the left as well.
    3. What arrived is multiplied and put where its owner's rows belong.

    Returns:
        For each rank, an array (all tokens, outputs of a rank).
    """
    workers = len(rows)
    tokens = len(rows[0])
    results = [np.empty((workers * tokens, part.shape[1]), part.dtype) for part in weights]

    def multiply(rank: int, owner: int, part: np.ndarray) -> None:
        results[rank][owner * tokens : (owner + 1) * tokens] = part @ weights[rank]

    for rank in range(workers):
        multiply(rank, rank, rows[rank])
    for distances, direction in zip(_halves(workers, rings), (1, -1), strict=True):
        held = list(rows)
        for distance in distances:
            held = [held[(rank - direction) % workers] for rank in range(workers)]
            for rank in range(workers):
                multiply(rank, (rank - direction * distance) % workers, held[rank])
    return results


def scattered(rows: Matrices, weights: Matrices, *, rings: Rings = 1) -> list[np.ndarray]:
    """Each rank's rows of the summed result, without any rank holding all of it at once.

    1. A partial sum for the farthest rank starts the journey.
    2. It moves by one rank, which adds its own product for the same destination.
    3. At its destination the sums of both ways meet that rank's own product.

    Returns:
        For each rank, an array (tokens of a rank, outputs).
    """
    workers = len(rows)
    tokens = len(rows[0]) // workers

    def product(rank: int, destination: int) -> np.ndarray:
        part = rows[rank][destination * tokens : (destination + 1) * tokens]
        return part @ weights[rank]

    results = [product(rank, rank) for rank in range(workers)]
    for distances, direction in zip(_halves(workers, rings), (1, -1), strict=True):
        moving: list[np.ndarray] | None = None
        for distance in reversed(distances):
            own = [
                product(rank, (rank + direction * distance) % workers) for rank in range(workers)
            ]
            if moving is not None:
                own = [own[rank] + moving[(rank - direction) % workers] for rank in range(workers)]
            moving = own
        if moving is not None:
            for rank in range(workers):
                results[rank] = results[rank] + moving[(rank - direction) % workers]
    return results


def largest_difference(parts: Matrices, whole: Matrices) -> float:
    """Largest difference of any number, over the largest number of the whole."""
    differences = [np.abs(part - other).max() for part, other in zip(parts, whole, strict=True)]
    largest = max(np.abs(other).max() for other in whole)
    return float(max(differences) / largest)


def gathered_on_rank(rank: int, rows: Any, weights: Any) -> Any:
    """What one of gloo's processes does: a hop beside each slice, on one ring.

    Args:
        rank: which process.
        rows, weights: of all ranks, as tensors; a rank uses its own alone.

    Returns:
        A tensor (all tokens, outputs of the rank).
    """
    import torch
    import torch.distributed as dist

    workers = dist.get_world_size()
    held = rows[rank].contiguous()
    slices: list[Any] = [None] * workers
    for step in range(workers):
        requests: list[Any] = []
        if step < workers - 1:
            arriving = torch.empty_like(held)
            requests.append(dist.isend(held, (rank + 1) % workers))
            requests.append(dist.irecv(arriving, (rank - 1) % workers))
        slices[(rank - step) % workers] = held @ weights[rank]  # while the hop is under way
        for request in requests:
            request.wait()
        if requests:
            held = arriving
    return torch.cat(slices)
