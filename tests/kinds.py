"""Every public function of a room, fed with odd values: it answers or it says what is wrong.

A test module of a room makes a :class:`Room` and asks it for its calls:

    ROOM = kinds.Room(cluster, examples, objects)

    @pytest.mark.parametrize("name", ROOM.names())
    def test_odd_values(name: str) -> None:
        ROOM.check(name)

    def test_every_public_call_has_an_example() -> None:
        ROOM.check_examples()

Calls are found in the room's ``__all__``: its functions, the classes that it makes, their methods.
A new function therefore fails the test until ``examples`` has arguments with which it answers. Each
argument in turn is replaced by each odd value, and the call must end within seconds with

- an answer whose numbers are as finite as those of the right call, or
- one of labkit's errors, in one paragraph that names the argument.

``pytest -s`` prints how often a room did each. Of the odd values only some are tried where a room
says so (``thin``), the same in every run; ``LABKIT_KINDS=all pytest …`` tries all.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import math
import os
import re
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from labkit.datasets import DatasetUnavailable
from labkit.errors import LabkitError, shown

SECONDS = 5.0
"""Of the processor: the longest that a call may take."""
HANGS_S = 60
"""By the clock: the longest that a call may wait for something else."""
MEMORY_BYTES = 3 << 30
"""More memory than the process has when it begins is not given to a call."""

NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    9.5,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    1e300,
    1.7e308,
    1e-320,
    2**31,
    2**53 + 1,
    2**63,
    2**70,
    -(2**63) - 1,
    10**400,
    10**5000,
    1_000_000_007,
    np.float64(2.5),
    np.float64(math.nan),
    np.float32(1e30),
    np.int64(-3),
    np.uint8(2),
    np.bool_(True),
    True,
    False,
    1 + 2j,
    Decimal("1.5"),
    Fraction(1, 3),
)
TEXTS: tuple[Any, ...] = (
    "",
    "text",
    "1",
    "nan",
    b"bytes",
    "two\nlines",
    "nul\0",
    "\udcff",
    "x" * 5000,
    "/dev/null/nope",
    "/",
    Path("/dev/null/nope"),
    Path("/"),
)
COLLECTIONS: tuple[Any, ...] = (
    [],
    (),
    {},
    set(),
    [1],
    [0],
    [1, 1],
    [2, 1],
    [True],
    ["text"],
    [None],
    [math.nan],
    [math.inf],
    [1e300],
    [2**70],
    [[1], [2, 3]],
    [[]],
    (1, 2),
    ((1.0,), ("x",)),
    {"a": 1},
    {1: -2},
    {"a": None},
    {None: {}},
    {1, 2},
    range(0),
    range(3),
    range(2**62),
    np.array([]),
    np.array(1.0),
    np.array([[1.0, np.nan]]),
    np.array(["x"]),
    np.array([None]),
    np.array([True, False]),
    np.array([1, 2], dtype="datetime64[s]"),
    np.ma.masked,
)
FRAMES: tuple[Any, ...] = (
    pd.DataFrame(),
    pd.DataFrame({"a": [1]}),
    pd.DataFrame([[1, 2]], columns=["a", "a"]),
    pd.Series(["x"]),
    pd.Series(dtype=float),
    pd.Index([1]),
)
OTHERS: tuple[Any, ...] = (
    None,
    ...,
    pd.NA,
    pd.NaT,
    pd.Timestamp(0),
    object(),
    int,
    len,
    math,
    NotImplemented,
    lambda *args, **given: None,
    lambda *args, **given: math.nan,
)
ODD: tuple[tuple[Any, ...], ...] = (NUMBERS, TEXTS, COLLECTIONS, FRAMES, OTHERS)
"""Values of every kind that a careless caller may give, by kind."""
WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    9.5,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "text",
    b"bytes",
    [],
    [1],
    ["text"],
    [None],
    (),
    (1, 2),
    ((1.0,), ("x",)),
    {},
    {"a": 1},
    {1: -2},
    {1, 2},
    object(),
    int,
    len,
    np.array([]),
    np.array([[1.0, np.nan]]),
    np.float64(2.5),
    np.int64(-3),
    np.bool_(True),
    pd.DataFrame({"a": [1]}),
    pd.Series(["x"]),
    Path("nowhere"),
    1 + 2j,
    range(0),
    range(3),
)
"""Fewer of them: what each field of a description gets, and each argument of one function."""
ALL = os.environ.get("LABKIT_KINDS") == "all"
"""Whether slow calls get every odd value too, which takes minutes."""
COLUMNS = ("answered", "refused", "raw", "nameless", "strange", "slow")
"""What may become of a call: only the first two are right."""
TRIED: dict[str, Counter[str]] = defaultdict(Counter)
"""By room: calls by what became of them, and the processor's seconds that they took."""
SHOWN = 40
"""Calls that a failure lists at most."""
OBJECTS = "objects"
"""Stands for the results of a room whose classes are not public."""
BROKEN: tuple[Any, ...] = (None, math.nan, math.inf, -1, True, "x", [], 2**70, 1e300, pd.NA)
"""What takes the place of one part of a right value."""


