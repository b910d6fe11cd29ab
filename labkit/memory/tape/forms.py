"""The points of a step as linear forms in units, the few that matter, and the units' values.

A step is run once for each choice of operators (:class:`~labkit.memory.tape.shadow.Program`); what
remains are coefficients, and those points that no other exceeds whatever the sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.memory.tape import tape as tapes
from labkit.memory.tape.network import Program
from labkit.memory.tape.shadow import Shadow, run_multiplicities
from labkit.memory.tape.sizes import MIXED, Numbers, Shape, num_dense, units
from labkit.memory.tape.step import ON_TAPE, Moment
from labkit.memory.tape.tape import Tensor
from labkit.memory.tape.trained import runs

_TIMES = len(tapes.MULTIPLICITIES)


def _basis(a: int, b: int) -> NDArray[np.int64]:
    """Multiplicities (columns) as polynomials in numbers that are never negative, by coefficient:
    1, m, i, j, m·i, c (rows). So one point can be seen to exceed another whatever the sizes.

    groups = m − a, inner = i − 1, inner of the last = j − 1, groups·inner = (m − a)·(i − b),
    chunks = c − 2.
    """
    basis = np.eye(_TIMES, dtype=np.int64)
    basis[0] = 1, -a, -1, -1, a * b, -2
    basis[1:3, tapes.GROUPS_INNER] = -b, -a
    return basis


# Units, by place in labkit.memory.tape.tape.UNITS, and how many (or bytes) of each.
Amount = tuple[tuple[int, int], ...]


class Part(NamedTuple):
    """Parameters of an end of the model or of a layer, in order, each with its bytes an element.

    ``experts``: whether the layer has them; None outside the layers. ``times``: the multiplicity of
    the layer; None for as many as the model has of its kind.
    """

    amounts: tuple[tuple[Amount, int], ...]
    experts: bool | None = None
    times: int | None = None


class Kept(NamedTuple):
    """One component of what a layer, or an end of the model, keeps for its backward pass.

    ``experts``: whether the layer has them; None outside the layers. ``times``: how many layers of
    the program keep as much, by multiplicity.
    """

    component: str
    experts: bool | None
    amount: Amount
    times: tuple[int, ...]


class Points(NamedTuple):
    """The points of one program that can be the largest of their moment.

    ``moment`` (n,) numbers into :data:`ON_TAPE`; ``coefficients`` (n, categories, columns), where a
    column is the product of a multiplicity and a unit, and ``columns`` their numbers.
    """

    moment: NDArray[np.int64]
    coefficients: NDArray[np.int64]
    columns: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def points(program: Program) -> Points:
    """Run the step on a tape and keep, moment by moment, what nothing else exceeds for sure."""
    recorded = Shadow(program).step().points()
    basis = _basis(2, 1) if program.structure == "nested" else _basis(1, -1)
    if program.structure == "runs":  # each multiplicity is a number of its own, and at least 1
        basis = np.eye(_TIMES, dtype=np.int64)
        basis[0, tapes.CHUNKS] = -2
    moment: list[int] = []
    kept: list[NDArray[np.int64]] = []
    for number, name in enumerate(ON_TAPE):
        in_head = name is Moment.HEAD_BACKWARD  # a part of the loss's backward pass
        label = Moment.LOSS_BACKWARD if in_head else name
        lives = [live for at, live in recorded if at is label]
        if in_head:
            lives = [live for live in lives if _grown(live)]
        places = _undominated(lives, basis)
        moment.extend([number] * len(places))
        kept.extend(lives[place] for place in places)
    stacked = np.array(kept)
    used = np.argwhere(stacked.any(axis=(0, 1)))
    return Points(
        moment=np.array(moment),
        coefficients=stacked[:, :, used[:, 0], used[:, 1]],
        columns=tuple((int(times), int(size)) for times, size in used),
    )


@lru_cache(maxsize=256)
def kept(program: Program) -> tuple[Kept, ...]:
    """The storages that the forward pass saves, by component, like layers together."""
    shadow = Shadow(program)
    shadow.run_forward()
    tape = shadow.tape
    sums: dict[tuple[Any, int, str], tapes.Counts] = {}
    for storage, (layer, multiplicity) in tape.saved.items():
        name = storage.name
        if storage in tape.away:
            origin = tape.away[storage]
            name = (origin and origin.name) or "other operands"
        key = (layer, multiplicity, name)
        sums[key] = sums.get(key, 0) + storage.amount
    alike: Counter[tuple[str, bool | None, Amount, int]] = Counter()
    for (layer, multiplicity, name), amount in sums.items():
        experts = None if layer is None else layer.place.experts
        alike[name, experts, _amount(amount), multiplicity] += 1
    return tuple(
        Kept(name, experts, parts, tuple(alike[name, experts, parts, m] for m in range(_TIMES)))
        for name, experts, parts in dict.fromkeys(key[:3] for key in alike)
    )


@lru_cache(maxsize=256)
def parameters(program: Program, *, frozen: bool = False) -> tuple[Part, ...]:
    """Elements of each trained tensor in order, or of each ``frozen`` one, a layer's experts
    stacked.

    There are four parts: tensors before the layers, of one layer with an MLP, of one with experts,
    and after the layers. Where layers differ in what is trained, there is one for each layer of the
    program in place of the two.
    """
    net = Shadow(program)
    net.run_forward()
    blocks = [block for group, _ in net.segments for block in group]
    inner: list[tuple[Any, ...]]
    if program.trained is None or len(program.trained.layers) == 1:
        kinds = {block.place.experts: block.parameters for block in blocks}
        inner = [(kinds.get(experts, {}), experts, None) for experts in (False, True)]
    else:
        inner = [(b.parameters, b.place.experts, b.place.multiplicity) for b in blocks]

    def part(tensors: Iterable[Tensor | None], *rest: Any) -> Part:
        chosen = [p for p in tensors if p is not None and p.frozen == frozen]
        return Part(tuple((_amount(p.elements), p.width) for p in chosen), *rest)

    return (
        part([net.token, net.position, *net.prompt]),
        *(part(tensors.values(), *rest) for tensors, *rest in inner),
        part([*net.norm, None if program.tied else net.output]),
    )


def _amount(counts: tapes.Counts) -> Amount:
    """The units of a combination that occur, by place, with how many of each."""
    return tuple((int(place), int(counts[place])) for place in np.flatnonzero(counts))


def _grown(live: NDArray[np.int64]) -> bool:
    """Whether the gradient of the head's matrix is there, added up or about to be."""
    places = [tapes.CATEGORIES.index(name) for name in ("gradients", "temporaries")]
    return bool(live[places][..., tapes.INDEX["h·v"]].any())


