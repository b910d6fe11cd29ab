"""What the prose points at: a table, a figure, a cell that must be where the words say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from labkit.workbook.notebooks import PLOTLY_MIME
from labkit.workbook.review.anatomy import Cell, Section, Subject
from labkit.workbook.review.rules.rule import Remark, rule

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


# ---------------------------------------------------------------- rules

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
                name, values = trace.get("name"), trace.get("y")
                if name and isinstance(values, list) and len(values) > 1:
                    has_value = any(value is not None for value in values)
                    drawn[name] = drawn.get(name, False) or has_value
            for name in [name for name, has_value in drawn.items() if not has_value]:
                fix = "values, or a figure without it: the notebook's words rely on it"
                yield Remark(cell, f"the line {name!r} has no value at all", fix)
