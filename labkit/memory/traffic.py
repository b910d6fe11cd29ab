"""Bytes that data-parallel training sends, by collective, and how long they take on a link.

Volumes count what one rank sends in a ring: (n−1)/n of the message for an all-gather or a
reduce-scatter, twice that for an all-reduce. The papers drop the (n−1)/n. Times use the α–β model
with one latency a hop. Source: ZeRO §7; ZeRO++ §3; MiCS §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from labkit.hardware import Link

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "broadcast"]

# Messages a rank passes on in a ring, as a multiple of (n−1)/n of the whole message.
RING_PASSES: dict[str, int] = {
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-reduce": 2,
    "broadcast": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a training step: what it moves, among how many ranks, in how many calls.

    ``message_bytes`` is the whole message, summed over the calls. ``nodes`` is the number of nodes
    the group spans (1: nothing leaves the node) and ``rings_per_node`` how many such groups share
    a node's links at the same time.
    """

    phase: str
    kind: Kind
    what: str
    message_bytes: float
    num_ranks: int
    num_calls: int = 1
    nodes: int = 1
    rings_per_node: int = 1

    @property
    def sent_bytes(self) -> float:
        """Bytes one rank sends in a ring."""
        return RING_PASSES[self.kind] * self.message_bytes * (self.num_ranks - 1) / self.num_ranks

    @property
    def node_bytes(self) -> float:
        """Bytes that leave one node: a ring leaves each node once, and that edge carries this."""
        return self.sent_bytes * self.rings_per_node if self.nodes > 1 else 0.0

    @property
    def num_hops(self) -> int:
        """Steps of the ring, over all calls: each costs one latency."""
        return RING_PASSES[self.kind] * (self.num_ranks - 1) * self.num_calls

    def time_s(self, inter: Link, intra: Link) -> float:
        """Seconds by the α–β model: node bandwidth where the group spans nodes, else the rank's."""
        if self.num_ranks == 1:
            return 0.0
        link, moved = (inter, self.node_bytes) if self.nodes > 1 else (intra, self.sent_bytes)
        return self.num_hops * link.latency_s + moved / link.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a data-parallel step communicates: a ZeRO stage and what later papers change in it.

    ``partition_group`` keeps a whole copy of the states in every group of that many ranks (MiCS);
    ``secondary_group`` keeps a second copy of the parameters for the backward pass (ZeRO++ hpZ);
    ``weight_scale`` and ``gradient_scale`` shrink what is sent (qwZ: int8 for 16 bits is 0.5; qgZ:
    int4 is 0.25). ``whole_gradients`` is stage 1 as PyTorch's ``ZeroRedundancyOptimizer`` and the
    first DeepSpeed did it: all-reduce the gradients, then broadcast what each rank updated.
    """

    zero: int = 0
    whole_gradients: bool = False
    partition_group: int | None = None
    secondary_group: int | None = None
    weight_scale: float = 1.0
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.zero not in {0, 1, 2, 3}:
            raise ValueError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        if self.whole_gradients and self.zero != 1:
            raise ValueError(f"whole_gradients needs zero=1, got zero={self.zero}")
        for name in ("partition_group", "secondary_group"):
            size = getattr(self, name)
            if size is None:
                continue
            if size < 1:
                raise ValueError(f"{name} must be >= 1, got {size}")
            if self.zero != 3:
                raise ValueError(f"{name} needs zero=3, got zero={self.zero}")


def step_collectives(
    *,
    parameter_bytes: float,
    gradient_bytes: float,
    dp: int,
    scheme: Scheme,
    ranks_per_node: int = 8,
    num_units: int = 1,
) -> tuple[Collective, ...]:
    """The collectives of one training step over ``dp`` ranks that sit ``ranks_per_node`` a node.

    ``parameter_bytes`` and ``gradient_bytes`` are the whole model's; ``num_units`` is the number of
    calls each pass makes (one a layer). Stages 0–2 move two model sizes, stage 3 three.

    >>> found = step_collectives(parameter_bytes=2, gradient_bytes=2, dp=4, scheme=Scheme(zero=3))
    >>> [item.sent_bytes for item in found]
    [1.5, 1.5, 1.5]
    """
    if dp < 1 or ranks_per_node < 1:
        raise ValueError(f"dp and ranks_per_node must be >= 1, got {dp} and {ranks_per_node}")
    group = min(scheme.partition_group or dp, dp)
    if dp % group:
        raise ValueError(f"dp ({dp}) must divide by partition_group ({group})")
    step = _Step(ranks_per_node, num_units)
    weights = parameter_bytes * scheme.weight_scale
    gradients = gradient_bytes * scheme.gradient_scale
    if scheme.zero == 0:
        return (step.call("backward", "all-reduce", "gradients", gradients, dp),)
    if scheme.whole_gradients:
        return (
            step.call("backward", "all-reduce", "gradients", gradients, dp),
            step.call("step", "broadcast", "parameters", weights, dp),
        )
    scatter = step.call("backward", "reduce-scatter", "gradients", gradients, group)
    if scheme.zero < 3:
        return scatter, step.call("step", "all-gather", "parameters", weights, dp)
    second = scheme.secondary_group
    found = (
        step.call("forward", "all-gather", "parameters", weights, group),
        step.call("backward", "all-gather", "parameters", parameter_bytes, min(second, group))
        if second
        else step.call("backward", "all-gather", "parameters", weights, group),
        scatter,
    )
    return (*found, step.across(gradients / group, dp // group, group)) if dp > group else found


@dataclass(frozen=True, slots=True)
class _Step:
    """Where the ranks sit: consecutive ranks fill a node."""

    ranks_per_node: int
    num_units: int

    def call(self, phase: str, kind: Kind, what: str, message: float, size: int) -> Collective:
        """A collective among ``size`` consecutive ranks, one call a unit."""
        return Collective(
            phase=phase,
            kind=kind,
            what=what,
            message_bytes=message,
            num_ranks=size,
            num_calls=self.num_units,
            nodes=-(-size // self.ranks_per_node),
        )

    def across(self, message: float, size: int, apart: int) -> Collective:
        """The all-reduce of one rank's gradient shard with its peers, ``apart`` ranks away."""
        in_a_node = max(1, self.ranks_per_node // apart)
        nodes = -(-size // in_a_node)
        return Collective(
            phase="step",
            kind="all-reduce",
            what="gradient shards",
            message_bytes=message,
            num_ranks=size,
            nodes=nodes,
            rings_per_node=min(apart, self.ranks_per_node) if nodes > 1 else 1,
        )


def frame(collectives: Sequence[Collective]) -> pd.DataFrame:
    """The collectives as a table: what each sends, per rank and out of each node."""
    import pandas as pd

    rows = [
        {
            "phase": item.phase,
            "collective": item.kind,
            "what": item.what,
            "ranks": item.num_ranks,
            "nodes": item.nodes,
            "message_bytes": item.message_bytes,
            "sent_bytes": item.sent_bytes,
            "node_bytes": item.node_bytes,
        }
        for item in collectives
    ]
    return pd.DataFrame(rows)


def step_time_s(collectives: Sequence[Collective], *, inter: Link, intra: Link) -> float:
    """Seconds that the collectives take one after another, nothing overlapped."""
    return sum(item.time_s(inter, intra) for item in collectives)
