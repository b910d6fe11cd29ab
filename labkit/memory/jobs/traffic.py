"""Bytes that training sends, by collective, and how long they take on a link.

Volumes count what one rank sends in a ring: (n−1)/n of the message for an all-gather or a
reduce-scatter, twice that for an all-reduce. The papers drop the (n−1)/n. Times use the α–β model
with one latency a hop. Source: ZeRO §7; ZeRO++ §3; MiCS §3.

This is the vocabulary and data parallelism; :mod:`labkit.memory.movement.volumes` has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from labkit.errors import BadValue
from labkit.hardware import Link
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

if TYPE_CHECKING:
    import pandas as pd

# A ZeRO stage: which of optimizer states, gradients and parameters are sharded.
Stage = Annotated[int, Ge(0), Le(3)]
Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "broadcast", "all-to-all", "send"]


def ring_passes(kind: str) -> int:
    """Messages a rank passes on in a ring, as a multiple of (n−1)/n of the whole message; of an
    all-to-all the message is what one rank holds, and it keeps 1/n of it."""
    return 2 if kind == "all-reduce" else 1


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a training step: what it moves, among how many ranks, in how many calls.

    ``message_bytes`` is the whole message, summed over the calls; a ``"send"`` goes to one
    neighbour and all of it leaves the rank. ``nodes`` is the number of nodes the group spans (1:
    nothing leaves the node) and ``rings_per_node`` how many such groups share a node's links at
    the same time (for sends and all-to-alls: how many ranks do). ``axis`` is the parallelism that
    asks for it.
    """

    phase: str
    kind: Kind
    what: str
    message_bytes: NonNegative
    num_ranks: Count
    num_calls: Count = 1
    nodes: Count = 1
    rings_per_node: Count = 1
    axis: str = "dp"
    formula: str = ""
    source: str = ""

    @property
    def sent_bytes(self) -> float:
        """Bytes one rank sends in a ring."""
        if self.kind == "send":
            return self.message_bytes if self.num_ranks > 1 else 0.0
        return ring_passes(self.kind) * self.message_bytes * (self.num_ranks - 1) / self.num_ranks

    @property
    def node_bytes(self) -> float:
        """Bytes that leave one node: a ring leaves each node once, and that edge carries this.

        Of an all-to-all, what each rank of a node has for ranks of other nodes.
        """
        if self.nodes == 1:
            return 0.0
        if self.kind == "all-to-all":
            return self.message_bytes * self.rings_per_node * (self.nodes - 1) / self.nodes
        return self.sent_bytes * self.rings_per_node

    @property
    def num_hops(self) -> int:
        """Steps of the ring, over all calls: each costs one latency."""
        if self.kind == "send":
            return self.num_calls if self.num_ranks > 1 else 0
        return ring_passes(self.kind) * (self.num_ranks - 1) * self.num_calls

    @property
    def link(self) -> str:
        """Where it goes: ``"between nodes"``, ``"in a node"``, or nowhere."""
        if self.num_ranks == 1:
            return "none"
        return "between nodes" if self.nodes > 1 else "in a node"

    def time_s(self, inter: Link, intra: Link) -> float:
        """Seconds by the α–β model: node bandwidth where the group spans nodes, else the rank's."""
        if self.num_ranks == 1:
            return 0.0
        link, moved = (inter, self.node_bytes) if self.nodes > 1 else (intra, self.sent_bytes)
        return self.num_hops * link.latency_s + moved / link.bytes_per_s


