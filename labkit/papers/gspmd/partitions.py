"""One program for all devices: what each computes on its shards, and the collectives between.

A tensor whose dimension of ``size`` is cut along an axis of ``n`` devices has shards of ⌈size / n⌉;
where that is too much, the last shards are filled up, and what fills them is set to zero before it
is added to anything. The same instructions run on every device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

import numpy as np
import pandas as pd

from labkit.errors import BadValue
from labkit.papers.gspmd.graphs import Graph, Layout, Mesh, Operation, checked_layouts

Device = tuple[int, ...]
Shards = dict[Device, np.ndarray]
"""What each device holds of a tensor."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What every device does next.

    Attributes:
        kind: compute, slice, all-gather, all-to-all, all-reduce or reduce-scatter.
        output: of the operation that it belongs to.
        tensor: whose shards it moves, or the output.
        layout: towards which it moves them; what was brought to a layout stays there for others.
        arguments: of compute, the tensors and the layouts that it takes them in.
        axis: of the mesh, along which devices work together; empty for compute.
        source: dimension that stops being cut; None where none does.
        target: dimension that becomes cut.
        message_bytes: the whole message of a group of devices: what it has after an all-gather, and
            before any other collective on one device.
        received_bytes: by each device.
        flops: of a product, on one device, what fills its shards included.
    """

    kind: str
    output: str
    tensor: str
    layout: Layout
    arguments: tuple[tuple[str, Layout], ...] = ()
    axis: str = ""
    source: int | None = None
    target: int | None = None
    message_bytes: float = 0.0
    received_bytes: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How an operation is computed: which letter each axis of the mesh cuts."""

    letters: Mapping[str, str]
    instructions: tuple[Instruction, ...]

    @property
    def received_bytes(self) -> float:
        return sum(instruction.received_bytes for instruction in self.instructions)


