"""What the prose may not say: hand-typed results, and words that judge instead of help."""

from __future__ import annotations

import re
from collections.abc import Iterator

from labkit.workbook.review.anatomy import Section, Subject
from labkit.workbook.review.rules.rule import Remark, rule, section_rule

RESULT_SECTIONS = ("title", "reproduction", "differences", "weaknesses")

_UNITS = (
    r"%|‰|×|x|percent|percentage points?|pp|times|-?fold"
    r"|[kMGT]?J|joules?|[kMm]?Wh?|watts?"
    r"|ms|µs|us|ns|s|min|h|seconds?|minutes?|hours?"
    r"|[kKMGTP]i?B(?:/s)?|bytes"
    r"|[GTP]?FLOPs?(?:/s)?|[GTP]FLOPS|[MG]Hz"
)
_RESULT = re.compile(
    rf"(?<![\w.,$§/-])[+\-±~≈−]?\d[\d.,\u202f]*(?:\s?(?:–|-|to)\s?\d[\d.,]*)?\s?\\?(?:{_UNITS})(?!\w)"
)
_PAPERS = re.compile(
    r"§|\bfigs?\b|\bfigures?\b|\btables?\b|\btab\.|\beqs?\.|\bequations?\b|\bsec\.|\bsections?\b"
    r"|\bappendix\b|\babstract\b|\bpapers?\b|\bauthors?\b|\bartifact\b|\bunverified\b|\]\(http",
    re.I,
)
_NOT_PROSE = re.compile(r"`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|<[^>]+>", re.S)
_ABBREVIATION = re.compile(
    r"\b(Figs?|Tabs?|Eqs?|Secs?|Alg|e\.g|i\.e|vs|al|cf|approx|resp|no)\.", re.I
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)|\n(?=\s*\|)|\n(?=#)")

_HARSH_WORDS = (
    "abysmal|awful|bad|badly|careless|clumsy|crap|dreadful|dumb|garbage|hopeless|horrible"
    "|incompetent|laughable|lazy|meaningless|nonsense|pathetic|pointless|poor|poorly"
    "|ridiculous|rubbish|sloppy|stupid|terrible|terribly|trash|ugly|useless|worthless"
)
_HARSH = re.compile(rf"\b({_HARSH_WORDS})\b", re.I)
_COSMETIC = re.compile(r"\b(typos?|misspell\w*|misprint\w*|spelling|grammar|wording)\b", re.I)


def sentences(text: str) -> list[str]:
    """The sentences of Markdown, without code, maths and tags; list items and rows are their own.

    >>> sentences("We save energy (Fig. 3). It costs `5 %`.\\n- 2 J more")
    ['We save energy (Fig. 3).', 'It costs .', '- 2 J more']
    """
    return _split(_NOT_PROSE.sub("", text))


def whole_sentences(text: str) -> list[str]:
    """The same with code, maths and tags left where they stand.

    >>> whole_sentences("It sends $x. Y$ (Fig. 3). `a. B` it costs.")
    ['It sends $x. Y$ (Fig. 3).', '`a. B` it costs.']
    """
    spans = iter(_NOT_PROSE.findall(text))
    masked = _split(_NOT_PROSE.sub("\1", text))
    return [re.sub("\1", lambda _: next(spans), part) for part in masked]


def _split(text: str) -> list[str]:
    sentences_in: list[str] = []
    for block in _BLOCK.split(text):
        flat = _ABBREVIATION.sub(lambda match: match[0][:-1] + "\0", " ".join(block.split()))
        parts = _SENTENCE_END.split(flat)
        sentences_in += [part.replace("\0", ".") for part in parts if part]
    return sentences_in


def hand_typed(text: str) -> Iterator[tuple[str, str]]:
    """Numbers with a unit in sentences that do not say they are the paper's, with the sentence.

    >>> list(hand_typed("We save 12 % of it. The paper saves 28.4 % (abstract). Try `9 %`."))
    [('12 %', 'We save 12 % of it.')]
    """
    for sentence in sentences(text):
        if not _PAPERS.search(sentence):
            for match in _RESULT.finditer(sentence):
                yield match[0].strip(), sentence


@rule(
    "hand-typed",
    f"in {', '.join(RESULT_SECTIONS)} a number with a unit is the paper's, and says where from",
)
def no_hand_typed_results(subject: Subject) -> Iterator[Remark]:
    for section in subject.sections:
        if section.tag not in RESULT_SECTIONS:
            continue
        for cell in section.cells:
            for number, sentence in hand_typed(cell.prose):
                shown = sentence if len(sentence) < 90 else sentence[:87] + "…"
                yield Remark(
                    cell,
                    f"{number!r} is typed by hand: {shown}",
                    "ours: print it from a cell; the paper's: say where, as in (§6.2) or "
                    "(Fig. 10); a setting: write it as `code`",
                )


@section_rule(
    "weaknesses", "weaknesses never judge: they say what would be stronger", name="kindness"
)
def kind_weaknesses(subject: Subject, section: Section) -> Iterator[Remark]:
    for cell in section.cells:
        text = _NOT_PROSE.sub("", cell.prose)
        for match in _HARSH.finditer(text):
            fix = "'would be stronger if …', with the evidence"
            yield Remark(cell, f"{match[0]!r} judges", fix)
        for match in _COSMETIC.finditer(text):
            fix = "the section 'comments': weaknesses attack assumptions and experiments"
            yield Remark(cell, f"{match[0]!r} is no weakness", fix)
