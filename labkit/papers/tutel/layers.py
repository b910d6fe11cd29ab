"""Seconds of a layer of experts: its exchanges, its arithmetic, and how the two overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit import hardware
from labkit.collectives import Fabric
from labkit.kit.fabric import GBIT, Level

Exchange = Literal["direct", "two-level", "two-level, chunk by chunk", "faster"]
"""An all-to-all: everyone to everyone, in two levels with or without copies that bring together
what travels together, or whichever of the first two is faster."""

NUMBER_BYTES = 2
"""Of a weight or an activation in half precision."""

GPU = hardware.accelerator("A100-80GB")


@dataclass(frozen=True, kw_only=True)
class Network:
    """Nodes of eight GPUs, each GPU with a network card of its own.

    Attributes:
        per_node: GPUs of a node.
        near_bytes_per_s: what a GPU can send inside its node.
        near_latency_s: of a message inside a node.
        far_bytes_per_s: of a GPU's card.
        far_latency_s: of a message between nodes.
        copy_bytes_per_s: of a GPU's memory.
    """

    per_node: int = 8
    near_bytes_per_s: float = GPU.nvlink_bytes_per_s / 2
    near_latency_s: float = 2e-6
    far_bytes_per_s: float = 200 * GBIT
    far_latency_s: float = 5e-6
    copy_bytes_per_s: float = GPU.hbm_bytes_per_s

    def fabric(self, gpus: int) -> Fabric:
        """The same links for ``labkit.collectives``, which gives a node one link, not eight.

        That link is as fast as all cards together, and takes an eighth of the time for a message.
        """
        near = Level(
            count=self.per_node,
            bandwidth_bytes_per_s=self.near_bytes_per_s,
            latency_s=self.near_latency_s,
        )
        far = Level(
            count=gpus // self.per_node,
            bandwidth_bytes_per_s=self.per_node * self.far_bytes_per_s,
            latency_s=self.far_latency_s / self.per_node,
        )
        return Fabric(levels=(near, far))

    def near_s(self, messages: float, num_bytes: float) -> float:
        """Seconds of a GPU's messages, of so many bytes together, inside its node."""
        return messages * self.near_latency_s + num_bytes / self.near_bytes_per_s

    def far_s(self, messages: float, num_bytes: float) -> float:
        """Seconds of a GPU's messages, of so many bytes together, to other nodes."""
        return messages * self.far_latency_s + num_bytes / self.far_bytes_per_s

    def all_to_all_s(self, way: Exchange, gpus: int, num_bytes: float) -> float:
        """Seconds in which each GPU spreads ``num_bytes`` evenly over all.

        The direct way sends n - g messages to other nodes, beside g - 1 inside. In two levels they
        are n/g - 1 and, before them, g - 1; two copies in memory bring together what travels
        together. Without those copies, what travels inside are n/g chunks for each neighbour.

        Source: §3.4 (unverified).
        """
        if way == "faster":
            return min(
                self.all_to_all_s("direct", gpus, num_bytes),
                self.all_to_all_s("two-level", gpus, num_bytes),
            )
        group = min(self.per_node, gpus)
        nodes = gpus // group
        crossing_bytes = num_bytes * (1 - 1 / nodes)
        if way == "direct":
            inside_s = self.near_s(group - 1, num_bytes * (group - 1) / gpus)
            return max(inside_s, self.far_s(gpus - group, crossing_bytes))
        between_s = self.far_s(nodes - 1, crossing_bytes)
        inside_bytes = num_bytes * (group - 1) / group
        if way == "two-level, chunk by chunk":
            return self.near_s((group - 1) * nodes, inside_bytes) + between_s
        copies_s = 2 * 2 * num_bytes / self.copy_bytes_per_s  # each is read and written
        return copies_s + self.near_s(group - 1, inside_bytes) + between_s


