"""The story of the second form: the idea, a guess, naive → one change → assert, the rivals, what
to change, and the ways through."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from labkit.workbook.notebooks import GUESS_MIME, PLOTLY_MIME
from labkit.workbook.review.anatomy import TODO, WAYS, Cell, Section, Subject
from labkit.workbook.review.rules.rule import Remark, rule, section_rule

CHANGES = {"flagship": 3, "standard": 1}
"""The least of cells tagged ``change-me``."""
STEPS = 3
"""The least of code cells in a mechanism: naive, one change, assert."""
LEAST_ON_A_WAY = 3
_PICTURES = (PLOTLY_MIME, "text/html", "image/svg+xml", "image/png", "text/markdown")


@rule(
    "idea",
    "a cell tagged 'idea' shows the paper's idea as a picture, before any code of the mechanism",
)
def idea_comes_first(subject: Subject) -> Iterator[Remark]:
    fix = "a figure, a drawing or a few lines of Markdown, in 'insight' or before the first code"
    cells = subject.tagged("idea")
    if not cells:
        yield Remark(None, "no cell is tagged 'idea'", fix)
        return
    mechanism = subject.section("mechanism")
    code = [cell for cell in mechanism.code if cell not in cells] if mechanism else []
    if code and code[0].number < cells[0].number:
        yield Remark(cells[0], "the picture of the idea comes after the code of it", fix)
    shows = any(cells[0].output_data(mime) for mime in _PICTURES)
    is_written = TODO not in cells[0].source
    if cells[0].is_code and is_written and subject.was_executed and not shows:
        yield Remark(cells[0], "the 'idea' cell shows nothing", fix)


@rule("predict", "the reader guesses the headline's number before it is shown")
def reader_guesses_first(subject: Subject) -> Iterator[Remark]:
    fix = "`guess = workbook.predict(…)` and `guess`, in a code cell tagged 'predict'"
    cells = [cell for cell in subject.tagged("predict") if cell.is_code]
    asking = [cell for cell in cells if any(cell.calls("predict"))]
    if not asking:
        yield Remark(cells[0] if cells else None, "nothing asks for a guess", fix)
        return
    headline = subject.section("reproduction")
    if headline and asking[0].number > headline.first.number:
        yield Remark(asking[0], "the guess is asked for after the headline", "before it")
    if subject.was_executed and not asking[0].output_data(GUESS_MIME):
        problem = "the question does not show"
        yield Remark(asking[0], problem, "the guess as the cell's last line: `guess`")
    is_written = headline is not None and not headline.is_unwritten
    if is_written and not any(any(cell.calls("mark")) for cell in subject.code):
        problem = "the guess is drawn into no figure"
        yield Remark(asking[0], problem, "`guess.mark(figure)` in the headline's figure")


@section_rule(
    "mechanism",
    f"naive → one change → assert: {STEPS} code cells or more, each few after a sentence",
    name="steps",
)
def mechanism_goes_step_by_step(subject: Subject, section: Section) -> Iterator[Remark]:
    code = section.code
    if len(code) < STEPS:
        fix = "a short cell a step: the naive way, one change, the assert, the number it moved"
        yield Remark(section.first, f"the mechanism has {len(code)} code cells", fix)
        return
    in_a_row = 0
    for cell in section.cells:
        in_a_row = in_a_row + 1 if cell.is_code else 0
        if in_a_row == STEPS:
            problem = f"{STEPS} code cells with no sentence between them"
            yield Remark(cell, problem, "each step after a sentence that says what it does")
    asserts = [cell for cell in code if _holds(cell, ast.Assert)]
    if asserts and asserts[0] in code[: STEPS - 1]:
        fix = "first the naive way and the change, then the assert"
        yield Remark(asserts[0], "the assert comes before the steps that it checks", fix)
    if subject.was_executed and not any(cell.outputs for cell in code):
        fix = "a printed trace, a table or a figure: the number that the change moved"
        yield Remark(section.first, "the mechanism shows no number", fix)


def _holds(cell: Cell, kind: type[ast.AST]) -> bool:
    return cell.tree is not None and any(isinstance(node, kind) for node in ast.walk(cell.tree))


@rule(
    "rivals",
    "a section 'rivals' puts the nearest rivals in the method's place: paper.rivals",
)
def rivals_take_the_methods_place(subject: Subject) -> Iterator[Remark]:
    fix = "`paper.rivals(headline, [method, rival, …], claims)` after 'claims'"
    section = subject.section("rivals")
    if section is None:
        yield Remark(None, "no cell is tagged 'rivals'", fix)
        return
    calling = [cell for cell in section.code if any(cell.calls("rivals"))]
    if not calling and not section.is_unwritten:
        yield Remark(section.first, "paper.rivals is not called", fix)
    figures = [figure for cell in calling for figure in cell.output_data(PLOTLY_MIME)]
    if calling and subject.was_executed and not any(map(_moves, figures)):
        yield Remark(calling[0], "no stored figure has a menu of rivals", fix)


def _moves(figure: dict[str, object]) -> bool:
    layout = figure["layout"]
    sliders = layout.get("sliders", []) if isinstance(layout, dict) else []
    return any(len(slider.get("steps", [])) > 1 for slider in sliders)


@rule(
    "change-me",
    "cells tagged 'change-me' name one line to edit and what should happen: "
    + ", ".join(f"{size} at least {least}" for size, least in CHANGES.items()),
)
def reader_changes_a_line(subject: Subject) -> Iterator[Remark]:
    least = CHANGES[subject.size or "standard"]
    cells = subject.tagged("change-me")
    fix = "'**Change me.** Replace `a` by `b`: the assert fails at the second request.'"
    if len(cells) < least:
        yield Remark(None, f"{len(cells)} cells tagged 'change-me'", f"at least {least}: {fix}")
    for cell in cells:
        is_written = TODO not in cell.source
        if is_written and not cell.is_code and not re.search(r"`[^`]+`", cell.prose):
            yield Remark(cell, "names no line to change", fix)


@rule(
    "ways",
    f"{LEAST_ON_A_WAY} cells or more are tagged 'path-5', and all of them, and more, 'path-30'",
)
def ways_lead_through(subject: Subject) -> Iterator[Remark]:
    short, long = (subject.tagged(tag) for tag in WAYS)
    for tag, cells in (("path-5", short), ("path-30", long)):
        if len(cells) < LEAST_ON_A_WAY:
            fix = f"the cells of a way of {WAYS[tag]}: at least {LEAST_ON_A_WAY}"
            yield Remark(None, f"{len(cells)} cells tagged {tag!r}", fix)
    for cell in short:
        if cell not in long:
            yield Remark(cell, "on the way of 5 minutes and not of half an hour", "'path-30' too")
