"""The least that a notebook holds: figures, claims, weaknesses; and how long it may run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from labkit.workbook.review.anatomy import SIZES, Subject
from labkit.workbook.review.rules.rule import Remark, rule
from labkit.workbook.review.verdicts import Claim

MAX_SECONDS = {"flagship": 45, "standard": 20}
_ADVICE = "what a reader need not see goes into labkit, what only some need into <details>"


def judged_claims(subject: Subject) -> list[Claim]:
    """The paper's claims but for those that the stored outputs list as not attempted."""
    stored = subject.stored_claims
    return [c for c in subject.claims if stored.get(c.id, {}).get("verdict") != "not attempted"]


def _weaknesses(subject: Subject) -> int:
    section = subject.section("weaknesses")
    return sum(bool(p.cells("weakness")) for p in section.weaknesses) if section else 0


Span = tuple[int, int | None]
SPANS: dict[str, dict[str, Span]] = {
    "sections tagged 'figure'": {"flagship": (2, None), "standard": (2, None)},
    "judged claims": {"flagship": (5, 10), "standard": (3, 6)},
    "claims of kind 'headline'": {"flagship": (3, None), "standard": (2, None)},
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
    """A budget as a sentence has it.

    >>> span_in_words((5, 10)), span_in_words((3, None)), span_in_words((0, 20))
    ('5 to 10', 'at least 3', 'at most 20')
    """
    least, most = span
    if most is None:
        return f"at least {least}"
    return f"{least} to {most}" if least > 1 else f"at most {most}"


def _in_words() -> str:
    parts = []
    for what, spans in SPANS.items():
        sizes = list(dict.fromkeys(span_in_words(spans[size]) for size in SIZES))
        parts.append(f"{what} {' / '.join(sizes)}")
    return f"{' / '.join(SIZES)}: {'; '.join(parts)}"


@rule("budget", _in_words())
def within_budget(subject: Subject) -> Iterator[Remark]:
    for (what, spans), count in zip(SPANS.items(), _COUNTS, strict=True):
        least, most = spans[subject.size or SIZES[-1]]
        number = count(subject)
        if number < least or (most is not None and number > most):
            fix = f"a {subject.size or SIZES[-1]} notebook: {span_in_words((least, most))}"
            advice = f"; {_ADVICE}" if most is not None and number > most else ""
            yield Remark(None, f"{number} {what}", fix + advice)


_SECONDS = " / ".join(f"{MAX_SECONDS[size]} s" for size in SIZES)


@rule(
    "seconds", f"{' / '.join(SIZES)}: the last run took at most {_SECONDS}; a warning", warns=True
)
def runs_in_time(subject: Subject) -> Iterator[Remark]:
    """Looks at the result that the stored outputs come from, where it is on this machine."""
    run: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        file = subject.root / "results" / subject.key / "default" / "run.json"
        run = json.loads(file.read_text(encoding="utf-8"))
    size = subject.size or SIZES[-1]
    outputs = subject.notebook.metadata.get("labkit", {}).get("outputs")
    if run.get("fingerprint") == outputs and run.get("duration_s", 0) > MAX_SECONDS[size]:
        fix = f"a {size} notebook: at most {MAX_SECONDS[size]} s alone on 2 cores"
        yield Remark(None, f"its last run took {run['duration_s']:.0f} s", fix)