def pipelined_s(send_s: float, compute_s: float, degree: int) -> float:
    """Seconds of a layer cut in parts: each is sent, computed, and sent back.

    One lane sends and one computes; all parts are sent out before the first is sent back.

    Args:
        send_s: of one part, one way.
        compute_s: of one part.
        degree: number of parts.

    >>> pipelined_s(1, 1, 1), pipelined_s(0.5, 0.5, 2)
    (3, 2.0)
    """
    network_free_s: float = 0
    compute_free_s: float = 0
    computed_s = []
    for _ in range(degree):
        network_free_s += send_s
        compute_free_s = max(compute_free_s, network_free_s) + compute_s
        computed_s.append(compute_free_s)
    for ready_s in computed_s:
        network_free_s = max(network_free_s, ready_s) + send_s
    return network_free_s


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The forward pass of one layer of experts, spread over all GPUs.

    Attributes:
        gpus: how many, each with ``experts_per_gpu`` experts.
        tokens: of each GPU.
        width: numbers of a token.
        hidden: numbers inside an expert.
        top: experts that a token visits.
        capacity_factor: slots of an expert over its even share of tokens.
        sustained_flops_per_s: of a GPU, in matrix products.
        dispatch: how tokens get to their slots and back.
        exchange: the all-to-all before and after the experts.
        degrees: of pipelining, of which the fastest is taken.
        flexible: whether an expert's tokens lie together after the all-to-all. Where they lie by
            sender, its weights are read once for each.
        interference: by what share computing slows down while messages are under way.
    """

    gpus: int = 16
    tokens: int = 16384
    width: int = 2048
    hidden: int = 2048
    top: int = 2
    capacity_factor: float = 1.0
    experts_per_gpu: int = 2
    sustained_flops_per_s: float = GPU.peak_flops / 2
    dispatch: Literal["einsum", "sparse"] = "sparse"
    exchange: Exchange = "faster"
    degrees: tuple[int, ...] = (1, 2, 4, 8)
    flexible: bool = True
    interference: float = 0.0
    network: Network = Network()

    @property
    def slots(self) -> float:
        """Of all experts, for one GPU's tokens."""
        return self.capacity_factor * self.top * self.tokens

    @property
    def sent_bytes(self) -> float:
        """What a GPU sends in an all-to-all."""
        return NUMBER_BYTES * self.slots * self.width

    @property
    def dispatch_s(self) -> float:
        """Seconds of bringing tokens to their slots, and of bringing them back.

        An einsum multiplies by a matrix of tokens × slots; the sparse way reads and writes them.
        """
        if self.dispatch == "einsum":
            return 2 * 2 * self.tokens * self.slots * self.width / self.sustained_flops_per_s
        return 2 * 2 * self.sent_bytes / self.network.copy_bytes_per_s

    @property
    def experts_s(self) -> float:
        """Seconds of the two matrix products of all experts of a GPU."""
        products_s = 4 * self.slots * self.width * self.hidden / self.sustained_flops_per_s
        if self.flexible:
            return products_s
        weight_bytes = 2 * NUMBER_BYTES * self.width * self.hidden
        readings = self.gpus * self.experts_per_gpu
        return max(products_s, readings * weight_bytes / self.network.copy_bytes_per_s)

    def at_degree_s(self, degree: int) -> float:
        """Seconds of the layer, cut in so many parts."""
        part_bytes = self.sent_bytes / degree
        send_s = self.network.all_to_all_s(self.exchange, self.gpus, part_bytes)
        slowed = 1 + self.interference if degree > 1 else 1
        compute_s = slowed * self.experts_s / degree
        return self.dispatch_s + pipelined_s(send_s, compute_s, degree)

    @property
    def seconds(self) -> float:
        """Of the layer at its best degree."""
        return min(self.at_degree_s(degree) for degree in self.degrees)


@dataclass(frozen=True, kw_only=True)
class SharedExperts:
    """Experts that are each cut into equal slices, on consecutive GPUs.

    A token of an expert is copied to ``copies`` of its GPUs, and each of them gathers the slices of
    ``shares / copies`` GPUs. One copy is expert and data parallelism (all slices gathered), as many
    as shares are expert and model parallelism (none gathered). The slices lie the same way in all.

    Attributes:
        gpus: in all.
        shares: slices of an expert, each on a GPU.
        tokens: of each GPU, each for one expert.
        width: numbers of a token.
        hidden: numbers inside an expert.
        sustained_flops_per_s: of a GPU.
        slices_far: whether an expert's slices lie on GPUs of different nodes after all.

    Source: §3.2 (unverified).
    """

    gpus: int = 64
    shares: int = 8
    tokens: int = 1024
    width: int = 2048
    hidden: int = 8192
    sustained_flops_per_s: float = GPU.peak_flops / 2
    slices_far: bool = False
    network: Network = Network()

    @property
    def choices(self) -> tuple[int, ...]:
        """Numbers of copies that there can be."""
        return tuple(copies for copies in range(1, self.shares + 1) if self.shares % copies == 0)

    def seconds(self, copies: int, capacity_factor: float) -> float:
        """Of the forward pass with so many copies of each token."""
        slots = capacity_factor * self.tokens
        token_bytes = NUMBER_BYTES * slots * self.width
        send_s = self.network.all_to_all_s("faster", self.gpus, copies * token_bytes)
        gathered_from = self.shares // copies - 1
        slice_bytes = 2 * NUMBER_BYTES * self.width * self.hidden / self.shares
        gathering_s = self.network.far_s if self.slices_far else self.network.near_s
        gather_s = gathering_s(gathered_from, gathered_from * slice_bytes)
        compute_s = 4 * slots * self.width * self.hidden / self.sustained_flops_per_s
        return 2 * send_s + gather_s + compute_s