def _undominated(points: list[NDArray[np.int64]], basis: NDArray[np.int64]) -> list[int]:
    """Places of the points whose total no other's exceeds for sure; of equals, the first."""
    if not points:
        return []
    totals = np.array([basis @ live.sum(axis=0) for live in points])
    kept: list[int] = []
    for place in np.argsort(-totals.sum(axis=(1, 2)), kind="stable"):
        if not (totals[kept] >= totals[place]).all(axis=(1, 2)).any():
            kept.append(int(place))
    return sorted(kept)


def multiplicities(shape: Shape, numbers: Numbers, program: Program) -> list[Any]:
    """How often each part of the program is there: values of :data:`tape.MULTIPLICITIES`."""
    layers = shape.num_layers
    chunks = 0
    structure = program.structure
    if program.mode.chunked:
        chunks = -(-numbers.rows // numbers.chunk_rows[0]) - 3
    if structure == "nested":
        size = np.minimum(numbers.group, layers)
        groups = -(-layers // size)
        last = layers - size * (groups - 1)
        return [1, groups - 3, size - 2, last - 2, (groups - 3) * (size - 2), chunks]
    if structure == "periodic":
        size = numbers.period
        periods = layers // size
        return [1, periods - 2, size - 3, layers % size - 1, (periods - 2) * (size - 1), chunks]
    if structure == "listed":
        return [1, 0, 0, 0, 0, chunks]
    if structure == "runs":
        return [1, *_between_ends(program), chunks]
    if program.stack == MIXED:
        dense = num_dense(shape)
        return [1, layers - dense - 2, dense - 2, 0, 0, chunks]
    return [1, layers - 2, 0, 0, 0, chunks]


def _between_ends(program: Program) -> list[int]:
    """How many layers lie between the ends of each run that has a multiplicity, by that."""
    assert program.trained is not None
    of = run_multiplicities(program)
    lengths = {r.start: r.end - r.start for r in runs(program.trained, program.layers[0])}
    by_multiplicity = {of[start]: lengths[start] - 3 for start in of}
    return [by_multiplicity.get(number, 0) for number in range(1, _TIMES - 1)]


def columns_of(table: Points, program: Program, shape: Shape, numbers: Numbers) -> list[Any]:
    """The value of each column of a program's points: how often a unit is there, times its
    elements.
    """
    times = multiplicities(shape, numbers, program)
    sizes = units(shape, numbers, program.mode)
    return [times[number] * sizes[size] for number, size in table.columns]