# ---------------------------------------------------------------- odd values made of right ones


def variants(right: Any) -> Iterator[Any]:
    """Make odd values of a right one: one part of it wrong, missing, twice, or of another kind."""
    if isinstance(right, pd.DataFrame):
        yield from _frames(right)
    elif isinstance(right, np.ndarray):
        yield from _arrays(right)
    elif isinstance(right, Mapping):
        yield from _mappings(right)
    elif isinstance(right, list | tuple) and right:
        yield from _sequences(right)
    elif isinstance(right, int | float) and not isinstance(right, bool):
        yield from (-right, right * 1e9, right * 1e-9, str(right), [right], {right: right})
        yield from (np.float32(right), np.array(right), Decimal(right), right + 0.5)
    elif isinstance(right, str):
        yield from (right.upper() + "x", right.encode(), [right], " " + right, right + "\n")


def _sequences(right: Sequence[Any]) -> Iterator[Any]:
    kind = type(right) if type(right) in (list, tuple) else tuple
    parts = list(right)
    yield from (kind(parts[:1]), kind(parts[1:]), kind(parts * 2), kind(parts[::-1]))
    yield from (iter(parts), dict.fromkeys(map(str, parts)), kind([kind(parts)]))
    yield from (kind([*parts[:-1], part]) for part in BROKEN)
    for part in variants(parts[0]) if isinstance(parts[0], list | tuple | Mapping) else ():
        yield kind([part, *parts[1:]])


def _mappings(right: Mapping[Any, Any]) -> Iterator[Any]:
    yield from (list(right), list(right.items()), {**right, "nonsense": 1}, {**right, None: None})
    for name, part in right.items():
        yield {key: value for key, value in right.items() if key != name}
        yield from ({**right, name: broken} for broken in BROKEN)
        yield from ({**right, name: odd} for odd in variants(part))


def _arrays(right: np.ndarray) -> Iterator[Any]:
    yield from (right[:0], right[None], right.T[..., None], right.tolist(), right.astype(object))
    yield from (np.concatenate([right, right]), right[::-1], right.astype(bool), right.astype(str))
    if right.size and right.dtype.kind in "iuf":
        yield from (-right, right * 0, right.astype(float) * 1e300, right.astype(complex))
        for part in (math.nan, math.inf, -math.inf, -1.0, 0.5, 1e300):
            broken = right.astype(float)
            broken.flat[-1] = part
            yield broken


def _frames(right: pd.DataFrame) -> Iterator[Any]:
    yield from (right[:0], right.iloc[:, :0], right.T, right.to_dict("list"), right.astype(object))
    yield from (pd.concat([right, right]), right[::-1], pd.concat([right, right], axis=1))
    yield right.astype(str)
    for column in right.columns:
        yield right.drop(columns=column)
        for part in (None, math.nan, math.inf, -1, True, "x", pd.NA):
            yield right.astype(object).assign(**{str(column): part})


def some(groups: Iterable[Iterable[Any]], every: int, turn: int) -> Iterator[Any]:
    """Take every so many of each group's values, at least one of each group.

    Args:
        turn: where to begin, so that the parameters of a call get different values.
    """
    for group in groups:
        values = list(group)
        yield from values[turn % every :: every] or values[:1]


# ---------------------------------------------------------------- calls


