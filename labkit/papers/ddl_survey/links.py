"""Measured times of messages on six links, and of all-reduce in a node of A100s.

Source: Vidur's profiles of NCCL (data set ``vidur-network``), medians of repeated calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labkit import collectives
from labkit.collectives.fitting import Fit
from labkit.datasets.sources import Source

CLUSTERS = {
    "A100 NVSwitch": "a100_dgx",
    "A100 NVLink pairs": "a100_pairwise_nvlink",
    "A40 NVLink pairs": "a40_pairwise_nvlink",
}
"""What tables call a cluster -> its folder in the data set."""

FOLDER = "data/profiling/network"


def file_names() -> list[str]:
    """The files that the notebook reads."""
    files = [f"{FOLDER}/{cluster}/send_recv.csv" for cluster in CLUSTERS.values()]
    return [*files, f"{FOLDER}/a100_dgx/all_reduce.csv"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Link:
    """Seconds of one message between two GPUs, by its bytes.

    Attributes:
        sizes: bytes of the messages that were measured, rising.
        seconds: what each took.
        line: α + β · bytes through them.
    """

    name: str
    sizes: np.ndarray
    seconds: np.ndarray
    line: Fit

    def measured_s(self, num_bytes: np.ndarray) -> np.ndarray:
        """Seconds between measured points; a message below the smallest takes as long as it."""
        asked = np.log2(np.maximum(num_bytes, 1.0))
        return np.interp(asked, np.log2(self.sizes), self.seconds)

    def line_s(self, num_bytes: np.ndarray) -> np.ndarray:
        """Seconds by the line."""
        return self.line.latency_s + self.line.s_per_byte * np.asarray(num_bytes, dtype=float)

    def fitted(self, smallest: float = 0.0, largest: float = np.inf) -> Link:
        """The link with its line fitted anew, to messages of these sizes alone."""
        chosen = (self.sizes >= smallest) & (self.sizes <= largest)
        line = collectives.fit(self.sizes[chosen].tolist(), self.seconds[chosen].tolist())
        return replace(self, line=line)

    def through_ends(self) -> Link:
        """The link with a line through its smallest and its largest message alone."""
        ends = [0, -1]
        line = collectives.fit(self.sizes[ends].tolist(), self.seconds[ends].tolist())
        return replace(self, line=line)


def read_links(data: Source) -> dict[str, Link]:
    """The links inside and between nodes of each cluster, by name."""
    links = {}
    for cluster, folder in CLUSTERS.items():
        table = data.frame(f"{FOLDER}/{folder}/send_recv.csv")
        for place, devices_per_node in (("in a node", 2), ("between nodes", 1)):
            rows = table[table["devices_per_node"] == devices_per_node]
            times = rows.groupby("size")["time_stats.send_recv.median"].median() / 1e3
            name = f"{cluster}, {place}"
            sizes = times.index.to_numpy(dtype=float)
            seconds = times.to_numpy(dtype=float)
            line = collectives.fit(sizes.tolist(), seconds.tolist())
            links[name] = Link(name=name, sizes=sizes, seconds=seconds, line=line)
    return links


def all_reduce_s(
    data: Source, num_ranks: int, *, num_nodes: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and seconds of NCCL's all-reduce among A100s with NVSwitch, rising in bytes.

    Args:
        num_ranks, num_nodes: 2, 4 or 8 GPUs of one node, or 2, 4, 8 or 16 on two; of any other
            the table has no rows, and both are empty.
    """
    table = data.frame(f"{FOLDER}/a100_dgx/all_reduce.csv")
    chosen_rows = (table["num_workers"] == num_ranks) & (
        table["devices_per_node"] * num_nodes == num_ranks
    )
    times = table[chosen_rows].groupby("size")["time_stats.all_reduce.median"].median() / 1e3
    return times.index.to_numpy(dtype=float), times.to_numpy(dtype=float)
