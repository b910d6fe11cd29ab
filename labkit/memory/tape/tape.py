"""Automatic differentiation on sizes alone: who holds how many bytes, operation by operation.

A training step is run once with tensors that have no numbers and no dimensions, only a count of
elements in symbolic :data:`UNITS` (``b·s·h``, ``b·a·s²`` …). The rules are torch's: a node of the
graph holds what its backward pass needs, nodes run in the reverse order of their making, gradients
that meet are added, a checkpoint keeps its inputs and runs again. What lives at each point then
follows from Python's own reference counts, as it does in torch. The result is a list of points,
each a linear form in the units, valid for every model and batch: :mod:`labkit.memory.tape.moments`
evaluates them.

Repeated layers are run once. What a repeated part leaves behind is counted with a multiplicity
(:data:`MULTIPLICITIES`); points inside it are not recorded, since memory there is linear in the
layer's index and so largest at the first or the last layer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

UNITS = (
    "1", "s", "b·s", "b·s·h", "b·s·q", "b·s·k", "b·s·f", "b·s·a", "b·s·v", "b·a·s²", "s²", "s·h",
    "h", "q", "k", "f", "h·q", "h·k", "h·f", "h·v", "h·p", "c", "c·h", "c·v", "e", "e·h", "e·v",
    # Normalised heads: u key heads of width d.
    "b·s·u", "d",
    # Latent attention: latents of i (queries) and l (keys and values), j with the key's turned
    # part; turned parts o wide, keys and values z wide before they part, values w, of all heads.
    "b·s·i", "b·s·j", "b·s·l", "b·s·o", "b·s·a·o", "b·s·z", "b·s·w",
    "i", "j", "l", "h·i", "i·q", "h·j", "l·z", "h·w",
    # Experts: x to choose from, n a token; y of them here of width g with t places each, r in all;
    # shared ones m wide together.
    "b·s·x", "b·s·n", "x", "h·x", "t", "r", "r·h", "r·g", "y·h·g", "b·s·m", "h·m",
)  # fmt: skip
INDEX = {unit: place for place, unit in enumerate(UNITS)}

# How often what one part leaves behind is there. What each stands for depends on how the layers
# repeat (labkit.memory.tape.shadow): middle groups or layers, middle layers of a group, of the last
# group, of the middle groups; and middle chunks of a chunked head.
MULTIPLICITIES = ("1", "groups", "inner", "inner of the last", "groups·inner", "chunks")
ONE, GROUPS, INNER, INNER_LAST, GROUPS_INNER, CHUNKS = range(len(MULTIPLICITIES))

CATEGORIES = ("activations", "gradients", "cached weights", "temporaries")


def count(**units: int) -> Counts:
    """Elements as a combination of units, e.g. ``count(**{"b·s·h": 1})``."""
    found = np.zeros(len(UNITS), dtype=np.int64)
    for unit, times in units.items():
        found[INDEX[unit]] = times
    return found


def unit(name: str) -> Counts:
    return count(**{name: 1})


class StopRecomputation(Exception):
    """Everything that was missing has been computed again."""


class Storage:
    """Bytes on the device, from the making of this object to its end."""

    __slots__ = ("__weakref__", "amount", "category", "multiplicity", "tape")

    def __init__(self, tape: Tape, amount: Counts, category: int) -> None:
        self.tape, self.amount, self.category = tape, amount, category
        self.multiplicity = tape.multiplicity
        tape.live[category, self.multiplicity] += amount

    def __del__(self) -> None:
        self.tape.live[self.category, self.multiplicity] -= self.amount

    def count_as(self, *, category: int | None = None, multiplicity: int | None = None) -> None:
        """Move these bytes to another heading; what is held does not change."""
        self.tape.live[self.category, self.multiplicity] -= self.amount
        self.category = self.category if category is None else category
        self.multiplicity = self.multiplicity if multiplicity is None else multiplicity
        self.tape.live[self.category, self.multiplicity] += self.amount


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

    def view(self, elements: Counts | None = None) -> Tensor:
        """The same bytes, outside the graph."""
        return Tensor(self.storage, self.elements if elements is None else elements, self.width)


Backward = Callable[["Node", "list[Tensor]"], "list[Tensor | None]"]


class Node:
    """One operation's backward pass: what it needs, and where its gradients go."""

    __slots__ = ("__weakref__", "backward", "edges", "hook", "outputs", "saved", "sequence")

    def __init__(
        self, sequence: int, edges: list[tuple[Node, int] | None], backward: Backward, outputs: int
    ) -> None:
        self.sequence, self.edges, self.backward = sequence, edges, backward
        self.outputs = outputs
        self.saved: list[Any] = []
        self.hook: Callable[[Tensor], None] | None = None

    def __lt__(self, other: Node) -> bool:
        return self.sequence > other.sequence  # the youngest first


class Frame:
    """One checkpointed call: its inputs, and what the second run found."""

    def __init__(self, rerun: Callable[[], None]) -> None:
        self.rerun = rerun
        self.number = 0
        self.found: dict[int, Tensor] | None = None


class Holder:
    """Stands for a tensor that a checkpoint did not keep."""

    __slots__ = ("frame", "place")

    def __init__(self, frame: Frame) -> None:
        self.frame, self.place = frame, frame.number
        frame.number += 1


LAST_SEQUENCE = 1 << 60  # gradients are stored as soon as they are there


