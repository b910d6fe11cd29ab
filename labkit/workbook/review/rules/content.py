"""What each section must hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from labkit.workbook import notebooks
from labkit.workbook.review import glance
from labkit.workbook.review.anatomy import QUESTIONS, TODO, Section, Subject, words
from labkit.workbook.review.rules.rule import Remark, needs, rule, section_rule

_SAYS_ENOUGH = 15
_ELEMENT = re.compile(r"\b(fig(ure|\.)|table|tab\.|alg(orithm|\.)|eq(uation|\.)|listing|§)", re.I)
_QUESTION = re.compile(r"^\*\*Q?(?P<number>\d+)[.)]\s+(?P<text>.+?)\*\*", re.M | re.S)
_DETAILS = re.compile(r"<details>(?P<inside>.*?)</details>", re.S)
_SUMMARY = re.compile(r"<summary>.*?</summary>", re.S)


@rule("verdict", "one sentence with the paper's number and ours, ours printed by a cell")
def one_sentence_says_it(subject: Subject) -> Iterator[Remark]:
    """The title's last paragraph, or the Markdown that a code cell tagged ``verdict`` prints."""
    fix = (
        "one sentence: in the title cell, or Markdown that a code cell tagged 'verdict' prints "
        "where the headline is computed"
    )
    title = subject.section("title")
    if title is None or title.is_unwritten:
        return
    cells = [cell for cell in subject.tagged("verdict") if cell.is_code]
    printed = subject.verdict
    paragraphs = [part for part in re.split(r"\n\s*\n", title.body) if words(part)]
    typed = [part for part in paragraphs[1:] if "](" not in part][-1:]
    silent = cells if subject.was_executed and not printed else []
    for cell in (cell for cell in silent if TODO not in cell.source):
        yield Remark(cell, "the 'verdict' cell prints no Markdown", fix)
    if not (typed or cells):
        yield Remark(title.first, "no verdict", fix)
    for text in printed:
        if len(re.findall(r"\d[\d.,]*", text)) < 2:
            yield Remark(cells[0], "the verdict has fewer than two numbers", "the paper's and ours")


@section_rule("at-a-glance", f"a table of five rows ({', '.join(glance.ASPECTS)}), one line each")
def five_lines(subject: Subject, section: Section) -> Iterator[Remark]:
    rows = glance.parse(section.first.source)
    names = [name for name, _ in rows]
    if names != list(glance.ASPECTS):
        yield Remark(
            section.first,
            f"the rows are {', '.join(names) or 'missing'}",
            f"a table `| | |` with the rows {', '.join(glance.ASPECTS)}, in this order",
        )
    for name, line in rows:
        if name not in glance.ASPECTS:
            continue
        if not words(line):
            yield Remark(section.first, f"the row {name!r} is empty", "one line")


needs(
    "insight",
    "situation, observation, consequence",
    (
        lambda section: words(section.body) < _SAYS_ENOUGH,
        "too short for an insight",
        "three sentences: situation, observation, consequence",
    ),
)


@section_rule("symbols", "a table: paper symbol, meaning, unit, name in code, equation")
def symbol_table(subject: Subject, section: Section) -> Iterator[Remark]:
    lines = [line for line in section.prose.splitlines() if line.lstrip().startswith("|")]
    columns = lines[0].strip().strip("|").count("|") + 1 if lines else 0
    fix = "a Markdown table: symbol | meaning | unit | name in code | equation"
    if columns < 5:
        yield Remark(section.first, f"a symbol table of {columns} columns", fix)
    elif len(lines) < 3:
        yield Remark(section.first, "the symbol table has no rows", fix)


def _lacks(pattern: str) -> Callable[[Section], bool]:
    return lambda section: not re.search(pattern, section.prose, re.I)


def _without_code(section: Section) -> bool:
    return not section.code


def _says_nothing_of_it(section: Section) -> bool:
    """Whether no words follow the section's first code cell, and none before it say "notice"."""
    if not section.code or re.search(r"\bnotic", section.prose, re.I):
        return False
    first = section.code[0].number
    return not any(words(cell.prose) for cell in section.cells if cell.number > first)


needs(
    "figure",
    "names the paper's figure, says what it shows and what not, redraws it, says what to notice",
    (
        lambda section: not _ELEMENT.search(section.prose),
        "names no figure or table",
        "its heading: '## Fig. 3 (§2): …'",
    ),
    (
        _lacks(r"\bshow(s|n|ing)?\b"),
        "does not say what the figure shows",
        "'It shows …; it does not show …' before the code",
    ),
    (
        _lacks(r"\bnot\b|n't\b|\bleaves? out\b|\bomits?\b"),
        "does not say what the figure leaves out",
        "'it does not show …'",
    ),
    (_says_nothing_of_it, "does not say what to notice", "a sentence after the code"),
    (_without_code, "no code redraws it", "one to three lines that redraw its idea"),
)
needs(
    "reproduction",
    "the headline result comes out of code that is shown",
    (_without_code, "no code", "a sweep, its table, its figure"),
)
needs(
    "differences",
    "says where we differ; each cause is tested by a cell or said to be untested",
    (
        lambda section: words(section.body) < _SAYS_ENOUGH,
        "too short to name a cause",
        "each difference and its cause",
    ),
)
needs(
    "comments",
    "detailed comments: typos, plots, wording",
    (
        lambda section: not words(section.body),
        "no detailed comments",
        "typos, plots, wording; or no such section",
    ),
)


