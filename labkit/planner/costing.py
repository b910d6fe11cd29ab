"""What a stage costs: seconds of compute, of gradients among its replicas, of activations.

For layers k to j on r replicas joined by links of B bytes/s (one minibatch of compute C, weights
W, inputs a_k, outputs a_j; p is ``gradient_passes``):

    compute      C
    gradients    p (r - 1)/r · W / B + p (r - 1) · latency
    transfers    2 a_k / (r B) and 2 a_j / (r B), forward and back, each plus 2 latency

In steady state the replicas take minibatches in turn, so a stage needs

    sum:   (compute + gradients) / r        max:   max(compute, gradients) / r

seconds for each, and no less than either transfer where activations are charged. The minibatches
of an asynchronous pipeline arrive as often as its slowest stage allows.

Source: PipeDream §3.1 and its published optimizer (sum, p = 4, activations charged on request).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from labkit.errors import BadValue
from labkit.kit.describe import Positive, description

if TYPE_CHECKING:
    from labkit.kit.fabric import Level
    from labkit.planner.chain import Chain

_LARGEST = 4 * 10**7
"""Numbers in a table of stages that is held in memory at most."""
CostingName = Literal["code", "code+activations", "server", "ring"]


@description(slots=True)
class Costing:
    """How compute, gradients and activations of a stage add up.

    Attributes:
        gradient_passes: how often the weights cross a replica's link at many replicas: 4 to a
            parameter server and back, each way counted at both ends; 2 in a ring.
        combine: whether gradients are sent after the compute (sum) or during it (max).
        activations: whether transfers between stages can limit the pipeline.
        machines_exchange: what machines that hold the same layers exchange of a stage inside: its
            weights divided by its ``replicas``, which add up their gradients first, or by all
            ``devices`` of a machine, also where they hold other layers, as PipeDream's program
            has it (``optimizer_graph_hierarchical.py``).
    """

    gradient_passes: Positive = 2.0
    combine: Literal["sum", "max"] = "max"
    activations: bool = True
    machines_exchange: Literal["replicas", "devices"] = "replicas"


COSTINGS: tuple[CostingName, ...] = get_args(CostingName)
_NAMED = {
    # PipeDream's program as it runs by default, and with the option that its README gives
    "code": Costing(
        gradient_passes=4.0, combine="sum", activations=False, machines_exchange="devices"
    ),
    "code+activations": Costing(gradient_passes=4.0, combine="sum", machines_exchange="devices"),
    "server": Costing(gradient_passes=4.0),  # the same bytes, overlapped with compute
    "ring": Costing(),  # overlapped ring all-reduce
}


def as_costing(costing: Costing | CostingName) -> Costing:
    """A costing by its name, or as it is."""
    return costing if isinstance(costing, Costing) else _NAMED[costing]


@dataclass(frozen=True)
class Cheapest:
    """The least seconds of every possible stage, where there are several ways to run it inside.

    Attributes:
        ways: what stages cost in each of them, on the same level.
    """

    ways: tuple[StageCosts, ...]

    @property
    def chain(self) -> Chain:
        """The layers."""
        return self.ways[0].chain

    @property
    def level(self) -> Level:
        """The units that the stages stand on."""
        return self.ways[0].level

    def column(self, end: int) -> np.ndarray:
        """As :meth:`StageCosts.column`, of the cheapest way of each stage."""
        return np.minimum.reduce([way.column(end) for way in self.ways])

    def way_of(self, first: int, end: int, replicas: int) -> int:
        """Which of the ways is the cheapest for a stage."""
        seconds = [way.column(end)[replicas - 1, first] for way in self.ways]
        return int(np.argmin(seconds))


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """The seconds of every possible stage on the units of one level.

    Attributes:
        compute_s: of layers k to j - 1 on one unit, as ``[k, j]``.
        synced_bytes: weights that the replicas of a stage keep equal, as ``[k, j]``.
    """

    chain: Chain
    level: Level
    costing: Costing
    compute_s: np.ndarray
    synced_bytes: np.ndarray

    @classmethod
    def of(cls, chain: Chain, level: Level, costing: Costing) -> StageCosts:
        """The costs of stages on single devices.

        Args:
            level: the devices and their links.
            costing: how compute, gradients and activations add up.

        Raises:
            BadValue: the tables, of a number for every device and layer, would fill the memory.
        """
        size = level.count * (len(chain) + 1)
        if size > _LARGEST:
            raise BadValue(
                f"a chain of {len(chain)} layers on a fabric of {level.count} devices needs "
                f"tables of {size:.2g} numbers; valid: at most {_LARGEST:.0e}"
            )
        return cls(
            chain=chain,
            level=level,
            costing=costing,
            compute_s=chain.compute_s,
            synced_bytes=chain.weight_bytes,
        )

    @cached_property
    def replicas(self) -> np.ndarray:
        """1, 2, …, as many as there are units; shape (count,)."""
        return np.arange(1, self.level.count + 1)

    def gradients_s(self, synced_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one exchange of gradients, for each number of replicas: (count, …)."""
        peers = self.replicas - 1.0
        passes = self.costing.gradient_passes
        level = self.level
        by_byte = passes * peers / self.replicas / level.bandwidth_bytes_per_s
        waits = passes * peers * level.latency_s
        shape = (-1, *[1] * synced_bytes.ndim)
        return by_byte.reshape(shape) * synced_bytes + waits.reshape(shape)

    @cached_property
    def transfers_s(self) -> np.ndarray:
        """Seconds of each cut's bytes there and back, by replicas: shape (count, n + 1)."""
        crossing = self.chain.crossing_bytes
        rates = self.replicas[:, None] * self.level.bandwidth_bytes_per_s
        return 2 * crossing / rates + np.where(crossing > 0, 2 * self.level.latency_s, 0.0)

    def column(self, end: int) -> np.ndarray:
        """Seconds a minibatch of the stages that end before layer ``end``.

        Shape (count, end): by replicas, and by first layer.
        """
        gradients = self.gradients_s(self.synced_bytes[:end, end])
        both = np.add if self.costing.combine == "sum" else np.maximum
        seconds = both(self.compute_s[:end, end], gradients) / self.replicas[:, None]
        if not self.costing.activations:
            return seconds
        cuts = self.transfers_s
        return np.maximum(seconds, np.maximum(cuts[:, :end], cuts[:, end : end + 1]))

    def steady_s(self, first: int, end: int, replicas: int) -> dict[str, float]:
        """The parts of one stage, each as it limits the pipeline: compute, gradients, transfers.

        Args:
            first, end: its layers, ``first`` to ``end`` - 1.
            replicas: devices that it stands on.
        """
        row = replicas - 1
        gradients = self.gradients_s(self.synced_bytes[first, end])[row] / replicas
        return {
            "compute_s": float(self.compute_s[first, end]) / replicas,
            "gradients_s": float(gradients),
            "transfers_s": float(self.transfers_s[row, [first, end]].max()),
        }
