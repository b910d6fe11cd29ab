"""Which GPUs a job gets: at random, spread, packed, on the fewest nodes, or by network cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue, shown
from labkit.kit.describe import Count, Whole, checked
from labkit.papers.liquid.racks import Racks


class Way(StrEnum):
    """How the nodes of a job are chosen."""

    RANDOM = "at random"
    SPREAD = "spread"
    """One by one, from the node with most GPUs free."""
    PACK = "pack"
    """From the fullest nodes on."""
    FEWEST_NODES = "fewest nodes"
    """One node where that is enough, the fullest such; else from the emptiest nodes on."""
    BEST_FIT = "best fit"
    """The least time over the busiest link; of equals, the nodes that are left fullest."""
    CHOSEN = "chosen"
    """Around a node that is named, its rack first."""


@checked
def place(
    racks: Racks,
    free: ArrayLike,
    gpus: Count,
    way: Way = Way.BEST_FIT,
    *,
    rng: np.random.Generator | Whole = 0,
    anchor: Whole = 0,
) -> NDArray[np.int64]:
    """GPUs by node for a job that fits into the free ones.

    Args:
        racks: the nodes and their links.
        free: GPUs that are free, by node.
        gpus: of the job.
        way: how nodes are chosen.
        rng: of ``random``: a generator or a seed.
        anchor: of ``chosen``.

    Raises:
        BadValue: ``free`` is not a whole number a node, the job does not fit, no such ``anchor``.
    """
    free = np.asarray(free)
    nodes = racks.racks * racks.nodes
    is_right = free.shape == (nodes,) and free.dtype.kind == "i"
    if not is_right or free.min() < 0 or free.max() > racks.gpus:
        raise BadValue(
            f"place: free must be a whole number for each of {nodes} nodes, from 0 to "
            f"{racks.gpus}, its GPUs; got {shown(free)}"
        )
    if gpus > free.sum():
        raise BadValue(f"place: gpus must be at most those free, {free.sum()}; got {gpus}")
    if anchor >= nodes:
        raise BadValue(f"place: anchor {anchor}; valid: 0 to {nodes - 1}")
    held = np.zeros_like(free)
    if way is Way.RANDOM:
        picked = np.random.default_rng(rng).choice(
            np.repeat(np.arange(free.size), free), gpus, replace=False
        )
        return np.bincount(picked, minlength=free.size)
    if way is Way.SPREAD:
        for _ in range(gpus):
            held[np.argmax(free - held)] += 1
        return held
    if way is Way.PACK:
        return _fill(free, gpus, np.argsort(free, kind="stable"))
    if way is Way.FEWEST_NODES:
        enough = np.flatnonzero(free >= gpus)
        if enough.size:
            return _fill(free, gpus, enough[[free[enough].argmin()]])
        return _fill(free, gpus, np.argsort(-free, kind="stable"))
    rack = np.arange(free.size) // racks.nodes
    if way is Way.CHOSEN:
        return _around(rack, free, gpus, anchor)
    options = []
    rate = racks.rate
    for node in np.flatnonzero(free).tolist():
        held = _around(rack, free, gpus, node)
        cost = float((racks.traffic(held) / rate).max())
        options.append((cost, int((free - held)[held > 0].sum()), node, held))
    return min(options, key=lambda option: option[:3])[3]


def _around(rack: Any, free: NDArray[np.int64], gpus: int, node: int) -> NDArray[np.int64]:
    """A node first, then those of its rack, then the others, the emptiest first."""
    order = np.lexsort((-free, rack != rack[node]))
    return _fill(free, gpus, np.concatenate([[node], order[order != node]]))


def _fill(free: NDArray[np.int64], gpus: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    held = np.zeros_like(free)
    before = np.cumsum(free[order])
    held[order] = np.clip(gpus - (before - free[order]), 0, free[order])
    return held
