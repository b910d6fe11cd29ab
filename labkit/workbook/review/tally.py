"""Verdicts as people read them, and counted: reproductions apart from all other claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from labkit.quantities import NOTHING, number
from labkit.workbook.review.tables import cell_text
from labkit.workbook.review.verdicts import (
    DIGITS,
    REPRODUCTIONS,
    Claim,
    Verdict,
    are_numbers,
    tolerance_in_words,
    verdict_of,
)

_LONGEST_LIST = 6
_UNITLESS = "dimensionless"
NO_BREAK = "\N{NO-BREAK SPACE}"
WARNINGS = (
    "Stand-in data: published data were not at hand where this was run, so figures and numbers "
    "rest on our own stand-in, and claims that need the published data are not judged.",
    "Fitted models: published data were not at hand where this was run, so figures and numbers "
    "rest on small models fitted to them (stand-in data){typical}. Claims judged on them are "
    "counted apart.",
    "; half of their values lie within {median}\u00a0% of the published",
)
"""What to say over results that rest on stand-in data, and on models fitted to the published; how
near such a model is, which is what holds of most of its values and not its one worst."""
MARKS = (
    "stand-in data, not the published",
    "fitted models, not the published data{typical}",
    " (median error {median}\u00a0%)",
)
"""The same in a few words, for every slide of a deck."""

SYMBOLS: dict[Verdict, str] = {
    "reproduced": "✔",
    "same direction": "≈",
    "differs": "✘",
    "not earned": "⊘",
    "not attempted": "○",
    "not judged": "◇",
}
"""A verdict's sign. The word stands beside it: neither colour nor shape carries it alone."""

LEGEND = (
    "flipped: our value with the nearest rival in the method's place. ✔ within the rule it is "
    "judged by · ≈ outside it, on the paper's side · ✘ neither · ⊘ the rival passes too, so the "
    "method has not earned it"
)
"""What the claims table's column and signs mean; stands above it."""


def flipped_words(record: Mapping[str, Any], unit: str = "") -> str:
    """The flip's value with the sign of its verdict; a dash where there is none."""
    if record.get("flip_value") is None:
        return NOTHING
    return f"{with_unit(record['flip_value'], unit)} {SYMBOLS[record['flip_verdict']]}"


def rival_words(record: Mapping[str, Any], digits: int = DIGITS) -> str:
    r"""What stands in the method's place in a claim's flip, its value, and what follows.

    >>> rival_words({"flip": "one clock", "flip_value": 0.0, "flip_verdict": "differs",
    ...     "verdict": "reproduced", "unit": "fraction"})
    'one clock: 0\xa0%, fails as it should'
    """
    if record.get("flip_value") is None:
        return f"{record['flip']}: not run"
    value = with_unit(record["flip_value"], record["unit"], digits)
    if record["flip_verdict"] == "reproduced":
        return f"{record['flip']}: {value}, passes too"
    is_earned = record["verdict"] == "reproduced"
    return f"{record['flip']}: {value}, fails {'as it should' if is_earned else 'too'}"


def outcome(record: Mapping[str, Any]) -> str:
    r"""A record's verdict in words, with the usual error of the fitted model it rests on, if any.

    >>> outcome({"verdict": "reproduced", "fitted": 0.071, "fitted_median": 0.02})
    'reproduced on a fitted model (median error 2\xa0%)'
    """
    if record.get("fitted") is None:
        return str(record["verdict"])
    median = record.get("fitted_median")
    error = "" if median is None else f" (median error {_per_cent(median)})"
    return f"{record['verdict']} on a fitted model{error}"


def fit_words(record: Mapping[str, Any]) -> str:
    r"""Both errors of the fitted model that a record rests on; "" where it rests on none.

    >>> fit_words({"fitted": 3.8, "fitted_median": 0.052})
    'the model’s error against the published values: median 5.2\xa0%, worst 380\xa0%'
    """
    if record.get("fitted") is None:
        return ""
    names = {"median": "fitted_median", "worst": "fitted"}
    known = {word: record[name] for word, name in names.items() if record.get(name) is not None}
    errors = ", ".join(f"{word} {_per_cent(error)}" for word, error in known.items())
    return f"the model\u2019s error against the published values: {errors}"


def _per_cent(share: float) -> str:
    return f"{number(share * 100, 2)}{NO_BREAK}%"


def unsure(records: Iterable[Mapping[str, Any]], claims: Iterable[Claim]) -> list[str]:
    """The claims on fitted models whose verdict hangs on the model, by id.

    Moved up or down by the model's median error, which then passes into our value in full, the
    value gets another verdict.
    """
    known = {claim.id: claim for claim in claims}
    return [
        record["id"]
        for record in records
        if record.get("fitted_median") is not None
        and record["id"] in known
        and _hangs(record["our_value"], record["fitted_median"], known[record["id"]])
    ]


def _hangs(ours: Any, error: float, claim: Claim) -> bool:
    if isinstance(ours, bool) or not isinstance(ours, int | float):
        return False
    near = {verdict_of(claim, float(ours * factor)) for factor in (1 - error, 1, 1 + error)}
    return len(near) > 1


def signed(record: Mapping[str, Any]) -> str:
    """The same after the verdict's sign."""
    return f"{SYMBOLS[record['verdict']]} {outcome(record)}"