@description
@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a data-parallel step communicates: a ZeRO stage and what later papers change in it.

    ``partition_group`` keeps a whole copy of the states in every group of that many ranks (MiCS);
    ``secondary_group`` keeps a second copy of the parameters for the backward pass (ZeRO++ hpZ);
    ``weight_scale`` and ``gradient_scale`` shrink what is sent (qwZ: int8 for 16 bits is 0.5; qgZ:
    int4 is 0.25).
    """

    zero: Stage = 0
    partition_group: Count | None = None
    secondary_group: Count | None = None
    weight_scale: Positive = 1.0
    gradient_scale: Positive = 1.0

    def __post_init__(self) -> None:
        for name in ("partition_group", "secondary_group"):
            size = getattr(self, name)
            if size is not None and self.zero != 3:
                raise BadValue(f"{name} needs zero=3, got zero={self.zero}")


@checked
def step_collectives(
    *,
    parameter_bytes: NonNegative,
    gradient_bytes: NonNegative,
    dp: Count,
    scheme: Scheme,
    ranks_per_node: Count = 8,
    num_units: Count = 1,
    accumulation: Count = 1,
    stride: Count = 1,
) -> tuple[Collective, ...]:
    """The collectives of one training step over ``dp`` ranks that sit ``ranks_per_node`` a node.

    ``parameter_bytes`` and ``gradient_bytes`` are the whole model's; ``num_units`` is the number of
    calls each pass makes (one a layer). Stages 0–2 move two model sizes, stage 3 three. With
    ``accumulation`` micro-batches a step, stages 2 and 3 reduce-scatter each one's gradients and
    stage 3 gathers the parameters for each; stages 0 and 1 reduce the sum once, and so do the
    groups of MiCS among each other. ``stride`` is the distance between neighbours of the group:
    the ranks that other kinds of parallelism put between them.

    >>> found = step_collectives(parameter_bytes=2, gradient_bytes=2, dp=4, scheme=Scheme(zero=3))
    >>> [item.sent_bytes for item in found]
    [1.5, 1.5, 1.5]
    """
    group = min(scheme.partition_group or dp, dp)
    if dp % group:
        raise BadValue(f"dp ({dp}) must divide by partition_group ({group})")
    weights = parameter_bytes * scheme.weight_scale
    gradients = gradient_bytes * scheme.gradient_scale

    call = partial(_call, num_units, (stride, ranks_per_node))
    if scheme.zero == 0:
        return (call("backward", "all-reduce", "gradients", gradients, dp, "G, once a step"),)
    often = accumulation if scheme.zero > 1 else 1
    scatter = call("backward", "reduce-scatter", "gradients", gradients, group, "G", often)
    if scheme.zero < 3:
        return scatter, call("step", "all-gather", "parameters", weights, dp, "P, updated")
    what, often = "parameters", accumulation
    forward = call("forward", "all-gather", what, weights, group, "P", often)
    backward = replace(forward, phase="backward")
    if second := scheme.secondary_group:  # kept and gathered in full precision (hpZ)
        text, near = "P, from the second copy", min(second, group)
        backward = call("backward", "all-gather", what, parameter_bytes, near, text, often)
    if dp == group:
        return forward, backward, scatter
    shards = call("step", "all-reduce", "gradient shards", gradients / group, dp // group, "")
    apart = placed(dp // group, group * stride, ranks_per_node)
    named: dict[str, Any] = {"formula": "G/group, once a step", "source": "MiCS §3"}
    return forward, backward, scatter, replace(shards, num_calls=1, **apart, **named)


def _call(
    units: int, place: tuple[int, int], phase: str, kind: Kind, what: str, message: float,
    size: int, formula: str, often: int = 1,
) -> Collective:  # fmt: skip
    """Among ``size`` neighbours, one call a unit and ``often`` as many bytes."""
    return Collective(
        phase=phase,
        kind=kind,
        what=what,
        message_bytes=often * message,
        num_calls=units * often,
        formula=f"{often} × {formula}" if often > 1 else formula,
        source="ZeRO §7; ZeRO++ §3; MiCS §3",
        **placed(size, *place),
    )


def placed(size: int, stride: int, ranks_per_node: int) -> dict[str, Any]:
    """Where a group of ``size`` ranks, ``stride`` apart, is: consecutive ranks fill a node.

    >>> [placed(*group, 8)["nodes"] for group in ((16, 1), (4, 8), (2, 2))]
    [2, 4, 1]
    """
    together = max(1, ranks_per_node // stride)
    nodes = size if stride >= ranks_per_node else -(-size // together)
    rings = max(1, ranks_per_node * nodes // size) if nodes > 1 else 1
    return {"num_ranks": size, "nodes": nodes, "rings_per_node": rings}


def frame(collectives: Sequence[Collective]) -> pd.DataFrame:
    """The collectives as a table: what each sends, per rank and out of each node, and why."""
    import pandas as pd

    names = [
        *("phase", "kind", "what", "num_ranks", "nodes", "message_bytes", "sent_bytes"),
        *("node_bytes", "axis", "link", "num_calls", "formula", "source"),
    ]
    rows = [[getattr(item, name) for name in names] for item in collectives]
    table = pd.DataFrame(rows, columns=names)
    return table.rename(columns={"kind": "collective", "num_ranks": "ranks"})


def step_time_s(collectives: Sequence[Collective], *, inter: Link, intra: Link) -> float:
    """Seconds that the collectives take one after another, nothing overlapped."""
    return sum(item.time_s(inter, intra) for item in collectives)
