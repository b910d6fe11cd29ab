"""Operators and tensors that are halved again and again, and the bytes that this moves.

A *cut* is one halving. After ``m`` of them there are 2ᵐ workers, and worker ``d`` has the binary
digits of its number: digit ``b`` says on which side of cut ``b`` it stands. A tensor is stored by
one dimension a cut, never in copies. An operator is computed by one *letter* a cut: a letter of its
output, or one that is summed away, whose partial results are added at once.

Where sums are *kept* (the rival that OneFlow is known for), a tensor may also be stored as parts on
both sides of a cut, whose sum it is; its gradient is then whole on both sides. Only sums number by
number read such a tensor.

A term, such as ``"oi"``, has a letter for each dimension of a tensor as its operator sees it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache

import numpy as np

from labkit import planner
from labkit.errors import BadValue
from labkit.planner.choices import Problem

Letters = tuple[str, ...]
"""Of an operator, the letter of each cut."""
Dimensions = tuple[int, ...]
"""Of a tensor, the dimension of each cut."""
KEPT = 2
"""In the place of a dimension: both sides hold parts of a sum."""
SUM = "+"
"""In the place of a letter: both sides work on parts of a sum, or on copies of a gradient."""


class Role(StrEnum):
    """What a tensor is to an operator."""

    INPUT = "input"
    GRADIENT = "gradient that is read"
    OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """What is stored: one shape, however often it occurs.

    Attributes:
        name: unique in its network.
        sizes: of the two dimensions that may be cut.
        num_bytes: of one of it.
        copies: how often it is there, in steps or layers that share their cuts.
        kept_bytes: of all copies with what is kept beside them (gradients, momentum).
    """

    name: str
    sizes: tuple[int, int]
    num_bytes: float
    copies: int = 1
    kept_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What computes one tensor from others.

    Attributes:
        name: unique in its network.
        inputs: tensors' names and terms.
        output: a tensor's name and its term.
        times: how often it runs in a step of training.
        flops: of all times together.
        gradients: names of inputs whose gradient it reads.
        adds: whether it adds number by number, or is the way back through such a sum.
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    output: tuple[str, str]
    times: int = 1
    flops: float = 0.0
    gradients: frozenset[str] = frozenset()
    adds: bool = False

    def role(self, name: str, term: str) -> Role:
        """What a tensor is to it."""
        if (name, term) == self.output:
            return Role.OUTPUT
        return Role.GRADIENT if name in self.gradients else Role.INPUT

    @property
    def letters(self) -> list[str]:
        """Along which it may be cut."""
        found = "".join(term for _, term in (*self.inputs, self.output))
        return sorted(set(found))

    @property
    def summed(self) -> list[str]:
        """Letters that the output lacks."""
        return [letter for letter in self.letters if letter not in self.output[1]]


@dataclass
class Network:
    """Tensors, and the operators of a step of training."""

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    def tensor(self, name: str, sizes: tuple[int, int], num_bytes: float, **more: float) -> str:
        """Add a tensor and return its name."""
        self.tensors[name] = Tensor(name=name, sizes=sizes, num_bytes=num_bytes, **more)  # type: ignore[arg-type]
        return name

    def dense(self, data: str, weight: str, made: str, *, times: int = 1, flops: float = 0) -> None:
        """Add a product (a convolution too) with its two backward ones; gradients share cuts.

        Args:
            flops: of the forward pass, all times together.
        """
        terms = {data: "ni", weight: "oi", made: "no"}
        for role, output in (("forward", made), ("to data", data), ("to weight", weight)):
            inputs = tuple((name, term) for name, term in terms.items() if name != output)
            self.operators.append(
                Operator(
                    name=f"{made}: {role}",
                    inputs=inputs,
                    output=(output, terms[output]),
                    times=times,
                    flops=flops,
                    gradients=frozenset({made} - {output}),
                )
            )

    def add(self, one: str, other: str, made: str, *, times: int = 1) -> None:
        """Add a sum number by number, and the gradients that flow back through it."""
        inputs = ((one, "nc"), (other, "nc"))
        self._elementwise(inputs, made, times, adds=True)

    def each(self, one: str, made: str, *, times: int = 1) -> None:
        """Add a function that is taken number by number, and its gradient."""
        self._elementwise(((one, "nc"),), made, times, adds=False)

    def _elementwise(
        self, inputs: tuple[tuple[str, str], ...], made: str, times: int, *, adds: bool
    ) -> None:
        self.operators.append(
            Operator(
                name=f"{made}: of {', '.join(name for name, _ in inputs)}",
                inputs=inputs,
                output=(made, "nc"),
                times=times,
                adds=adds,
            )
        )
        for back, _ in inputs:
            self.operators.append(
                Operator(
                    name=f"{made}: back to {back}",
                    inputs=((made, "nc"),),
                    output=(back, "nc"),
                    times=times,
                    gradients=frozenset({made}),
                    adds=adds,
                )
            )

    @property
    def addends(self) -> set[str]:
        """Tensors that sums alone read: what may be kept as parts of a sum."""
        read: dict[str, bool] = {}
        for operator in self.operators:
            for name, term in operator.inputs:
                if operator.role(name, term) is Role.INPUT:
                    read[name] = read.get(name, True) and operator.adds
        return {name for name, by_sums in read.items() if by_sums}

    @property
    def flops(self) -> float:
        """Of a step."""
        return sum(operator.flops for operator in self.operators)

    @property
    def kept_bytes(self) -> float:
        """Of all tensors, with what is kept beside them."""
        return sum(tensor.kept_bytes for tensor in self.tensors.values())

    def sizes(self, operator: Operator) -> dict[str, int]:
        """The least size of each letter, in the tensors that have it."""
        found: dict[str, int] = {}
        for name, term in (*operator.inputs, operator.output):
            for letter, size in zip(term, self.tensors[name].sizes, strict=True):
                found[letter] = min(size, found.get(letter, size))
        return found


# ---------------------------------------------------------------- bytes


def _interval(digits: np.ndarray, cuts: Sequence[int]) -> tuple[np.ndarray, float]:
    """Start and length of what each worker has of a dimension that these cuts halve."""
    start = np.zeros(len(digits))
    length = 1.0
    for cut in cuts:
        length /= 2
        start += length * digits[:, cut]
    return start, length


@cache
def moved(term: str, chosen: Letters, stored: Dimensions, role: Role = Role.INPUT) -> float:
    """Bytes that all workers receive for one tensor of an operator, over the tensor's bytes.

    An input: what a worker needs and does not hold. An output: what a worker stores, from each of
    the workers that have a part of its sum, less what it made itself. Infinite where parts of a sum
    meet an operator that cannot work on them.

    >>> moved("oi", ("n",), (0,))  # data parallel: each half fetches the other
    1.0
    >>> moved("no", ("i",), (0,), Role.OUTPUT)  # partial sums: each half is added to the other
    1.0
    >>> moved("ni", ("i",), (0,))  # cut otherwise: half of each half moves
    0.5
    """
    if KEPT in stored or (SUM in chosen and role is Role.INPUT):
        for letter, dimension in zip(chosen, stored, strict=True):
            kept = dimension == KEPT
            if role is Role.INPUT and kept != (letter == SUM):
                return float("inf")
            if kept and letter in term:
                return float("inf")
        others = [cut for cut, dimension in enumerate(stored) if dimension != KEPT]
        one_side = moved(
            term,
            tuple(chosen[cut] for cut in others),
            tuple(stored[cut] for cut in others),
            role,
        )
        return 2 ** (len(stored) - len(others)) * one_side
    num_cuts = len(chosen)
    digits = np.array([*itertools.product((0, 1), repeat=num_cuts)]).reshape(2**num_cuts, num_cuts)
    shared = np.ones(len(digits))
    share = 1.0
    for dimension, letter in enumerate(term):
        asked = [cut for cut in range(num_cuts) if chosen[cut] == letter]
        held = [cut for cut in range(num_cuts) if stored[cut] == dimension]
        start, length = _interval(digits, asked)
        other_start, other_length = _interval(digits, held)
        end = np.minimum(start + length, other_start + other_length)
        shared *= np.maximum(end - np.maximum(start, other_start), 0)
        share *= length
    if role is Role.OUTPUT:
        summed = sum(letter not in term for letter in chosen)
        return float(2**summed - shared.sum())
    return float(len(digits) * share - shared.sum())


@cache
def moved_by_halvings(
    term: str, chosen: Letters, stored: Dimensions, role: Role = Role.INPUT
) -> float:
    """The same, as if what both have of one cut did not depend on the other cuts.

    What is needed doubles with each letter that the tensor lacks; what is there already halves with
    each cut of another dimension. The order of cuts does not matter to it. Without kept sums.

    >>> crossed = (("n", "i"), (1, 0))  # both halve both dimensions, in another order
    >>> moved("ni", *crossed), moved_by_halvings("ni", *crossed)
    (0.5, 0.75)
    """
    needed = 1.0
    there = 1.0
    for letter, dimension in zip(chosen, stored, strict=True):
        if letter not in term:
            needed *= 2
        elif term[dimension] != letter:
            there /= 2
    return needed - there


class Count(StrEnum):
    """How bytes are counted: by who has what, or halving by halving, as the theorem needs it."""

    EXACT = "by who has what"
    HALVINGS = "halving by halving"


def _halvable(size: int, cuts: int) -> bool:
    return size % 2**cuts == 0


def dimension_choices(tensor: Tensor, num_cuts: int, *, kept: bool = False) -> list[Dimensions]:
    """All ways to store a tensor that halve its dimensions evenly.

    Args:
        kept: whether it may also be parts of a sum.
    """
    choices = []
    for dimensions in itertools.product((0, 1, KEPT) if kept else (0, 1), repeat=num_cuts):
        if all(_halvable(tensor.sizes[axis], dimensions.count(axis)) for axis in (0, 1)):
            choices.append(dimensions)
    if not choices:
        raise BadValue(f"tofu: {tensor.name!r} of {tensor.sizes} has no {num_cuts} even halvings")
    return choices


def letter_choices(
    network: Network, operator: Operator, num_cuts: int, *, kept: bool = False
) -> list[Letters]:
    """All ways to compute an operator that halve its letters evenly.

    Args:
        kept: whether sums may work on parts of sums.
    """
    sizes = network.sizes(operator)
    found = [*operator.letters, SUM] if kept and operator.adds else operator.letters
    choices = []
    for letters in itertools.product(found, repeat=num_cuts):
        cut = set(letters) - {SUM}
        if all(_halvable(sizes[letter], letters.count(letter)) for letter in cut):
            choices.append(letters)
    return choices


def edge_bytes(
    network: Network,
    operator: Operator,
    name: str,
    term: str,
    ways: Sequence[Letters],
    stored: Sequence[Dimensions],
    count: Count = Count.EXACT,
) -> np.ndarray:
    """Bytes that move between an operator and a tensor, by the ways of both."""
    role = operator.role(name, term)
    num_bytes = operator.times * network.tensors[name].num_bytes
    function = moved if count is Count.EXACT else moved_by_halvings
    table = [[function(term, way, cuts, role) for cuts in stored] for way in ways]
    return num_bytes * np.array(table)


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cuts of all tensors and operators.

    Attributes:
        stored: dimension of each cut, by tensor.
        chosen: letter of each cut, by operator.
        moved_bytes: that all workers receive in a step.
        evaluations: table entries that the search computed.
    """

    stored: Mapping[str, Dimensions]
    chosen: Mapping[str, Letters]
    moved_bytes: float
    evaluations: int


