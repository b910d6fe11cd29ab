"""What a reader may move: an explorable's axes, ranges and lists, each with its start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labkit.errors import UsageError
from labkit.workbook.review.verdicts import are_numbers

INTERVALS = (6, 5, 8, 4, 7)
"""Numbers of intervals that a stored range may be cut into, the preferred one first."""
STEPS_PER_INTERVAL = 20
"""How finely a live slider divides the distance of two stored values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One control of an explorable.

    ``values``: those that are stored; a range ``step`` > 0 wide per move has all in between, too.
    """

    name: str
    label: str
    values: tuple[Any, ...]
    start: Any
    step: float | int = 0

    @property
    def is_range(self) -> bool:
        return self.step > 0

    def holds(self, value: Any) -> bool:
        if self.is_range and _is_number(value):
            return bool(self.values[0] <= value <= self.values[-1])
        return value in self.values

    def text(self, value: Any) -> str:
        return f"{value:.6g}" if isinstance(value, float) else str(value)


def read(
    axes: Mapping[str, Iterable[Any]], label: str | Mapping[str, str] = "", start: Any = None
) -> list[Axis]:
    """The axes of a call: ``(low, high)`` is a range, any other iterable a list of values.

    A longer tuple, of ascending numbers, is a range that is stored at just these.

    >>> [axis.values for axis in read({"stages": (2, 14), "rate": (1.0, 2.0), "way": ["a", "b"]})]
    [(2, 4, 6, 8, 10, 12, 14), (1.0, 1.2, 1.4, 1.6, 1.8, 2.0), ('a', 'b')]
    """
    if not axes:
        raise UsageError("explore needs an axis: explore(make_figure, num_stages=(2, 16))")
    labels = label if isinstance(label, Mapping) else dict.fromkeys(axes, label)
    named = isinstance(start, Mapping)
    starts = dict(start) if named else {next(iter(axes)): start} if start is not None else {}
    for stranger in (starts.keys() | labels.keys()) - axes.keys():
        raise UsageError(f"explore: {stranger!r} is no axis; the axes are {', '.join(axes)}")
    return [
        _axis(name, values, labels.get(name) or name.replace("_", " "), starts.get(name))
        for name, values in axes.items()
    ]


def taken(make_figure: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` by axis that ``make_figure`` has a parameter for; all of them where it
    takes any keyword.

    >>> taken(lambda rate: rate, {"stages": 2, "rate": 1.5})
    {'rate': 1.5}
    """
    parameters = inspect.signature(make_figure).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in values.items() if takes_any or name in parameters}


def _axis(name: str, given: Iterable[Any], label: str, start: Any) -> Axis:
    if isinstance(given, tuple):
        axis = _range(name, given, label, start)
    else:
        values = tuple(given)
        if len(values) < 2:
            raise UsageError(f"explore: {name!r} needs two values or more, got {list(values)!r}")
        first = values[0] if start is None else start
        axis = Axis(name=name, label=label, values=values, start=first)
    if not axis.holds(axis.start):
        valid = f"from {given[0]} to {given[-1]}" if isinstance(given, tuple) else [*axis.values]
        raise UsageError(f"start={start!r} is not among the values of {name!r}: {valid}")
    return axis


def _range(name: str, given: tuple[Any, ...], label: str, start: Any) -> Axis:
    rises = all(map(_is_number, given)) and all(a < b for a, b in pairwise(given))
    if len(given) < 2 or not rises:
        raise UsageError(
            f"explore: {name}={given!r}: a tuple is a range (low, high), or the numbers of one at "
            "which it is stored, the smallest first; write a list for single values"
        )
    low = given[0]
    high = given[-1]
    first = low if start is None else start
    span = high - low
    whole = all(isinstance(end, int) for end in given)
    count = min(INTERVALS, key=lambda intervals: len(f"{span / intervals:.6g}"))
    steps = [low + span * place / count for place in range(count + 1)]
    inner = [round(value) if whole else float(f"{value:.6g}") for value in steps]
    within = {first} if _is_number(first) and low <= first <= high else set()
    between = given[1:-1] if len(given) > 2 else inner[1:-1]
    values = tuple(sorted({low, *between, high} | within))
    step = 1 if whole else span / count / STEPS_PER_INTERVAL
    return Axis(name=name, label=label, values=values, start=first, step=step)


def _is_number(value: Any) -> bool:
    return are_numbers(value) and not isinstance(value, list)
