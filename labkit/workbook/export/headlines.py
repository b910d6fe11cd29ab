"""The claims of a talk: which two or three are shown, and what a slide says of each.

A slide has room for the statement, two numbers, the verdict with the rule that judged it, and what
the nearest rival does; the notes have the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.quantities import number
from labkit.workbook.review import tally
from labkit.workbook.review.verdicts import (
    REPRODUCTIONS,
    Claim,
    Value,
    are_numbers,
    numbers,
    pairs_in_order,
    ratio_of,
)

MAX_CLAIMS = 3
DIGITS = 3
"""Significant digits of our values on a slide; where these make two verdicts look alike, four."""
LONGEST_STATEMENT = 90
"""Characters from which on a statement leaves its remark in parentheses to the notes."""
MISSED = ("same direction", "differs", "not earned")

_REMARK = re.compile(r"\s*\([^()]*\)$")
_UNEQUAL = "≠"

Record = Mapping[str, Any]


def chosen(records: Sequence[Record]) -> list[Record]:
    """All records, those to show first: headline claims that have a value, one that failed among
    the first :data:`MAX_CLAIMS`.

    Of those that failed, headline and mechanism claims come before other kinds.

    >>> kinds = ["headline", "mechanism", "headline", "headline", "group"]
    >>> verdicts = ["reproduced"] * 4 + ["differs"]
    >>> rows = [{"kind": k, "verdict": v, "our_value": 1} for k, v in zip(kinds, verdicts)]
    >>> [row["kind"] for row in chosen(rows)]
    ['headline', 'headline', 'group', 'headline', 'mechanism']
    """
    ordered = sorted(records, key=lambda r: (r["kind"] != "headline", r["our_value"] is None))
    first = ordered[:MAX_CLAIMS]
    missed = [record for record in ordered if record["verdict"] in MISSED]
    missed.sort(key=lambda record: record["kind"] not in REPRODUCTIONS)
    if not missed or any(record in missed for record in first):
        return ordered
    kept = first[: MAX_CLAIMS - 1] if len(ordered) >= MAX_CLAIMS else first
    shown = [*kept, missed[0]]
    rest = [record for record in ordered if all(record is not other for other in shown)]
    return [*shown, *rest]


def row(record: Record, claim: Claim | None) -> dict[str, Any]:
    """What a slide says of one claim; ``claim`` is None where its file no longer has it.

    Besides what :func:`tally.row` says: ``short`` (the statement), ``verdict_shown`` with its
    ``sign``, ``rule``, and ``factor``, how far ours is from the paper's.
    """
    said = tally.row(record, DIGITS)
    papers = tally.with_unit(record["paper_value"], record["unit"], DIGITS)
    if said["ours"] == papers and record["verdict"] in MISSED:  # what differs must look so
        said = tally.row(record)
    shown = {"short": _short(record["statement"]), "factor": "", "rule": ""}
    shown["place"] = "on a fitted model" if record.get("fitted") is not None else ""
    shown |= {"verdict_shown": record["verdict"], "sign": tally.SYMBOLS[record["verdict"]]}
    if claim is None:
        return said | shown
    shown["rule"] = tally.rule_in_words(claim)
    if record["verdict"] in ("same direction", "differs"):
        shown["factor"] = factor_in_words(claim, record["our_value"])
    if record["verdict"] == "same direction":
        shown["verdict_shown"] = effect_in_words(claim, record["our_value"])
        shown["sign"] = _UNEQUAL
    return said | shown


def effect_in_words(claim: Claim, ours: Value) -> str:
    """How an effect on the paper's side compares with the paper's: "smaller effect", "larger drop".

    An effect is the distance from the value that means no effect (``neutral``), a drop one to
    below it. Lists with both have "other sizes".
    """
    if claim.judge == "ordering":
        return "other order"
    if claim.neutral is None or not are_numbers(ours):
        return "other size"
    values = numbers(ours)
    papers = numbers(claim.paper) if are_numbers(claim.paper) else []
    if claim.judge == "between" and len(papers) != len(values):
        (low, high) = claim.interval
        papers = [low if low >= claim.neutral else high] * len(values)
    noun = "drop" if all(paper < claim.neutral for paper in papers) else "effect"
    effects = [abs(value - claim.neutral) for value in values]
    published = [abs(paper - claim.neutral) for paper in papers]
    if all(effect < paper for effect, paper in zip(effects, published, strict=True)):
        return f"smaller {noun}"
    if all(effect > paper for effect, paper in zip(effects, published, strict=True)):
        return f"larger {noun}"
    return "other sizes"


def factor_in_words(claim: Claim, ours: Value) -> str:
    """How far ours is from the paper's: a factor, or how many pairs stand in its order; "" where
    neither means anything."""
    if claim.judge == "ordering":
        (agree, differ) = pairs_in_order(claim.paper, ours)
        return f"{agree} of {agree + differ} pairs in its order"
    ratio = ratio_of(claim, ours)
    if ratio is None or ratio <= 0:
        return ""
    furthest = "up to " if isinstance(ours, list) and ratio > 1 else ""
    furthest = "down to " if isinstance(ours, list) and ratio < 1 else furthest
    return f"{furthest}{number(ratio, 2)} × the paper's"


def counted(records: Sequence[Record]) -> str:
    """How all claims were judged, in a sentence for the foot of the slide.

    >>> counted([{"kind": "headline", "verdict": v} for v in ("reproduced", "not earned")])
    'Of 2 headline or mechanism claims 1 is reproduced, 1 not earned (its rival passes too).'
    """
    counts = tally.tally(records)
    parts = []
    places = (
        ("headline or mechanism claim", counts.reproductions),
        ("headline or mechanism claim on a fitted model", counts.fitted),
        ("other claim", counts.others),
    )
    for what, verdicts in places:
        if verdicts:
            missed = dict(verdicts)
            num_reproduced = missed.pop("reproduced", 0)
            verb = "is" if num_reproduced == 1 else "are"
            words = [f"{num_reproduced or 'none'} {verb} reproduced"]
            words += [f"{count} {_plainly(verdict, count)}" for verdict, count in missed.items()]
            num = sum(verdicts.values())
            what = what if num == 1 else what.replace("claim", "claims")
            parts.append(f"of {num} {what} {', '.join(words)}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _plainly(verdict: str, count: int) -> str:
    """A verdict as the foot says it of ``count`` claims."""
    if verdict == "not earned":
        return f"not earned ({'its' if count == 1 else 'their'} rival passes too)"
    if verdict == "same direction":
        return "on the paper's side, of another size"
    return "differ" if verdict == "differs" and count > 1 else verdict


def _short(statement: str) -> str:
    return _REMARK.sub("", statement) if len(statement) > LONGEST_STATEMENT else statement
