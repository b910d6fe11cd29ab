"""Inside a mesh: how each operator is cut over a mesh's axes, and what is sent because of it.

A mesh has one or two axes. A tensor is cut along its rows or its features over each axis, or
replicated; rows that were given to experts are cut along experts. An operator takes one way for
each axis, all of which divide its arithmetic evenly, so that only what is sent differs:

    rows      input by rows, output by rows       weights' gradients are added up, once an iteration
    columns   input replicated, output by features    input's gradients are added up
    inputs    input by features, output replicated    partial outputs are added up
    experts   input and output by experts         nothing

Between operators a tensor changes from one cut to another, forward, and its gradient back.

Source: Alpa §4.1 and §4.2, Tables 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Literal

import numpy as np

from labkit import planner
from labkit.papers.alpa.models import Block, Model, Product

Way = Literal["rows", "columns", "inputs", "experts"]
Rule = Literal["all", "data", "experts"]
"""Which ways operators may take: all, rows alone, or rows and for experts experts."""

LAYOUTS = ("rows", "features", "replicated")
"""How a tensor between blocks lies along an axis."""
_SIDES: dict[Way, tuple[str, str]] = {
    "rows": ("rows", "rows"),
    "columns": ("replicated", "features"),
    "inputs": ("features", "replicated"),
    "experts": ("experts", "experts"),
}
_PASSES = 4
"""Forward twice, since activations are computed again, and a backward pass of twice as much."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Devices along one or two axes, the innermost first.

    Attributes:
        sizes: devices along each axis.
        bandwidths: bytes per second of a device along each axis.
    """

    name: str
    sizes: tuple[int, ...]
    bandwidths: tuple[float, ...]

    @property
    def num_devices(self) -> int:
        """Devices in all."""
        return prod(self.sizes)


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What blocks of a model cost on a mesh, by how they are cut.

    Attributes:
        flops_per_s: that a device sustains.
        price_s: seconds that a parameter counts as, where a device holds it; the program inside a
            mesh knows no memory, and at a price it cuts weights that it would replicate.
        divided_gradients: whether replicas divide gradients among them as well, so that these are
            added up for every microbatch (ZeRO's second stage).
    """

    model: Model
    mesh: Mesh
    flops_per_s: float
    rule: Rule = "all"
    price_s: float = 0.0
    divided_gradients: bool = False

    @cached_property
    def layouts(self) -> list[tuple[str, ...]]:
        """Of a tensor between blocks, by axis."""
        names = LAYOUTS if self.rule == "all" else ("rows",)
        cuts = product(names, repeat=len(self.mesh.sizes))
        return [cut for cut in cuts if self._few_enough(cut)]

    def _few_enough(self, cut: Sequence[str]) -> bool:
        """Whether there are samples enough for the parts along rows."""
        return self._parts(cut, ("rows",)) <= self.model.samples

    def _parts(self, cut: Sequence[str], names: Sequence[str]) -> int:
        """Into how many parts the axes of these names cut."""
        return prod(size for size, name in zip(self.mesh.sizes, cut, strict=True) if name in names)

    def ways(self, operator: Product) -> list[tuple[Way, ...]]:
        """All ways of an operator, by axis."""
        names: list[Way] = ["rows", "columns", "inputs"]
        if operator.heads:
            names = ["rows", "columns"]
        if self.rule != "all":
            names = ["rows"]
        if operator.experts > 1 and self.rule != "data":
            names = ["experts"] if self.rule == "experts" else [*names, "experts"]
        found = product(names, repeat=len(self.mesh.sizes))
        return [
            way
            for way in found
            if self._few_enough(way) and self._parts(way, ("experts",)) <= operator.experts
        ]

    def sides(self, operator: Product, way: Sequence[Way]) -> tuple[list[str], list[str]]:
        """How an operator's input and output lie, by axis."""
        pairs = [_SIDES[name] for name in way]
        if operator.heads:
            pairs = [
                ("features", "features") if name == "columns" else _SIDES[name] for name in way
            ]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    # ------------------------------------------------------------ what is sent

    def all_reduce_s(self, num_bytes: float, cut: Sequence[str], name: str) -> float:
        """Seconds in which the devices along the axes of a name add up what each holds.

        Inner axes first; what an outer axis sends is already divided among the inner ones.
        """
        seconds = 0.0
        axes = zip(self.mesh.sizes, self.mesh.bandwidths, cut, strict=True)
        for size, bandwidth, taken in axes:
            if taken == name:
                seconds += 2 * (size - 1) / size * num_bytes / bandwidth
                num_bytes /= size
        return seconds

    def operator_s(self, operator: Product, way: Sequence[Way]) -> float:
        """Seconds of a microbatch in which an operator's ways make devices send."""
        if operator.heads:
            return 0.0
        inputs, outputs = self.sides(operator, way)
        cut = ("rows", "features", "experts")
        input_bytes = operator.input_bytes / self._parts(inputs, cut)
        output_bytes = operator.output_bytes / self._parts(outputs, cut)
        gradients = operator.parameters * self.model.element_bytes / self.weight_parts(way)
        times = float(self.model.num_microbatches)
        if self.divided_gradients:  # a reduce-scatter each time, weights gathered at the end
            times = 2 * times / (times + 1)
        return (
            self.all_reduce_s(gradients, way, "rows") / times
            + self.all_reduce_s(input_bytes, way, "columns")
            + self.all_reduce_s(output_bytes, way, "inputs")
        )

    def weight_parts(self, way: Sequence[Way]) -> int:
        """Into how many parts an operator's weights are cut."""
        return self._parts(way, ("columns", "inputs", "experts"))

    def changes_s(
        self, num_bytes: float, sources: Sequence[Sequence[str]], readers: Sequence[Sequence[str]]
    ) -> np.ndarray:
        """Seconds in which a tensor changes from a cut to another, and its gradient back.

        Shape (sources, readers).
        """
        return num_bytes * _changes_s_per_byte(
            self.mesh, tuple(map(tuple, sources)), tuple(map(tuple, readers))
        )

    # ------------------------------------------------------------ one block

    def block(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds in which devices send, and parameters that a device holds, as [in, out].

        Both by the layouts of the tensors that the block begins and ends with.
        """
        shape = (len(self.layouts), len(self.layouts))
        seconds = np.zeros(shape)
        held = np.zeros(shape)
        for path in block.paths:
            path_s, path_held = self._path(block, path)
            seconds += path_s
            held += path_held
        return seconds, held

    def _path(self, block: Block, path: tuple[Product, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The same of one path: a shortest path over the ways of its operators."""
        lies: list[Sequence[str]] = list(self.layouts)
        seconds = np.where(np.eye(len(lies), dtype=bool), 0.0, np.inf)
        held = np.zeros_like(seconds)
        num_bytes = block.input_bytes
        for operator in path:
            ways = self.ways(operator)
            if not ways:
                pairs = (len(self.layouts), len(self.layouts))
                return np.full(pairs, np.inf), np.zeros(pairs)
            sides = [self.sides(operator, way) for way in ways]
            step = self.changes_s(operator.input_bytes, lies, [side[0] for side in sides])
            step = step + [self.operator_s(operator, way) for way in ways]
            parts = np.array([self.weight_parts(way) for way in ways])
            more = operator.parameters / parts
            seconds, held = _joined(seconds, held, step + self.price_s * more, more)
            lies = [side[1] for side in sides]
            num_bytes = operator.output_bytes
        last = self.changes_s(num_bytes, lies, self.layouts)
        return _joined(seconds, held, last, np.zeros(len(self.layouts)))

    # ------------------------------------------------------------ all stages

    @cached_property
    def stages(self) -> Stages:
        """What every stage of the model takes on the mesh.

        1. From each first layer on, the least seconds by the layout of the tensor reached so far.
        2. A layer adds its blocks: a device keeps what a block begins with for each microbatch.
        3. A stage ends in the layout that costs least; the next one gets its input as it likes.
        """
        size = len(self.model.layers) + 1
        sent_s = np.full((size, size), np.inf)
        if not self.layouts:
            return self._none(size)
        held = np.zeros((size, size))
        kept = np.zeros((size, size))
        tables = {id(b): b for layer in self.model.layers for b in layer}
        known: dict[Block, tuple[np.ndarray, np.ndarray]] = {}
        for block in tables.values():
            if block not in known:
                known[block] = self.block(block)
        cuts = ("rows", "features")
        parts = np.array([self._parts(layout, cuts) for layout in self.layouts], dtype=float)
        every = np.arange(len(self.layouts))
        reached = np.full((3, size - 1, len(every)), 0.0)  # 1: seconds, parameters, kept bytes
        for end in range(1, size):
            now = reached[:, :end]  # stages from all layers before this end
            for block in self.model.layers[end - 1]:  # 2
                step_s, step_held = known[block]
                total = now[0][:, :, None] + step_s
                best = total.argmin(axis=1)
                rows = np.arange(end)[:, None]
                now = np.stack(
                    [
                        total[rows, best, every],
                        now[1][rows, best] + step_held[best, every],
                        now[2][rows, best] + block.input_bytes / parts[best],
                    ]
                )
            reached[:, :end] = now
            least = now[0].argmin(axis=1)  # 3
            paid_s, held[:end, end], kept[:end, end] = now[:, np.arange(end), least]
            sent_s[:end, end] = np.maximum(paid_s - self.price_s * held[:end, end], 0.0)
        return Stages(
            sent_s=sent_s,
            compute_s=_summed(self.model, "flops") * _PASSES / self.flops_per_s / self._devices,
            parameters=held,
            all_parameters=_summed(self.model, "parameters"),
            kept_bytes=kept,
            working_bytes=_working(self.model) / self._devices,
            devices=self._devices,
            divided_gradients=self.divided_gradients,
        )

    def _none(self, size: int) -> Stages:
        """No stage can stand here: there are fewer samples than parts."""
        nothing = np.zeros((size, size))
        return Stages(
            sent_s=np.full((size, size), np.inf),
            compute_s=nothing,
            parameters=nothing,
            all_parameters=nothing,
            kept_bytes=nothing,
            working_bytes=nothing,
            devices=self._devices,
        )

    @property
    def _devices(self) -> int:
        return self.mesh.num_devices

    def problem(self, first: int = 0, end: int | None = None) -> planner.Problem:
        """The choice of a way for each operator, and of a layout for each tensor between blocks.

        Args:
            first, end: the layers of a stage; all of them where left out.
        """
        choices: dict[str, list[str]] = {}
        nodes: dict[str, np.ndarray] = {}
        edges: dict[tuple[str, str], np.ndarray] = {}
        blocks = [block for layer in self.model.layers[first:end] for block in layer]
        names = [" × ".join(layout) for layout in self.layouts]
        for place in range(len(blocks) + 1):
            choices[f"tensor {place}"] = names
            nodes[f"tensor {place}"] = np.zeros(len(names))
        for place, block in enumerate(blocks):
            for number, path in enumerate(block.paths):
                before = f"tensor {place}"
                lies: list[Sequence[str]] = list(self.layouts)
                num_bytes = block.input_bytes
                for operator in path:
                    node = f"{operator.name} {place}.{number}"
                    ways = self.ways(operator)
                    sides = [self.sides(operator, way) for way in ways]
                    choices[node] = [" × ".join(way) for way in ways]
                    nodes[node] = np.array([self.operator_s(operator, way) for way in ways])
                    inputs = [side[0] for side in sides]
                    edges[before, node] = self.changes_s(operator.input_bytes, lies, inputs)
                    before = node
                    lies = [side[1] for side in sides]
                    num_bytes = operator.output_bytes
                last = (before, f"tensor {place + 1}")
                edges[last] = self.changes_s(num_bytes, lies, self.layouts)
        return planner.Problem(choices=choices, node_costs=nodes, edge_costs=edges)


@cache
def _changes_s_per_byte(
    mesh: Mesh, sources: tuple[tuple[str, ...], ...], readers: tuple[tuple[str, ...], ...]
) -> np.ndarray:
    """Seconds for each byte of a tensor that changes from each cut to each other, there and back.

    Along each axis: between two cuts an all-to-all, forward and back; from a cut to replicas an
    all-gather forward; from replicas to a cut an all-gather of the gradient, backward.
    """
    seconds = np.zeros((len(sources), len(readers)))
    for row, source in enumerate(sources):
        parts = [
            1 if name == "replicated" else size
            for size, name in zip(mesh.sizes, source, strict=True)
        ]
        for axis, (size, bandwidth) in enumerate(zip(mesh.sizes, mesh.bandwidths, strict=True)):
            here = parts[axis] / prod(parts)  # what the other axes leave of the tensor
            for column, reader in enumerate(readers):
                if source[axis] == reader[axis]:
                    continue
                both_cut = "replicated" not in (source[axis], reader[axis])
                sent = 2 * here / size if both_cut else here
                seconds[row, column] += sent * (size - 1) / size / bandwidth
    return seconds


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Every stage of layers k to j - 1 on one mesh, as ``[k, j]``.

    Attributes:
        sent_s, compute_s: seconds of a microbatch, sending and computing.
        parameters: that a device holds, of ``all_parameters`` of the stage.
        kept_bytes: of a device for each microbatch in flight.
        working_bytes: of a device while it computes one block.
    """

    sent_s: np.ndarray
    compute_s: np.ndarray
    parameters: np.ndarray
    all_parameters: np.ndarray
    kept_bytes: np.ndarray
    working_bytes: np.ndarray
    devices: int
    divided_gradients: bool = False

    def fixed_bytes(self, model: Model) -> np.ndarray:
        """Weights, gradients, the optimizer's state, and what a block needs while it runs.

        Replicas of a weight divide its optimizer's state among them, as Alpa's last pass does.
        """
        kept = model.parameter_bytes
        shared = model.optimizer_bytes
        if self.divided_gradients:
            kept -= model.parameter_bytes / 2
            shared += model.parameter_bytes / 2
        weights = self.parameters * kept
        states = self.all_parameters * shared / self.devices
        return weights + states + self.working_bytes


def _joined(
    seconds: np.ndarray, held: np.ndarray, step: np.ndarray, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The least seconds over what lies between, and the parameters that go with it."""
    total = seconds[:, :, None] + step[None, :, :]
    best = total.argmin(axis=1)
    least = np.take_along_axis(total, best[:, None, :], axis=1)[:, 0, :]
    return least, np.take_along_axis(held, best, axis=1) + more[None, :]


def _summed(model: Model, what: Literal["flops", "parameters"]) -> np.ndarray:
    """Of each stage's blocks, as [first, end]."""
    each = [sum(getattr(block, what) for block in layer) for layer in model.layers]
    upto = np.concatenate([[0.0], np.cumsum(each)])
    return np.maximum(upto[None, :] - upto[:, None], 0.0)


def _working(model: Model) -> np.ndarray:
    """Bytes of all outputs of the largest block of each stage, as [first, end]."""
    size = len(model.layers) + 1
    largest = np.zeros((size, size))
    each = [
        max(sum(operator.output_bytes for operator in block.operators) for block in layer)
        for layer in model.layers
    ]
    for first in range(size - 1):
        largest[first, first + 1 :] = np.maximum.accumulate(each[first:])
    return largest