def problem_of(
    network: Network,
    ways: Mapping[str, Sequence[Letters]],
    stored: Mapping[str, Sequence[Dimensions]],
    count: Count = Count.EXACT,
) -> Problem:
    """The choices of tensors and operators as a problem of the planner."""
    nodes: dict[str, Sequence[object]] = {**stored, **ways}
    edges = {}
    for operator in network.operators:
        for name, term in (*operator.inputs, operator.output):
            table = edge_bytes(
                network, operator, name, term, ways[operator.name], stored[name], count
            )
            edges[operator.name, name] = table
    return Problem(
        choices={name: [str(way) for way in found] for name, found in nodes.items()},
        node_costs={name: np.zeros(len(found)) for name, found in nodes.items()},
        edge_costs=edges,
    )


def searched(
    network: Network,
    ways: Mapping[str, Sequence[Letters]],
    stored: Mapping[str, Sequence[Dimensions]],
    count: Count = Count.EXACT,
) -> Plan:
    """The plan that moves fewest bytes, of those with these choices."""
    choice = planner.choose(problem_of(network, ways, stored, count))
    return Plan(
        stored={name: _named(found, choice.plan[name]) for name, found in stored.items()},
        chosen={name: _named(found, choice.plan[name]) for name, found in ways.items()},
        moved_bytes=choice.cost,
        evaluations=choice.evaluations,
    )


