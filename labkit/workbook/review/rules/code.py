"""How the code of a cell is written, so that a group can read it aloud."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from labkit.workbook.review.anatomy import Cell, Subject
from labkit.workbook.review.rules.rule import Remark, rule

MAX_FUNCTION_LINES = 25
_COMPARING = frozenset(
    """
    abs all allclose any approx argmax argsort array array_equal array_equiv astype bool cat
    concatenate copy cumsum dict diff enumerate equal equals eye flatten float frame frozenset
    get hstack int is_integer isclose isfinite isinstance item items keys len list map max mean
    min numpy ones range ravel repeat reshape reversed round set sorted stack str sum tolist
    tuple unique values vstack zeros zip
    """.split()  # noqa: SIM905
)
"""Calls that only compare, or lay out anew, what was computed before."""
_WRAPPERS = frozenset({"cache", "lru_cache", "partial", "vectorize"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@rule(
    "functions",
    f"a function has up to {MAX_FUNCTION_LINES} lines, its docstring and comments not counted",
)
def functions_fit(subject: Subject) -> Iterator[Remark]:
    for cell, node in _nodes(subject):
        if isinstance(node, ast.FunctionDef):
            count = _lines(cell, node)
            if count > MAX_FUNCTION_LINES:
                fix = "two functions; or labkit/papers/<key>.py, where it is machinery"
                yield Remark(cell, f"{node.name}() has {count} lines", fix)


@rule("asserts", "nothing does work inside an assert: it compares what cells computed")
def asserts_only_compare(subject: Subject) -> Iterator[Remark]:
    fix = "compute it on a line of its own, then compare"
    for cell, node in _nodes(subject):
        if isinstance(node, ast.Assert):
            inside = list(ast.walk(node.test))
            calls = [name for n in inside if isinstance(n, ast.Call) and (name := _working(n))]
            if any(isinstance(n, ast.NamedExpr) for n in inside):
                yield Remark(cell, f"line {node.lineno}: an assert binds a name by :=", fix)
            if len(calls) > 1:
                problem = f"line {node.lineno}: an assert does work: {', '.join(calls)}"
                yield Remark(cell, problem, fix)


@rule("lambdas", "a function that has a name is a def")
def no_named_lambdas(subject: Subject) -> Iterator[Remark]:
    for cell, node in _nodes(subject):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and _is_lambda(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name = ast.unparse(targets[0])
            yield Remark(cell, f"{name} is a lambda with a name", f"def {name}(…):")


@rule("packed", "one value a line: no `a, b = 1, 2`, unless one is computed of the other")
def no_packed_assignments(subject: Subject) -> Iterator[Remark]:
    for cell, node in _nodes(subject):
        if isinstance(node, ast.Assign) and is_packed(node):
            yield Remark(cell, f"packed: {ast.unparse(node)[:60]}", "a line for each value")


@rule("comprehensions", "at most one comprehension a statement")
def one_comprehension_a_statement(subject: Subject) -> Iterator[Remark]:
    for cell, node in _nodes(subject):
        if isinstance(node, ast.stmt):
            count = sum(isinstance(part, _COMPREHENSIONS) for part in _own(node))
            if count > 1:
                line = ast.unparse(node).splitlines()[0][:60]
                fix = "a name for the inner one, or a loop"
                yield Remark(cell, f"{count} comprehensions in one statement: {line}", fix)


def is_packed(node: ast.Assign) -> bool:
    """Whether a line assigns several values that have nothing to do with each other.

    A swap, and any update that reads what it assigns, must be one statement.

    >>> def packed(line):
    ...     return is_packed(ast.parse(line).body[0])
    >>> [packed(line) for line in ("a, b = 1, f()", "a, b = b, a % b", "a, b = pair")]
    [True, False, False]
    """
    target = node.targets[-1]
    if not isinstance(target, ast.Tuple | ast.List) or not isinstance(node.value, ast.Tuple):
        return False
    assigned = {ast.unparse(part) for part in target.elts}
    reads = (ast.Name, ast.Attribute, ast.Subscript)
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, reads)}
    return len(target.elts) == len(node.value.elts) and not assigned & read


def _nodes(subject: Subject) -> Iterator[tuple[Cell, ast.AST]]:
    for cell in subject.code:
        for node in ast.walk(cell.tree) if cell.tree else ():
            yield cell, node


def _lines(cell: Cell, node: ast.FunctionDef) -> int:
    """Lines of a function that hold code, its signature among them."""
    body = node.body[0]
    held = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    if ast.get_docstring(node) is not None:
        held -= set(range(body.lineno, (body.end_lineno or body.lineno) + 1))
    lines = ["", *cell.source.splitlines()]
    texts = (lines[number].strip() for number in held)
    return sum(bool(text) and not text.startswith("#") for text in texts)


def _working(call: ast.Call) -> str:
    """The name of what is called, "" where it only compares or looks."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    return "" if name in _COMPARING else f"{name}()"


def _is_lambda(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        return name in _WRAPPERS and any(isinstance(part, ast.Lambda) for part in value.args)
    return isinstance(value, ast.Lambda)


def _own(node: ast.stmt) -> Iterator[ast.AST]:
    """What a statement holds itself, not the statements inside it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(node))
    while waiting:
        part = waiting.pop()
        if not isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield part
            waiting += ast.iter_child_nodes(part)
