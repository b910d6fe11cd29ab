"""Rules that rewrite graphs: the authors' file, what of it holds, and where a rule applies.

A rule's source and target are small graphs whose leaves stand for any tensors. It holds where both
can be placed on devices, give tensors of one layout, and have the same numbers.

Source: §4 (rules and their verification), and the JSON file of the authors' repository.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import BadValue
from labkit.papers.unity.terms import (
    AXES,
    CHANNELS,
    LEAVES,
    PARALLEL,
    SAMPLES,
    Layout,
    Misplaced,
    Op,
    Term,
    evaluate,
    layout,
    layout_from,
    numbers_for,
    rebuilt,
    replaced,
    term,
    terms_of,
)

_RELU = 2
"""PM_ACTI of a linear operator that applies a ReLU."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """Outputs of the source, each equal to the output of the target at its place."""

    name: str
    source: tuple[Term, ...]
    target: tuple[Term, ...]

    @property
    def parallel(self) -> bool:
        """Whether it has an operator that moves tensors."""
        return any(one.op in PARALLEL for one in terms_of(self.source + self.target))

    @property
    def unbound(self) -> bool:
        """Whether the target reads a tensor that the source does not have."""
        return not _variables(self.target) <= _variables(self.source)

    def backwards(self) -> Rule:
        """The same equation read from right to left."""
        return Rule(name=f"{self.name}, read backwards", source=self.target, target=self.source)


def _variables(outputs: tuple[Term, ...]) -> set[Term]:
    return {one for one in terms_of(outputs) if one.op in LEAVES}


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read a rule file.

    Raises:
        BadValue: the file has an operator that is not known here.
    """
    records = json.loads(path.read_text())["rule"]
    return tuple(_rule(record, path) for record in records)


def _rule(record: Mapping[str, Any], path: Path) -> Rule:
    sides = {}
    for side in ("srcOp", "dstOp"):
        sides[side] = _pattern(record[side], f"{path.name}: {record['name']}")
    ends = record["mappedOutput"]
    return Rule(
        name=record["name"],
        source=tuple(sides["srcOp"][end["srcOpId"]][end["srcTsId"]] for end in ends),
        target=tuple(sides["dstOp"][end["dstOpId"]][end["dstTsId"]] for end in ends),
    )


def _pattern(operators: Sequence[Mapping[str, Any]], place: str) -> list[list[Term]]:
    """Outputs of each operator, in order."""
    done: list[list[Term]] = []
    for operator in operators:
        args = []
        for end in operator["input"]:
            number = end["opId"]
            variable = term(Op.INPUT, name=f"t{-number}")
            args.append(variable if number < 0 else done[number][end["tsId"]])
        name = operator["type"].removeprefix("OP_")
        if name not in [op.value for op in Op]:
            raise BadValue(f"{place}: operator {name!r} is not one of {', '.join(Op)}")
        values = {p["key"].removeprefix("PM_"): p["value"] for p in operator["para"]}
        done.append(_outputs(Op(name), args, values))
    return done


def _outputs(op: Op, args: list[Term], values: Mapping[str, int]) -> list[Term]:
    if op in PARALLEL:
        parts = values["PARALLEL_DEGREE"]
        return [term(op, *args, axis=values["PARALLEL_DIM"], parts=parts)]
    if op is Op.CONCAT:
        return [term(op, *args, axis=values["AXIS"])]
    if op is Op.SPLIT:
        return [term(op, *args, axis=values["AXIS"], piece=piece) for piece in (0, 1)]
    if values.get("ACTI") == _RELU:
        return [term(op, *args, relu=True)]
    return [term(op, *args)]


# ---------------------------------------------------------------- what holds


class Verdict(StrEnum):
    """What became of a rule when it was tried with numbers."""

    HOLDS = "holds"
    UNBOUND = "target reads a tensor that the source lacks"
    NO_SOURCE = "no device can compute the source"
    NO_TARGET = "no device can compute the target"
    LAYOUT = "the target's layout is another"
    NUMBERS = "the numbers differ"


_SIZE = 4
"""Samples and channels of the tensors that rules are tried with."""
_TRIES = 6
"""Layouts of its inputs with which a rule is tried at most."""


def tried(rule: Rule, rng: np.random.Generator) -> Verdict:
    """Try a rule on tensors of several layouts; the worst that is seen counts, misfits last.

    1. Layouts of the inputs for which devices can compute the source are found by trying all.
    2. For each, the target must be placed too, with the same layout of each output.
    3. Both must have the same numbers, which are small and whole, so equality is exact.
    """
    if rule.unbound:
        return Verdict.UNBOUND
    seen: Counter[Verdict] = Counter()
    for known in _placings(rule):
        try:
            target = _layouts(rule.target, known)
        except Misplaced:
            seen[Verdict.NO_TARGET] += 1
            continue
        if target != [known[one] for one in rule.source]:
            seen[Verdict.LAYOUT] += 1
            continue
        seen[_compared(rule, known, rng)] += 1
        if seen[Verdict.HOLDS] >= _TRIES:
            break
    for verdict in (Verdict.NUMBERS, Verdict.HOLDS, Verdict.LAYOUT, Verdict.NO_TARGET):
        if seen[verdict]:
            return verdict
    return Verdict.NO_SOURCE