@dataclass(frozen=True, kw_only=True)
class Program:
    """The partitioned program.

    Attributes:
        graph: what it computes.
        mesh: devices.
        layouts: of all tensors.
        instructions: in order; the same on every device.
    """

    graph: Graph
    mesh: Mesh
    layouts: Mapping[str, Layout]
    instructions: tuple[Instruction, ...]

    @property
    def received_bytes(self) -> float:
        """By each device, when the program runs once."""
        return sum(instruction.received_bytes for instruction in self.instructions)

    @property
    def local_flops(self) -> float:
        """Of the products on one device."""
        return sum(instruction.flops for instruction in self.instructions)

    def frame(self) -> pd.DataFrame:
        """One row a collective: what it makes, along which axis, and what a device receives."""
        rows = [
            (each.output, each.tensor, each.kind, each.axis, each.received_bytes)
            for each in self.instructions
            if each.kind not in ("compute", "slice")
        ]
        columns = ["for", "tensor", "collective", "axis", "received_bytes"]
        return pd.DataFrame(rows, columns=columns)

    def held_bytes(self, names: Sequence[str], number_bytes: int = 2) -> int:
        """What a device holds of these tensors."""
        held = 0
        for name in names:
            held += number_bytes * prod(local_shape(self.graph, self.mesh, name, self.layouts))
        return held

    def run(self, given: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
        """All tensors, computed on virtual devices, and the bytes that all devices received."""
        return _run(self, given)


def local_shape(
    graph: Graph, mesh: Mesh, name: str, layouts: Mapping[str, Layout]
) -> tuple[int, ...]:
    """Of a tensor's shard, what fills it included."""
    return _block(graph.shapes[name], layouts[name], mesh)


def _block(shape: Sequence[int], layout: Sequence[str], mesh: Mesh) -> tuple[int, ...]:
    return tuple(
        ceil(size / mesh[axis]) if axis else size for size, axis in zip(shape, layout, strict=True)
    )


def partition(
    graph: Graph, layouts: Mapping[str, Layout], mesh: Mesh, *, number_bytes: int = 8
) -> Program:
    """The program of every device.

    Of all ways to cut an operation's letters along the axes that cut its tensors, the one is taken
    that keeps no axis idle, and then receives fewest bytes.

    Args:
        layouts: of all tensors, by :func:`labkit.papers.gspmd.propagate` or by hand.
        number_bytes: of one number.

    Raises:
        BadValue: a tensor has no layout, or one along an axis that the mesh lacks.

    Source: §4 (from memory).
    """
    checked_layouts(graph, layouts)
    for name in graph.shapes:
        unknown = {axis for axis in layouts.get(name, ("?",)) if axis} - set(mesh)
        if unknown:
            raise BadValue(
                f"gspmd.partition: the layout of {name!r} is {layouts.get(name)}; the mesh has "
                f"{', '.join(mesh)}"
            )
    instructions: list[Instruction] = []
    ready: set[tuple[str, Layout]] = set()
    for operation in graph.operations:
        writer = _Writer(graph, layouts, mesh, number_bytes, operation, frozenset(ready))
        ways = [writer.way(letters) for letters in writer.options()]
        best = min(ways, key=lambda way: (len(mesh) - len(way.letters), way.received_bytes))
        instructions += best.instructions
        ready.update((each.tensor, each.layout) for each in best.instructions)
    return Program(graph=graph, mesh=mesh, layouts=layouts, instructions=tuple(instructions))


@dataclass(frozen=True)
class _Writer:
    """Writes the instructions of one operation."""

    graph: Graph
    layouts: Mapping[str, Layout]
    mesh: Mesh
    number_bytes: int
    operation: Operation
    ready: frozenset[tuple[str, Layout]]

    def options(self) -> Iterator[dict[str, str]]:
        """Which letter each axis cuts: one that it cuts in some tensor, and none twice."""
        names = (*self.operation.inputs, self.operation.output)
        terms = (*self.operation.terms, self.operation.result)
        candidates: list[list[str]] = []
        for axis in self.mesh:
            letters = [""]
            for name, term in zip(names, terms, strict=True):
                if axis in self.layouts[name]:
                    letters.append(term[self.layouts[name].index(axis)])
            candidates.append(sorted(set(letters)))
        for chosen in itertools.product(*candidates):
            used = [letter for letter in chosen if letter]
            if len(set(used)) == len(used):
                yield {
                    axis: letter for axis, letter in zip(self.mesh, chosen, strict=True) if letter
                }

    def way(self, letters: Mapping[str, str]) -> _Way:
        """Bring inputs to these cuts, compute, add partial sums, bring the output to its layout."""
        operation = self.operation
        axis_of = {letter: axis for axis, letter in letters.items()}
        written: list[Instruction] = []
        arguments: list[tuple[str, Layout]] = []
        for name, term in zip(operation.inputs, operation.terms, strict=True):
            wanted = tuple(axis_of.get(letter, "") for letter in term)
            if (name, wanted) not in (*self.ready, *arguments):
                written += self.moves(name, self.layouts[name], wanted, wanted)
            arguments.append((name, wanted))
        output = operation.output
        final = self.layouts[output]
        written.append(
            Instruction(
                kind="compute",
                output=output,
                tensor=output,
                layout=final,
                arguments=tuple(arguments),
                flops=self.flops(axis_of),
            )
        )
        made = tuple(axis_of.get(letter, "") for letter in operation.result)
        partial = [axis for axis, letter in letters.items() if letter in operation.summed]
        before = tuple("" if axis in partial else axis for axis in final)
        written += self.moves(output, made, before, final)
        now = list(before)
        for axis in partial:
            target = final.index(axis) if axis in final else None
            kind = "all-reduce" if target is None else "reduce-scatter"
            message = self.bytes_of(output, now)
            devices = self.mesh[axis]
            received = 2 * (devices - 1) / devices * message
            if target is not None:
                now[target] = axis
                received = (devices - 1) * self.bytes_of(output, now)
            written.append(
                Instruction(
                    kind=kind,
                    output=output,
                    tensor=output,
                    layout=final,
                    axis=axis,
                    target=target,
                    message_bytes=message,
                    received_bytes=received,
                )
            )
        return _Way(letters=letters, instructions=tuple(written))

    def flops(self, axis_of: Mapping[str, str]) -> float:
        """Of the product on one device; functions number by number count nothing."""
        operation = self.operation
        if operation.function is not None:
            return 0.0
        sizes: dict[str, int] = {}
        for name, term in zip(operation.inputs, operation.terms, strict=True):
            sizes.update(zip(term, self.graph.shapes[name], strict=True))
        parts = [self.mesh[axis_of[letter]] if letter in axis_of else 1 for letter in sizes]
        shards = [ceil(size / part) for size, part in zip(sizes.values(), parts, strict=True)]
        return 2.0 * prod(shards)

    def bytes_of(self, name: str, layout: Sequence[str]) -> float:
        """Of a shard."""
        return self.number_bytes * prod(_block(self.graph.shapes[name], layout, self.mesh))

    def moves(
        self, name: str, source: Layout, wanted: Layout, layout: Layout
    ) -> Iterator[Instruction]:
        """Instructions from one layout to another: gather, then exchange, then slice.

        Args:
            layout: under which the value is known.
        """
        now = list(source)
        plain = Instruction(kind="slice", output=self.operation.output, tensor=name, layout=layout)
        for place, axis in enumerate(source):
            if axis and axis not in wanted:
                yield self.gather(plain, name, now, place)
        moving = [axis for axis in now if axis and now.index(axis) != wanted.index(axis)]
        while moving:
            free = [axis for axis in moving if not now[wanted.index(axis)]]
            axis = free[0] if free else moving[0]
            moving.remove(axis)
            place = now.index(axis)
            if not free:  # two axes trade places: one is gathered, and sliced at the end
                yield self.gather(plain, name, now, place)
                continue
            message = self.bytes_of(name, now)
            target = wanted.index(axis)
            both = now.copy()
            both[target] = axis
            received = (self.mesh[axis] - 1) * self.bytes_of(name, both)
            now[place] = ""
            now[target] = axis
            yield replace(
                plain,
                kind="all-to-all",
                axis=axis,
                source=place,
                target=target,
                message_bytes=message,
                received_bytes=received,
            )
        for place, axis in enumerate(wanted):
            if axis and axis not in now:
                yield replace(plain, axis=axis, target=place)

    def gather(self, plain: Instruction, name: str, now: list[str], place: int) -> Instruction:
        """Make a dimension whole; ``now`` is changed."""
        axis = now[place]
        shard = self.bytes_of(name, now)
        now[place] = ""
        return replace(
            plain,
            kind="all-gather",
            axis=axis,
            source=place,
            message_bytes=self.mesh[axis] * shard,
            received_bytes=(self.mesh[axis] - 1) * shard,
        )


# ---------------------------------------------------------------- virtual devices


@dataclass
class _Devices:
    """All devices in one process, and what they have received."""

    mesh: Mesh
    received_bytes: float = 0.0

    @property
    def all(self) -> list[Device]:
        return [*itertools.product(*(range(count) for count in self.mesh.values()))]

    def place(self, device: Device, axis: str) -> int:
        """Where a device stands along an axis."""
        return device[[*self.mesh].index(axis)]

    def group(self, device: Device, axis: str) -> list[Device]:
        """The devices that differ from this one along the axis alone, itself among them."""
        at = [*self.mesh].index(axis)
        return [(*device[:at], place, *device[at + 1 :]) for place in range(self.mesh[axis])]

    def receive(self, num_bytes: float) -> None:
        self.received_bytes += num_bytes


def _piece(value: np.ndarray, dimension: int, place: int, parts: int) -> np.ndarray:
    """One of the equal parts along a dimension; what is missing at the end is filled with zeros."""
    size = ceil(value.shape[dimension] / parts)
    start = min(place * size, value.shape[dimension])
    stop = min(start + size, value.shape[dimension])
    taken = np.take(value, range(start, stop), dimension)
    padding = [(0, 0)] * value.ndim
    padding[dimension] = (0, size - taken.shape[dimension])
    return np.pad(taken, padding)


def _cleared(
    value: np.ndarray,
    shape: Sequence[int],
    layout: Sequence[str],
    devices: _Devices,
    device: Device,
) -> np.ndarray:
    """A shard whose filling is zero."""
    value = value.copy()
    for dimension, axis in enumerate(layout):
        if axis:
            size = value.shape[dimension]
            real = max(shape[dimension] - devices.place(device, axis) * size, 0)
            index: list[slice] = [slice(None)] * value.ndim
            index[dimension] = slice(min(real, size), None)
            value[tuple(index)] = 0
    return value


def _step(
    instruction: Instruction, shards: Shards, whole: Sequence[int], devices: _Devices
) -> Shards:
    """A value on all devices after an instruction that moves it.

    Args:
        whole: its shape on one device.
    """
    after: Shards = {}
    axis = instruction.axis
    parts = devices.mesh[axis]
    source = instruction.source
    target = instruction.target
    for device in devices.all:
        group = devices.group(device, axis)
        place = devices.place(device, axis)
        if instruction.kind == "slice":
            assert target is not None
            after[device] = _piece(shards[device], target, place, parts)
            continue
        if instruction.kind == "all-reduce":
            total = sum(shards[peer] for peer in group)
            devices.receive(2 * (parts - 1) / parts * shards[device].nbytes)
            after[device] = np.asarray(total)
            continue
        pieces = [shards[peer] for peer in group]
        if target is not None:
            pieces = [_piece(piece, target, place, parts) for piece in pieces]
        devices.receive(sum(piece.nbytes for piece in pieces[1:]))
        if instruction.kind == "reduce-scatter":
            after[device] = np.sum(pieces, axis=0)
        else:
            assert source is not None
            joined = np.concatenate(pieces, axis=source)
            after[device] = np.take(joined, range(whole[source]), source)
    return after


def _run(program: Program, given: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
    """Run the instructions on all devices, and put the shards of every tensor together.

    1. Cut what is given.
    2. What moves a tensor begins with the tensor's own shards, and goes on with what it made.
    3. Compute clears what fills the shards, and runs the operation on every device.
    """
    graph = program.graph
    devices = _Devices(program.mesh)
    operations = {operation.output: operation for operation in graph.operations}
    values: dict[tuple[str, Layout], Shards] = {}
    for name in graph.inputs:
        layout = program.layouts[name]
        values[name, layout] = _cut(given[name], layout, devices)
    for instruction in program.instructions:
        name = instruction.tensor
        key = (name, instruction.layout)
        if instruction.kind == "compute":
            values[key] = _computed(operations[name], instruction, values, graph, devices)
            continue
        shards = values[key if key in values else (name, program.layouts[name])]
        values[key] = _step(instruction, shards, graph.shapes[name], devices)
    results = {}
    for name, shape in graph.shapes.items():
        layout = program.layouts[name]
        results[name] = _joined(values[name, layout], shape, layout, devices)
    return results, devices.received_bytes


def _computed(
    operation: Operation,
    instruction: Instruction,
    values: Mapping[tuple[str, Layout], Shards],
    graph: Graph,
    devices: _Devices,
) -> Shards:
    """An operation's output on every device."""
    shards = {}
    for device in devices.all:
        arguments = []
        for name, layout in instruction.arguments:
            value = values[name, layout][device]
            arguments.append(_cleared(value, graph.shapes[name], layout, devices, device))
        with np.errstate(divide="ignore", invalid="ignore"):
            shards[device] = operation.compute(*arguments)
    return shards


def _cut(value: np.ndarray, layout: Layout, devices: _Devices) -> Shards:
    shards = {}
    for device in devices.all:
        shard = value
        for dimension, axis in enumerate(layout):
            if axis:
                place = devices.place(device, axis)
                shard = _piece(shard, dimension, place, devices.mesh[axis])
        shards[device] = shard
    return shards


def _joined(shards: Shards, shape: Sequence[int], layout: Layout, devices: _Devices) -> np.ndarray:
    """The whole tensor, where every device that holds a part has written it."""
    first = next(iter(shards.values()))
    whole = np.zeros(shape, dtype=first.dtype)
    for device, shard in shards.items():
        where: list[slice] = []
        taken: list[slice] = []
        for dimension, axis in enumerate(layout):
            size = shard.shape[dimension]
            start = devices.place(device, axis) * size if axis else 0
            stop = min(start + size, shape[dimension])
            where.append(slice(min(start, stop), stop))
            taken.append(slice(0, max(stop - start, 0)))
        whole[tuple(where)] = shard[tuple(taken)]
    return whole
