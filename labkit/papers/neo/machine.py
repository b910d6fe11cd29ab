"""Modelled seconds of a training step of a recommender on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from labkit import hardware
from labkit.kit.fabric import GBIT
from labkit.papers.neo.sharding import NUMBER_BYTES, Plan, Shard

GPU = hardware.accelerator("A100-40GB")
ID_BYTES = 8
PASSES = 3
"""Times that a row's bytes move: read forwards, then read and written by the update."""
BOTTOM = (13, 512, 256, 128)
TOP_LAYERS = (1024, 1024, 512, 256, 1)
KERNELS = 3
"""A table's, or all tables' at once: lookup, gradient, update."""


def network_weights(num_tables: int) -> int:
    """Weights of the two networks around the tables: before, and after all pairs' products.

    Source: facebookresearch/dlrm, torchrec_dlrm/README.MD (sizes of the layers).
    """
    vectors = num_tables + 1
    top = (vectors * (vectors - 1) // 2 + BOTTOM[-1], *TOP_LAYERS)
    layers = [*pairwise(BOTTOM), *pairwise(top)]
    return sum(inputs * outputs for inputs, outputs in layers)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPUs in nodes, and what a step asks of them.

    Attributes:
        num_gpus: in all.
        samples: of a step, on all GPUs together.
        fused: whether one kernel looks up all tables of a GPU.
        hit_share: of rows that are found in the GPU's memory; the others come from the host's.
        per_node: GPUs of a node.
        memory_bytes_per_s: of a GPU.
        host_bytes_per_s: at which a GPU reads the host's memory.
        near_bytes_per_s: of a GPU's links inside a node.
        far_bytes_per_s: of a GPU's network card.
        kernel_s: of a kernel, however little it does.
        flops_per_s: of the dense layers.
        fixed_s: of a step, whatever it has to do.
    """

    num_gpus: int = 128
    samples: int = 65536
    fused: bool = True
    hit_share: float = 1.0
    per_node: int = 8
    memory_bytes_per_s: float = GPU.hbm_bytes_per_s
    host_bytes_per_s: float = 31.5e9
    near_bytes_per_s: float = GPU.nvlink_bytes_per_s / 2
    far_bytes_per_s: float = 200 * GBIT
    kernel_s: float = 1e-5
    flops_per_s: float = GPU.peak_flops / 4
    fixed_s: float = 0.0

    @property
    def row_byte_s(self) -> float:
        """Seconds of a byte of a row that is looked up, on average."""
        missed = 1 - self.hit_share
        return self.hit_share / self.memory_bytes_per_s + missed / self.host_bytes_per_s

    def link_s(self, num_bytes: float) -> float:
        """Seconds of bytes that go to all other GPUs alike, near and far at once."""
        group = min(self.per_node, self.num_gpus)
        near_s = num_bytes * (group - 1) / self.num_gpus / self.near_bytes_per_s
        far_s = num_bytes * (self.num_gpus - group) / self.num_gpus / self.far_bytes_per_s
        return max(near_s, far_s)

    def lookup_s(self, shard: Shard) -> float:
        """Seconds of a step's lookups in a piece and of their updates, in memory."""
        samples = self.samples / self.num_gpus if shard.copied else self.samples
        moved_bytes = PASSES * samples * shard.ids * shard.columns * NUMBER_BYTES
        return moved_bytes * self.row_byte_s

    def exchange_s(self, shard: Shard) -> float:
        """Seconds of a piece's ids coming in, sums going out, and their gradients coming back.

        A copied table sends its gradient around instead, twice its bytes.
        """
        if shard.copied:
            return self.link_s(2 * shard.num_bytes)
        in_bytes = self.samples * shard.ids * ID_BYTES
        sums_bytes = self.samples * shard.columns * NUMBER_BYTES
        return self.link_s(in_bytes + 2 * sums_bytes)

    def shard_s(self, shard: Shard) -> float:
        """What a piece costs its GPU, by which plans are made even."""
        return self.lookup_s(shard) + self.exchange_s(shard)

    def received_s(self, plan: Plan) -> float:
        """Seconds in which each GPU receives its samples' sums of all pieces, and sends gradients.

        Every GPU has as many samples, so this does not depend on the places.
        """
        widths = [s.columns for shards in plan.gpus for s in shards if not s.copied]
        ours = self.samples / self.num_gpus
        return self.link_s(2 * ours * sum(widths) * NUMBER_BYTES)

    def embedding_s(self, plan: Plan) -> np.ndarray:
        """Seconds of each GPU for its pieces: kernels, lookups, and the longer way of exchange."""
        received_s = self.received_s(plan)
        seconds = []
        for shards in plan.gpus:
            kernels = KERNELS * (1 if self.fused else len(shards))
            sent_s = sum(self.exchange_s(shard) for shard in shards)
            lookups_s = sum(self.lookup_s(shard) for shard in shards)
            seconds.append(kernels * self.kernel_s + lookups_s + max(sent_s, received_s))
        return np.array(seconds)

    def dense_s(self, num_tables: int) -> float:
        """Seconds of the networks around the tables, there and back."""
        flops = 3 * 2 * network_weights(num_tables) * self.samples / self.num_gpus
        return flops / self.flops_per_s

    def step_s(self, plan: Plan, num_tables: int) -> float:
        """Seconds of a step: the slowest GPU's tables, then the networks."""
        return float(self.embedding_s(plan).max()) + self.dense_s(num_tables) + self.fixed_s

    def rate(self, plan: Plan, num_tables: int) -> float:
        """Samples a second."""
        return self.samples / self.step_s(plan, num_tables)
