"""Parallel computation graphs: operators, four operators that move tensors, and both in NumPy.

A tensor has three axes (Unity's rules number them 0, 1 and 2): copies, samples, channels. Its
*layout* says the size of each axis and into how many parts the axis is cut over devices; parts
along the axis of copies are copies of the whole, or partial sums of it.

    PARTITION  cuts an axis: the numbers stay, the parts grow           COMBINE    is its way back
    REPLICATE  writes each number of an axis k times                    REDUCE     adds k neighbours

A graph is a tuple of outputs. Equal terms are one object, so that shared work is shared, and terms
are compared and hashed in no time.

Source: §3 and §4, and the operators of the authors' rule file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from labkit.errors import LabkitError

COPIES, SAMPLES, CHANNELS = range(3)
"""The axes of a tensor."""
AXES = ("copies", "samples", "channels")
Triple = tuple[int, int, int]


class Op(StrEnum):
    """Operators, named as in the authors' rules without their prefix."""

    INPUT = "INPUT"
    WEIGHT = "WEIGHT"
    LINEAR = "LINEAR"
    RELU = "RELU"
    ADD = "EW_ADD"
    MULTIPLY = "EW_MUL"
    CONCAT = "CONCAT"
    SPLIT = "SPLIT"
    PARTITION = "PARTITION"
    COMBINE = "COMBINE"
    REPLICATE = "REPLICATE"
    REDUCE = "REDUCE"


LEAVES = frozenset({Op.INPUT, Op.WEIGHT})
PARALLEL = frozenset({Op.PARTITION, Op.COMBINE, Op.REPLICATE, Op.REDUCE})
POINTWISE = frozenset({Op.RELU, Op.ADD, Op.MULTIPLY})


class Misplaced(LabkitError):
    """An operator's inputs have sizes or layouts with which no device can compute it."""


