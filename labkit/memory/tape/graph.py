"""What a tape's graph is made of: storages, tensors, nodes and checkpoints, all without numbers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Size = tuple[Counts, int]  # elements, bytes of each


class StopRecomputation(Exception):
    """Ends a recomputation once everything that was missing has been computed again."""


@dataclass(slots=True, eq=False)
class Storage:
    """Bytes on the device, and the last time at which they were needed.

    ``heading``: the category and the multiplicity under which they count; ``name``: what they are
    to the model, where they were named.
    """

    amount: Counts
    heading: tuple[int, int]
    last_use: int
    for_ever: bool = False
    name: str = ""


@dataclass(slots=True, eq=False)
class Tensor:
    """A view of a storage, and the node (and its output) that its gradient goes to.

    ``frozen``: nobody wants its gradient; what follows from frozen tensors alone is frozen too.
    ``packed``: a parameter in 4 bits, which a product makes wide for itself.
    """

    storage: Storage | None
    elements: Counts
    width: int
    node: Node | None = None
    output: int = 0
    frozen: bool = False
    packed: bool = False

    @property
    def size(self) -> Size:
        return self.elements, self.width

    def view(self, elements: Counts | None = None, width: int | None = None) -> Tensor:
        """The same bytes as another tensor, which is outside the graph."""
        elements = self.elements if elements is None else elements
        return Tensor(self.storage, elements, width or self.width, frozen=self.frozen)


Keeps = Callable[[str, int], bool]  # kind of an operator, its number of that kind
# Gradients of the outputs and saved tensors → gradients of the inputs.
Backward = Callable[["list[Tensor]", "list[Tensor]"], "list[Tensor | None]"]


@dataclass(slots=True, eq=False)
class Node:
    """One operation's backward pass: what it needs, and where its gradients go."""

    sequence: int
    edges: list[tuple[Node, int] | None]
    backward: Backward
    outputs: int
    saved: list[Tensor | Holder | Away] = field(default_factory=list)
    hook: Callable[[Tensor], None] | None = None

    def __lt__(self, other: Node) -> bool:
        return self.sequence > other.sequence  # the youngest first


@dataclass(slots=True, eq=False)
class Checkpoint:
    """One checkpointed call: its inputs, how to run it again, and what the second run computed.

    It has no inputs where they are kept on the host.

    ``keeps`` says of the n-th operator of a kind, from 1, whether its outputs are kept as well; the
    second run then takes them from ``results`` instead of computing them.
    """

    inputs: tuple[Tensor, ...]
    rerun: Callable[[], None]
    keeps: Keeps | None
    number: int = 0
    recomputed: dict[int, Tensor] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    results: deque[list[Tensor]] = field(default_factory=deque)

    def holds(self) -> Iterator[Tensor]:
        """The tensors that live until the last of the checkpoint's nodes is done."""
        yield from self.inputs
        for results in self.results:
            yield from results

    def keeps_next(self, kind: str) -> bool:
        """Count an operator of ``kind``, and say whether its outputs are kept."""
        self.counts[kind] += 1
        return self.keeps is not None and self.keeps(kind, self.counts[kind])


@dataclass(slots=True, eq=False)
class Away:
    """Stands for a saved tensor that is kept on the host, and comes back as a new one."""

    elements: Counts
    width: int


class Holder:
    """Stands for a tensor that a checkpoint did not keep."""

    __slots__ = ("checkpoint", "place")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.place = checkpoint.number
        checkpoint.number += 1
