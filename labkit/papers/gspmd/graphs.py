"""A tiny language of tensor programs, and layouts that spread over it from a few annotations.

A program is a list of operations on named tensors. An equation has a letter a dimension,
as :func:`numpy.einsum` spells it: ``"bsm,mh->bsh"``. A *mesh* names axes of devices, such as
``{"x": 4, "y": 2}``; a *layout* says for each dimension of a tensor along which axis of the mesh it
is cut, ``""`` where it is whole. Here a dimension is cut along one axis at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import BadValue

Layout = tuple[str, ...]
"""Of each dimension, the axis of the mesh that cuts it; the empty string where it is whole."""
Mesh = Mapping[str, int]
"""Devices along each axis."""
Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One tensor computed from others.

    Attributes:
        equation: a letter a dimension of each input, an arrow, and the output's letters.
        inputs: names of tensors.
        output: name of the tensor that is made.
        function: of the inputs, number by number; None where their product is summed over the
            letters that the output lacks.
    """

    equation: str
    inputs: tuple[str, ...]
    output: str
    function: Function | None = None

    @property
    def terms(self) -> list[str]:
        """The letters of each input."""
        return self.equation.split("->")[0].split(",")

    @property
    def result(self) -> str:
        """The letters of the output."""
        return self.equation.split("->")[1]

    @property
    def summed(self) -> list[str]:
        """Letters that the output lacks."""
        return sorted(set("".join(self.terms)) - set(self.result))

    def keeps_all(self, term: str) -> bool:
        """Whether output and input have the same dimensions, number by number."""
        return self.function is not None and sorted(term) == sorted(self.result)

    def compute(self, *values: np.ndarray) -> np.ndarray:
        """The output of these inputs."""
        if self.function is None:
            return np.einsum(self.equation, *values)
        aligned = [
            _aligned(value, term, self.result)
            for value, term in zip(values, self.terms, strict=True)
        ]
        return np.asarray(self.function(*aligned))


def _aligned(value: np.ndarray, term: str, result: str) -> np.ndarray:
    """A value with the dimensions of the result, of length 1 where it has none."""
    order = [term.index(letter) for letter in result if letter in term]
    sizes = iter(np.transpose(value, order).shape)
    shape = [next(sizes) if letter in term else 1 for letter in result]
    return np.transpose(value, order).reshape(shape)


@dataclass
class Graph:
    """A tensor program.

    Attributes:
        shapes: of all tensors.
        operations: in an order in which they can run.

    >>> graph = Graph()
    >>> graph.given("a", (4, 6))
    >>> graph.given("b", (6, 2))
    >>> graph.product("ik,kj->ij", "a", "b", to="c")
    >>> graph.shapes["c"]
    (4, 2)
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def given(self, name: str, shape: Sequence[int]) -> None:
        """Add a tensor that the program is given: its data, or a weight."""
        self.shapes[name] = tuple(shape)

    def product(self, equation: str, *inputs: str, to: str) -> None:
        """Add a product of tensors, summed over letters that the output lacks."""
        self._add(Operation(equation=equation, inputs=inputs, output=to))

    def each(self, equation: str, *inputs: str, to: str, function: Function) -> None:
        """Add a function that is taken number by number; shorter inputs are repeated."""
        self._add(Operation(equation=equation, inputs=inputs, output=to, function=function))

    def _add(self, operation: Operation) -> None:
        sizes: dict[str, int] = {}
        for name, term in zip(operation.inputs, operation.terms, strict=True):
            if name not in self.shapes:
                raise BadValue(f"Graph: {operation.output!r} reads {name!r}, which is not there")
            for letter, size in zip(term, self.shapes[name], strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise BadValue(
                        f"Graph: {operation.equation!r} of {operation.inputs}: {letter!r} is "
                        f"{sizes[letter]} and {size}"
                    )
        if operation.function is not None and operation.summed:
            raise BadValue(
                f"Graph: {operation.equation!r}: a function number by number must keep "
                f"{', '.join(operation.summed)}"
            )
        self.shapes[operation.output] = tuple(sizes[letter] for letter in operation.result)
        self.operations.append(operation)

    @property
    def inputs(self) -> list[str]:
        """Names of the tensors that are given."""
        made = {operation.output for operation in self.operations}
        return [name for name in self.shapes if name not in made]

    def run(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All tensors, computed on one device."""
        values = dict(given)
        for operation in self.operations:
            arguments = [values[name] for name in operation.inputs]
            values[operation.output] = operation.compute(*arguments)
        return values

    def draw(self, rng: np.random.Generator, dtype: type = np.float64) -> dict[str, np.ndarray]:
        """Values for all given tensors, of about unit size after a product."""
        values: dict[str, np.ndarray] = {}
        for name in self.inputs:
            shape = self.shapes[name]
            scale = 1 / np.sqrt(shape[0]) if name.startswith("w") else 1.0
            values[name] = (scale * rng.standard_normal(shape)).astype(dtype)
        return values


