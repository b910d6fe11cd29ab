"""Bytes that training sends, by collective, and how long they take on a link.

Volumes count what one rank sends in a ring: (n−1)/n of the message for an all-gather or a
reduce-scatter, twice that for an all-reduce. The papers drop the (n−1)/n. Times use the α–β model
with one latency a hop. Source: ZeRO §7; ZeRO++ §3; MiCS §3.

This is the vocabulary; :mod:`labkit.memory.movement.volumes` says what a job sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from labkit.hardware import Link
from labkit.kit.describe import Count, NonNegative, description
from labkit.memory.tape.step import Phase

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "broadcast", "all-to-all", "send"]


def ring_passes(kind: str) -> int:
    """How many times (n−1)/n of its message a rank passes on in a ring.

    Of an all-to-all the message is what one rank holds, and it keeps 1/n of it.
    """
    return 2 if kind == "all-reduce" else 1


@description(slots=True)
class Collective:
    """One collective of a training step: what it moves, among how many ranks, in how many calls.

    ``message_bytes`` is the whole message, summed over the calls; a ``"send"`` goes to one
    neighbour and all of it leaves the rank. ``nodes`` is the number of nodes the group spans (1:
    nothing leaves the node) and ``rings_per_node`` how many such groups share a node's links at
    the same time (for sends and all-to-alls: how many ranks do). ``axis`` is the parallelism that
    asks for it.
    """

    phase: Phase
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
        """Bytes that one rank sends in a ring."""
        if self.kind == "send":
            return self.message_bytes if self.num_ranks > 1 else 0.0
        return ring_passes(self.kind) * self.message_bytes * (self.num_ranks - 1) / self.num_ranks

    @property
    def node_bytes(self) -> float:
        """Bytes that leave one node: a ring leaves each node once, and that edge carries them.

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
        """Where it goes: ``"between nodes"``, ``"in a node"``, or ``"none"`` for a single rank."""
        if self.num_ranks == 1:
            return "none"
        return "between nodes" if self.nodes > 1 else "in a node"

    def time_s(self, inter: Link, intra: Link) -> float:
        """Seconds by the α–β model: at a node's bandwidth where the group spans nodes, else at a
        rank's.

        Args:
            inter: the link between nodes.
            intra: the link inside a node.
        """
        if self.num_ranks == 1:
            return 0.0
        link, moved = (inter, self.node_bytes) if self.nodes > 1 else (intra, self.sent_bytes)
        return self.num_hops * link.latency_s + moved / link.bytes_per_s


def placed(size: int, stride: int, ranks_per_node: int) -> dict[str, Any]:
    """Where a group of ranks stands, given that consecutive ranks fill a node.

    Args:
        size: ranks of the group.
        stride: from one of them to the next.
        ranks_per_node: of a node.

    Returns:
        ``num_ranks``, ``nodes`` and ``rings_per_node`` of a :class:`Collective`.

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
        "phase",
        "kind",
        "what",
        "num_ranks",
        "nodes",
        "message_bytes",
        "sent_bytes",
        "node_bytes",
        "axis",
        "link",
        "num_calls",
        "formula",
        "source",
    ]
    rows = [[getattr(item, name) for name in names] for item in collectives]
    table = pd.DataFrame(rows, columns=names)
    return table.rename(columns={"kind": "collective", "num_ranks": "ranks"})


def step_time_s(collectives: Sequence[Collective], *, inter: Link, intra: Link) -> float:
    """Seconds that the collectives take one after another, with nothing overlapped.

    Args:
        inter: the link between nodes.
        intra: the link inside a node.
    """
    return sum(item.time_s(inter, intra) for item in collectives)
