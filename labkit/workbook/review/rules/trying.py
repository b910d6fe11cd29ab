"""Parameters are for changing: each was tried at other values, and a figure moves with them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from labkit.errors import BadValue
from labkit.workbook import notebooks
from labkit.workbook.notebooks import SCALARS, Parameter
from labkit.workbook.review import ranges
from labkit.workbook.review.anatomy import Section, Subject
from labkit.workbook.review.ranges import Range
from labkit.workbook.review.rules.rule import Remark, rule, section_rule

FEWEST = 2
"""Other values at which a parameter is tried, where its type and range leave so many."""


@section_rule(
    "parameters",
    "parameters.yaml has each parameter, with two other values or more at which it runs",
    name="tried",
)
def parameters_were_tried(subject: Subject, section: Section) -> Iterator[Remark]:
    known = ranges.load(subject.root, subject.key)
    path = ranges.path_of(subject.root, subject.key).relative_to(subject.root).as_posix()
    try:
        declared = notebooks.parameters(subject.notebook)
    except (SyntaxError, ValueError):
        return  # the rule `parameters` says why
    for name in known.keys() - declared.keys():
        problem = f"{path} has {name!r}, which is no parameter"
        yield Remark(section.first, problem, f"one of {', '.join(declared)}")
    for name, parameter in declared.items():
        if name not in known:
            fix = f"`{name}: {{tried: [two other plausible values]}}`, and `make tried`"
            yield Remark(section.first, f"{path} lacks {name!r}", fix)
        elif problem := _problem(parameter, known[name]):
            yield Remark(section.first, f"{path}: {name} {problem}", _right(parameter))
    defaults = {name: parameter.default for name, parameter in declared.items()}
    if known.keys() == declared.keys():
        for point in ({}, *ranges.points(known)):
            yield from _refused(subject, section, known, {**defaults, **point})


def _problem(parameter: Parameter, allowed: Range) -> str:
    kind = SCALARS.get(parameter.annotation, type(parameter.default))
    kinds = (int, float) if kind is float else (kind,)
    for value in (*allowed.tried, *allowed.one_of):
        if type(value) not in kinds:
            return f"has {value!r}, which is not of type {kind.__name__}"
    others = {value for value in allowed.tried if value != parameter.default}
    left = {value for value in allowed.one_of if value != parameter.default}
    fewest = 1 if kind is bool or len(left) == 1 else FEWEST
    return f"is tried at {len(others)} other values" if len(others) < fewest else ""


def _right(parameter: Parameter) -> str:
    kind = parameter.annotation or type(parameter.default).__name__
    return f"{FEWEST} values of type {kind} other than {parameter.default!r}, or all there are"


def _refused(
    subject: Subject, section: Section, known: dict[str, Range], values: dict[str, object]
) -> Iterator[Remark]:
    try:
        ranges.require(subject.key, known, values)
    except BadValue as error:
        yield Remark(
            section.first, f"parameters.yaml refuses its own value: {error}", "a wider range"
        )


_SUGGESTED = re.compile(r"`(\w+) = ([^`]+)`")


@rule("suggested", "a parameter's value that a text tells the reader to set is among those tried")
def suggestions_were_tried(subject: Subject) -> Iterator[Remark]:
    """Or the notebook's own value, or one that the text says is refused, as the file has it."""
    known = ranges.load(subject.root, subject.key)
    try:
        declared = notebooks.parameters(subject.notebook)
    except (SyntaxError, ValueError):
        return
    defaults = {name: parameter.default for name, parameter in declared.items()}
    for cell in subject.cells:
        for name, text in _SUGGESTED.findall(cell.prose):
            try:
                value = ast.literal_eval(text)
            except (SyntaxError, ValueError):
                continue  # code
            if name not in known or name not in defaults or value == defaults[name]:
                continue
            is_refused = known[name].problem(name, {**defaults, name: value})
            if value not in known[name].tried and not is_refused:
                fix = f"{value!r} among `tried` of {name} in parameters.yaml, and `make tried`"
                yield Remark(cell, f"tells the reader to set {name} = {text}, untried", fix)


@section_rule(
    "explorable",
    "where a control starts at a parameter, its values hold the parameter by name",
    name="explorable-start",
)
def controls_hold_their_start(subject: Subject, section: Section) -> Iterator[Remark]:
    """Otherwise another value of the parameter is not among them, and the cell fails."""
    names = set(subject.parameter_names)
    for cell in section.code:
        for call in cell.calls("explore"):
            given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            start = given.pop("start", None)
            if not isinstance(start, ast.Name) or start.id not in names:
                continue
            bound = _names(cell.tree, given)
            if start.id not in bound:
                problem = f"a control starts at {start.id!r}, which its values do not hold"
                fix = f"values such as `tuple(sorted({{…, {start.id}}}))`"
                yield Remark(cell, problem, fix)


def _names(tree: ast.Module | None, given: dict[str, ast.expr]) -> set[str]:
    """The names in the values given, and in what the cell binds to those."""
    seen: set[str] = set()
    pending: list[ast.AST] = list(given.values())
    bindings = {
        target.id: node.value
        for node in (tree.body if tree else ())
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    while pending:
        for node in ast.walk(pending.pop()):
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                pending.extend([bindings[node.id]] if node.id in bindings else [])
    return seen
