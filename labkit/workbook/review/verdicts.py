"""One claim of a paper, the rule set beforehand by which we judge it, and the verdict.

Pure: nothing here reads a file or knows a notebook. A claim's numbers may be lists (the cells of
a printed table): then our value is a list too and every element must hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Any, Literal, Self, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from labkit.quantities import is_finite_number, number

DIGITS = 4
EDGE = 1e-9
"""Relative slack at a tolerance's edge, so that 1.05 beside 1 is within 5 % also in binary."""

Judge = Literal["ratio", "absolute", "at-least", "at-most", "between", "ordering", "equal"]
Verdict = Literal[
    "reproduced", "same direction", "differs", "not earned", "not attempted", "not judged"
]
Kind = Literal["headline", "mechanism", "consistency", "group"]
REPRODUCTIONS: tuple[Kind, ...] = ("headline", "mechanism")
"""The kinds that count as reproductions, if their flip changes the verdict."""
Scalar = bool | int | float | str
Value = Scalar | list[Scalar]
Tolerance = float | tuple[float | None, float | None]


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _one_value(value: Any) -> Any:
    if value == []:
        raise _invalid("an empty list says nothing", "a number, a text, a list of them, or null")
    if value is not None and not is_value(value):
        raise _invalid("not a value", "a number, a text, a list of them, or null")
    if not is_finite(value):
        raise _invalid("not a finite number", "a number whose size is below 1.8e308")
    return value


def _one_tolerance(value: Any) -> Any:
    is_pair = isinstance(value, list | tuple)
    parts = list(value) if is_pair else [value]
    if not all(part is None or are_numbers(part) for part in parts) or is_pair != (len(parts) == 2):
        raise _invalid("not a tolerance", "one number, or [low, high] for `judge: between`")
    if is_pair:
        return tuple(None if part is None or math.isinf(part) else part for part in parts)
    return value


def _invalid(problem: str, expected: str) -> PydanticCustomError:
    return PydanticCustomError("claim", "{problem}", {"problem": problem, "expected": expected})


Text = Annotated[str, BeforeValidator(lambda v: " ".join(v.split()) if isinstance(v, str) else v)]
"""On one line, so that a folded block of YAML and a quoted one read alike."""


class Claim(BaseModel):
    """What a paper says, where it says it, and how we judge our value of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    kind: Kind
    statement: Annotated[Text, Field(min_length=1)]
    flip: Text = ""
    paper: Annotated[Value | None, BeforeValidator(_one_value)]
    unit: Text = ""
    source: Annotated[Text, Field(min_length=1)]
    verified: bool
    checked: Text = ""
    judge: Judge
    tolerance: Annotated[Tolerance | None, BeforeValidator(_one_tolerance)] = None
    neutral: float | None = None
    dataset: str = ""
    note: Text = ""

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        for problem, expected in inconsistencies(self):
            raise _invalid(f"claim {self.id!r}: {problem}", expected)
        return self

    @property
    def is_reproduction(self) -> bool:
        """A number the paper is known for, or a measured property of its method."""
        return self.kind in REPRODUCTIONS

    @property
    def slack(self) -> float:
        """The tolerance as one number (0 where none is set)."""
        return float(self.tolerance) if isinstance(self.tolerance, int | float) else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The ends that ``between`` allows: the tolerance's, else the paper's own two."""
        ends: Any = self.tolerance if isinstance(self.tolerance, tuple) else self.paper
        low, high = ends
        return (-math.inf if low is None else float(low), math.inf if high is None else float(high))

    @property
    def accepted(self) -> tuple[float, float] | None:
        """The ends of what counts as reproduced, where the claim is of one number; else None."""
        if self.judge == "between":
            return self.interval
        if not are_numbers(self.paper) or isinstance(self.paper, list):
            return None
        return self.around(self.paper)

    def around(self, paper: float) -> tuple[float, float]:
        """The ends of what reproduces one number of the paper."""
        slack = self.slack * (abs(paper) if self.judge == "ratio" else 1)
        low = -math.inf if self.judge == "at-most" else paper - slack
        return low, math.inf if self.judge == "at-least" else paper + slack