@dataclass
class Room:
    """Calls of a package, with arguments with which they answer.

    Attributes:
        package: the module whose ``__all__`` is public.
        examples: arguments by call: ``"generate"``, ``"Trace"`` (its constructor),
            ``"Trace.head"``; of ``*`` parameters a tuple, of ``**`` parameters a mapping. A call
            that has more than one way has more examples: ``"simulate:groups"``.
        objects: an instance of each class, by its name, whose methods are called. A class that has
            no example is one that only the room itself makes, such as a result.
        left_out: calls that are not tried, with the reason.
        also: by call and parameter, ``"generate.cv"``: a pattern of what an error may name instead.
        strange: patterns of the places where an answer may hold NaN or infinity, with the reason.
        thin: by call that takes long: it gets every so many of the odd values of a kind, and one
            of each kind at least, unless :data:`ALL`. A class names its methods too, ``""`` all
            calls that are not named.
        declared: whether labkit words the error of an argument that is missing or unknown; below
            ``kit.describe`` Python does.
    """

    package: ModuleType
    examples: Callable[[], Mapping[str, Mapping[str, Any]]]
    objects: Callable[[], Mapping[str, Any]]
    left_out: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    strange: Mapping[str, str] = field(default_factory=dict)
    thin: Mapping[str, int] = field(default_factory=dict)
    declared: bool = True

    @cached_property
    def arguments(self) -> Mapping[str, Mapping[str, Any]]:
        return self.examples()

    @cached_property
    def instances(self) -> Mapping[str, Any]:
        return self.objects()

    def names(self) -> list[str]:
        """List what is public, for the parameters of a test; nothing is made for it."""
        return [*public(self.package), OBJECTS]

    def calls(self, name: str) -> list[str]:
        """List the calls of a public name: a function's examples; a class's methods too.

        :data:`OBJECTS` has those of results whose class is not public.
        """
        if name == OBJECTS:
            others = self.instances.keys() - public(self.package).keys()
            found = [call for other in sorted(others) for call in self._of_class(other)]
        elif isinstance(self._value(name), type):
            found = [name] * _is_made_by_users(self._value(name)) + self._of_class(name)
        else:
            found = [name]
        ways = [way for call in found for way in self.arguments if way.startswith(f"{call}:")]
        return [call for call in [*found, *ways] if call not in self.left_out]

    def _of_class(self, name: str) -> list[str]:
        cls = self._value(name)
        return [f"{name}.{method}" for method in methods(cls)] if _is_made_by_users(cls) else []

    def _value(self, name: str) -> Any:
        """Find what a public name, or that of an object, means."""
        known = self._public
        return known[name] if name in known else type(self.instances[name])

    def check_examples(self) -> None:
        """Every call has an example and an object, and none is left over."""
        lacking = []
        calls = [call for name in self.names() for call in self.calls(name)]
        for call in calls:
            owner, dot, _ = call.partition(".")
            is_made = not dot and call in self.instances  # a class that only the room itself makes
            if call not in self.arguments and not is_made and self.parameters(call):
                lacking.append(f"{call}({', '.join(self.parameters(call))})")
            if dot and owner not in self.instances:
                lacking.append(f"an instance of {owner} in objects")
        assert not lacking, (
            f"{self.package.__name__}: give arguments with which these answer, in the table of "
            f"examples of its test of wrong kinds: {'; '.join(dict.fromkeys(lacking))}"
        )
        unknown = (self.arguments.keys() | self.left_out.keys()) - set(calls)
        assert not unknown - self.left_out.keys(), f"examples of no public call: {sorted(unknown)}"

    @cached_property
    def _public(self) -> dict[str, Any]:
        return public(self.package)

    def target(self, call: str) -> Callable[..., Any]:
        """Find what a call's name means."""
        owner, dot, method = call.partition(":")[0].partition(".")
        if not dot:
            return self._value(owner)
        return getattr(self.instances.get(owner, self._value(owner)), method)

    def parameters(self, call: str) -> dict[str, inspect.Parameter]:
        """List a call's parameters."""
        owner, dot, method = call.partition(":")[0].partition(".")
        value = self._value(owner)
        names = getattr(value, method) if dot else value
        listed = inspect.signature(names).parameters
        plain = inspect.getattr_static(value, method) if dot else None
        is_bound = not dot or isinstance(plain, classmethod | staticmethod)
        return {name: listed[name] for name in list(listed)[0 if is_bound else 1 :]}

    def outcomes(self, name: str) -> Iterator[Outcome]:
        """Call with each argument replaced by each odd value, then without it, then with one that
        does not exist."""
        if name not in self.arguments and self.parameters(name):
            return
        parameters = self.parameters(name)
        given = self.arguments.get(name, {})
        usual = strange_places(self._answer(name))
        for turn, (parameter, kind) in enumerate(parameters.items()):
            groups = (*ODD, self.instances.values(), variants(given.get(parameter)))
            for value in some(groups, self.every(name), turn):
                part = value
                if kind.kind is kind.VAR_POSITIONAL and not isinstance(value, tuple):
                    part = (value,)
                if kind.kind is kind.VAR_KEYWORD and not _is_keywords(value):
                    part = dict.fromkeys(given.get(parameter, {"a": 1}), value)
                changed = {**given, parameter: part}
                yield self._tried(name, parameter, value, changed, usual)
            if self.declared and parameter in given and kind.default is kind.empty:
                rest = {key: value for key, value in given.items() if key != parameter}
                yield self._tried(name, parameter, "left out", rest, usual)
        if self.declared and parameters:
            yield self._tried(name, "nonsense", 1, {**given, "nonsense": 1}, usual)

    def every(self, name: str) -> int:
        """Tell of how many odd values a call gets one."""
        call = name.partition(":")[0]
        owner = call.partition(".")[0]
        stated = [self.thin[key] for key in (name, call, owner, "") if key in self.thin]
        return 1 if ALL or not stated else stated[0]

    def _answer(self, name: str) -> Any:
        """Call with the right arguments, where there are some; published data may be wanting."""
        parameters = self.parameters(name)
        if name not in self.arguments and parameters:
            return None
        try:
            return call_with(self.target(name), parameters, self.arguments.get(name, {}))
        except DatasetUnavailable:
            return None

    def _tried(
        self, name: str, parameter: str, value: Any, given: Mapping[str, Any], usual: set[str]
    ) -> Outcome:
        outcome = tried(self.target(name), self.parameters(name), given)
        outcome = replace(outcome, call=name, parameter=parameter, value=value)
        plain = name.partition(":")[0]
        part = given.get(parameter)
        words = [parameter, *(part if _is_keywords(part) else ())]
        pattern = self.also.get(f"{plain}.{parameter}", "(?!)")
        if outcome.kind == "refused" and not names(outcome, words, value, pattern):
            return replace(outcome, kind="nameless")
        if outcome.kind == "answered":
            try:
                new = unlike(strange_places(outcome.answer) - usual, "|".join(self.strange))
            except Exception as error:
                new = {f"{type(error).__name__} of its summary: {error}"}
            if new:
                return replace(outcome, kind="strange", text=", ".join(sorted(new)))
        return outcome

    def check(self, name: str) -> None:
        """Assert that all calls of a public name answer or say what is wrong, whatever they are
        given."""
        wrong = []
        num_calls = 0
        for call in self.calls(name):
            began_s = time.process_time()
            self._answer(call)  # what it compiles takes no call's time
            found = list(limited(self.outcomes(call)))
            num_calls += len(found)
            wrong += [str(each) for each in found if each.kind not in ("answered", "refused")]
            seconds = time.process_time() - began_s
            kinds = Counter(outcome.kind for outcome in found)
            count(self.package.__name__, kinds, seconds)
            listed = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
            print(f"{self.package.__name__}.{call}: {listed}; {seconds:.2f} s")
        assert not wrong, f"{len(wrong)} of {num_calls} calls:\n" + "\n".join(wrong[:SHOWN])