def _named(choices: Iterable[tuple], name: str) -> tuple:
    return next(choice for choice in choices if str(choice) == name)


def next_cut(
    network: Network, plan: Plan | None = None, *, kept: bool = False, count: Count = Count.EXACT
) -> Plan:
    """The best plan of those that halve once more than a plan does; None has no cut yet.

    Args:
        kept: whether tensors that sums alone read may be parts of a sum.
        count: how bytes are counted.
    """
    num_cuts = 1
    if plan is not None:
        num_cuts += len(next(iter(plan.stored.values())))
    ways = {}
    for operator in network.operators:
        found = letter_choices(network, operator, num_cuts, kept=kept)
        if plan is not None:
            found = [way for way in found if way[:-1] == plan.chosen[operator.name]]
        ways[operator.name] = found
    addends = network.addends if kept else set()
    stored = {}
    for name, tensor in network.tensors.items():
        cuts = dimension_choices(tensor, num_cuts, kept=name in addends)
        if plan is not None:
            cuts = [way for way in cuts if way[:-1] == plan.stored[name]]
        stored[name] = cuts
    return searched(network, ways, stored, count)


def recursive(
    network: Network, num_cuts: int = 3, *, kept: bool = False, count: Count = Count.EXACT
) -> Plan:
    """Tofu's search: the best cut into two, then the best next cut, and so on.

    Source: §5.2 (from memory); the public fork's ``KCuts``.
    """
    if num_cuts < 1:
        raise BadValue(f"tofu.recursive: num_cuts must be at least 1; got {num_cuts}")
    plan = next_cut(network, kept=kept, count=count)
    evaluations = plan.evaluations
    for _ in range(num_cuts - 1):
        plan = next_cut(network, plan, kept=kept, count=count)
        evaluations += plan.evaluations
    return replace(plan, evaluations=evaluations)


