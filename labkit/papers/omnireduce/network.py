"""Seconds of ways to sum sparse gradients, by the bytes on the busiest link."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from labkit.kit.fabric import GBIT

NUMBER_BYTES = 4
INDEX_BYTES = 4


class Way(StrEnum):
    """How gradients are summed."""

    RING = "ring all-reduce"
    PAIRS = "all-gather of pairs"
    ROWS = "all-gather of blocks"
    BLOCKS = "OmniReduce"


def blocks_of(gradients: np.ndarray, block: int) -> np.ndarray:
    """Which blocks of each worker hold anything; the last block may be shorter.

    Args:
        gradients: one row a worker.
        block: numbers of a block.

    Returns:
        Shape (workers, blocks).

    >>> blocks_of(np.array([[0, 0, 0, 1, 2]]), 2).tolist()
    [[False, True, True]]
    """
    workers, size = gradients.shape
    padded = np.zeros((workers, -(-size // block) * block), dtype=bool)
    padded[:, :size] = gradients != 0
    return np.asarray(padded.reshape(workers, -1, block).any(axis=2), dtype=bool)


def random_blocks(
    workers: int, num_blocks: int, density: float, rng: np.random.Generator
) -> np.ndarray:
    """Blocks that hold anything, for each worker by itself a share ``density`` of all."""
    chosen = round(density * num_blocks)
    nonzero = np.zeros((workers, num_blocks), dtype=bool)
    for row in nonzero:
        row[rng.permutation(num_blocks)[:chosen]] = True
    return nonzero


@dataclass(frozen=True, kw_only=True)
class Job:
    """Workers that sum a gradient, and what they compute between.

    Attributes:
        gradient_bytes: M, of a worker.
        aggregators: machines with links of their own.
        gbit_per_s: of each link, in each direction.
        block: numbers of a block.
        header_bytes: that come with a block: its place, the next one's, and a packet's head.
        compute_s: of a step, which nothing overlaps.
        copy_gb_per_s: at which all of a gradient goes to the network's memory and back (GB/s).
    """

    gradient_bytes: float
    aggregators: int = 8
    gbit_per_s: float = 100.0
    block: int = 256
    header_bytes: float = 16.0
    compute_s: float = 0.0
    copy_gb_per_s: float = np.inf

    def sum_s(self, way: Way, nonzero: np.ndarray, value_density: float = 1.0) -> float:
        """Seconds until all workers have the sum; latency is left out.

        1. A ring carries 2 (n - 1) / n of the gradient.
        2. In an all-gather each worker receives what all others hold, with an index for each
           number or block.
        3. With blocks a worker sends its own and receives the union; an aggregator receives its
           part of all workers' blocks, and sends its part of the union to each.

        Args:
            way: to sum.
            nonzero: blocks that hold anything, shape (workers, blocks). Where the gradient has
                more blocks than these, they count as its pattern, repeated.
            value_density: the share of a worker's numbers that are not zero, for pairs.
        """
        workers, num_blocks = nonzero.shape
        rate = self.gbit_per_s * GBIT
        if way is Way.RING:
            return 2 * (workers - 1) / workers * self.gradient_bytes / rate
        if way is Way.PAIRS:
            numbers = self.gradient_bytes / NUMBER_BYTES * value_density
            return (workers - 1) * numbers * (NUMBER_BYTES + INDEX_BYTES) / rate
        block_bytes = self.block * NUMBER_BYTES
        repeats = self.gradient_bytes / (num_blocks * block_bytes)
        if way is Way.ROWS:
            others = nonzero.sum() * (workers - 1) / workers  # blocks that a worker receives
            return float(repeats * others * (block_bytes + INDEX_BYTES) / rate)
        sent = repeats * (block_bytes + self.header_bytes)
        union = nonzero.any(axis=0).sum()
        busiest = max(
            nonzero.sum(axis=1).max(),
            union,
            nonzero.sum() / self.aggregators,
            workers * union / self.aggregators,
        )
        return float(busiest * sent / rate)

    def step_s(self, way: Way, nonzero: np.ndarray, value_density: float = 1.0) -> float:
        """Seconds of a training step; the ring's gradient stays on the GPU."""
        copying_s = 0.0
        if way is Way.BLOCKS:
            copying_s = 2 * self.gradient_bytes / (self.copy_gb_per_s * 1e9)
        return self.compute_s + self.sum_s(way, nonzero, value_density) + copying_s
