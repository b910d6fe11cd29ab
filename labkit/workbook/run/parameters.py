"""The values a run gives to a notebook's parameters: read, checked against what it declares.

papermill only warns at a parameter the notebook does not have. Here that is an error before
anything runs, and so is a value that is not of the declared type.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from labkit import files
from labkit.errors import BadFile, UsageError, did_you_mean
from labkit.workbook.notebooks import SCALARS, Parameter

MOST_RUNS = 20_000
"""Runs of one notebook in one command."""
_OPTIONAL = re.compile(r"(?:typing\.)?Optional\[(\w+)\]|None \| (\w+)|(\w+) \| None")
_NONES = ("null", "None", "~")
Place = tuple[int | str, ...]


class Setting(NamedTuple):
    """A parameter's value, and its place: of a sweep file, or the option whose text it is."""

    name: str
    value: Any
    place: Place


Choice = Sequence[tuple[Setting, ...]]
"""What is tried in turn: each alternative sets one parameter, or several together."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Choices of which every combination runs, with ``seeds``: how many, or which."""

    choices: Sequence[Choice] = ()
    seeds: int | Sequence[int] | None = None
    seeds_place: Place = ("--seeds",)
    refuse: Callable[..., UsageError] | None = None
    """The error of a place of the sweep file."""

    @property
    def sets_any(self) -> bool:
        """Whether any parameter gets a value."""
        return bool(self.choices) or self.seeds is not None

    def refusal(self, place: Place, problem: str, valid: str) -> UsageError:
        if self.refuse is None or str(place[0]).startswith("-"):
            end = " Valid" if problem.endswith("?") else "; valid"
            return UsageError(f"{problem}{end}: {valid}")
        return self.refuse(place, problem, valid=valid)


def with_seeds(sweep: Sweep | None, text: str) -> Sweep:
    """``sweep`` (none: an empty one) with the seeds of ``--seeds``: how many, or several listed.

    >>> with_seeds(None, "5").seeds, with_seeds(None, "3,5,8").seeds
    (5, [3, 5, 8])
    """
    sweep = sweep or Sweep()
    if not text:
        return sweep
    parts = [part.strip() for part in text.split(",")]
    are_numbers = all(part.isdecimal() and len(part) <= files.MOST_DIGITS for part in parts)
    if not are_numbers or parts == ["0"]:
        raise UsageError(
            f"--seeds {text!r:.80}; valid: how many, 1 or more, or a list such as 3,5,8"
        )
    if sweep.seeds is not None:
        raise sweep.refusal(sweep.seeds_place, "--seeds is given as well", "seeds in one of them")
    listed = [int(part) for part in parts]
    return replace(sweep, seeds=listed if len(listed) > 1 else listed[0], seeds_place=("--seeds",))


def choices(texts: Sequence[str], option: str = "-p") -> list[Choice]:
    """What ``name=value`` texts of an option set; ``--sweep`` lists values, ``name=value,value``.

    Raises UsageError for other texts and for a name given twice.

    >>> choices(["gpu=a=b"]), [len(choice) for choice in choices(["eta=0.5,1"], "--sweep")]
    ([[(Setting(name='gpu', value='a=b', place=('-p',)),)]], [2])
    """
    listed: dict[str, Choice] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} {text!r} is not of the form name=value")
        if name in listed:
            raise UsageError(f"{option} {name} is given twice")
        parts = value.split(",") if option == "--sweep" else [value]
        listed[name] = [(Setting(name, part.strip(), (option,)),) for part in parts]
    return list(listed.values())