def shown(value: Any, digits: int = DIGITS) -> str:
    """A value in a cell; of a long list the beginning (the record and the frame have it whole)."""
    if isinstance(value, list) and len(value) > _LONGEST_LIST:
        start = cell_text(value[: _LONGEST_LIST // 2], digits)
        return f"{start}, … ({len(value)} values)"
    return cell_text(value, digits)


def with_unit(value: Any, unit: str, digits: int = DIGITS) -> str:
    r"""A value with its unit; a fraction in per cent, as papers print it.

    >>> with_unit([0.252, 0.284], "fraction"), with_unit(1200.0, "J"), with_unit(None, "J")
    ('25.2, 28.4\xa0%', '1,200\xa0J', '–')
    """
    if unit == "fraction" and are_numbers(value):
        parts = [100 * part for part in value] if isinstance(value, list) else 100 * value
        return f"{shown(parts, digits)}{NO_BREAK}%"
    text = shown(value, digits)
    if text == NOTHING or unit in ("", "fraction"):
        return text
    return text + (" " if " " in unit else NO_BREAK) + unit


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Claims counted: reproductions (headline and mechanism) apart from all other kinds.

    Attributes:
        reproductions: verdict -> headline and mechanism claims not on a fitted model.
        fitted: the same for those on a fitted model.
        others: verdict -> consistency and group claims.
    """

    reproductions: dict[Verdict, int]
    fitted: dict[Verdict, int]
    others: dict[Verdict, int]

    @property
    def shares(self) -> list[tuple[str, dict[Verdict, int]]]:
        """On published data and on fitted models: the share reproduced, and the other verdicts."""
        shares = []
        for where, counts in (("", self.reproductions), (" on a fitted model", self.fitted)):
            if counts:
                missed = dict(counts)
                share = f"{missed.pop('reproduced', 0)} of {sum(counts.values())} reproduced"
                shares.append((f"{share}{where}, each with its flip", missed))
        return shares

    @property
    def not_earned(self) -> int:
        """Reproduced claims whose nearest rival passes as well: not counted as reproduced."""
        return self.all.get("not earned", 0)

    @property
    def all(self) -> dict[Verdict, int]:
        """Verdict -> headline and mechanism claims, wherever they were judged."""
        counts = Counter(self.reproductions) + Counter(self.fitted)
        return {verdict: counts[verdict] for verdict in SYMBOLS if counts[verdict]}

    @property
    def words(self) -> str:
        """The tally on one line: what is reproduced first, each kind of count named."""
        parts = [part for share, missed in self.shares for part in (share, _signed(missed)) if part]
        parts += [f"consistency and group: {_signed(self.others)}"] if self.others else []
        return "; ".join(parts)


def tally(records: Iterable[Mapping[str, Any]]) -> Tally:
    """Count the verdicts of ``records`` by what kind of claim they are about."""
    counts = {field.name: Counter[Verdict]() for field in fields(Tally)}
    for record in records:
        where = "reproductions" if record.get("fitted") is None else "fitted"
        name = where if record.get("kind") in REPRODUCTIONS else "others"
        counts[name][record["verdict"]] += 1
    found = {}
    for name, count in counts.items():
        found[name] = {verdict: count[verdict] for verdict in SYMBOLS if count[verdict]}
    return Tally(**found)


def _signed(counts: Mapping[Verdict, int]) -> str:
    return " · ".join(f"{SYMBOLS[name]} {count} {name}" for name, count in counts.items())


# ---------------------------------------------------------------- for pages


def standin_warning(claims: Iterable[Mapping[str, Any]], words: tuple[str, ...] = WARNINGS) -> str:
    """Which of ``words`` holds of results with these claims; "" where none rests on stand-ins."""
    (unjudged, fitted, error) = words
    records = list(claims)
    if any(claim["verdict"] == "not judged" for claim in records):
        return unjudged
    if all(claim.get("fitted") is None for claim in records):
        return ""
    medians = [claim.get("fitted_median") for claim in records]
    known = [median for median in medians if median is not None]
    typical = error.format(median=number(max(known) * 100, 2)) if known else ""
    return fitted.format(typical=typical)


def rule_in_words(claim: Claim) -> str:
    """How a claim is judged; bounds of a fraction in per cent or points, as its values print."""
    if claim.unit != "fraction" or claim.judge in ("ratio", "ordering", "equal"):
        return tolerance_in_words(claim)
    between = claim.judge == "between"
    scaled = tuple(100 * end for end in claim.interval) if between else 100 * claim.slack
    changed = {"tolerance": scaled, "unit": "%" if between else "points"}
    return tolerance_in_words(claim.model_copy(update=changed))


def row(claim: Mapping[str, Any], digits: int = DIGITS) -> dict[str, Any]:
    r"""A stored claim with what a page prints of it as texts: values with unit, ratio, flip.

    ``digits`` are the significant ones of our values; the paper's stand as they are printed.

    >>> row({"paper": "x", "id": "saving", "statement": "It saves", "source": "§6", "unit": "J",
    ...      "paper_value": 1200.0, "our_value": None, "ratio": None, "verified": False,
    ...      "kind": "headline", "verdict": "not attempted"})["paper"]
    '1,200\xa0J (unverified)'
    """
    sides = claim["paper_value"], claim["our_value"]
    paper = with_unit(claim["paper_value"], claim["unit"])
    ours = with_unit(claim["our_value"], claim["unit"], digits)
    is_number = are_numbers(next((value for value in sides if value is not None), None))
    marks = "" if claim["verified"] or claim["paper_value"] is None else " (unverified)"
    return {
        **{"kind": "", "flip": "", "rule": ""},
        **claim,
        "paper": paper + marks,
        "ours": ours,
        "paper_whole": cell_text(claim["paper_value"]),
        "ours_whole": cell_text(claim["our_value"]),
        "ratio": cell_text(claim["ratio"]),
        "unit": claim["unit"] or _UNITLESS * is_number,
        "flipped": flipped_words(claim, claim["unit"]),
        "rival": rival_words(claim, digits) if claim.get("flip") else "",
        "where": outcome(claim).removeprefix(claim["verdict"]).strip(),
        "fit": fit_words(claim),
    }
