"""What the prose may not say (hand-typed results, words that judge), and whether what it points at
is where the words say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from labkit.workbook.notebooks import PLOTLY_MIME
from labkit.workbook.review.anatomy import Cell, Section, Subject
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


def whole_sentences(text: str) -> list[str]:
    """The sentences of Markdown; list items and rows are their own, code and maths stay whole.

    >>> whole_sentences("It sends $x. Y$ (Fig. 3). `a. B` it costs.\\n- 2 J more")
    ['It sends $x. Y$ (Fig. 3).', '`a. B` it costs.', '- 2 J more']
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
    for sentence in _split(_NOT_PROSE.sub("", text)):
        if not _PAPERS.search(sentence):
            for match in _RESULT.finditer(sentence):
                yield match[0].strip(), sentence


@rule(
    "hand-typed",
    f"in {', '.join(RESULT_SECTIONS)} a number with a unit is the paper's, and says where from",
)
def no_hand_typed_results(subject: Subject) -> Iterator[Remark]:
    sections = (section for section in subject.sections if section.tag in RESULT_SECTIONS)
    for cell in (cell for section in sections for cell in section.cells):
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


# ---------------------------------------------------------------- what it points at

_NOT_THE_PAPERS = r"(?!paper|published|printed|same|authors|original)"
_ELSEWHERE = re.compile(
    r"\babove\b(?!\s+(?:the|an?|all|what|it|that|which|every|our|its|zero|one|\d))"
    r"|\bbelow\s*(?:[).:;]|$)|\b(?:claim|table|figure|list|cell|code)s?\s+below\b"
    rf"|\b(?:our|the)\s+{_NOT_THE_PAPERS}\w+\s+figures?\b"
    r"|\bthe (?:first|second|third|last|next) (?:shows?|has|is|are|draws?)\b"
    r"|\bthe (?:first|second|third|next|last|other) tables?\b"
    r"|\bassert(?:s|ions?)?\b|\b(?:in|by) the (?:next |last |first )?cell\b",
    re.I,
)
_TABLE = re.compile(
    rf"\b(?:the|our|this)\s+(?:{_NOT_THE_PAPERS}\w+\s+)?tables?\b(?!\s+\d)|^tables?:", re.I
)
_BELOW = re.compile(r"(?:^|[.;:(]\s*)below\b|^below", re.I)


def elsewhere(text: str, *, has_table: bool = False, before: bool = False) -> bool:
    """Whether ``text`` speaks of a table, figure, claim or cell that a page of its own would lack.

    ``has_table``: a table is on the page; ``before``: what is shown comes below the text.

    >>> [elsewhere(t) for t in ("Our table has both.", "Table 3 has both.", "It sinks below 2.")]
    [True, False, False]
    """
    return bool(
        _ELSEWHERE.search(text)
        or (not has_table and _TABLE.search(text))
        or (not before and _BELOW.search(text))
    )


_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_NUMBERED = re.compile(r"\b(?:the|our) (first|second|third|fourth) (table|figure|panel)\b", re.I)
_PLACED = re.compile(r"\b(?:the|our) (table|figure)s? (above|below)\b", re.I)
_OURS = re.compile(r"\bour (table|figure)(s?) (?:shows?|has|have|is|are|draws?)\b", re.I)
_HEADLINE = re.compile(r"\bthe headline (table|figure)\b", re.I)
_NOTICED = re.compile(r"\bNotice\b[^.]*?`([^`\n]+)`")


@rule("references", "a table, figure, panel or name that the prose points at is there")
def what_is_pointed_at_is_there(subject: Subject) -> Iterator[Remark]:
    if not subject.was_executed:
        return
    sections = subject.sections
    for place, section in enumerate(sections):
        near = [*sections[max(place - 1, 0)].cells, *section.cells] if place else section.cells
        for cell in section.cells:
            for pointer, missing in _missing(subject, section, cell, near):
                fix = f"{missing}, or words that say what is there"
                yield Remark(cell, f"speaks of {pointer!r}, which is not there", fix)


def _missing(
    subject: Subject, section: Section, cell: Cell, near: Sequence[Cell]
) -> Iterator[tuple[str, str]]:
    """What ``cell`` points at in vain, and what would be there."""
    text = cell.prose
    for match in _NUMBERED.finditer(text):
        where = subject.cells if match[1].lower() == "first" else near
        if _count(match[2], where) < _ORDINALS[match[1].lower()]:
            yield match[0], f"a {match[1]} {match[2]} in this section"
    for match in _PLACED.finditer(text):
        is_above = match[2].lower() == "above"
        places = subject.cells[: cell.number - 1] if is_above else subject.cells[cell.number :]
        if not _count(match[1], places):
            yield match[0], f"a {match[1]} {match[2]}"
    for match in _OURS.finditer(text):
        if _count(match[1], section.cells) < 1 + bool(match[2]):
            yield match[0], f"a {match[1]} of ours in this section"
    for match in _HEADLINE.finditer(text):
        if not _count(match[1], (subject.section("reproduction") or section).cells):
            yield match[0], f"a {match[1]} in the section 'reproduction'"
    for match in _NOTICED.finditer(text):
        sources = [c.source for c in {*subject.code, *section.cells} - {cell}]
        shown = [str(output) for c in section.cells for output in c.outputs]
        if not any(match[1].casefold() in text.casefold() for text in sources + shown):
            yield match[1], "a name of the code, or of the section's figures and tables"


def _count(kind: str, cells: Sequence[Cell]) -> int:
    """How many tables or figures the cells show; of panels the most in one figure."""
    if kind.lower() == "table":
        pages = [str(text) for cell in cells for text in cell.output_data("text/html")]
        return sum("<table" in page for page in pages)
    figures = [figure for cell in cells for figure in cell.output_data(PLOTLY_MIME)]
    if kind.lower() == "figure":
        return len(figures)
    axes = [[n for n in figure["layout"] if re.match(r"[xy]axis", n)] for figure in figures]
    return max(
        (max(sum(n[0] == letter for n in names) for letter in "xy") for names in axes), default=0
    )


@rule("drawn", "every named line of a stored figure has a value")
def lines_have_values(subject: Subject) -> Iterator[Remark]:
    for cell in subject.code:
        for figure in cell.output_data(PLOTLY_MIME):
            drawn: dict[str, bool] = {}
            for trace in figure.get("data", []):
                name = trace.get("name")
                values = trace.get("y")
                if name and isinstance(values, list) and len(values) > 1:
                    drawn[name] = drawn.get(name, False) or any(v is not None for v in values)
            for name in [name for name, has_value in drawn.items() if not has_value]:
                fix = "values, or a figure without it: the notebook's words rely on it"
                yield Remark(cell, f"the line {name!r} has no value at all", fix)
