"""Products on the measured links of a node of A100s: hops and all-reduces as NCCL took them.

Source: Vidur's profiles of NCCL (data set ``vidur-network``), medians of repeated calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit import hardware
from labkit.datasets.sources import Source
from labkit.papers.overlap_decomp.layers import BYTES
from labkit.papers.overlap_decomp.timeline import Product

A100 = hardware.accelerator("A100-80GB")
FOLDER = "data/profiling/network/a100_dgx"
FILES = (f"{FOLDER}/send_recv.csv", f"{FOLDER}/all_reduce.csv")


@dataclass(frozen=True, kw_only=True, eq=False)
class Times:
    """Measured seconds by the bytes of a message, rising; between them, a straight line."""

    sizes: np.ndarray
    seconds: np.ndarray

    def __call__(self, num_bytes: float) -> float:
        """Seconds of a message; below the smallest measured, that one's; above the largest, at
        the largest's rate."""
        largest = float(self.sizes[-1])
        if num_bytes > largest:
            return float(self.seconds[-1]) * num_bytes / largest
        return float(np.interp(num_bytes, self.sizes, self.seconds))


@dataclass(frozen=True, kw_only=True)
class Node:
    """Eight A100s that send to each other.

    Attributes:
        hop_s: of a message between two of them, by its bytes.
        all_reduce_s: of all eight, by the bytes of one's array.
        flops_per_s: that whole matrix products reach (ours).
        slice_s: what starting a product costs (ours).
        tile_rows: rows of a tile of a matrix product (ours).
    """

    hop_s: Times
    all_reduce_s: Times
    workers: int = 8
    flops_per_s: float = 0.6 * A100.peak_flops
    slice_s: float = 5e-6
    tile_rows: int = 128

    def product(self, *, tokens: int, width: int, outputs: int, scatter: bool = False) -> Product:
        """A product of ``tokens`` × width with outputs columns, shared by the eight.

        The gather, or the scatter, counts as half the measured all-reduce of the same array.
        """
        rows = tokens // self.workers
        array_bytes = tokens * width * BYTES
        copy_s = 2 * array_bytes / self.workers / A100.hbm_bytes_per_s
        hop_bytes = array_bytes / self.workers
        return Product(
            workers=self.workers,
            compute_s=2 * tokens * width * outputs / self.workers / self.flops_per_s,
            collective_s=self.all_reduce_s(array_bytes) / 2,
            hop_s=self.hop_s(hop_bytes),
            half_hop_s=self.hop_s(hop_bytes / 2),
            slice_s=self.slice_s,
            rows=rows,
            tile_rows=self.tile_rows,
            copy_s=copy_s,
            add_s=1.5 * copy_s,
            scatter=scatter,
        )


def _times(data: Source, file: str, column: str, workers: int) -> Times:
    table = data.frame(file)
    chosen = (table["num_workers"] == workers) & (table["devices_per_node"] == workers)
    medians = table[chosen].groupby("size")[f"time_stats.{column}.median"].median() / 1e3
    return Times(sizes=medians.index.to_numpy(dtype=float), seconds=medians.to_numpy(dtype=float))


def read_node(data: Source) -> Node:
    """The node's measured times."""
    return Node(
        hop_s=_times(data, FILES[0], "send_recv", 2),
        all_reduce_s=_times(data, FILES[1], "all_reduce", 8),
    )