def checked_layouts(graph: Graph, annotations: Mapping[str, Sequence[str]]) -> dict[str, Layout]:
    """Annotations as layouts.

    Raises:
        BadValue: a tensor is unknown, or a layout has another number of dimensions, or an axis
            twice.
    """
    layouts = {}
    for name, layout in annotations.items():
        if name not in graph.shapes:
            raise BadValue(f"gspmd: there is no tensor {name!r} to annotate")
        used = [axis for axis in layout if axis]
        if len(layout) != len(graph.shapes[name]) or len(set(used)) < len(used):
            raise BadValue(
                f"gspmd: {name!r} has {len(graph.shapes[name])} dimensions, each cut along another "
                f"axis or whole; got {tuple(layout)}"
            )
        layouts[name] = tuple(layout)
    return layouts


Link = tuple[str, str, str, str]
"""From a tensor to another: the two names, and the letters of each."""


def links(operations: Sequence[Operation], level: int) -> Iterator[Link]:
    """Where layouts may spread at a level: first along operations in order, then against it.

    Level 0 has those between tensors with the same dimensions, level 1 has all.
    """
    for operation in operations:
        for name, term in zip(operation.inputs, operation.terms, strict=True):
            if level or operation.keeps_all(term):
                yield name, operation.output, term, operation.result
    for operation in reversed(operations):
        for name, term in zip(operation.inputs, operation.terms, strict=True):
            if level or operation.keeps_all(term):
                yield operation.output, name, operation.result, term


def merged(source: Layout, target: Layout, source_letters: str, letters: str) -> Layout:
    """A tensor's layout with what its neighbour's adds: whole dimensions become cut.

    >>> merged(("x", ""), ("", "y"), "bm", "bh")
    ('x', 'y')
    """
    cuts = list(target)
    for axis, letter in zip(source, source_letters, strict=True):
        if axis and axis not in cuts and letter in letters and not cuts[letters.index(letter)]:
            cuts[letters.index(letter)] = axis
    return tuple(cuts)


def propagate(
    graph: Graph,
    annotations: Mapping[str, Sequence[str]],
    *,
    priorities: bool = True,
    order: Sequence[int] | None = None,
) -> dict[str, Layout]:
    """Layouts of all tensors from those of a few, which stay as they are.

    Args:
        priorities: whether operations that keep all dimensions go first, to their own fixed point.
        order: in which operations are visited; None takes the program's.

    Source: §3.5 (from memory).
    """
    layouts = {name: ("",) * len(shape) for name, shape in graph.shapes.items()}
    fixed = checked_layouts(graph, annotations)
    layouts.update(fixed)
    operations = graph.operations
    if order is not None:
        operations = [graph.operations[place] for place in order]
    for level in (0, 1) if priorities else (1,):
        changed = True
        while changed:
            changed = False
            for source, target, source_letters, letters in links(operations, level):
                if target in fixed:
                    continue
                layout = merged(layouts[source], layouts[target], source_letters, letters)
                changed = changed or layout != layouts[target]
                layouts[target] = layout
    return layouts