class Tape:
    """What lives now, and the points recorded so far as (label, live by category and multiple)."""

    def __init__(self) -> None:
        self.live = np.zeros((len(CATEGORIES), len(MULTIPLICITIES), len(UNITS)), dtype=np.int64)
        self.points: list[tuple[str, NDArray[np.int64]]] = []
        self.label: str | None = "embedding"
        self.multiplicity = ONE
        self.category = 0
        self.sequence = 0
        self.recording: Frame | None = None
        self.recomputing: Frame | None = None
        self.casts: dict[int, Tensor] | None = None
        self.parameters: list[Tensor] = []
        self.gradients: dict[int, Tensor] = {}

    def new(self, elements: Counts, width: int, *, category: int | None = None) -> Tensor:
        """Allocate; a point is recorded after every allocation."""
        heading = self.category if category is None else category
        found = Tensor(Storage(self, elements * width, heading), elements, width)
        if self.label is not None:
            self.points.append((self.label, self.live.copy()))
        return found

    def parameter(self, elements: Counts, width: int) -> Tensor:
        """A parameter: its bytes are counted elsewhere, its gradient is stored here."""
        number = len(self.parameters)

        def accumulate(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            storage = grads[0].storage
            assert storage is not None
            storage.count_as(category=1)
            self.gradients[number] = grads[0]
            return []

        node = Node(LAST_SEQUENCE, [], accumulate, 1)
        self.parameters.append(Tensor(None, elements, width, node))
        return self.parameters[-1]

    def node(self, backward: Backward, *inputs: Tensor | None, outputs: int = 1) -> Node:
        """A node whose gradients go to ``inputs``, in that order."""
        self.sequence += 1
        edges = [
            None if tensor is None or tensor.node is None else (tensor.node, tensor.output)
            for tensor in inputs
        ]
        return Node(self.sequence, edges, backward, outputs)

    def save(self, node: Node, *tensors: Tensor) -> None:
        """Keep ``tensors`` for the node's backward pass, or a holder inside a checkpoint."""
        for tensor in tensors:
            kept = tensor.view()
            if self.recomputing is not None:
                frame = self.recomputing
                assert frame.found is not None
                frame.found[len(frame.found)] = kept
                node.saved.append(kept)
                if len(frame.found) == frame.number:
                    raise StopRecomputation
            elif self.recording is not None:
                node.saved.append(Holder(self.recording))
            else:
                node.saved.append(kept)

    def unpack(self, node: Node, place: int) -> Tensor:
        """A saved tensor; a holder runs its checkpoint again, and gives it up for good."""
        kept = node.saved[place]
        if isinstance(kept, Tensor):
            return kept
        frame = kept.frame
        if frame.found is None:
            frame.found = {}
            self._rerun(frame)
        return frame.found.pop(kept.place)

    def _rerun(self, frame: Frame) -> None:
        casts, category = self.casts, self.category
        outer = (self.recording, self.recomputing)
        self.recording, self.recomputing, self.category = None, frame, 0
        try:
            frame.rerun()
        except StopRecomputation:
            pass
        finally:
            self.recording, self.recomputing = outer
            self.casts, self.category = casts, category
        assert frame.found is not None
        assert len(frame.found) == frame.number

    def checkpoint(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Run ``function`` keeping only its inputs; ``Frame.rerun`` runs it again."""
        kept = [tensor.view() for tensor in inputs]
        cast = self.casts is not None

        def rerun() -> None:
            self.casts = {} if cast else None
            function(*(tensor.view() for tensor in kept))

        frame = Frame(rerun)
        before, self.recording = self.recording, frame
        try:
            return function(*inputs)
        finally:
            self.recording = before

    @contextmanager
    def autocast(self, enabled: bool) -> Iterator[None]:
        """Casts of parameters are cached until the end of this context."""
        self.casts = {} if enabled else None
        yield
        self.casts = None

    def backward(self, loss: Tensor) -> None:
        """Run the graph behind ``loss``, freeing as it goes."""
        self.category = CATEGORIES.index("temporaries")
        assert loss.node is not None
        waiting = _dependencies(loss.node)
        ones = self.new(loss.elements, loss.width)  # the caller's, so held to the end
        buffers: dict[Node, list[Tensor | None]] = {loss.node: [ones]}
        ready = [loss.node]
        loss.node = None
        while ready:
            node = heapq.heappop(ready)
            self._evaluate(node, buffers, waiting, ready)
        del ones

    def _evaluate(
        self,
        node: Node,
        buffers: dict[Node, list[Tensor | None]],
        waiting: dict[Node, int],
        ready: list[Node],
    ) -> None:
        grads = [grad for grad in buffers.pop(node) if grad is not None]
        if node.hook is not None:
            node.hook(grads[0])
        found = node.backward(node, grads)
        grads.clear()
        node.saved.clear()
        found.reverse()
        for edge in node.edges:
            grad = found.pop()
            if edge is None or grad is None:
                continue
            target, place = edge
            slots = buffers.setdefault(target, [None] * target.outputs)
            slots[place] = self._meet(slots, place, grad)
            del grad
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, target)

    def _meet(self, slots: list[Tensor | None], place: int, grad: Tensor) -> Tensor:
        """Gradients that meet are added, out of place: torch does so under any dispatch mode."""
        there = slots[place]
        if there is None:
            return grad
        assert there.storage is not None
        before, self.multiplicity = self.multiplicity, there.storage.multiplicity
        try:
            return self.new(grad.elements, grad.width)
        finally:
            self.multiplicity = before


def _dependencies(root: Node) -> dict[Node, int]:
    waiting: dict[Node, int] = {}
    seen, left = {root}, [root]
    while left:
        for edge in left.pop().edges:
            if edge is None:
                continue
            waiting[edge[0]] = waiting.get(edge[0], 0) + 1
            if edge[0] not in seen:
                seen.add(edge[0])
                left.append(edge[0])
    return waiting