def count(module: str, kinds: Mapping[str, int], seconds: float) -> None:
    """Add to what became of the calls of a room, which a module of it or of its tests made."""
    room = TRIED[module.removeprefix("labkit.").removeprefix("tests.").partition(".")[0]]
    room.update(kinds)
    room["seconds"] += seconds


def became() -> pd.DataFrame:
    """Make a table of what became of the calls of each room, and of all."""
    rooms = {
        room: {"calls": sum(counts[kind] for kind in COLUMNS), **counts}
        for room, counts in TRIED.items()
    }
    table = pd.DataFrame.from_dict(rooms, orient="index", columns=["calls", *COLUMNS, "seconds"])
    table = table.fillna(0)
    table.loc["all"] = table.sum()
    return table.round().astype(int)


def _is_keywords(value: Any) -> bool:
    """Tell a mapping that may stand after ``**``, where Python itself asks for texts."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_made_by_users(cls: type) -> bool:
    """Tell classes from protocols, which users write, and from enums."""
    return not issubclass(cls, Enum) and not getattr(cls, "_is_protocol", False)


def public(package: ModuleType) -> dict[str, Any]:
    """Find a package's public functions and classes, and those of its public modules.

    A module that does not list them has those that it defines.
    """
    found = {}
    own = [n for n, value in vars(package).items() if _is_defined_in(package, n, value)]
    for name in sorted(getattr(package, "__all__", own)):
        value = getattr(package, name)
        if isinstance(value, ModuleType):
            found |= {
                key: inner
                for key, inner in vars(value).items()
                if inspect.isfunction(inner)
                and inner.__module__ == value.__name__
                and key[0] != "_"
            }
        elif isinstance(value, type) or (callable(value) and hasattr(value, "__name__")):
            found[name] = value
    return found


def _is_defined_in(package: ModuleType, name: str, value: Any) -> bool:
    is_callable = inspect.isfunction(value) or isinstance(value, type)
    return is_callable and value.__module__ == package.__name__ and not name.startswith("_")


def methods(cls: type) -> list[str]:
    """List a class's public methods that labkit wrote."""
    found = []
    for name, plain in inspect.getmembers_static(cls):
        inner = getattr(plain, "__func__", plain)
        ours = inspect.isfunction(inner) and inner.__module__.startswith("labkit.")
        if ours and not name.startswith("_"):
            found.append(name)
    return found


