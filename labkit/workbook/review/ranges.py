"""What a notebook's parameters may be, and the other values that they were tried at.

``data/papers/<key>/parameters.yaml`` says both (``data/papers/README.md`` is its guide). A value
that cannot work is refused in one sentence: by ``labkit run`` before anything runs, and by
:func:`labkit.workbook.open_paper`, in the first cell after the parameters, for whoever edits them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from labkit import files
from labkit.errors import BadValue

Value = StrictBool | StrictInt | StrictFloat | StrictStr
Bound = StrictInt | StrictFloat | StrictStr
_BOUND = "a number, or the name of another parameter"
_TRIED = "a list of values besides the default, at which the notebook runs"


class Range(BaseModel):
    """What one parameter may be, and ``why`` where that is no matter of course.

    A bound is a number, or the name of another parameter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tried: Annotated[list[Value], Field(min_length=1, description=_TRIED)]
    above: Annotated[Bound | None, Field(description=_BOUND)] = None
    below: Annotated[Bound | None, Field(description=_BOUND)] = None
    at_least: Annotated[Bound | None, Field(description=_BOUND)] = None
    at_most: Annotated[Bound | None, Field(description=_BOUND)] = None
    multiple_of: Annotated[Bound | None, Field(description=_BOUND)] = None
    divisor_of: Annotated[Bound | None, Field(description=_BOUND)] = None
    one_of: Annotated[list[Value], Field(description="the values there are")] = []
    why: Annotated[str, Field(description="why no other value works, in words")] = ""

    def problem(self, name: str, values: Mapping[str, Any]) -> str:
        """Say what would be valid where ``name`` of ``values`` is not; "" where it is.

        >>> Range(tried=[1, 2], above=0, below=1).problem("share", {"share": 0})
        'above 0 and below 1'
        >>> Range(tried=[8, 16], multiple_of="ranks").problem("heads", {"heads": 6, "ranks": 4})
        'a multiple of 4, the value of ranks'
        """
        rules = list(self._rules(values[name], values))
        if all(holds for holds, _ in rules):
            return ""
        return " and ".join(words for _, words in rules) + f" ({self.why})" * bool(self.why)

    def _rules(self, value: Any, values: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
        """Whether ``value`` keeps each of the rules there are, and the rule in words."""
        if self.one_of:
            listed = ", ".join(map(repr, self.one_of))
            yield value in self.one_of, f"one of {listed}"
        is_number = isinstance(value, int | float)
        for rule, words in _WORDS.items():
            bound = getattr(self, rule)
            if bound is None:
                continue
            number = values[bound] if isinstance(bound, str) else bound
            named = f", the value of {bound}" if isinstance(bound, str) else ""
            yield is_number and _holds(rule, value, number), f"{words} {number:,}{named}"


_WORDS = {
    "above": "above",
    "at_least": "at least",
    "below": "below",
    "at_most": "at most",
    "multiple_of": "a multiple of",
    "divisor_of": "a divisor of",
}


def _holds(rule: str, value: float, bound: float) -> bool:
    match rule:
        case "above":
            return value > bound
        case "at_least":
            return value >= bound
        case "below":
            return value < bound
        case "at_most":
            return value <= bound
        case "multiple_of":
            return value > 0 and value % bound == 0
        case _:
            return value > 0 and bound % value == 0


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: dict[str, Range]


def path_of(root: Path, key: str) -> Path:
    return root / "data" / "papers" / key / "parameters.yaml"


def load(root: Path, key: str) -> dict[str, Range]:
    """The ranges of the parameters of ``key``'s notebook, by name; none where nobody wrote them.

    Raises:
        BadFile: the file is malformed, or a bound names no parameter of it; names the line.
    """
    path = path_of(root, key)
    if not path.is_file():
        return {}
    tree = files.load_yaml(path)
    ranges = files.validate(path, tree, _File).parameters
    for name, each in ranges.items():
        for rule in _WORDS:
            bound = getattr(each, rule)
            if isinstance(bound, str) and bound not in ranges:
                place = ("parameters", name, rule)
                valid = f"a number, or one of {', '.join(ranges)}"
                raise files.bad_field(path, tree, place, "no parameter", value=bound, valid=valid)
    return ranges


def require(key: str, ranges: Mapping[str, Range], values: Mapping[str, Any]) -> None:
    """Refuse the first of ``values``, a value for each parameter, that cannot work.

    Raises:
        BadValue: it names the notebook, the parameter, its value and what would be valid.
    """
    for name, each in ranges.items():
        if name in values and (valid := each.problem(name, values)):
            raise BadValue(f"notebook {key!r}, parameter {name}: {values[name]!r}; valid: {valid}")


def points(ranges: Mapping[str, Range]) -> list[dict[str, Any]]:
    """The runs that try every value by itself, the other parameters at their defaults."""
    return [{name: value} for name, each in ranges.items() for value in each.tried]


def together(ranges: Mapping[str, Range], turn: int = 0) -> dict[str, Any]:
    """One run in which every parameter has its first other value at once (or another turn's)."""
    values: dict[str, Sequence[Any]] = {name: each.tried for name, each in ranges.items()}
    return {name: tried[turn % len(tried)] for name, tried in values.items()}