def _choices() -> list[Layout]:
    """Layouts that an input is tried with: whole, cut, copied, or partial sums."""
    choices = []
    for copies, samples, channels in np.ndindex(3, 2, 2):
        parts = (1 + min(copies, 1), 1 + samples, 1 + channels)
        choices.append(Layout((parts[0], _SIZE, _SIZE), parts, copies == 2))
    return choices


def _layouts(outputs: tuple[Term, ...], known: Mapping[Term, Layout]) -> list[Layout]:
    """Layouts of a graph's outputs, where those of its variables are known."""
    done = dict(known)
    for one in terms_of(outputs):
        if one not in done:
            done[one] = layout_from(one, [done[arg] for arg in one.args])
    return [done[output] for output in outputs]


def _placings(rule: Rule) -> Iterator[dict[Term, Layout]]:
    """Layouts of the source's terms, for all layouts of variables with which it can be computed.

    A term is tried as soon as its variables have layouts, so that what cannot be is left early.
    """
    terms = terms_of(rule.source)
    variables = [one for one in terms if one.op in LEAVES]
    ready: list[list[Term]] = [[] for _ in variables]
    for one in terms:
        if one.op not in LEAVES:
            last = max(variables.index(leaf) for leaf in _variables((one,)))
            ready[last].append(one)

    def assign(number: int, known: dict[Term, Layout]) -> Iterator[dict[Term, Layout]]:
        if number == len(variables):
            yield known
            return
        for choice in _choices():
            done = {**known, variables[number]: choice}
            try:
                for one in ready[number]:
                    done[one] = layout_from(one, [done[arg] for arg in one.args])
            except Misplaced:
                continue
            yield from assign(number + 1, done)

    return assign(0, {})


def _compared(rule: Rule, known: Mapping[Term, Layout], rng: np.random.Generator) -> Verdict:
    leaves = {}
    for one in _variables(rule.source):
        leaves[one] = term(Op.INPUT, name=one.name, layout=known[one])
    source = replaced(rule.source, leaves)
    target = replaced(rule.target, leaves)
    values = numbers_for(source, rng)
    both = zip(evaluate(source, values), evaluate(target, values), strict=True)
    return Verdict.HOLDS if all(np.array_equal(a, b) for a, b in both) else Verdict.NUMBERS


def same_numbers(rule: Rule, rng: np.random.Generator) -> bool:
    """Whether a rule's numbers agree where nothing is placed and only first copies are read.

    Sizes of the tensors are drawn until both sides can be computed.
    """
    names = sorted({one.name for one in _variables(rule.source + rule.target)})
    for attempt in range(3000):
        values = {}
        for name in names:
            size = rng.choice([2, 4, 8], size=2) if attempt else np.array([_SIZE, _SIZE])
            values[name] = rng.integers(-3, 4, (1, *size)).astype(float)
        try:
            source = evaluate(rule.source, values, placed=False)
            target = evaluate(rule.target, values, placed=False)
        except ValueError:
            continue
        return all(np.array_equal(a, b) for a, b in zip(source, target, strict=True))
    return False


# ---------------------------------------------------------------- where a rule applies

Match = tuple[tuple[Term, ...], dict[Term, Term]]
"""Terms that a rule would replace, and what its variables stand for."""


def matched(pattern: Term, one: Term, bound: Mapping[Term, Term]) -> dict[Term, Term] | None:
    """What a pattern's variables stand for where it fits a term; None where it does not."""
    if pattern.op in LEAVES:
        if bound.get(pattern, one) is not one:
            return None
        return {**bound, pattern: one}
    alike = pattern.op is one.op and pattern.relu == one.relu and pattern.axis == one.axis
    if not alike or pattern.piece != one.piece or len(pattern.args) != len(one.args):
        return None
    found: dict[Term, Term] | None = dict(bound)
    for inner, arg in zip(pattern.args, one.args, strict=True):
        assert found is not None
        found = matched(inner, arg, found)
        if found is None:
            return None
    return found


def matches(
    rule: Rule, graph: Sequence[Term]
) -> Iterator[tuple[tuple[Term, ...], dict[Term, Term]]]:
    """Terms that a rule would replace, and what its variables stand for, at each place."""

    def search(at: int, chosen: tuple[Term, ...], bound: dict[Term, Term]) -> Iterator[Match]:
        if at == len(rule.source):
            yield chosen, bound
            return
        for one in graph:
            if one.op is rule.source[at].op and one not in chosen:
                found = matched(rule.source[at], one, bound)
                if found is not None:
                    yield from search(at + 1, (*chosen, one), found)

    yield from search(0, (), {})


