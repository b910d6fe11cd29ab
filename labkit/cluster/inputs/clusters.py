"""GPU clusters: pools of equal nodes, each of a GPU type with its speed."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

MOST_GPUS = 10**7
"""GPUs of a cluster; a record of each node would fill the memory of whoever asks for more."""


@description
class Pool:
    """Equal nodes of a cluster. A job runs within one pool.

    Attributes:
        nodes, gpus_per_node: how many.
        gpu: the GPU type.
        speed: how fast a job runs there, over its duration in the trace.
        speeds: the same for kinds of jobs that differ; 0 where a kind cannot run.
    """

    nodes: Count
    gpus_per_node: Count
    gpu: str = "gpu"
    speed: Positive = 1.0
    speeds: dict[str, NonNegative] = field(default_factory=dict)

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @checked
    def speed_of(self, kind: str) -> float:
        """How fast a job of this kind runs here; 0: not at all."""
        return self.speeds.get(kind, self.speed)


@description
class Cluster:
    """Pools of nodes.

    Raises:
        BadValue: there is no pool, or two pools have the same GPU type.
    """

    pools: Annotated[tuple[Pool, ...], MinLen(1)]

    def __post_init__(self) -> None:
        if self.num_gpus > MOST_GPUS:
            raise BadValue(
                f"Cluster.pools must hold {MOST_GPUS:.0e} gpus at most (nodes × gpus_per_node); "
                f"got {self.num_gpus}"
            )
        names = self.gpu_types
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadValue(
                f"Cluster.pools: two pools have the GPU type {twice[0]!r}; valid: one pool a type"
            )

    @classmethod
    @checked
    def nodes(cls, nodes: Count, *, gpus: Count = 8, gpu: str = "gpu") -> Cluster:
        """Equal nodes of one GPU type.

        Args:
            nodes: how many.
            gpus: of each node.
            gpu: their type.

        >>> Cluster.nodes(12, gpus=8).num_gpus
        96
        """
        return Cluster(pools=(Pool(nodes=nodes, gpus_per_node=gpus, gpu=gpu),))

    @property
    def gpu_types(self) -> list[str]:
        return [pool.gpu for pool in self.pools]

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    def __str__(self) -> str:
        return " + ".join(f"{p.nodes} × {p.gpus_per_node} {p.gpu}" for p in self.pools)


def speeds(trace: Trace, cluster: Cluster) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Each job's row, and rows by pool: the speed, 0 where such a job may not run."""
    kinds_differ = trace.gpu or any(pool.speeds for pool in cluster.pools)
    gpu = trace.gpu
    kind = trace.kind if kinds_differ else ()
    pairs = zip(gpu or ("",) * len(trace), kind or ("",) * len(trace), strict=True)
    rows: dict[tuple[str, str], int] = {}
    row = np.array([rows.setdefault(pair, len(rows)) for pair in pairs], dtype=np.int64)
    speed = [
        [pool.speed_of(runs) if wanted in ("", pool.gpu) else 0.0 for pool in cluster.pools]
        for wanted, runs in rows
    ]
    return row, np.array(speed, dtype=float)


def best_speed(trace: Trace, cluster: Cluster) -> NDArray[np.float64]:
    """Each job's speed on its fastest pool; 0 where none holds it."""
    row, speed = speeds(trace, cluster)
    room = np.array([pool.num_gpus for pool in cluster.pools])
    return np.where(trace.column("gpus")[:, None] <= room, speed[row], 0.0).max(axis=1)
