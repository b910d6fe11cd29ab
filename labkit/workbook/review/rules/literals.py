"""No typed number reaches ``paper.claims``: every value and every flip comes out of code, and the
paper's numbers out of its files."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from labkit.workbook.review.anatomy import Cell, Subject
from labkit.workbook.review.rules.rule import Remark, rule
from labkit.workbook.review.verdicts import are_numbers, numbers

_CONVERSIONS = {
    "abs",
    "bool",
    "float",
    "int",
    "len",
    "list",
    "max",
    "min",
    "round",
    "sorted",
    "str",
    "sum",
    "tuple",
}
_ARRAYS = {"array", "asarray", "float64", "DataFrame", "Series"}
"""Calls, as a name and as a library's attribute, that leave a typed value a typed value."""


class Names:
    """What the notebook's names are bound to, the parameters cell left out.

    A name counts as typed if literals are all that is ever assigned to it.
    """

    def __init__(self, subject: Subject) -> None:
        self.bound: dict[str, list[ast.expr | None]] = defaultdict(list)
        self.calls: list[tuple[Cell, ast.Call]] = []
        for cell in subject.code:
            for node in ast.walk(cell.tree) if cell.tree else ():
                if isinstance(node, ast.Call):
                    self.calls.append((cell, node))
                if cell.section_tag == "parameters" and "setup" not in cell.tags:
                    self._bind_unknown(node)
                else:
                    self._bind(node)

    def _bind_unknown(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.bound[node.id].append(None)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign) and node.value:
            self._bind_target(node.target, node.value)
        elif isinstance(node, ast.FunctionDef):
            returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value]
            self.bound[node.name] += returns or [None]
            self._bound_by(node.args)
        elif isinstance(node, ast.For | ast.comprehension):
            self._bound_by(node.target)
        elif isinstance(node, ast.withitem | ast.Import | ast.ImportFrom | ast.Lambda):
            self._bound_by(node)

    def _bind_target(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.bound[target.id].append(value.body if isinstance(value, ast.Lambda) else value)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            key = target.slice
            self.bound[target.value.id].append(ast.Dict(keys=[key], values=[value]))
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            if len(parts) != len(target.elts):
                self._bound_by(target)
            for inner, part in zip(target.elts, parts, strict=False):
                self._bind_target(inner, part)

    def _bound_by(self, node: ast.AST) -> None:
        """Every name that ``node`` binds holds something a run computes."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.arg):
                self.bound[inner.arg].append(None)
            elif isinstance(inner, ast.alias):
                self.bound[inner.asname or inner.name.split(".")[0]].append(None)
            self._bind_unknown(inner)

    def is_typed(self, node: ast.expr | None, seen: frozenset[str] = frozenset()) -> bool:
        """Whether ``node`` is a literal, or made of literals alone."""
        match node:
            case None:
                return False
            case ast.Constant():
                return node.value is not None
            case ast.Name():
                values = self.bound.get(node.id, [None])
                again = seen | {node.id}
                return node.id not in seen and all(self.is_typed(value, again) for value in values)
            case ast.Call():
                return self._is_typed_call(node, seen)
            case ast.Subscript():
                return self.is_typed(node.value, seen)
            case ast.Dict():
                return bool(node.values) and all(self.is_typed(part, seen) for part in node.values)
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return bool(parts) and all(self.is_typed(part, seen) for part in parts)

    def _is_typed_call(self, call: ast.Call, seen: frozenset[str]) -> bool:
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        typed = bool(parts) and all(self.is_typed(part, seen) for part in parts)
        if isinstance(call.func, ast.Attribute):
            owner = call.func.value  # a method of a typed value, without other arguments
            of_typed = self.is_typed(owner, seen) and (typed or not parts)
            return of_typed or (typed and call.func.attr in _ARRAYS)
        if isinstance(call.func, ast.Name) and call.func.id in self.bound:
            return self.is_typed(call.func, seen)  # one of the notebook's own functions
        return typed and isinstance(call.func, ast.Name) and call.func.id in _CONVERSIONS


@rule("literals", "no number or text typed by hand reaches paper.claims, as value or as flip")
def no_typed_values(subject: Subject) -> Iterator[Remark]:
    names = Names(subject)
    fix = "a value that a cell computes; None where nothing was computed"
    for cell, call in names.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "claims":
            continue
        flips = [keyword.value for keyword in call.keywords if keyword.arg == "flips"]
        values = [keyword.value for keyword in call.keywords if keyword.arg == "values"]
        for node in (*call.args[:1], *values, *flips):
            for key, value in _entries(names, node):
                if names.is_typed(value):
                    shown = f"{key or 'a value'} is typed: {ast.unparse(value)[:60]}"
                    yield Remark(cell, shown, fix)


def _entries(
    names: Names, node: ast.expr | None, seen: frozenset[str] = frozenset()
) -> Iterator[tuple[str, ast.expr]]:
    """The (claim id, value) pairs of a mapping, as far as the code shows them."""
    match node:
        case ast.Dict():
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from _entries(names, value, seen)
                else:
                    yield ast.unparse(key), value
        case ast.DictComp():
            yield ast.unparse(node.key), node.value
        case ast.IfExp():
            for part in (node.body, node.orelse):
                yield from _entries(names, part, seen)
        case ast.BinOp(op=ast.BitOr()):
            for part in (node.left, node.right):
                yield from _entries(names, part, seen)
        case ast.Name() if node.id not in seen:
            again = seen | {node.id}
            for bound in names.bound.get(node.id, [None]):
                yield from _entries(names, bound, again)
            for _, call in names.calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr == "update":
                    owner = call.func.value
                    if isinstance(owner, ast.Name) and owner.id == node.id:
                        yield from _arguments(names, call, again)
        case ast.Call(func=ast.Name(id="dict")):
            yield from _arguments(names, node, seen)


def _arguments(
    names: Names, call: ast.Call, seen: frozenset[str]
) -> Iterator[tuple[str, ast.expr]]:
    """The pairs that ``dict(...)`` or ``.update(...)`` is given, also through ``zip``."""
    for argument in call.args:
        if isinstance(argument, ast.Call) and ast.unparse(argument.func) == "zip":
            yield from (("", value) for value in argument.args[1:2])
        else:
            yield from _entries(names, argument, seen)
    for keyword in call.keywords:
        yield keyword.arg or "", keyword.value


# ---------------------------------------------------------------- the paper's numbers in a cell

_NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w,]|\.\d)")
_CONVERSIONS_BY = (ast.Mult, ast.Div, ast.Pow, ast.FloorDiv, ast.Mod)


@rule(
    "paper-literals",
    "no number of the paper is typed into a cell: paper.claim(ID).paper or paper.points(NAME)",
)
def no_typed_numbers_of_the_paper(subject: Subject) -> Iterator[Remark]:
    """Looks for the values of headline and mechanism claims; round numbers, which stand for many
    things, and whole factors, which convert units, are left alone."""
    known = {value: claim for claim, value in _telling_values(subject)}
    for cell in subject.code:
        if cell.section_tag == "parameters" or cell.tree is None:
            continue
        found = [value for value in _typed_in(cell.tree) if value in known]
        for value in dict.fromkeys(found):
            claim = known[value]
            fix = f"paper.claim({claim!r}).paper, or a row of paper.points(…)"
            yield Remark(cell, f"{value:g} is the paper's value of claim {claim!r}", fix)


def _telling_values(subject: Subject) -> Iterator[tuple[str, float]]:
    """The paper's values by which a reader would know a claim, fractions in per cent too."""
    for claim in subject.claims:
        if not claim.is_reproduction or not are_numbers(claim.paper):
            continue
        for value in numbers(claim.paper):
            as_printed = [value, float(f"{100 * value:.6g}")]
            for shown in as_printed if claim.unit == "fraction" else [value]:
                if _is_telling(shown):
                    yield claim.id, shown


def _is_telling(value: float) -> bool:
    """Whether nobody types ``value`` by chance: two digits or more, or large; no power of two.

    >>> [value for value in (0.284, 76.0, 1000.0, 8.0, 0.5, 64.0, 20.0) if _is_telling(value)]
    [0.284, 76.0, 1000.0]
    """
    digits = f"{abs(value):.6e}".split("e")[0].rstrip("0").replace(".", "")
    is_power = value.is_integer() and int(value).bit_count() == 1
    return abs(value) >= 1000 or (len(digits) > 1 and not is_power)


def _typed_in(tree: ast.Module) -> Iterator[float]:
    factors = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, _CONVERSIONS_BY)
        for part in (node.left, node.right)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
            continue
        if isinstance(node.value, str):
            for text in _NUMBER.findall(node.value):
                yield float(text.replace(",", ""))
        elif isinstance(node.value, int | float):
            value = float(node.value)
            if id(node) not in factors or not value.is_integer():
                yield value
