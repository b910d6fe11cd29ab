"""What a tape's graph is made of: storages, tensors, nodes and checkpoints, all without numbers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Size = tuple[Counts, int]  # elements, bytes of each


class StopRecomputation(Exception):
    """Everything that was missing has been computed again."""


class Storage:
    """Bytes on the device, and the last time at which they were needed.

    ``heading``: the category and the multiplicity under which they count; ``name``: what they are
    to the model, where they were named.
    """

    __slots__ = ("amount", "for_ever", "heading", "last_use", "name")

    def __init__(self, amount: Counts, heading: tuple[int, int], last_use: int) -> None:
        self.amount, self.heading, self.last_use = amount, heading, last_use
        self.for_ever, self.name = False, ""


class Tensor:
    """A view of a storage, and the node that its gradient goes to."""

    __slots__ = ("elements", "node", "output", "storage", "width")

    def __init__(
        self,
        storage: Storage | None,
        elements: Counts,
        width: int,
        node: Node | None = None,
        output: int = 0,
    ) -> None:
        self.storage, self.elements, self.width = storage, elements, width
        self.node, self.output = node, output

    @property
    def size(self) -> Size:
        return self.elements, self.width

    def view(self, elements: Counts | None = None) -> Tensor:
        """The same bytes, outside the graph."""
        return Tensor(self.storage, self.elements if elements is None else elements, self.width)


Keeps = Callable[[str, int], bool]  # kind of an operator, its number of that kind
# Gradients of the outputs and saved tensors → gradients of the inputs.
Backward = Callable[["list[Tensor]", "list[Tensor]"], "list[Tensor | None]"]


class Node:
    """One operation's backward pass: what it needs, and where its gradients go."""

    __slots__ = ("backward", "edges", "hook", "outputs", "saved", "sequence")

    def __init__(
        self, sequence: int, edges: list[tuple[Node, int] | None], backward: Backward, outputs: int
    ) -> None:
        self.sequence, self.edges, self.backward = sequence, edges, backward
        self.outputs = outputs
        self.saved: list[Tensor | Holder] = []
        self.hook: Callable[[Tensor], None] | None = None

    def __lt__(self, other: Node) -> bool:
        return self.sequence > other.sequence  # the youngest first


class Checkpoint:
    """One checkpointed call: its inputs, how to run it again, and what the second run computed.

    ``keeps`` says of the n-th operator of a kind, from 1, whether its outputs are kept as well; the
    second run then takes them from ``results`` instead of computing them.
    """

    def __init__(
        self, inputs: list[Tensor], rerun: Callable[[], None], keeps: Keeps | None = None
    ) -> None:
        self.inputs, self.rerun, self.keeps = inputs, rerun, keeps
        self.number = 0
        self.recomputed: dict[int, Tensor] | None = None
        self.counts: Counter[str] = Counter()
        self.results: deque[list[Tensor]] = deque()

    def holds(self) -> Iterator[Tensor]:
        """What lives until the last of its nodes is done."""
        yield from self.inputs
        for results in self.results:
            yield from results

    def keeps_next(self, kind: str) -> bool:
        """Count an operator of ``kind``, and say whether its outputs are kept."""
        self.counts[kind] += 1
        return self.keeps is not None and self.keeps(kind, self.counts[kind])


class Holder:
    """Stands for a tensor that a checkpoint did not keep."""

    __slots__ = ("checkpoint", "place")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.place = checkpoint, checkpoint.number
        checkpoint.number += 1