def written(
    rule: Rule, chosen: tuple[Term, ...], bound: Mapping[Term, Term], num_devices: int
) -> tuple[Term, ...]:
    """The target at one place; operators that move tensors reach all devices.

    Raises:
        Misplaced: no device could compute it, or its layout is another.
    """
    done: dict[Term, Term] = dict(bound)
    for one in terms_of(rule.target):
        if one in done:
            continue
        new = rebuilt(one, tuple(done[arg] for arg in one.args))
        if new.op in PARALLEL:
            new = term(new.op, *new.args, axis=new.axis, parts=num_devices)
        if new.op is Op.SPLIT:
            whole = chosen[0]
            first = whole.first if whole.op is Op.SPLIT else layout(whole).sizes[new.axis]
            new = term(new.op, *new.args, axis=new.axis, piece=new.piece, first=first)
        done[one] = new
    target = tuple(done[one] for one in rule.target)
    if any(prod(layout(one).parts) > num_devices for one in done.values()):
        raise Misplaced(f"unity: {rule.name} would need more than {num_devices} devices")
    if [layout(one) for one in target] != [layout(one) for one in chosen]:
        raise Misplaced(f"unity: {rule.name} would change a layout")
    return target


# ---------------------------------------------------------------- rules of ours


def _variable(number: int) -> Term:
    return term(Op.INPUT, name=f"t{number}")


def ours() -> tuple[Rule, ...]:
    """Rules that the authors' file lacks: to fuse a ReLU, to reduce, to divide a split's pieces.

    The authors write the first in C++ (``create_fuse_linear_activation``).
    """
    product = term(Op.LINEAR, _variable(1), _variable(4))
    fused = term(Op.LINEAR, _variable(1), _variable(4), relu=True)
    fuse = Rule(name="fuse a ReLU", source=(term(Op.RELU, product),), target=(fused,))
    pieces = [_divided_split(piece) for piece in (0, 1)]
    return fuse, reduction(), *pieces


def _divided_split(piece: int) -> Rule:
    whole = term(Op.SPLIT, _variable(1), axis=CHANNELS, piece=piece)
    cut = term(Op.PARTITION, _variable(1), axis=SAMPLES, parts=2)
    part = term(Op.SPLIT, cut, axis=CHANNELS, piece=piece)
    target = term(Op.COMBINE, part, axis=SAMPLES, parts=2)
    return Rule(name="divide SPLIT by samples (ours)", source=(whole,), target=(target,))


def reduction(*, relu: bool = False) -> Rule:
    """A linear operator divided by reduction: each device adds up some of the channels.

    The authors' file has no such rule. With ``relu`` it is wrong: the ReLU of a sum is not the sum
    of ReLUs.
    """
    details: dict[str, object] = {"relu": True} if relu else {}
    whole = term(Op.LINEAR, _variable(1), _variable(4), **details)
    cut = [term(Op.PARTITION, _variable(n), axis=CHANNELS, parts=2) for n in (1, 4)]
    sums = term(Op.LINEAR, *cut, **details)
    target = term(Op.REDUCE, sums, axis=0, parts=2)
    return Rule(name="divide LINEAR by reduction (ours)", source=(whole,), target=(target,))


def dividing(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Ways to divide an operator, made of rules that hold.

    Where PARTITION(operator) = operator(moved inputs), the operator is COMBINE of the right-hand
    side, since COMBINE undoes PARTITION.
    """
    made = []
    for rule in rules:
        for side in (rule, rule.backwards()):
            left = side.source[-1]
            right = side.target[-1]
            whole = left.args[0] if left.op is Op.PARTITION else left
            simple = whole.args and all(arg.op in LEAVES for arg in whole.args)
            if len(side.source) > 1 or left.op is not Op.PARTITION or not simple:
                continue
            if whole.op in PARALLEL or right.op is not whole.op or right.relu != whole.relu:
                continue
            target = term(Op.COMBINE, right, axis=left.axis, parts=left.parts)
            name = f"divide {whole.op} by {AXES[left.axis]} ({rule.name})"
            made.append(Rule(name=name, source=(whole,), target=(target,)))
    unique = {(rule.source, rule.target): rule for rule in reversed(made)}
    return tuple(reversed(unique.values()))


def simplified(outputs: tuple[Term, ...]) -> tuple[Term, ...]:
    """A graph in which cutting and combining along one axis, back to back, are gone."""
    done: dict[Term, Term] = {}
    for one in terms_of(outputs):
        new = rebuilt(one, tuple(done[arg] for arg in one.args))
        undone = {Op.PARTITION: Op.COMBINE, Op.COMBINE: Op.PARTITION}.get(new.op)
        inner = new.args[0] if new.args else None
        if inner is not None and inner.op is undone and inner.axis == new.axis:
            new = inner.args[0]
        done[one] = new
    return tuple(done[output] for output in outputs)