# ---------------------------------------------------------------- the verdict


def verdict_of(claim: Claim, ours: Value | None, *, standin: bool = False) -> Verdict:
    """How ``ours`` (unrounded, None where we have none) stands beside the paper's value.

    ``standin``: the claim's data set is a stand-in, so a value of ours says nothing about the
    paper's and is not judged.
    """
    if ours is None:
        return "not attempted"
    if standin:
        return "not judged"
    if _holds(claim, ours):
        return "reproduced"
    return "same direction" if _same_direction(claim, ours) else "differs"


def _holds(claim: Claim, ours: Value) -> bool:
    match claim.judge:
        case "between":
            low, high = claim.interval
            ends = low - _edge(low), high + _edge(high)
            return all(ends[0] <= value <= ends[1] for value in numbers(ours))
        case "ordering":
            agree, differ = pairs_in_order(claim.paper, ours)
            return differ <= claim.slack * (agree + differ) * (1 + EDGE)
        case "equal" if not (are_numbers(ours) and are_numbers(claim.paper)):
            return ours == claim.paper
    values = numbers(ours)
    papers = numbers(claim.paper)
    spans = [(claim.around(paper), _edge(paper)) for paper in papers]
    return len(values) == len(papers) and all(
        low - edge <= value <= high + edge
        for value, ((low, high), edge) in zip(values, spans, strict=True)
    )


def _edge(value: float) -> float:
    return EDGE * abs(value) if math.isfinite(value) else 0.0


def _same_direction(claim: Claim, ours: Value) -> bool:
    """Ours lies on the paper's side of the value that means "no effect" (``neutral``)."""
    neutral = claim.neutral
    if neutral is None:
        return False
    if claim.judge == "ordering":  # `neutral` compares with the rank agreement, -1 to 1
        agree, differ = pairs_in_order(claim.paper, ours)
        return (agree - differ) / max(agree + differ, 1) > neutral
    if claim.judge == "between":
        low, high = claim.interval
        side = (low >= neutral) - (high <= neutral)
        return side != 0 and all(_side(value, neutral) == side for value in numbers(ours))
    return all(
        _side(value, neutral) * _side(paper, neutral) > 0
        for value, paper in zip(numbers(ours), numbers(claim.paper), strict=True)
    )


def _side(value: float, neutral: float) -> int:
    """1 above ``neutral``, -1 below it, and 0 where rounding alone parts the two."""
    if abs(value - neutral) <= max(_edge(value), _edge(neutral)):
        return 0
    return 1 if value > neutral else -1


def pairs_in_order(paper: Any, ours: Any) -> tuple[int, int]:
    """How many pairs stand in ours as in the paper, and how many do not.

    Lists of names are compared by position, lists of numbers by rank. Pairs that the paper has
    level say nothing and are left out.

    >>> pairs_in_order(["a", "b", "c"], ["b", "a", "c"]), pairs_in_order([3, 1, 1], [9, 2, 5])
    ((2, 1), (2, 0))
    """
    if isinstance(paper[0], str):
        place = {name: index for index, name in enumerate(ours)}
        ours = [place[name] for name in paper]
        paper = range(len(paper))
    pairs = combinations(zip(paper, ours, strict=True), 2)
    products = [(p - q) * (o - r) for (p, o), (q, r) in pairs if p != q]
    agree = sum(product > 0 for product in products)
    return agree, len(products) - agree


def ratio_of(claim: Claim, ours: Value | None) -> float | None:
    """ours/paper; of lists the ratio furthest from 1; None where a ratio means nothing."""
    if claim.judge == "ordering" or not are_numbers(ours) or not are_numbers(claim.paper):
        return None
    values = numbers(ours)
    papers = numbers(claim.paper)
    is_range = claim.judge == "between" and isinstance(claim.paper, list)
    if is_range or len(values) != len(papers) or 0.0 in papers:
        return None
    ratios = [value / paper for value, paper in zip(values, papers, strict=True)]
    return max(ratios, key=lambda ratio: abs(ratio - 1))