class Method(StrEnum):
    """How cuts are chosen."""

    TOFU = "Tofu: halve recursively"
    FLAT = "all cuts at once"
    KEPT = "all cuts at once, sums kept"
    EQUAL = "EqualChop: one dimension a tensor"
    ICML18 = "ICML18: no partial sums"
    SPARTAN = "Spartan: largest tensor first"
    ALL_ROW = "all rows"


HEURISTICS = (Method.EQUAL, Method.ICML18, Method.SPARTAN, Method.ALL_ROW)
"""What the paper compares its search with (§7.3, from memory)."""


def planned(
    network: Network, method: Method, num_cuts: int = 3, *, count: Count = Count.EXACT
) -> Plan:
    """The plan of a method for 2 ** ``num_cuts`` workers."""
    if method is Method.TOFU:
        return recursive(network, num_cuts, count=count)
    kept = method is Method.KEPT
    ways = {}
    for operator in network.operators:
        ways[operator.name] = letter_choices(network, operator, num_cuts, kept=kept)
    addends = network.addends if kept else set()
    stored = {}
    for name, tensor in network.tensors.items():
        stored[name] = dimension_choices(tensor, num_cuts, kept=name in addends)
    if method is Method.EQUAL:
        ways = {name: _alike(found) for name, found in ways.items()}
        stored = {name: _alike(found) for name, found in stored.items()}
    if method is Method.ICML18:
        for operator in network.operators:
            summed = set(operator.summed)
            found = ways[operator.name]
            ways[operator.name] = [way for way in found if not summed & set(way)]
    if method is Method.ALL_ROW:
        stored = {name: [min(found)] for name, found in stored.items()}
    if method is Method.SPARTAN:
        stored = {name: [cuts] for name, cuts in _largest_first(network, ways, stored).items()}
    return searched(network, ways, stored, count)


def _alike(found: Sequence[tuple]) -> list[tuple]:
    """The ways that cut the same letter or dimension each time; all, where there is none."""
    return [way for way in found if len(set(way)) == 1] or [*found]


def _largest_first(
    network: Network,
    ways: Mapping[str, Sequence[Letters]],
    stored: Mapping[str, Sequence[Dimensions]],
) -> dict[str, Dimensions]:
    """Spartan's greedy order: each tensor takes what is best for those before it.

    Source: §7.3 (from memory).
    """
    fixed: dict[str, Dimensions] = {}
    order = sorted(
        network.tensors.values(), key=lambda tensor: tensor.copies * tensor.num_bytes, reverse=True
    )
    for tensor in order:
        totals = np.zeros(len(stored[tensor.name]))
        for operator in network.operators:
            terms = [*operator.inputs, operator.output]
            if tensor.name not in [name for name, _ in terms]:
                continue
            costs = np.zeros((len(ways[operator.name]), len(totals)))
            for name, term in terms:
                cuts = stored[name] if name == tensor.name else [fixed.get(name, ())]
                if cuts != [()]:
                    costs = costs + edge_bytes(
                        network, operator, name, term, ways[operator.name], cuts
                    )
            totals += costs.min(axis=0)
        fixed[tensor.name] = stored[tensor.name][int(totals.argmin())]
    return fixed
