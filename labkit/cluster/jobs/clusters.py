"""GPU clusters: pools of equal nodes, each of a GPU type with its speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import MinLen

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked, description


@description
@dataclass(frozen=True, kw_only=True)
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

    def speed_of(self, kind: str) -> float:
        """How fast a job of this kind runs here; 0: not at all."""
        return self.speeds.get(kind, self.speed)


@description
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Pools of nodes.

    Raises:
        BadValue: there is no pool, or two pools have the same GPU type.
    """

    pools: Annotated[tuple[Pool, ...], MinLen(1)]

    def __post_init__(self) -> None:
        names = self.gpu_types
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadValue(
                f"Cluster.pools: two pools have the GPU type {twice[0]!r}; valid: one pool a type"
            )

    @classmethod
    @checked
    def nodes(cls, nodes: Count, *, gpus: Count = 8, gpu: str = "gpu") -> Cluster:
        """Equal nodes of one GPU type.

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
