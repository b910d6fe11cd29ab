"""A training job on GPU machines with spare machines beside them: seconds of a step, by method."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from labkit import collectives
from labkit.collectives.overlapping import Policy
from labkit.kit.fabric import GBIT
from labkit.papers.byteps.splits import theorem

if TYPE_CHECKING:
    from labkit.planner import Chain

ADDING_PASSES = 3
"""Times that adding touches memory for each byte that arrives: it reads two and writes one."""
ADAM_PASSES = 7
"""Adam touches memory so often: it reads gradient, moments and weight, and writes three of them."""
PROFILE_IMAGES = 128
"""Images of a minibatch in PipeDream's profiles."""


class Way(StrEnum):
    """How gradients are summed."""

    RING = "ring all-reduce"
    SERVERS = "parameter servers"
    BYTEPS = "BytePS"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A network trained on machines of several GPUs, which sum gradients inside beforehand.

    Attributes:
        machines, spare: n and k.
        gbit_per_s: of each machine's link, in each direction.
        images: of a minibatch of a GPU.
        hop_s: latency of a message.
        way: how gradients are summed.
        policy: when they are sent (``collectives.overlap``).
        bucket_bytes: gradients joined into a message; 0 sends each layer's.
        memory_gb_per_s: of a machine's CPUs (GB/s).
        updates: whether the servers' CPUs run Adam, too.
        copies: of a machine's gradient on its link: as many as GPUs where nobody sums them inside.
        duplex: whether links carry both directions at once.
    """

    machines: int = 32
    spare: int = 32
    gbit_per_s: float = 100.0
    images: int = 64
    hop_s: float = 1e-5
    way: Way = Way.BYTEPS
    policy: Policy = "priority"
    bucket_bytes: int = 0
    memory_gb_per_s: float = 100.0
    updates: bool = False
    copies: int = 1
    duplex: bool = True

    @property
    def passes(self) -> float:
        """How often the busiest link, or CPU, would carry the whole gradient.

        Source: §2.2, §2.3 and §4.1.
        """
        n = self.machines
        k = self.spare
        one_way = 1 if self.duplex else 2
        if self.way is Way.RING:
            return one_way * 2 * (n - 1) / n
        link_bytes_per_s = self.gbit_per_s * GBIT
        add = self.memory_gb_per_s * 1e9 / ADDING_PASSES / link_bytes_per_s
        if self.way is Way.BYTEPS:
            return theorem(n, k).passes(n, k, add=add) * one_way
        share = 1 / k  # of each server
        updating = share * ADAM_PASSES / ADDING_PASSES / add if self.updates else 0.0
        link = one_way * self.copies * max(1.0, n * share)
        return max(link, self.copies * n * share / add + updating)

    def message_s(self, num_bytes: float) -> float:
        """Seconds of a message of so many bytes."""
        hops = 2 * (self.machines - 1) if self.way is Way.RING else 2
        return hops * self.hop_s + self.passes * num_bytes / (self.gbit_per_s * GBIT)

    def step_s(self, network: Chain) -> float:
        """Seconds of a training step.

        Args:
            network: a profile of :data:`PROFILE_IMAGES` images.
        """
        profile = network.scaled(batch=self.images / PROFILE_IMAGES).frame()
        return collectives.overlap(
            profile, self.message_s, policy=self.policy, bucket_bytes=self.bucket_bytes
        ).step_s