def combinations(
    key: str,
    declared: Mapping[str, Parameter],
    sweep: Sweep,
    require: Callable[[Mapping[str, Any]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Every combination of a sweep's choices: what differs from the defaults.

    Combinations that come to the same values are one. Raises UsageError for a parameter that the
    notebook does not declare or that is given twice, for a value not of its type, and for more than
    :data:`MOST_RUNS`; it names the notebook, the parameter and what would be valid. ``require``
    sees all values of each run, defaults too, and raises where one cannot work.
    """
    _refuse_too_many(key, sweep)
    choices = [*sweep.choices, *_seeds(key, declared, sweep)]
    places: dict[str, Place] = {}
    axes: list[list[dict[str, Any]]] = []
    for choice in choices:
        for name, place in {s.name: s.place for point in choice for s in point}.items():
            if name in places:
                both = f"both with {places[name][0]} and with {place[0]}"
                problem = f"{name} is given {both}"
                raise sweep.refusal(place, problem, "each parameter in one of them")
            places[name] = place
        axes.append([{s.name: _value(key, declared, sweep, s) for s in point} for point in choice])
    defaults = {name: p.default for name, p in declared.items()}
    unlike: set[tuple[tuple[str, Any], ...]] = set()
    for chosen in itertools.product(*axes):
        values = {name: value for point in chosen for name, value in point.items()}
        over = {name: v for name, v in values.items() if v != declared[name].default}
        if require is not None:
            require({**defaults, **over})
        if (same := tuple(sorted(over.items()))) not in unlike:
            unlike.add(same)
            yield over


def requirement(root: Path, key: str) -> Callable[[Mapping[str, Any]], None]:
    """What refuses values that cannot work in ``key``'s notebook, as its ranges say.

    Apart, since few runs set a value, and Pydantic's models take a while to load.
    """
    from labkit.workbook.review import ranges

    return partial(ranges.require, key, ranges.load(root, key))


def _refuse_too_many(key: str, sweep: Sweep) -> None:
    """Count the combinations before any of them is made."""
    seeds = sweep.seeds if sweep.seeds is not None else 1
    count = seeds if isinstance(seeds, int) else len(seeds)
    count *= math.prod(len(choice) for choice in sweep.choices)
    if count > MOST_RUNS:
        place = sweep.seeds_place if sweep.seeds is not None else sweep.choices[0][0][0].place
        shown = f"{count:,}" if count < 10**15 else f"more than {10**15:,}"
        problem = f"notebook {key!r}: {shown} runs"
        valid = f"at most {MOST_RUNS:,} in one command; several commands may make more"
        raise sweep.refusal(place, problem, valid)


def is_seed(name: str) -> bool:
    """Whether a parameter starts a generator; ``seeds`` and ``num_seeds`` count.

    >>> is_seed("seed"), is_seed("seed_of_jobs"), is_seed("seeds")
    (True, True, False)
    """
    return name == "seed" or name.startswith("seed_")


def _seeds(key: str, declared: Mapping[str, Parameter], sweep: Sweep) -> Iterator[Choice]:
    """Every seed of the notebook moves along: its own and those after it, or those listed."""
    if sweep.seeds is None:
        return
    own = {name: p for name, p in declared.items() if is_seed(name) and _kind(p) == "int"}
    if not own:
        problem = f"notebook {key!r} has no seed to repeat runs with"
        valid = f"an int parameter seed or seed_…; its parameters: {described(declared)}"
        raise sweep.refusal(sweep.seeds_place, problem, valid)
    seeds = sweep.seeds
    if isinstance(seeds, int):
        rows = [[p.default + i for p in own.values()] for i in range(seeds)]
    else:
        rows = [[seed] * len(own) for seed in seeds]
    yield [
        tuple(Setting(n, seed, sweep.seeds_place) for n, seed in zip(own, row, strict=True))
        for row in rows
    ]


def described(declared: Mapping[str, Parameter]) -> str:
    """The parameters with types and defaults, for a message."""
    parts = []
    for p in declared.values():
        kind = f": {p.annotation}" if p.annotation else ""
        parts.append(f"{p.name}{kind} = {p.default!r}")
    return ", ".join(parts) or "none"


def _value(key: str, declared: Mapping[str, Parameter], sweep: Sweep, setting: Setting) -> Any:
    name, value, place = setting
    if name not in declared:
        hint = did_you_mean(name, declared, most=1)
        problem = f"notebook {key!r} has no parameter {name!r}{hint and '; ' + hint}"
        valid = f"its parameters: {described(declared)}"
        raise sweep.refusal(place, problem, valid)
    read = coerce if isinstance(value, str) and str(place[0]).startswith("-") else of_type
    try:
        return read(value, _kind(declared[name]))
    except ValueError as problem:
        text = f"notebook {key!r}, parameter {name}: {value!r} is not {problem}"
        valid = f"as declared, {described({name: declared[name]})}"
        raise sweep.refusal(place, text, valid) from None


def _kind(parameter: Parameter) -> str:
    """The declared type, or the default's; "" where a default of None leaves it open.

    >>> _kind(Parameter(name="limit", default=None, annotation="Optional[int]"))
    'int | None'
    """
    if parameter.annotation:
        optional = _OPTIONAL.fullmatch(parameter.annotation)
        scalar = next(filter(None, optional.groups())) if optional else ""
        return f"{scalar} | None" if scalar else parameter.annotation
    return "" if parameter.default is None else type(parameter.default).__name__


def coerce(text: str, kind: str) -> Any:
    """``text``, numbers as YAML writes them, as :func:`of_type`.

    >>> coerce("1e3", "int"), coerce("3", "float"), coerce("true", "bool")
    (1000, 3.0, True)
    >>> coerce("8", "int | None"), coerce("null", "int | None")
    (8, None)
    """
    if kind == "str | None" and text in _NONES:
        return None
    is_text = kind in ("str", "str | None")
    return of_type(text if is_text else None if text in _NONES else _yaml(text), kind)


def of_type(value: Any, kind: str) -> Any:
    """``value`` if it is of the scalar type ``kind``, which may end in ``| None``; "" stands for
    any of them. Whole numbers stand for floats and ints.

    Raises ValueError, which says what was expected, where it is not."""
    kind, optional, _ = kind.partition(" | None")
    if value is None and (optional or not kind):
        return None
    if not kind:
        kind = type(value).__name__
        if kind not in SCALARS:
            raise ValueError(f"one value of the types {', '.join(SCALARS)}, or null")
    if kind not in SCALARS:
        raise ValueError(f"settable: only parameters of the types {', '.join(SCALARS)} are")
    if kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind == "float" and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise ValueError("a number that a float can hold, below 1.8e308") from None
    if type(value) is not SCALARS[kind]:
        raise ValueError({"bool": "true or false"}.get(kind, f"of type {kind}"))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    if isinstance(value, str) and files.encoded(value).decode() != value:
        raise ValueError("text that UTF-8 can hold")
    return value


def _yaml(text: str) -> Any:
    try:
        return files.parse_yaml(Path("-p"), text) if text else ""
    except BadFile:
        return text
