"""Checks from declarations: fields of public records and arguments of public functions.

    @description
    class Batch:
        seq: Count
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
        recompute: Literal["none", "full"] = "none"

    @checked
    def simulate(job: Job, *, eta: Share = 0.5) -> Runs: ...

A wrong kind, a number that is not finite, a value out of bounds or not among the choices raises
:class:`labkit.errors.BadValue` with one sentence; bounds are those of ``annotated_types``. NumPy's
scalars become Python's, and sequences given for a ``tuple`` field become tuples.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from importlib import import_module
from typing import Annotated, Any, ParamSpec, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, MinLen

from labkit.errors import BadValue, did_you_mean
from labkit.kit.rules import Distinct, Refused, Rule, Unbounded, rule

Count = Annotated[int, Ge(1)]
"""A whole number of things of which there is at least one."""
Whole = Annotated[int, Ge(0)]
"""A whole number, 0 included."""
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
"""A fraction from 0 to 1."""
AnyNumber = Annotated[float, Unbounded()]
"""A number that may be infinite (never NaN)."""
Seeds = Annotated[tuple[Whole, ...], MinLen(1), Distinct()]
"""Seeds of independent runs: a seed given twice would narrow an interval without a run more."""

Record = TypeVar("Record")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def description(cls: type[Any] | None = None, /, *, frozen: bool = True, **settings: bool) -> Any:
    """Make a dataclass whose every field is checked when it is made, before ``__post_init__``.

    A field that breaks its declaration, is missing, or does not exist, is a BadValue. The class is
    frozen and takes its fields by keyword.

    Args:
        cls: the class; it is left out where settings are given.
        frozen: whether fields may be set later.
        settings: what :func:`dataclasses.dataclass` takes besides (``slots``, ``eq``, …).
    """
    as_dataclass = dataclass(frozen=frozen, kw_only=True, **settings)
    if cls is None:
        return lambda cls: _with_checks(as_dataclass(cls))
    return _with_checks(as_dataclass(cls))


def _with_checks(cls: type[Record]) -> type[Record]:
    """Replace a dataclass's ``__init__`` by one that checks its fields."""
    plain_init = cls.__init__
    known: list[Field[Any]] = [field for field in fields(cls) if field.init]  # type: ignore[arg-type]
    needed = {f.name for f in known if f.default is MISSING and f.default_factory is MISSING}
    rules: dict[str, Rule] = {}  # filled by the first instance: annotations may look ahead

    @functools.wraps(plain_init)
    def __init__(self: Record, *args: Any, **given: Any) -> None:  # noqa: N807
        if args:
            names = ", ".join(field.name for field in known)
            raise BadValue(f"{cls.__name__} takes its fields by name: {names}")
        if not rules:
            declared: Any = cls
            rules.update({field.name: field_rules(declared)[field.name] for field in known})
        try:
            accepted = {name: rules[name].accept(value) for name, value in given.items()}
        except (Refused, KeyError):
            raise _problem(cls.__name__, rules, given) from None
        if not needed <= given.keys():
            missing = [field.name for field in known if field.name in needed - given.keys()]
            raise BadValue(f"{cls.__name__} needs {' and '.join(missing)}")
        plain_init(self, **accepted)

    cls.__init__ = __init__  # type: ignore[assignment, method-assign]
    return cls


def _problem(owner: str, rules: Mapping[str, Rule], given: Mapping[str, Any]) -> BadValue:
    """Make an error of the first given field that does not exist or breaks its rule."""
    for name, value in given.items():
        if name not in rules:
            hint = did_you_mean(name, rules) or f"its fields: {', '.join(rules)}"
            return BadValue(f"{owner} has no field {name!r}; {hint}")
        try:
            rules[name].apply(f"{owner}.{name}", value)
        except BadValue as error:
            return error
    raise AssertionError("a value was refused at first and accepted when tried again")


def checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Check a function's arguments from their annotations at each call.

    One that breaks its annotation, is missing, or does not exist, is a BadValue.
    """
    signature = inspect.signature(function)
    title = _title(function)

    @functools.wraps(function)
    def run(*args: Arguments.args, **given: Arguments.kwargs) -> Result:
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            takes = ", ".join(n for n in signature.parameters if n not in ("self", "cls"))
            raise BadValue(f"{title}: {error}; it takes {takes or 'no arguments'}") from None
        rules = argument_rules(function)
        for name in [name for name in bound.arguments if name in rules]:
            bound.arguments[name] = _apply_argument(
                f"{title}: {name}", rules[name], signature.parameters[name], bound.arguments[name]
            )
        return function(*bound.args, **bound.kwargs)

    return run


def _apply_argument(name: str, rule: Rule, parameter: inspect.Parameter, value: Any) -> Any:
    """Apply a rule to an argument, or to each of a ``*`` or ``**`` parameter."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return tuple(rule.apply(name, part) for part in value)
    if parameter.kind is parameter.VAR_KEYWORD:
        return {key: rule.apply(f"{name}[{key!r}]", part) for key, part in value.items()}
    return rule.apply(name, value)


def _title(function: Callable[..., Any]) -> str:
    """Name a function in an error, after its engine or its paper."""
    rooms = function.__module__.split(".")[1:]
    room = rooms[1:2] if rooms[:1] == ["papers"] else rooms[:1]
    return ".".join([*room, function.__qualname__.removesuffix(".__init__")])


# ---------------------------------------------------------------- annotations


@functools.cache
def field_rules(cls: Any) -> dict[str, Rule]:
    """Find the rule of each field of a dataclass."""
    declared: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            declared[name] = (annotation, base.__module__)
    return {field.name: rule(resolved(*declared[field.name])) for field in fields(cls)}


@functools.cache
def argument_rules(function: Callable[..., Any]) -> dict[str, Rule]:
    """Find the rule of each annotated parameter of a function."""
    return {
        name: rule(resolved(parameter.annotation, function.__module__))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is not parameter.empty
    }


def resolved(annotation: Any, module: str) -> Any:
    """Evaluate an annotation; a text is read with the module's names and typing imports."""
    if not isinstance(annotation, str):
        return annotation
    space = sys.modules[module].__dict__
    return eval(annotation, space, _TypingImports(module))


class _TypingImports(dict[str, Any]):
    """Imports the names that a module imports for type checkers only, when they are asked for."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._origins = _typing_imports(module)

    def __missing__(self, name: str) -> Any:
        if name not in self._origins:
            raise KeyError(name)  # the module's own names come next
        module, attribute = self._origins[name]
        imported = import_module(module)
        self[name] = imported if attribute is None else getattr(imported, attribute)
        return self[name]


# CPython 3.11 counts the depth of a tree for all threads together, so that two that build trees at
# once raise a SystemError. A sweep's threads do, when each asks for its first function's rules.
_PARSING = threading.Lock()


@functools.cache
def _typing_imports(module: str) -> dict[str, tuple[str, str | None]]:
    """Find where a module's names for type checkers come from."""
    origins: dict[str, tuple[str, str | None]] = {}
    source = inspect.getsource(sys.modules[module])
    with _PARSING:
        tree = ast.parse(source)
    for block in tree.body:
        if not (isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)):
            continue
        for statement in ast.walk(block):
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    origins[alias.asname or alias.name] = (statement.module, alias.name)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    origins[alias.asname or alias.name] = (alias.name, None)
    return origins
