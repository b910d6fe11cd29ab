"""Automatic differentiation on sizes alone: who holds how many bytes, operation by operation.

A training step is run once with tensors that have no numbers and no dimensions, only a count of
elements in symbolic :data:`UNITS` (``b·s·h``, ``b·a·s²`` …). The rules are torch's: a node of the
graph holds what its backward pass needs, nodes run in the reverse order of their making, gradients
that meet are added, a checkpoint keeps its inputs and runs again.

The tape's clock counts allocations. A storage lives from its own allocation to the last at which
something still needs it (:meth:`Tape.need`), and these are all the rules:

1. an operator needs its operands until its outputs are allocated;
2. a call needs its arguments, and the locals it names, until it returns (:func:`call`,
   :meth:`Tape.local`), as the frame of a Python function does;
3. a node needs what it saved until its backward pass is done (where that is kept on the host,
   what comes back for it from the beginning of its backward pass); a formula that is done with its
   operands earlier says so (:meth:`Tape.done`), which frees what was computed again for it;
4. a checkpoint needs its inputs until the last of its nodes is done, and the outputs that it
   keeps until the second run takes them;
5. a gradient is needed until the node that takes it is done; a parameter's, for ever, or until
   the step inside the backward pass is done with it (:data:`UPDATES`);
6. autocast's copies of weights are needed until the forward pass ends, what the training loop
   holds (:attr:`Tape.held`) until the step ends.

So what lives at each point is computed from the log of one run, and does not depend on when Python
frees an object. The points are linear forms in the units, valid for every model and batch:
:mod:`labkit.memory.tape.moments` evaluates them.

Repeated layers are run once. What a repeated part leaves behind is counted with a multiplicity
(:data:`MULTIPLICITIES`); points inside it are not recorded, since memory there is linear in the
layer's index and so largest at the first or the last layer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.memory.tape.graph import (
    Away,
    Backward,
    Checkpoint,
    Counts,
    Holder,
    Keeps,
    Node,
    Size,
    StopRecomputation,
    Storage,
    Tensor,
)
from labkit.memory.tape.mode import FP32
from labkit.memory.tape.step import Moment

UNITS = (
    "1",
    "s",
    "b·s",
    "b·s·h",
    "b·s·q",
    "b·s·k",
    "b·s·f",
    "b·s·a",
    "b·s·v",
    "b·a·s²",
    "s²",
    "s·h",
    "s·δ",
    "h",
    "q",
    "k",
    "f",
    "h·q",
    "h·k",
    "h·f",
    "h·v",
    "h·p",
    "c",
    "c·h",
    "c·v",
    "e",
    "e·h",
    "e·v",
    # Normalised heads: u key heads of width d.
    "b·s·u",
    "d",
    # Latent attention: latents of i (queries) and l (keys and values), j with the key's turned
    # part; turned parts o wide, keys and values z wide before they part, values w, of all heads.
    "b·s·i",
    "b·s·j",
    "b·s·l",
    "b·s·o",
    "b·s·a·o",
    "b·s·z",
    "b·s·w",
    "i",
    "j",
    "l",
    "h·i",
    "i·q",
    "h·j",
    "l·z",
    "h·w",
    # Experts: x to choose from, n a token; y of them here of width g with t places each, r in all;
    # shared ones m wide together.
    "b·s·x",
    "b·s·n",
    "x",
    "h·x",
    "t",
    "r",
    "r·h",
    "r·g",
    "y·h·g",
    "b·s·m",
    "h·m",
    # Sequence parallelism: the tokens of all tensor-parallel ranks.
    "tp·b·s·h",
    # Context parallelism: keys, values and outputs of all cp ranks.
    "cp·b·s·a",
    "cp·b·s·k",
    "cp·b·s·q",
    "cp·b·s·w",
    # Adapters of rank ρ.
    "b·s·ρ",
    "h·ρ",
    "q·ρ",
    "k·ρ",
    "f·ρ",
    # Older code: a mask of each sample's own, and logits and labels without each sample's last.
    "b·s²",
    "b·v",
    "b",
    # DoRA: an identity matrix as wide as a projection's input.
    "h²",
    "q²",
    "f²",
    # Prompts: τ virtual tokens, and their encoder of width η.
    "τ",
    "b·τ",
    "τ·h",
    "b·τ·h",
    "τ·η",
    "η",
    "η²",
    "h·η",
)
INDEX = {unit: place for place, unit in enumerate(UNITS)}

# How often what one part leaves behind is there. What each stands for depends on how the layers
# repeat (labkit.memory.tape.shadow): middle groups or layers, middle layers of a group, of the last
# group, of the middle groups; and middle chunks of a chunked head.
MULTIPLICITIES = ("1", "groups", "inner", "inner of the last", "groups·inner", "chunks")
ONE, GROUPS, INNER, INNER_LAST, GROUPS_INNER, CHUNKS = range(len(MULTIPLICITIES))

UPDATES = ("", "root", "in place", "late")
"""How parameters are updated: after the backward pass; or as soon as each gradient is there, by
AdamW over a list of one tensor, which takes the root of its variance, or in one kernel; or when the
next gradient is made, by fp32 copies of gradient and parameter (LOMO)."""
CATEGORIES = ("activations", "gradients", "cached weights", "temporaries")
ACTIVATIONS, GRADIENTS, CACHED, TEMPORARIES = range(len(CATEGORIES))
LAST_SEQUENCE = 1 << 60  # gradients are stored as soon as they are there


def count(**units: int) -> Counts:
    """Elements as a combination of units, e.g. ``count(**{"b·s·h": 1})``."""
    elements = np.zeros(len(UNITS), dtype=np.int64)
    for name, times in units.items():
        elements[INDEX[name]] = times
    return elements


def unit(name: str) -> Counts:
    """One of a unit, as :func:`count` gives it."""
    return count(**{name: 1})


def of_all_ranks(elements: Counts) -> Counts:
    """The same elements of every rank that shares the sequence."""
    every = np.zeros_like(elements)
    for place in np.flatnonzero(elements):
        every[INDEX[f"cp·{UNITS[place]}"]] = elements[place]
    return every


def call(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose tensor arguments and named locals are needed until it returns."""

    @wraps(function)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        tape: Tape = self.tape
        depth = len(tape.locals)
        tape.locals += [argument for argument in arguments if isinstance(argument, Tensor)]
        try:
            return function(self, *arguments, **named)
        finally:
            tape.need(*tape.locals[depth:])
            tape.locals = tape.locals[:depth]

    return run