# ---------------------------------------------------------------- what became of a call


@dataclass(frozen=True)
class Outcome:
    """What a call with an odd value did.

    Attributes:
        kind: ``answered``, ``refused`` (one of labkit's errors that names the argument),
            ``nameless`` (one that does not), ``raw`` (another exception), ``strange`` (an answer
            with numbers that are not finite), or ``slow``.
        text: of the error.
    """

    kind: str
    text: str = ""
    answer: Any = None
    call: str = ""
    parameter: str = ""
    value: Any = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.call}({self.parameter}={_shown(self.value)}): {self.text[:300]}"


def _shown(value: Any) -> str:
    try:
        return " ".join(repr(value).split())[:120]
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return "a number of thousands of digits"


class _Hangs(BaseException):
    """A call has taken :data:`SECONDS` or :data:`HANGS_S`."""


def call_with(
    call: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> Any:
    """Call with arguments by name; those of ``*`` and ``**`` parameters are spread."""
    plain: dict[str, Any] = {}
    spread: tuple[Any, ...] = ()
    for name, value in given.items():
        kind = parameters[name].kind if name in parameters else inspect.Parameter.KEYWORD_ONLY
        if kind is inspect.Parameter.VAR_POSITIONAL:
            spread = tuple(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            plain |= value
        else:
            plain[name] = value
    if spread:  # what stands before the starred ones can only be given by its place
        first = [
            plain.pop(n)
            for n, p in parameters.items()
            if n in plain and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        return call(*first, *spread, **plain)
    return call(**plain)


def tried(
    call: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> Outcome:
    """Call, and tell what came of it."""
    try:
        answer = call_with(call, parameters, given)
        if inspect.isgenerator(answer):
            answer = next(answer, None)
        outcome = Outcome("answered", answer=answer)
    except DatasetUnavailable:
        outcome = Outcome("answered")  # with the data it would
    except LabkitError as error:
        text = str(error)
        paragraph = bool(text.strip()) and "\n\n" not in text and len(text) < 2000
        outcome = Outcome("refused" if paragraph else "raw", text or "an empty error")
    except _Hangs:
        return Outcome("slow", f"no end within {SECONDS:g} s of the processor, {HANGS_S} in all")
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
        outcome = Outcome("raw", f"{type(error).__name__}: {error} at {place}")
    return outcome


def names(outcome: Outcome, words: Sequence[str], value: Any, also: str) -> bool:
    """Tell whether an error names the argument, the file that it is the path of, or what there is
    none of."""
    text = outcome.text
    if outcome.parameter == "nonsense" or re.search(also, text):
        return True
    if any(re.search(rf"\b{re.escape(word)}\b", text) for word in words):
        return True
    if isinstance(value, str | Path) and str(Path(value))[:25] in text:
        return True
    parts = value if isinstance(value, dict | list | tuple) else [value]
    return any(isinstance(part, str) and f" {shown(part)}" in text for part in parts)


def unlike(places: set[str], pattern: str) -> set[str]:
    """Keep the places that a pattern does not match; an empty pattern matches none."""
    return {place for place in places if not (pattern and re.search(pattern, place))}


def strange_places(answer: Any, depth: int = 4) -> set[str]:
    """List where an answer holds NaN or infinity: paths, without the numbers of rows."""
    if isinstance(answer, float | np.floating):
        return set() if math.isfinite(answer) else {"nan" if math.isnan(answer) else "inf"}
    if depth == 0 or answer is None or isinstance(answer, str | bytes | type):
        return set()
    if isinstance(answer, np.ndarray):
        if answer.dtype.kind not in "fc":
            return set()
        signs = {"nan": np.isnan(answer).any(), "inf": np.isinf(answer).any()}
        return {sign for sign, found in signs.items() if found}
    return {f"{n}.{p}" for n, inner in _parts(answer) for p in strange_places(inner, depth - 1)}


def _parts(answer: Any) -> Iterator[tuple[str, Any]]:
    """List what an answer is made of, its summary and table too."""
    if isinstance(answer, pd.DataFrame):
        numbers = answer.select_dtypes("number")
        yield from ((str(name), numbers[name].to_numpy()) for name in numbers.columns.unique())
    elif isinstance(answer, Mapping):
        yield from ((str(name), value) for name, value in answer.items())
    elif isinstance(answer, list | tuple | set | frozenset):
        yield from (("", value) for value in list(answer)[:1000])
    elif is_dataclass(answer):
        yield from ((item.name, getattr(answer, item.name, None)) for item in fields(answer))
    for view in ("summary", "frame"):
        method = getattr(answer, view, None)
        is_ours = inspect.ismethod(method) and type(answer).__module__.startswith("labkit.")
        if is_ours and all(
            parameter.default is not parameter.empty
            for parameter in inspect.signature(method).parameters.values()
        ):
            yield view, method()


# ---------------------------------------------------------------- one description, one function


def problem(call: Callable[[], Any]) -> str:
    """Say what a call does instead of answering or refusing in one paragraph; else nothing."""
    outcome = tried(call, {}, {})
    if outcome.kind == "refused" and "\n" in outcome.text:
        return f"no paragraph: {outcome.text}"
    return "" if outcome.kind in ("answered", "refused") else outcome.text


def problems(
    call: Callable[..., Any],
    given: Mapping[str, Any],
    names: Iterable[str],
    wrong: Iterable[Any] = WRONG,
) -> list[str]:
    """List the problems of a call with one of its values replaced by a wrong one."""
    values = tuple(wrong)
    found = []
    for name in names:
        for value in values:
            text = problem(partial(call, **{**given, name: value}))
            if text:
                found.append(f"{name}={value!r}: {text}")
    return found


def check_fields(valid: Any) -> None:
    """Assert that a description answers or refuses in a paragraph, whatever a field is given."""
    made = type(valid)
    given = {each.name: getattr(valid, each.name) for each in fields(valid) if each.init}
    assert problems(made, given, given) == []
    assert problem(partial(made, **given, nonsense=1)) == ""
    assert problem(partial(made, "text", 5, None)) == ""


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, Any], *, wrong: Iterable[Any] = WRONG
) -> None:
    """Assert that a function answers or refuses in a paragraph, whatever an argument is given."""
    parameters = inspect.signature(function).parameters.items()
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [name for name, parameter in parameters if parameter.kind not in several]
    assert problems(function, given, dict.fromkeys([*names, *given]), wrong) == []
    assert problem(partial(function, **given, nonsense=1)) == ""


# ---------------------------------------------------------------- files


def file(name: str, content: str) -> Path:
    """Write a right file, for an example's path; it goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="labkit-kinds-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / name
    path.write_text(content)
    return path


CELLS = (
    "",
    "nan",
    "inf",
    "-1",
    "0",
    "True",
    "x",
    "1,5",
    "1e300",
    "1e-320",
    str(2**63),
    str(2**70),
    "9" * 5000,
    '"1\n2"',
    '"',
    "0x10",
    "1_000",
    "١",
    "2021-01-01",
)
"""What takes the place of one field of a table."""


def tables(right: str, sep: str = ",", every: int = 1) -> list[bytes]:
    """Make odd files of a right table: encodings, headings, ragged rows, and one field wrong.

    Args:
        right: the table, with headings and one row or more.
        sep: what separates its fields.
        every: each column gets every so many of the odd fields, others than its neighbour, unless
            :data:`ALL`.
    """
    lines = right.rstrip("\n").split("\n")
    header = lines[0].split(sep)
    first = lines[1].split(sep)
    text = "\n".join(lines)
    found = [right.encode(code) for code in ("utf-8-sig", "utf-16", "utf-32")]
    found += [b"", b"\n\n", b"\0" * 64, bytes(range(256)), b"\xff\xfe", right.encode()[:-3]]
    texts = [
        lines[0],
        "\n".join([lines[0], *lines]),
        "\n".join(lines[1:]),
        text.replace(sep, ";" if sep == "," else ","),
        text.replace("\n", "\r\n"),
        text.replace("\n", "\r"),
        text.replace("\n", "\n\n"),
        "\n".join([lines[0], *(line + sep for line in lines[1:])]),
        "\n".join(line + sep for line in lines),
        "\n".join([lines[0], sep.join(first[:-1])]),
        "\n".join([lines[0], sep.join([*first, "1"])]),
        "\n".join([*lines, "{}", "[1]"]),
        "\n".join([*lines, lines[1]]),
        "\n".join([lines[0], *lines[:0:-1]]),
        '{"a": [1, {}]}',
        "<html></html>",
        "é" * 10,
    ]
    for place, heading in enumerate(header):
        without = [line.split(sep) for line in lines]
        texts.append("\n".join(sep.join(row[:place] + row[place + 1 :]) for row in without))
        texts.append("\n".join([sep.join([*header, heading]), sep.join([*first, first[place]])]))
        for cell in some([CELLS], 1 if ALL else every, place):
            row = [*first[:place], cell, *first[place + 1 :]]
            texts.append("\n".join([lines[0], sep.join(row), *lines[2:]]))
    return found + [each.encode() for each in texts]


def documents(right: Any) -> list[bytes]:
    """Make odd JSON files of a right one: no JSON, another kind, one part of it wrong."""
    found = [b"", b"{", b"[" * 100_000, b"\xff", b"\0", b"nul", b'{"a": 1, "a": 2}', b"1e999"]
    values = [None, True, 0, -1, 1.5, "x", [], {}, [[]], {"a": {}}, [right], *variants(right)]
    for value in values:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            found.append(json.dumps(value).encode())
    return found


def numbered(values: Sequence[Any]) -> list[str]:
    """Name the parameters of a test by their places."""
    return [f"odd{place}" for place in range(len(values))]


def check_file(
    read: Callable[[Path], Any], path: Path, content: bytes, *, strange: str = ""
) -> None:
    """Assert that a reader answers, in finite numbers, or names the file in one paragraph.

    Args:
        strange: a pattern of the places where an answer may hold NaN or infinity.
    """
    path.write_bytes(content)
    began_s = time.process_time()
    with limits():
        wind()
        outcome = tried(read, {"path": _PATH}, {"path": path})
        places = strange_places(outcome.answer) if outcome.kind == "answered" else set()
    kind = outcome.kind
    if kind == "refused" and str(path) not in outcome.text:
        kind = "nameless"
    if unlike(places, strange):
        kind = "strange"
    count(read.__module__, {kind: 1}, time.process_time() - began_s)
    assert kind in ("answered", "refused"), f"{content[:300]!r}: {kind} {outcome.text} {places}"


_PATH = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD)


# ---------------------------------------------------------------- limits


@contextmanager
def limits() -> Iterator[None]:
    """Give calls so much memory and time, and no warnings on the way."""

    def end(*_: object) -> None:
        raise _Hangs

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MEMORY_BYTES
    before = {each: signal.signal(each, end) for each in (signal.SIGALRM, signal.SIGPROF)}
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        wind(0, 0)
        for each, handler in before.items():
            signal.signal(each, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def wind(seconds: float = SECONDS, hangs_s: float = HANGS_S) -> None:
    """Wind the clocks that end a call anew; 0 stops them."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(int(hangs_s))


def limited(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Go through outcomes under :func:`limits`, the clocks wound anew before each."""
    with limits():
        while True:
            wind()
            outcome = next(outcomes, None)
            if outcome is None:
                return
            yield replace(outcome, answer=None)