def numbers(value: Any) -> list[float]:
    return [float(part) for part in _parts(value)]


def are_numbers(value: Any) -> TypeGuard[float | list[float]]:
    """A number, or a list of nothing but numbers (booleans are none)."""
    return bool(_parts(value)) and all(
        isinstance(part, int | float) and not isinstance(part, bool) for part in _parts(value)
    )


def is_finite(value: Any) -> bool:
    """Tell whether each number of ``value``, if there is any, is finite as a float."""
    return all(
        isinstance(part, bool) or not isinstance(part, int | float) or is_finite_number(part)
        for part in _parts(value)
    )


def is_value(value: Any) -> bool:
    """Tell whether ``value`` is one that a claim may have, or several, as plain data."""
    parts = _parts(value)
    return bool(parts) and all(isinstance(part, bool | int | float | str) for part in parts)


# ---------------------------------------------------------------- what may be judged


Problem = tuple[str, str]


def inconsistencies(claim: Claim) -> Iterator[Problem]:
    """What makes a claim impossible to judge, each with what would be right."""
    if claim.verified and not claim.checked:
        yield "`verified: true` without `checked`", "`checked:` says where it was read"
    yield from _problems_of_kind(claim)
    if not all(map(is_finite, (claim.paper, claim.neutral, claim.slack))):
        yield "`paper`, `tolerance` and `neutral` must be finite", "finite numbers"
    if claim.neutral is not None and claim.judge == "equal":
        yield "`judge: equal` knows no direction", "no `neutral`"
    yield from {
        "between": _problems_between,
        "ordering": _problems_of_order,
        "equal": _problems_of_equality,
        "at-least": _problems_of_bound,
        "at-most": _problems_of_bound,
    }.get(claim.judge, _problems_of_closeness)(claim)


def _problems_of_kind(claim: Claim) -> Iterator[Problem]:
    kind = f"`kind: {claim.kind}`"
    if claim.verified and claim.paper is None:
        yield "`verified: true` without a value of the paper", "`verified: false`"
    if claim.is_reproduction and claim.paper is None:
        valid = "the paper's value in `paper`; a bar of our own is `kind: group`"
        yield f"{kind} needs a value of the paper", valid
    if claim.is_reproduction and not claim.flip:
        valid = "`flip:` names what stands in the method's place: the paper's nearest rival"
        yield f"{kind} needs a flip", valid
    if claim.flip and not claim.is_reproduction:
        yield f"{kind} takes no flip", "`kind: headline` or `mechanism`, or no `flip`"
    if claim.kind == "group" and claim.paper is not None:
        valid = "`paper: null`; what recomputes a number of the paper is `kind: consistency`"
        yield "`kind: group` is a bar of our own", valid


def _problems_between(claim: Claim) -> Iterator[Problem]:
    valid = "`tolerance: [low, high]`, null for an open end"
    ends = claim.tolerance if isinstance(claim.tolerance, tuple) else claim.paper
    if not isinstance(ends, tuple | list) or len(ends) != 2:
        yield "`judge: between` needs two ends", valid
    elif any(isinstance(end, bool | str) for end in ends):
        yield "`judge: between` needs numbers as ends", valid
    else:
        low, high = claim.interval
        if low > high or (math.isinf(low) and math.isinf(high)):
            yield "the interval holds nothing, or everything", valid + ", low <= high"
    if claim.paper is not None and not are_numbers(claim.paper):
        yield "`judge: between` compares numbers", "a number, two numbers or null in `paper`"