class Tape:
    """The log of one step: allocations, last uses, and what nodes saved."""

    def __init__(self, *, update: str = "", state_width: int = 0, offload: bool = False) -> None:
        self.offload = offload
        self.away: dict[Storage, Storage | None] = {}  # copies on the host, and of what
        self.update = update
        self.state_width = state_width
        self.waiting: Tensor | None = None  # a gradient that waits for the next one
        self.labels: list[Moment | None] = []  # of each allocation; None: no point is recorded
        self.changes: list[tuple[int, tuple[int, int], Counts]] = []  # time, heading, bytes
        self.storages: list[Storage] = []
        self.locals: list[Tensor] = []
        self.held: list[Tensor] = []
        self.saved: dict[Storage, tuple[Any, int]] = {}  # layer, multiplicity
        self.label: Moment | None = Moment.EMBEDDING
        self.part = "embedding"
        self.layer: Any = None  # the layer at work
        self.multiplicity = ONE
        self.category = ACTIVATIONS
        self.sequence = 0
        self.recording: Checkpoint | None = None
        self.recomputing: Checkpoint | None = None
        self.casts: dict[int, Tensor] | None = None
        self.muted = False  # inside a reentrant checkpoint's first run, which saves nothing

    @property
    def now(self) -> int:
        """The number of the latest allocation."""
        return len(self.labels) - 1

    def new(
        self, elements: Counts, width: int, *beside: Tensor | None, category: int | None = None
    ) -> Tensor:
        """Allocate, while ``beside`` is still needed."""
        return self.together((elements, width), beside=beside, category=category)[0]

    def together(
        self, *sizes: Size, beside: tuple[Tensor | None, ...] = (), category: int | None = None
    ) -> list[Tensor]:
        """Allocate the outputs of one kernel: a point is recorded when all are there."""
        heading = (self.category if category is None else category, self.multiplicity)
        tensors: list[Tensor] = []
        for elements, width in sizes:
            self.labels.append(self.label if len(tensors) == len(sizes) - 1 else None)
            storage = Storage(elements * width, heading, self.now)
            self.storages.append(storage)
            self.changes.append((self.now, heading, storage.amount))
            tensors.append(Tensor(storage, elements, width))
        self.need(*tensors, *beside)
        return tensors

    def need(self, *tensors: Tensor | None) -> None:
        """Note that these tensors are still there at the latest allocation."""
        for tensor in tensors:
            if tensor is not None and tensor.storage is not None:
                tensor.storage.last_use = self.now

    def local(self, tensor: Tensor) -> Tensor:
        """Note a local variable of the running :func:`call`: it is needed until that returns."""
        self.locals.append(tensor)
        return tensor

    def done(self, saved: list[Tensor]) -> None:
        """Note that a formula needs its operands no longer."""
        self.need(*saved)
        saved.clear()

    def count_as(
        self, tensor: Tensor, *, category: int | None = None, multiplicity: int | None = None
    ) -> None:
        """Move a tensor's bytes to another heading from the next allocation on."""
        storage = tensor.storage
        if storage is None:
            return
        before = storage.heading
        storage.heading = (
            before[0] if category is None else category,
            before[1] if multiplicity is None else multiplicity,
        )
        self.changes.append((self.now + 1, before, -storage.amount))
        self.changes.append((self.now + 1, storage.heading, storage.amount))
        self.need(tensor)

    def named(self, name: str, *tensors: Tensor) -> None:
        """Say what the tensors' bytes are to the model; the first name stays."""
        for tensor in tensors:
            if name and tensor.storage is not None and not tensor.storage.name:
                tensor.storage.name = f"{self.part}.{name}" if self.part else name

    def points(self) -> list[tuple[Moment, NDArray[np.int64]]]:
        """Each labelled allocation with the bytes that live then, by category and multiplicity."""
        at: list[list[tuple[tuple[int, int], Counts]]] = [[] for _ in range(len(self.labels) + 1)]
        for time, heading, amount in self.changes:
            at[time].append((heading, amount))
        for storage in self.storages:
            if not storage.for_ever:
                at[storage.last_use + 1].append((storage.heading, -storage.amount))
        live = np.zeros((len(CATEGORIES), len(MULTIPLICITIES), len(UNITS)), dtype=np.int64)
        recorded = []
        for label, changes in zip(self.labels, at, strict=False):
            for heading, amount in changes:
                live[heading] += amount
            if label is not None:
                recorded.append((label, live.copy()))
        return recorded

    def parameter(self, elements: Counts, width: int, *, frozen: bool = False) -> Tensor:
        """A parameter: its bytes are counted elsewhere, its gradient is stored here.

        A ``frozen`` one has no gradient.
        """
        if frozen:
            return Tensor(None, elements, width, frozen=True)

        def accumulate(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            self.count_as(grads[0], category=GRADIENTS)
            assert grads[0].storage is not None
            if self.update:
                self._updated(grads[0])
            else:
                grads[0].storage.for_ever = True
            return []

        return Tensor(None, elements, width, Node(LAST_SEQUENCE, [], accumulate, 1))

    def leaf(self, x: Tensor, *, copied: bool = False) -> Tensor:
        """``x`` as a tensor that asks for a gradient by itself.

        The graph holds both until the training loop drops the loss.

        Args:
            copied: its gradient comes as rows of a larger one, and is copied out of it.
        """

        def accumulate(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            self.held.append(self.new(*x.size, grads[0]) if copied else grads[0])
            return []

        self.held.append(x)
        return Tensor(x.storage, x.elements, x.width, Node(LAST_SEQUENCE, [], accumulate, 1))

    def _updated(self, gradient: Tensor) -> None:
        """Step the parameter of a gradient that is there, by the tape's way to update."""
        if self.update == "root":
            self.new(gradient.elements, self.state_width, gradient)
        if self.update != "late":
            return
        before = self.waiting
        self.waiting = gradient
        if before is not None:
            self._step_late(before, gradient)

    def _step_late(self, before: Tensor, *beside: Tensor) -> None:
        """LOMO's step on an earlier gradient: fp32 copies of it and of the parameter."""
        self.need(before)
        wide = [] if before.width == FP32 else [self.new(before.elements, FP32, before, *beside)]
        if before.width != FP32:
            self.new(before.elements, FP32, *wide, *beside)

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
        for tensor in () if self.muted else tensors:
            if self.recomputing is not None:
                recomputed = self.recomputing.recomputed
                assert recomputed is not None
                recomputed[len(recomputed)] = tensor.view()
                if len(recomputed) == self.recomputing.number:
                    raise StopRecomputation
            elif self.recording is not None:
                node.saved.append(Holder(self.recording))
            elif self.offload:
                self._log_away(tensor)
                node.saved.append(Away(*tensor.size))
            else:
                node.saved.append(tensor.view())
                self.log_saved(tensor)

    def log_saved(self, *tensors: Tensor) -> None:
        """Note who saved a storage first: which layer, and how often that layer is there."""
        for tensor in tensors:
            if tensor.storage is not None:
                self.saved.setdefault(tensor.storage, (self.layer, self.multiplicity))

    def _log_away(self, tensor: Tensor) -> None:
        """Note a copy on the host, which is made anew each time a tensor is saved."""
        copy = Storage(tensor.elements * tensor.width, (ACTIVATIONS, self.multiplicity), self.now)
        self.away[copy] = tensor.storage
        self.saved[copy] = (self.layer, self.multiplicity)

    def _unpack(self, saved: Tensor | Holder | Away) -> Tensor:
        """A saved tensor; a holder runs its checkpoint again, and gives it up for good; what is on
        the host comes back.
        """
        if isinstance(saved, Tensor):
            return saved
        if isinstance(saved, Away):
            return self.new(saved.elements, saved.width)
        checkpoint = saved.checkpoint
        if checkpoint.recomputed is None:
            checkpoint.recomputed = {}
            self._rerun(checkpoint)
        return checkpoint.recomputed.pop(saved.place)

    def _rerun(self, checkpoint: Checkpoint) -> None:
        """Run a checkpoint again, keeping this time what its nodes want."""
        casts = self.casts
        category = self.category
        outer = (self.recording, self.recomputing)
        checkpoint.counts.clear()
        self.recording = None
        self.recomputing = checkpoint
        self.category = ACTIVATIONS
        try:
            checkpoint.rerun()
        except StopRecomputation:
            pass
        finally:
            self.need(*(self.casts or {}).values())
            self.recording, self.recomputing = outer
            self.casts = casts
            self.category = category
        assert checkpoint.recomputed is not None
        assert len(checkpoint.recomputed) == checkpoint.number

    def kept_outputs(self, kind: str, run: Callable[[], list[Tensor]]) -> list[Tensor]:
        """The outputs of an operator: ``run``, or those that its checkpoint kept."""
        again = self.recomputing
        if again is not None and again.keeps_next(kind):
            results = again.results.popleft()
            self.need(*results)
            return results
        results = run()
        first = self.recording
        if again is None and first is not None and first.keeps_next(kind):
            first.results.append([result.view() for result in results])
            for result in results:
                self.log_saved(result)
        return results

    def checkpoint(
        self, function: Callable[..., Tensor], *inputs: Tensor, keeps: Keeps | None = None
    ) -> Tensor:
        """Run ``function`` as a checkpoint: its inputs are kept, and :meth:`_rerun` runs it again.

        ``keeps`` says of its operators which outputs are kept as well.
        """
        cast = self.casts is not None

        away = self.offload and self.recording is None

        def rerun() -> None:
            self.casts = {} if cast else None
            given = [tensor.view() for tensor in inputs]
            if away:
                given = self.together_one_by_one(inputs)
            try:
                function(*given)
            finally:
                self.need(*given)

        new = [tensor.storage for tensor in inputs if tensor.storage not in self.saved]
        for tensor in inputs:
            if away:
                self._log_away(tensor)
            else:
                self.log_saved(tensor)
        before = self.recording
        given = () if away else inputs
        checkpoint = self.recording = Checkpoint(given, rerun, keeps)
        try:
            return function(*inputs)
        finally:
            self.recording = before
            if not checkpoint.number:  # no node wants anything: the inputs are not kept either
                kept = [part.storage for results in checkpoint.results for part in results]
                for storage in filter(None, (*new, *kept)):
                    self.saved.pop(storage, None)

    def reentrant(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Run ``function`` as a checkpoint whose backward pass runs it again, and back at once.

        Its output has a gradient where an input has one: its own parameters are not asked. Source:
        torch 2.13, utils/checkpoint.py, CheckpointFunction.
        """
        cast = self.casts is not None

        def backward(grads: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            outer = (self.casts, self.category)
            self.casts = {} if cast else None
            self.category = ACTIVATIONS
            found: list[Tensor | None] = [None] * len(inputs)
            given = [self._detached(x, place, found) for place, x in enumerate(inputs)]
            out = function(*given)
            self.need(*(self.casts or {}).values())
            self.casts, self.category = outer
            assert out.node is not None
            self._run(out.node, grads[0])
            self.need(*grads, *given, *saved, out)
            return found

        self.muted = True
        try:
            out = function(*inputs)
        finally:
            self.muted = False
        if all(tensor.frozen for tensor in inputs):
            out = out.view()
            out.frozen = True
            return out
        node = self.node(backward, *inputs)
        self.save(node, *inputs)
        return Tensor(out.storage, out.elements, out.width, node)

    def _detached(self, x: Tensor, place: int, found: list[Tensor | None]) -> Tensor:
        """``x`` as the start of a graph of its own, whose gradient is put among those ``found``."""

        def accumulate(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            found[place] = grads[0]
            return []

        if x.frozen:
            return x.view()
        node = Node(LAST_SEQUENCE, [], accumulate, 1)
        return Tensor(x.storage, x.elements, x.width, node)

    def together_one_by_one(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the same sizes, each made while those before it are there."""
        made: list[Tensor] = []
        for tensor in tensors:
            made.append(self.new(*tensor.size, *made))
        return made

    def backward(self, loss: Tensor) -> None:
        """Run the graph behind ``loss``; the loop holds loss and gradient to the end."""
        self.category = TEMPORARIES
        assert loss.node is not None
        ones = self.new(*loss.size, loss)
        self._run(loss.node, ones)
        self.need(loss, ones, *self.held)
        if self.waiting is not None:  # after the backward pass, whose first gradient is gone
            self._step_late(self.waiting)
            self.need(loss, *self.held)

    def _run(self, root: Node, grad: Tensor) -> None:
        """Run the graph behind a node whose gradient is there."""
        waiting = _dependencies(root)
        buffers: dict[Node, list[Tensor | None]] = {root: [grad]}
        ready = [root]
        while ready:
            self._evaluate(heapq.heappop(ready), buffers, waiting, ready)

    def _evaluate(
        self,
        node: Node,
        buffers: dict[Node, list[Tensor | None]],
        waiting: dict[Node, int],
        ready: list[Node],
    ) -> None:
        """Run a node's backward pass, pass its gradients on, and ready the nodes that now have all
        of theirs.
        """
        grads = [grad for grad in buffers.pop(node) if grad is not None]
        if node.hook is not None:
            node.hook(grads[0])
        operands: list[Tensor] = []
        for saved in node.saved:
            operands.append(self._unpack(saved))
            self.need(*grads, *operands)
        results = node.backward(grads, operands)
        self.need(*grads, *operands)
        for saved in node.saved:
            if isinstance(saved, Holder):
                self.need(*saved.checkpoint.holds())
            elif isinstance(saved, Tensor):
                self.need(saved)
        for edge, grad in zip(node.edges, results, strict=True):
            self.need(grad)
            if edge is None or grad is None:
                continue
            target, place = edge
            slots = buffers.setdefault(target, [None] * target.outputs)
            slots[place] = self._meet(slots[place], grad)
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, target)

    def _meet(self, there: Tensor | None, grad: Tensor) -> Tensor:
        """Gradients that meet are added, out of place: torch does so under any dispatch mode."""
        if there is None:
            return grad
        assert there.storage is not None
        before = self.multiplicity
        self.multiplicity = there.storage.heading[1]
        try:
            return self.new(*grad.size, there, grad)
        finally:
            self.multiplicity = before


def _dependencies(root: Node) -> dict[Node, int]:
    """How many gradients each node behind ``root`` waits for."""
    waiting: dict[Node, int] = {}
    seen = {root}
    left = [root]
    while left:
        for edge in left.pop().edges:
            if edge is None:
                continue
            waiting[edge[0]] = waiting.get(edge[0], 0) + 1
            if edge[0] not in seen:
                seen.add(edge[0])
                left.append(edge[0])
    return waiting