@section_rule("mechanism", "the paper's ideas as visible code, and an assert")
def mechanism_is_visible(subject: Subject, section: Section) -> Iterator[Remark]:
    if not section.code:
        fix = "the method in lines a reader can follow with the paper in hand"
        yield Remark(section.first, "no code shows the mechanism", fix)
    trees = [cell.tree for cell in section.code if cell.tree]
    if not any(isinstance(node, ast.Assert) for tree in trees for node in ast.walk(tree)):
        fix = "an assert that it equals the engine's answer, or the naive way"
        yield Remark(section.first, "the mechanism is not asserted", fix)
    for cell in section.code:
        if hidden := set(cell.tags) & {"hide-input", "remove-input", "hide-cell", "remove-cell"}:
            yield Remark(cell, f"the mechanism is hidden: {', '.join(hidden)}", "no such tag")


@section_rule(
    "weaknesses", "each under a ### heading: the assumption, the evidence, what would be stronger"
)
def weaknesses_are_experiments(subject: Subject, section: Section) -> Iterator[Remark]:
    for cell in subject.cells:
        if "weakness" in cell.tags and (cell not in section.cells or not cell.is_code):
            fix = "a code cell under a weakness's '### ' heading"
            yield Remark(cell, "a 'weakness' tag in the wrong place", fix)
    for part in section.weaknesses:
        if words(" ".join(part.texts())) < _SAYS_ENOUGH:
            fix = "'would be stronger if …': the assumption, the evidence, what the cell tries"
            yield Remark(part.cell, f"says too little: {part.heading}", fix)
    if not section.weaknesses:
        yield Remark(section.first, "no weakness under a '### ' heading", "'### What it assumes'")
    elif not re.search(r"\bstronger\b", section.prose, re.I):
        yield Remark(section.first, "never says what would be stronger", "'stronger if it …'")


@section_rule("companions", "the companions' rows are pulled by paper.beside")
def companions_are_pulled(subject: Subject, section: Section) -> Iterator[Remark]:
    calls = [call for cell in section.code for call in cell.calls("beside")]
    if not calls:
        yield Remark(section.first, "paper.beside is not called", 'paper.beside("key", …)')
    elif not any(call.args for call in calls):
        yield Remark(section.first, "paper.beside names no companion", 'paper.beside("key", …)')


@section_rule("explorable", "one figure with a slider")
def explorable_moves(subject: Subject, section: Section) -> Iterator[Remark]:
    fix = "a code cell whose figure workbook.explore made"
    if not section.code:
        yield Remark(section.first, "no code", fix)
    elif subject.was_executed:
        figures = [
            figure for cell in section.code for figure in cell.output_data(notebooks.PLOTLY_MIME)
        ]
        sliders = [s for figure in figures for s in figure.get("layout", {}).get("sliders", [])]
        if not any(len(slider.get("steps", [])) > 1 for slider in sliders):
            yield Remark(section.first, "no stored figure has a slider that moves", fix)


@section_rule(
    "discussion",
    f"{QUESTIONS.start} to {QUESTIONS.stop - 1} questions, answers folded, one about a parameter",
)
def questions_with_answers(subject: Subject, section: Section) -> Iterator[Remark]:
    text = section.prose
    matches = list(_QUESTION.finditer(text))
    if len(matches) not in QUESTIONS:
        fix = f"{QUESTIONS.start} to {QUESTIONS.stop - 1}, each `**1. …?**` at a line's start"
        yield Remark(section.first, f"{len(matches)} questions", fix)
    if [int(match["number"]) for match in matches] != list(range(1, len(matches) + 1)):
        yield Remark(section.first, "the questions are not numbered 1, 2, 3 …", "`**1. …?**`")
    starts = [*(match.start() for match in matches), len(text)]
    for match, end in zip(matches, starts[1:], strict=True):
        yield from _answer(section, match, text[match.end() : end])
    names = subject.parameter_names
    if matches and not any(f"`{name}`" in text or f"`{name} = " in text for name in names):
        fix = f"one question that says which to change: {', '.join(f'`{n}`' for n in names)}"
        yield Remark(section.first, "no question is answered by changing a parameter", fix)


def _answer(section: Section, question: re.Match[str], after: str) -> Iterator[Remark]:
    name = f"question {question['number']}"
    if not question["text"].rstrip().endswith("?"):
        yield Remark(section.first, f"{name} asks nothing", "a question mark inside the bold text")
    details = _DETAILS.search(after)
    fix = "<details><summary>Answer</summary>, an empty line, the answer, </details>"
    if details is None:
        yield Remark(section.first, f"{name} has no folded answer", fix)
    elif words(_SUMMARY.sub("", details["inside"])) < 5 or not _SUMMARY.search(details["inside"]):
        yield Remark(section.first, f"{name} is not answered", fix)
    elif not re.search(r"</summary>\s*\n\s*\n", details["inside"]):
        problem = f"{name}: no empty line after </summary>, so Markdown inside is not rendered"
        yield Remark(section.first, problem, fix)


@section_rule("sources", "the notebook ends in paper.sources, given every data set")
def sources_come_last(subject: Subject, section: Section) -> Iterator[Remark]:
    last = subject.cells[-1]
    calls = list(last.calls("sources")) if last in section.cells else []
    if not calls:
        yield Remark(last, "the last cell is not paper.sources(…)", "paper.sources(data, …)")
    elif subject.notebook.metadata.get("labkit", {}).get("datasets") and not calls[0].args:
        yield Remark(last, "paper.sources is given no data set", "paper.sources(data, …)")


@rule("headings", "every section but the first starts with a heading a reader can find")
def sections_have_headings(subject: Subject) -> Iterator[Remark]:
    for section in subject.sections:
        has_heading = re.match(r"#{1,2}\s+\S", section.first.prose)
        if section.tag != "parameters" and not has_heading:
            problem = f"section {section.tag!r} does not start with a heading"
            yield Remark(section.first, problem, "a Markdown cell that starts with '## …'")