class Layout(NamedTuple):
    """Sizes of a tensor's axes, and the parts into which each is cut.

    ``sums`` says that what lies along the axis of copies differs: partial sums, or tensors that
    were concatenated there.
    """

    sizes: Triple
    parts: Triple
    sums: bool = False

    @property
    def num_numbers(self) -> int:
        """Numbers of the tensor itself, copies and partial sums not counted."""
        return self.sizes[SAMPLES] * self.sizes[CHANNELS]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Term:
    """An operator and its inputs; made by :func:`term`, which returns equal terms as one object.

    Attributes:
        axis: that a concat, a split or an operator of :data:`PARALLEL` works on.
        parts: into which that operator cuts, or how many it brings together.
        relu: whether a linear operator applies a ReLU to its result.
        first: size of a split's first piece; 0 is half.
        piece: of a split, 0 or 1.
        name: of a leaf.
        layout: of a leaf; None where it stands for any tensor, in a rule.
    """

    op: Op
    args: tuple[Term, ...] = ()
    axis: int = -1
    parts: int = 0
    relu: bool = False
    first: int = 0
    piece: int = 0
    name: str = ""
    layout: Layout | None = None
    cache: dict[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        return words(self)


_KNOWN: dict[tuple[object, ...], Term] = {}


def term(op: Op, *args: Term, **details: object) -> Term:
    """The term of an operator and its inputs, the same object each time."""
    key = (op, *map(id, args), tuple(sorted(details.items())))
    if key not in _KNOWN:
        _KNOWN[key] = Term(op=op, args=args, **details)  # type: ignore[arg-type]
    return _KNOWN[key]


def leaf(op: Op, name: str, rows: int, columns: int) -> Term:
    """An input (samples × channels) or a weight (outputs × inputs), whole on one device."""
    return term(op, name=name, layout=Layout((1, rows, columns), (1, 1, 1)))


def words(of: Term) -> str:
    """A term on one line.

    >>> x = leaf(Op.INPUT, "x", 8, 4)
    >>> words(term(Op.PARTITION, x, axis=SAMPLES, parts=2))
    'PARTITION[samples](x)'
    """
    if of.op in LEAVES:
        return of.name
    detail = f"[{AXES[of.axis]}]" if of.axis >= 0 else ("[relu]" if of.relu else "")
    piece = f".{of.piece}" if of.op is Op.SPLIT else ""
    return f"{of.op}{detail}{piece}({', '.join(map(words, of.args))})"


def terms_of(outputs: tuple[Term, ...]) -> list[Term]:
    """Each term of a graph once, inputs before those who read them."""
    seen: dict[Term, None] = {}

    def visit(one: Term) -> None:
        if one not in seen:
            for arg in one.args:
                visit(arg)
            seen[one] = None

    for output in outputs:
        visit(output)
    return list(seen)


def rebuilt(one: Term, args: tuple[Term, ...]) -> Term:
    """The same operator with other inputs."""
    if args == one.args:
        return one
    names = ("axis", "parts", "relu", "first", "piece", "name", "layout")
    standard = Term(op=one.op)
    details = {n: getattr(one, n) for n in names if getattr(one, n) != getattr(standard, n)}
    return term(one.op, *args, **details)


def replaced(outputs: tuple[Term, ...], new: Mapping[Term, Term]) -> tuple[Term, ...]:
    """A graph in which some terms are others."""
    done: dict[Term, Term] = dict(new)

    def visit(one: Term) -> Term:
        if one not in done:
            done[one] = rebuilt(one, tuple(visit(arg) for arg in one.args))
        return done[one]

    return tuple(visit(output) for output in outputs)


def shrunk(outputs: tuple[Term, ...], num_devices: int, fewer: int) -> tuple[Term, ...]:
    """The same graph on fewer devices, with sizes as much smaller, to be tried with numbers."""

    def small(size: int) -> int:
        return size if size < num_devices else size * fewer // num_devices

    done: dict[Term, Term] = {}
    for one in terms_of(outputs):
        args = tuple(done[arg] for arg in one.args)
        if one.op in LEAVES:
            _, rows, columns = layout(one).sizes
            done[one] = leaf(one.op, one.name, small(rows), small(columns))
        elif one.op in PARALLEL:
            done[one] = term(one.op, *args, axis=one.axis, parts=fewer)
        elif one.op is Op.SPLIT:
            details = {"axis": one.axis, "piece": one.piece, "first": small(one.first)}
            done[one] = term(one.op, *args, **details)
        else:
            done[one] = rebuilt(one, args)
    return tuple(done[output] for output in outputs)


# ---------------------------------------------------------------- layouts


def layout(of: Term) -> Layout:
    """Sizes and parts of a term's tensor.

    Raises:
        Misplaced: no device could compute it, or an input of it.
    """
    found = of.cache.get("layout")
    if found is None:
        try:
            found = layout_from(of, [layout(arg) for arg in of.args])
        except Misplaced as error:
            found = error
        of.cache["layout"] = found
    if isinstance(found, Misplaced):
        raise found
    assert isinstance(found, Layout)
    return found


def layout_from(of: Term, args: Sequence[Layout]) -> Layout:
    """The layout of an operator's result, from those of its inputs.

    Raises:
        Misplaced: no device could compute it.
    """
    if of.op in LEAVES:
        if of.layout is None:
            raise Misplaced(f"unity: {of.name} stands for any tensor and has no layout")
        return of.layout
    if of.op in PARALLEL:
        return _moved(of, args[0])
    if of.op is Op.LINEAR:
        return _linear_layout(*args)
    if of.op is Op.CONCAT:
        return _joined(of, args)
    if of.op is Op.SPLIT:
        return _split(of, args[0])
    if any(arg != args[0] for arg in args):
        raise Misplaced(f"unity: {of.op} needs inputs of one layout, got {args}")
    return args[0]


def _with(values: Triple, axis: int, value: int) -> Triple:
    changed = list(values)
    changed[axis] = value
    return changed[0], changed[1], changed[2]


def _moved(of: Term, arg: Layout) -> Layout:
    size = arg.sizes[of.axis]
    parts = arg.parts[of.axis]
    if of.op is Op.PARTITION:
        if size % (parts * of.parts):
            raise Misplaced(f"unity: {size} {AXES[of.axis]} do not divide by {parts * of.parts}")
        return arg._replace(parts=_with(arg.parts, of.axis, parts * of.parts))
    if of.op is Op.REPLICATE:
        sizes = _with(arg.sizes, of.axis, size * of.parts)
        return Layout(sizes, _with(arg.parts, of.axis, parts * of.parts), arg.sums)
    if parts % of.parts:
        raise Misplaced(f"unity: {of.op} of {of.parts} parts along an axis of {parts}")
    fewer = _with(arg.parts, of.axis, parts // of.parts)
    if of.op is Op.COMBINE:
        return arg._replace(parts=fewer)
    sizes = _with(arg.sizes, of.axis, size // of.parts)
    return Layout(sizes, fewer, arg.sums and sizes[COPIES] > 1)


def _linear_layout(x: Layout, weight: Layout) -> Layout:
    """A linear operator: cut samples want copies of weights, cut outputs want copies of inputs."""
    if x.sizes[CHANNELS] != weight.sizes[CHANNELS] or x.parts[CHANNELS] != weight.parts[CHANNELS]:
        raise Misplaced("unity: LINEAR's inputs must have the same channels, cut alike")
    copies = (x.sizes[COPIES], x.parts[COPIES], weight.sizes[COPIES], weight.parts[COPIES])
    if x.sums or weight.sums:
        raise Misplaced("unity: LINEAR cannot work on partial sums")
    rows = weight.parts[1]
    samples = x.parts[SAMPLES]
    if copies != (rows, rows, samples, samples):
        raise Misplaced("unity: LINEAR needs a copy of x a part of the weight, and the other way")
    sums = x.parts[CHANNELS]
    return Layout((sums, x.sizes[SAMPLES], weight.sizes[1]), (sums, samples, rows), sums > 1)


def _joined(of: Term, args: Sequence[Layout]) -> Layout:
    sizes = [_with(arg.sizes, of.axis, 0) for arg in args]
    alike = all(arg[1:] == args[0][1:] for arg in args)
    if any(other != sizes[0] for other in sizes) or not alike:
        raise Misplaced("unity: CONCAT needs inputs that are alike along the other axes")
    if args[0].parts[of.axis] > 1:
        raise Misplaced("unity: CONCAT along an axis that is cut would move parts")
    total = sum(arg.sizes[of.axis] for arg in args)
    sums = args[0].sums or of.axis == COPIES
    return Layout(_with(args[0].sizes, of.axis, total), args[0].parts, sums)


def _split(of: Term, arg: Layout) -> Layout:
    if arg.parts[of.axis] > 1:
        raise Misplaced("unity: SPLIT along an axis that is cut would move parts")
    size = arg.sizes[of.axis]
    first = of.first or size // 2
    if not 0 < first < size:
        raise Misplaced(f"unity: SPLIT at {first} of {size}")
    sizes = _with(arg.sizes, of.axis, size - first if of.piece else first)
    return Layout(sizes, arg.parts, arg.sums and sizes[COPIES] > 1)


# ---------------------------------------------------------------- numbers


def evaluate(
    outputs: tuple[Term, ...], values: Mapping[str, np.ndarray], *, placed: bool = True
) -> list[np.ndarray]:
    """The numbers of a graph's outputs.

    Args:
        values: by a leaf's name, of its three sizes.
        placed: each device computes with the parts that it holds. Otherwise nothing is cut, and a
            linear operator reads the first copy of both inputs: that is how numbers alone are
            compared.

    Raises:
        Misplaced: no device could compute a term.
        ValueError: with ``placed=False``, the arrays do not fit.
    """
    done: dict[Term, np.ndarray] = {}
    for one in terms_of(outputs):
        if placed:
            layout(one)
        args = [done[arg] for arg in one.args]
        done[one] = values[one.name] if one.op in LEAVES else _numbers(one, args, placed)
    return [done[output] for output in outputs]


def _one_product(inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The layer computed once, from the first copies of its inputs and of its weights."""
    return inputs[:1] @ weights[:1].transpose(0, 2, 1)


def _numbers(of: Term, args: list[np.ndarray], placed: bool) -> np.ndarray:
    if of.op is Op.LINEAR:
        inputs, weights = args
        product = partial(_on_devices, of) if placed else _one_product
        result = product(inputs, weights)
        return np.maximum(result, 0) if of.relu else result
    if of.op is Op.RELU:
        return np.maximum(args[0], 0)
    if of.op is Op.ADD:
        return _same_shape(args)[0] + args[1]
    if of.op is Op.MULTIPLY:
        return _same_shape(args)[0] * args[1]
    if of.op is Op.CONCAT:
        return np.concatenate(args, axis=of.axis)
    if of.op is Op.SPLIT:
        first = of.first or args[0].shape[of.axis] // 2
        return np.split(args[0], [first], axis=of.axis)[of.piece]
    if of.op is Op.REPLICATE:
        return np.repeat(args[0], of.parts, axis=of.axis)
    if of.op is Op.REDUCE:
        return _added(args[0], of.parts, of.axis)
    return args[0]  # PARTITION and COMBINE leave the numbers as they are


def _added(numbers: np.ndarray, parts: int, axis: int) -> np.ndarray:
    """Neighbours along an axis, in groups, added up."""
    size = numbers.shape[axis]
    if size % parts:
        raise ValueError(f"{size} numbers in groups of {parts}")
    shape = list(numbers.shape)
    shape[axis : axis + 1] = [size // parts, parts]
    return numbers.reshape(shape).sum(axis=axis + 1)


def _same_shape(args: list[np.ndarray]) -> list[np.ndarray]:
    if args[0].shape != args[1].shape:
        raise ValueError(f"shapes {args[0].shape} and {args[1].shape}")
    return args


def _on_devices(of: Term, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Each device multiplies its part of x by its part of the weight.

    1. A device has a part of samples, one of outputs and one of channels.
    2. Of x it reads the copy with its part's number of outputs, of the weight the copy with its
       part's number of samples.
    3. Its product is one block of the result; parts of channels are partial sums.
    """
    sums, samples, rows = layout(of).parts
    result = np.empty(layout(of).sizes)
    blocks = [
        np.arange(n).reshape(parts, -1) for n, parts in _axes_of(x, weight, samples, rows, sums)
    ]
    for sample, row, part in np.ndindex(samples, rows, sums):
        here = blocks[0][sample]
        outputs = blocks[1][row]
        channels = blocks[2][part]
        own_x = x[row][np.ix_(here, channels)]
        own_weight = weight[sample][np.ix_(outputs, channels)]
        result[part][np.ix_(here, outputs)] = own_x @ own_weight.T
    return result


def _axes_of(
    x: np.ndarray, weight: np.ndarray, samples: int, rows: int, sums: int
) -> Iterator[tuple[int, int]]:
    yield x.shape[SAMPLES], samples
    yield weight.shape[1], rows
    yield x.shape[CHANNELS], sums


def numbers_for(outputs: tuple[Term, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Small whole numbers for each leaf of a graph, which add and multiply exactly."""
    values = {}
    for one in terms_of(outputs):
        if one.op in LEAVES:
            copies, *size = layout(one).sizes
            different = copies if layout(one).sums else 1
            numbers = rng.integers(-3, 4, (different, *size)).astype(float)
            values[one.name] = np.repeat(numbers, copies // different, axis=0)
    return values
