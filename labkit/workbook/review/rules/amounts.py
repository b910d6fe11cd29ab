"""How much a notebook holds: the least of figures, claims and weaknesses; what of the reader's time
it asks for, as warnings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from labkit.errors import LabkitError
from labkit.quantities import is_finite_number
from labkit.workbook.review import claims as claims_file
from labkit.workbook.review.anatomy import FOLD, SIZES, Subject, words
from labkit.workbook.review.rules.rule import Remark, rule
from labkit.workbook.review.verdicts import Claim

MAX_SECONDS = {"flagship": 45, "standard": 20}
MAX_WORDS = {"flagship": 2_500, "standard": 1_500}
"""Of prose outside folds. A definition is never what one saves."""


def judged_claims(subject: Subject) -> list[Claim]:
    """The paper's claims but for those that the stored outputs list as not attempted."""
    stored = subject.stored_claims
    return [c for c in subject.claims if stored.get(c.id, {}).get("verdict") != "not attempted"]


def _weaknesses(subject: Subject) -> int:
    section = subject.section("weaknesses")
    return sum(bool(p.cells("weakness")) for p in section.weaknesses) if section else 0


def _abstract_has_no_number(subject: Subject) -> bool:
    try:
        return claims_file.load_file(subject.root, subject.key).abstract_numbers == []
    except LabkitError:  # another rule says what is wrong with the file
        return False


def _said_why_not(subject: Subject) -> int:
    """Headline claims that are listed as not attempted, with a note that says why."""
    judged = judged_claims(subject)
    return sum(
        claim.kind == "headline" and bool(claim.note) and claim not in judged
        for claim in subject.claims
    )


HEADLINES = "claims of kind 'headline'"
Span = tuple[int, int | None]
SPANS: dict[str, dict[str, Span]] = {
    "sections tagged 'figure'": {"flagship": (2, None), "standard": (2, None)},
    # No most: with one, whoever judged too many would drop those that fail.
    "judged claims": {"flagship": (5, None), "standard": (3, None)},
    HEADLINES: {"flagship": (3, None), "standard": (2, None)},
    "weaknesses with a code cell tagged 'weakness'": {"flagship": (3, None), "standard": (2, None)},
}
"""What a notebook of either size holds: the least and the most of each."""
_COUNTS: tuple[Callable[[Subject], int], ...] = (
    lambda subject: sum(section.tag == "figure" for section in subject.sections),
    lambda subject: len(judged_claims(subject)),
    lambda subject: sum(claim.kind == "headline" for claim in judged_claims(subject)),
    _weaknesses,
)


def span_in_words(span: Span) -> str:
    """The least and the most as a sentence has them.

    >>> span_in_words((5, 10)), span_in_words((3, None))
    ('5 to 10', 'at least 3')
    """
    least, most = span
    return f"at least {least}" if most is None else f"{least} to {most}"


def _in_words() -> str:
    parts = []
    for what, spans in SPANS.items():
        sizes = list(dict.fromkeys(span_in_words(spans[size]) for size in SIZES))
        parts.append(f"{what} {' / '.join(sizes)}")
    return f"{' / '.join(SIZES)}: {'; '.join(parts)}"


@rule("amounts", _in_words())
def holds_enough(subject: Subject) -> Iterator[Remark]:
    for (what, spans), count in zip(SPANS.items(), _COUNTS, strict=True):
        least, most = spans[subject.size or SIZES[-1]]
        if what == HEADLINES:  # a second one would be invented
            if _abstract_has_no_number(subject):
                least = min(least, 1)
            least = max(least - _said_why_not(subject), 1)
        number = count(subject)
        if number < least or (most is not None and number > most):
            fix = f"a {subject.size or SIZES[-1]} notebook: {span_in_words((least, most))}"
            yield Remark(None, f"{number} {what}", fix)


_SECONDS = " / ".join(f"{MAX_SECONDS[size]} s" for size in SIZES)


@rule(
    "seconds", f"{' / '.join(SIZES)}: the last run took at most {_SECONDS}; a warning", warns=True
)
def runs_in_time(subject: Subject) -> Iterator[Remark]:
    """Looks at the result that the stored outputs come from, where it is on this machine."""
    file = subject.root / "results" / subject.key / "default" / "run.json"
    run: Any = None
    with suppress(OSError, ValueError, RecursionError):
        run = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    size = subject.size or SIZES[-1]
    outputs = subject.notebook.metadata.get("labkit", {}).get("outputs")
    took_s = run.get("duration_s") if isinstance(run, dict) else None
    if not is_finite_number(took_s) or run.get("fingerprint") != outputs:
        return  # nobody ran it here, or what stands there is no record of ours
    if took_s > MAX_SECONDS[size]:
        fix = f"a {size} notebook: at most {MAX_SECONDS[size]} s alone on 2 cores"
        yield Remark(None, f"its last run took {took_s:.0f} s", fix)


_WORDS = " / ".join(f"{MAX_WORDS[size]:,}" for size in SIZES)


@rule(
    "words",
    f"{' / '.join(SIZES)}: at most about {_WORDS} words outside folds; a warning",
    warns=True,
)
def reads_in_time(subject: Subject) -> Iterator[Remark]:
    size = subject.size or SIZES[-1]
    count = words(FOLD.sub("", "\n\n".join(cell.prose for cell in subject.cells)))
    if count > MAX_WORDS[size]:
        fix = (
            f"a {size} notebook: about {MAX_WORDS[size]:,}; what only some need goes into "
            "<details>, a definition never"
        )
        yield Remark(None, f"{count:,} words outside folds", fix)