def _problems_of_order(claim: Claim) -> Iterator[Problem]:
    paper = claim.paper
    valid = "a list of different names, or of numbers, in `paper`"
    if not isinstance(paper, list) or len(paper) < 2:
        yield "`judge: ordering` needs two or more things to order", valid
        return
    names = all(isinstance(part, str) for part in paper)
    if (names and len(set(paper)) != len(paper)) or not (names or are_numbers(paper)):
        yield "`paper` cannot be ordered", valid
    if isinstance(claim.tolerance, tuple) or not 0 <= claim.slack < 1:
        yield "no tolerance of an ordering", "the share of pairs that may be swapped: 0 to 1"


def _problems_of_equality(claim: Claim) -> Iterator[Problem]:
    if claim.paper is None:
        yield "`judge: equal` needs a value", "a number, a text or a list in `paper`"
    if claim.tolerance is not None:
        yield "`judge: equal` takes no tolerance", "no `tolerance`, or another `judge`"


def _problems_of_bound(claim: Claim) -> Iterator[Problem]:
    if not are_numbers(claim.paper):
        end = "[low, null]" if claim.judge == "at-least" else "[null, high]"
        valid = f"a number in `paper`; where it gives none, `judge: between`, `tolerance: {end}`"
        yield f"`judge: {claim.judge}` needs the paper's number", valid
    if isinstance(claim.tolerance, tuple) or claim.slack < 0:
        yield "`tolerance` of a bound is its slack", "one number, 0 or more"


def _problems_of_closeness(claim: Claim) -> Iterator[Problem]:
    if not are_numbers(claim.paper):
        yield f"`judge: {claim.judge}` compares numbers", "a number or a list of them in `paper`"
    elif claim.judge == "ratio" and 0.0 in numbers(claim.paper):
        yield "a ratio to 0 means nothing", "`judge: absolute`"
    if not isinstance(claim.tolerance, int | float) or claim.slack < 0:
        yield f"`judge: {claim.judge}` needs a tolerance", "one number, 0 or more"


def value_problem(claim: Claim, value: Any) -> str:
    """Why ``value`` (plain Python) cannot be judged beside the paper's; "" if it can."""
    paper = claim.paper
    length = len(value) if isinstance(value, list) else None
    expected = len(paper) if isinstance(paper, list) else None
    if not is_finite(value):
        return "a value must be finite"
    if claim.judge == "equal":
        fine = all(isinstance(part, bool | int | float | str) for part in _parts(value))
        return "" if fine else "`judge: equal` compares numbers, texts or lists of them"
    if claim.judge == "ordering" and isinstance(paper, list):
        if isinstance(paper[0], str):
            fine = length is not None and sorted(map(str, value)) == sorted(map(str, paper))
            return "" if fine else f"an order of the paper's names {paper}"
        fine = length == expected and are_numbers(value)
        return "" if fine else f"{expected} numbers to rank, as the paper's"
    if not are_numbers(value):
        return f"`judge: {claim.judge}` needs a number"
    if claim.judge == "between" or length == expected:
        return ""
    return "one number, as the paper's" if expected is None else f"a list of {expected} numbers"


def tolerance_in_words(claim: Claim) -> str:
    """The rule as the claims table prints it: "within 5 %", "at least the paper's".

    Numbers keep to their units by a no-break space.
    """
    unit = "" if claim.unit in ("", "fraction") else f"\u00a0{claim.unit}"
    slack = number(claim.slack, DIGITS)
    share = f"{number(claim.slack * 100, DIGITS)}\u00a0%"
    match claim.judge:
        case "ratio":
            return f"within {share}"
        case "absolute":
            return f"within ±{slack}{unit}"
        case "between":
            return _interval_in_words(claim.interval) + unit
        case "ordering":
            return "same order" + (f", up to {share} of pairs swapped" if claim.slack else "")
        case "equal":
            return "equal"
    give = f", slack {slack}{unit}" if claim.slack else ""
    return f"{'at least' if claim.judge == 'at-least' else 'at most'} the paper's{give}"


def _interval_in_words(interval: tuple[float, float]) -> str:
    low, high = (number(end, DIGITS) for end in interval)
    if math.isinf(interval[1]):
        return f"at least {low}"
    return f"at most {high}" if math.isinf(interval[0]) else f"{low} to {high}"
