"""Nodes in racks, the links between them, and what a job's placement sends over each."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.kit.describe import Count, Positive, description


@description
class Racks:
    """Equal racks of equal nodes.

    Attributes:
        racks, nodes, gpus: racks, nodes of a rack, GPUs of a node.
        node_bytes_per_s: of a node's link, each way.
        rack_bytes_per_s: of a rack's link to the other racks, each way.
    """

    racks: Count
    nodes: Count
    gpus: Count
    node_bytes_per_s: Positive
    rack_bytes_per_s: Positive

    @property
    def rate(self) -> NDArray[np.float64]:
        """Bytes a second of every link: of the nodes, then of the racks."""
        num = self.racks * self.nodes
        return np.repeat([self.node_bytes_per_s, self.rack_bytes_per_s], [num, self.racks])

    def traffic(self, held: NDArray[np.int64]) -> NDArray[np.float64]:
        """What a job sends each way over every link, in models a step; its GPUs by node.

        The parameter server stands on the job's fullest node. Every worker elsewhere sends its
        gradients and fetches the model: over its node's link, over the server's, and over both
        racks' where they differ.
        """
        server = int(np.argmax(held))
        away = held.copy()
        away[server] = 0
        by_rack = away.reshape(self.racks, self.nodes).sum(axis=1).astype(float)
        rack = server // self.nodes
        by_rack[rack] = by_rack.sum() - by_rack[rack]
        nodes = away.astype(float)
        nodes[server] = away.sum()
        return np.concatenate([nodes, by_rack])

    def step_s(
        self, loads: NDArray[np.float64], compute_s: ArrayLike, model_bytes: ArrayLike
    ) -> NDArray[np.float64]:
        """Seconds of a step of jobs that run at once; a link is shared evenly by who uses it.

        ``loads``: job × link, the :meth:`traffic` of each.
        """
        slowest = (loads * (loads > 0).sum(axis=0) / self.rate).max(axis=1, initial=0.0)
        return np.asarray(compute_s) + np.asarray(model_bytes) * slowest
