"""A notebook as a talk: which sections become a page, what the page shows, what is only said.

The pages follow the anatomy, not the cells' slide types: verdict, insight, the idea in a picture,
the mechanism's steps, figures, the headline, two or three claims, one weakness, the slider, the
questions. A page shows its figure with the few sentences that explain it, a short message of which
is its title; all other words of its section are the speaker's.

A notebook's words are written beside its published data. Where stand-ins gave another figure or
table, a strip stands in their place, and the notes say what holds on the published data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from labkit.kit.page import figure_text
from labkit.workbook.export import headlines
from labkit.workbook.export.markup import Markup, highlighted, render
from labkit.workbook.notebooks import PLOTLY_MIME, joined
from labkit.workbook.queue import questions
from labkit.workbook.review import glance
from labkit.workbook.review.anatomy import (
    HEADING,
    MAX_PAGES,
    SIZES,
    Cell,
    Part,
    Section,
    Subject,
)
from labkit.workbook.review.rules.prose import elsewhere, whole_sentences

CHARACTERS_BY_A_FIGURE = 350
CHARACTERS_BY_A_TABLE = 560
CHARACTERS_BY_CODE = 760
"""The most text that stands on a page beside its figure, its table or its code."""
CHARACTERS_BY_A_LINE = 55
"""How much of that text each line of code takes from a page with much code."""
LINES_OF_CODE = 20
"""The most code that can be read from a page; of a longer cell the page has the words alone."""
CHARACTERS_OF_A_MESSAGE = 260
"""The most text of the sentences that end such a page."""
CHARACTERS_OF_A_TITLE = 96
"""The longest sentence that makes a page's title; two lines of it fit above a figure."""
STEPS = range(2, 6)
"""How many items a list of the mechanism's steps has."""
IDEA = "The idea"
SECONDS = {
    "title": 60,
    "insight": 120,
    "idea": 120,
    "mechanism": 150,
    "figure": 90,
    "reproduction": 180,
    "claims": 120,
    "weaknesses": 120,
    "explorable": 180,
    "discussion": 600,
}
"""How long a page takes, by its section: about half an hour in all."""
STANDIN = "Stand-in data, not the published: what the notebook says of it is in the notes."
STANDIN_QUESTIONS = "Stand-in data: what a question says of results holds on the published data."
ASK = "Let the room say what will change before the control moves."
HOLDS = "**On the published data:**"
_COMPARED = (PLOTLY_MIME, "text/html", "text/markdown")

_FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", re.S)
_ITEM = re.compile(r"^(?=\s*(?:[-*+]|\d+\.)\s)", re.M)
_MARKER = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_WHOLE = re.compile(r"^[^a-z\s|<].*[.!?][)*_\"”]*$", re.S)
_LIMITS = re.compile(r"\b(do|does) not show\b")
_KEY = re.compile(
    r"^Notice\b|\b(bars?|lines?|dots?|marks?|markers?|diamonds?|bands?|rows?) (are|is|mean)\b"
)
_REMARK = re.compile(r"^\*\*\d+\.\*\* (.+)$", re.M)
_QUESTION = re.compile(r"^(?:\*\*)?(?:Q?\d+[.)])\s*(.+?)(?:\*\*)?$", re.M)


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page as HTML: ``lead`` and ``message`` stand above its ``body``, ``notes`` are said.

    ``tag`` is its section's; ``kind``, how it is laid out: title, text, code, figure, table,
    claims or questions. ``topic`` stands small above a ``heading`` that says what is shown;
    ``strip``, across the page in place of words that its data do not bear out.
    """

    kind: str
    tag: str
    heading: str
    topic: str = ""
    strip: str = ""
    lead: str = ""
    message: str = ""
    body: str = ""
    notes: str = ""

    @property
    def seconds(self) -> int:
        """How long it takes."""
        return SECONDS[self.tag]

    @property
    def minutes(self) -> str:
        """The same, for the notes."""
        num = self.seconds / 60
        return f"about {num:g} minute{'' if num == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class Standin:
    """A talk's data are stand-ins; ``published`` is the notebook as it was run on published data.

    None where nobody committed that: then no sentence about a figure or a table is borne out.
    """

    published: Subject | None


_Shown = tuple[int, str, str]
"""An output: its place in a part, its HTML, what it shows in words."""


def pages(
    subject: Subject,
    records: Sequence[Mapping[str, Any]],
    markup: Markup,
    *,
    standin: Standin | None = None,
    presented: str = "",
) -> list[Page]:
    """The talk's pages, at most :data:`MAX_PAGES` of the notebook's size.

    A section that is missing, or shows nothing yet, has no page.

    Args:
        records: the stored claims.
        standin: given where the data are no published ones.
        presented: by whom and when, for the title page.
    """
    talk = _Talk(subject, markup, standin, presented)
    size = subject.size or SIZES[-1]
    most = 1 if size == "standard" else 2
    beginning = [talk.title(), talk.insight(), talk.idea(), *talk.mechanisms(most)]
    end = [
        talk.result("reproduction", "results"),
        talk.claims(records),
        talk.result("weaknesses", "weaknesses"),
        talk.result("explorable"),
        talk.questions(),
    ]
    fixed = [page for page in (*beginning, *end) if page]
    figures = talk.figures(MAX_PAGES[size] - len(fixed), one_each=size == "standard")
    return [page for page in (*beginning, *figures, *end) if page]


class _Talk:
    def __init__(
        self, subject: Subject, markup: Markup, standin: Standin | None, presented: str
    ) -> None:
        self.subject = subject
        self.markup = markup
        self.standin = standin
        self.presented = presented
        table = subject.section("at-a-glance")
        self.glance = dict(glance.parse(table.first.source)) if table else {}

    # ------------------------------------------------------------ pages

    def title(self) -> Page | None:
        section = self.subject.section("title")
        if section is None:
            return None
        heading, _, body = section.first.prose.lstrip("# ").partition("\n")
        authors, *rest = [part for part in re.split(r"\n\s*\n", body.strip()) if part] or [""]
        later = self.subject.section("parameters")
        cells = [*section.cells[1:], *(later.cells if later else ())]
        printed = self.subject.verdict
        idea = self.glance.get("insight", "")
        lead = [authors, self.presented, idea, *([] if printed else rest[:-1])]
        said = [*self._of_glance("results", "advantages"), *(c.prose for c in cells if c.prose)]
        return Page(
            kind="title",
            tag="title",
            heading=self.markup.line(heading),
            lead=self.markup.text("\n\n".join(filter(None, lead))),
            message=self.markup.text("\n\n".join(printed or rest[-1:])),
            notes=self._said([*(rest if printed else []), *said], set()),
        )

    def insight(self) -> Page | None:
        section = self.subject.section("insight")
        if section is None:
            return None
        return Page(
            kind="text",
            tag="insight",
            heading=self._heading(section),
            body=self.markup.text(re.sub(r"\s+(?=\*\*\w+\.\*\*)", "\n\n", _own_words(section))),
            notes=self._said(self._of_glance("insight"), set()),
        )

    def idea(self) -> Page | None:
        """The picture of the idea, before any code: a figure, or a few lines of Markdown."""
        cells = self.subject.tagged("idea")
        if not cells:
            return None
        cell = cells[0]
        section = next(section for section in self.subject.sections if cell in section.cells)
        if not cell.is_code:
            heading = HEADING.search(cell.prose)
            return Page(
                kind="text",
                tag="idea",
                heading=self.markup.line(heading[1]) if heading else IDEA,
                body=self.markup.text(HEADING.sub("", cell.prose).strip()),
                notes=self._said(self._of_glance("insight"), set()),
            )
        part = next(part for part in section.parts() if cell in part.items)
        if part.cell is section.first:  # the section's own words have a page
            part = Part(IDEA, cell, part.items[part.items.index(cell) :])
        shown = [
            item
            for kind in ("figure", "table")
            for item in self._shown(part, kind)
            if part.items[item[0]] is cell
        ]
        if not shown:
            return None
        return self._page("idea", part, shown[0], self._of_glance("insight"))

    def mechanisms(self, most: int) -> Iterator[Page]:
        """The mechanism's steps, where its words list them, else its code; with room, both."""
        parts = self._parts("mechanism")
        listed = [(part, blocks) for part in parts if (blocks := _listed(part))][:1]
        for part, blocks in listed:
            yield self._steps(part, *blocks)
        seen = {block for _, (before, steps) in listed for block in (*before, steps)}
        yield from self._code(most - len(listed), seen)

    def _steps(self, part: Part, before: Sequence[str], steps: str) -> Page:
        """A page of the mechanism's steps, and what comes before them."""
        shown = set(_sentences([*before, steps]))
        return Page(
            kind="text",
            tag="mechanism",
            heading=self.markup.line(part.heading),
            lead=self.markup.text("\n\n".join(before)),
            body=self.markup.text(steps),
            notes=self._said([*self._of_glance("method"), *part.texts()], shown),
        )

    def _code(self, most: int, seen: set[str]) -> Iterator[Page]:
        """A page for each heading with a cell tagged ``mechanism``: its code and its words, but
        for those that were ``seen`` on the page before."""
        parts = [(part, part.cells("mechanism")) for part in self._parts("mechanism")]
        for part, cells in [(part, cells) for part, cells in parts if cells][: max(most, 0)]:
            place, cell = cells[0]
            shown = [html for html in self.markup.outputs(cell.node) if len(html) < 700]
            texts = part.texts(stop=place)
            blocks = [block for block in _blocks(texts) if block not in seen]
            # What ends in a colon leads to a cell; only the last one's is on the page.
            lead = [b for b in blocks if not b.endswith(":") or b is blocks[-1]]
            num_lines = len(cell.source.strip().splitlines())
            is_short = num_lines <= LINES_OF_CODE
            lead = _last_blocks(lead, num_lines) if is_short else _first_blocks(lead)
            words = self.markup.text("\n\n".join(lead))
            code = highlighted(cell.source.strip()) + "".join(shown)
            yield Page(
                kind="code" if is_short else "text",
                tag="mechanism",
                heading=self.markup.line(part.heading),
                lead=words if is_short else "",
                body=code if is_short else words,
                notes=self._said(
                    [*self._of_glance("method"), *part.texts()], set(_sentences(lead))
                ),
            )

    def figures(self, most: int, *, one_each: bool) -> list[Page]:
        """Pages of the figure sections that draw something: plots, else tables."""
        drawn: list[Page] = []
        for kind in ("figure", "table"):
            for part in self._parts("figure") if not drawn else ():
                shown = self._shown(part, kind)[: 1 if one_each else None]
                for n, item in enumerate(shown):
                    drawn.append(self._page("figure", part, item, n=n, of=len(shown)))
        return drawn[: max(most, 0)]

    def result(self, tag: str, aspect: str = "") -> Page | None:
        """The section's first figure, else its first table; its other headings are named."""
        parts = self._parts(tag)
        pairs = [(part, self._shown(part, kind)) for kind in ("figure", "table") for part in parts]
        if not (drawing := [(part, shown) for part, shown in pairs if shown]):
            return None
        part, shown = drawing[0]
        others = "; ".join(p.heading for p in parts if p is not part and p.items)
        said = [ASK] if tag == "explorable" else self._of_glance(aspect)
        said += [f"**In the notebook besides:** {others}."] if others else []
        return self._page(tag, part, shown[0], said)

    def claims(self, records: Sequence[Mapping[str, Any]]) -> Page | None:
        """The first headline claims that were judged, in large type, one that failed among them;
        the rest is counted."""
        section = self.subject.section("claims")
        if section is None or not records:
            return None
        rules = {claim.id: claim for claim in self.subject.claims}
        chosen = headlines.chosen(records)
        rows = [headlines.row(record, rules.get(record["id"])) for record in chosen]
        told = [
            f"- {row['statement']} ({row['source']}): paper {row['paper']}, ours {row['ours']}, "
            f"{row['verdict']}"
            for row in rows
        ]
        parts = [*self._parts("claims"), *self._parts("differences")]
        texts = [text for part in parts for text in part.texts()]
        shown = rows[: headlines.MAX_CLAIMS]
        counted = headlines.counted(records)
        body = render("headlines.html.j2", claims=shown, counted=counted)
        return Page(
            kind="claims",
            tag="claims",
            heading=self._heading(section),
            body=body,
            notes=self._said([*texts, *told], set()),
        )

    def questions(self) -> Page | None:
        section = self.subject.section("discussion")
        if section is None:
            return None
        parts = {part.heading: "\n\n".join(part.texts()) for part in self._parts("discussion")}
        group = parts.pop(questions.HEADING, "")
        own = "\n\n".join(parts.values())
        body = f"<ol>{self._items(_QUESTION.findall(_FOLD.sub('', own)))}</ol>"
        if group:
            remarks = self._items(_REMARK.findall(_FOLD.sub("", group)))
            body += f"<h3>{questions.HEADING}</h3><ul>{remarks}</ul>"
        folds = enumerate(_FOLD.findall(own) + _FOLD.findall(group), 1)
        answers = [f"**{n}.** {answer.strip()}" for n, (_, answer) in folds]
        return Page(
            kind="questions",
            tag="discussion",
            heading=self._heading(section),
            strip=STANDIN_QUESTIONS if self.standin else "",
            body=body,
            notes=self.markup.text("\n\n".join(["**Answers, from the notebook**", *answers])),
        )

    # ------------------------------------------------------------ pieces

    def _page(
        self, tag: str, part: Part, shown: _Shown, said: Sequence[str] = (), n: int = 0, of: int = 1
    ) -> Page:
        """A page of ``shown`` (its place in the part, HTML, description), the part's n-th ``of``.

        Of several pages the first has the words that come before, the last those that follow.
        """
        place, html, described = shown
        is_figure = "<figure" in html
        before = part.texts(stop=place)
        after = part.texts(start=place)
        page = Page(
            kind="figure" if is_figure else "table",
            tag=tag,
            heading=self.markup.line(part.heading),
            body=html,
        )
        if not self._bears_out(part):
            said_only = self._said([HOLDS, *before, *after, *said], set())
            return replace(page, strip=STANDIN, notes=said_only)
        (title, lead, message) = self._words(tag, before, after, is_figure=is_figure)
        title = title if n == of - 1 else ""
        lead = lead if n == 0 else []
        message = message if n == of - 1 else []
        notes = self._said([*before, *after, *said], {title, *lead, *message})
        return replace(
            page,
            topic=page.heading if title else "",
            heading=self.markup.line(title.removesuffix(".")) if title else page.heading,
            lead=self.markup.line(" ".join(lead)),
            message=self.markup.line(" ".join(message)),
            notes=notes or self.markup.text(described),
        )

    def _words(
        self, tag: str, before: Sequence[str], after: Sequence[str], *, is_figure: bool
    ) -> tuple[str, list[str], list[str]]:
        """What stands above a figure or a table: a title, a lead and a message; "" for no title."""
        room = CHARACTERS_BY_A_FIGURE if is_figure else CHARACTERS_BY_A_TABLE
        follows = _sentences(_before_run_in(after))
        start = next((i for i, s in enumerate(follows) if "Notice" in s), 0)
        follows = _telling(follows[start:], has_table=not is_figure)
        first = _fitting(follows[:1], CHARACTERS_OF_A_MESSAGE)
        leads = _telling(_sentences(before), has_table=not is_figure, before=True)
        lead = _fitting(leads, room - sum(map(len, first)))
        message = _fitting(follows, min(room - sum(map(len, lead)), CHARACTERS_OF_A_MESSAGE))
        if tag == "reproduction" and not message:
            message = [text.strip("*") for text in self.subject.verdict]
        labelled = tag in ("weaknesses", "explorable")  # what to try, before what comes of it
        is_title = not labelled and bool(message) and _can_be_title(message[0])
        return (message[0], lead, message[1:]) if is_title else ("", lead, message)

    def _bears_out(self, part: Part) -> bool:
        """Whether what the notebook says beside a part's outputs holds for these outputs: they are
        of published data, or as on these."""
        if self.standin is None:
            return True
        if self.standin.published is None:
            return False
        known = {cell.id: _outputs(cell) for cell in self.standin.published.code}
        return all(_outputs(cell) == known.get(cell.id) for _, cell in part.cells())

    def _shown(self, part: Part, kind: str) -> list[_Shown]:
        mark = '<figure class="plot"' if kind == "figure" else "<table"
        rows = []
        for place, cell in part.cells():
            pages = [html for html in self.markup.outputs(cell.node) if mark in html]
            figures = [_read(figure_text(f)) for f in cell.output_data(PLOTLY_MIME)]
            words = figures if kind == "figure" else [_tabled(html) for html in pages]
            rows += [(place, *pair) for pair in zip(pages, words, strict=True)]
        return [row for row in rows if 'class="claims"' not in row[1]]

    def _said(self, texts: Iterable[str], shown: set[str]) -> str:
        """Notes: what of ``texts`` is not shown; last, what is about its other parts."""
        notes: list[str] = []
        outside: list[str] = []
        for text in texts:
            for unit in _units(_FOLD.sub(r"**\1.** \2", text)):
                marker = match[0] if (match := _MARKER.match(unit)) else ""
                rest = [s for s in whole_sentences(unit.removeprefix(marker)) if s not in shown]
                if rest:
                    is_plain = not re.search(r"^\||\$\$", unit, re.M)
                    words = marker + " ".join(rest) if is_plain else unit
                    (outside if elsewhere(words) else notes).append(words)
        if outside:
            notes += ["**In the notebook:**", *outside]
        return self.markup.text("\n\n".join(notes))

    def _items(self, lines: Iterable[str]) -> str:
        return "".join(f"<li>{self.markup.line(line)}</li>" for line in lines)

    def _of_glance(self, *aspects: str) -> list[str]:
        rows = [(name, self.glance.get(name, "")) for name in aspects]
        return [f"**{name.capitalize()}.** {line}" for name, line in rows if line]

    def _parts(self, tag: str) -> list[Part]:
        sections = [section for section in self.subject.sections if section.tag == tag]
        return [part for section in sections for part in section.parts()]

    def _heading(self, section: Section) -> str:
        match = HEADING.search(section.first.prose)
        return self.markup.line(match[1] if match else section.tag.capitalize())


def _outputs(cell: Cell) -> list[dict[str, Any]]:
    """What a cell shows, in the forms that a page takes it from."""
    bundles = [output.get("data", {}) for output in cell.outputs]
    return [{mime: _whole(data[mime]) for mime in _COMPARED if mime in data} for data in bundles]


def _whole(content: Any) -> Any:
    """A figure as it is, a text that is stored in lines as one."""
    return content if isinstance(content, Mapping) else joined(content)


def _own_words(section: Section) -> str:
    """A section's prose under its own heading: up to its idea, or its next heading."""
    texts = [section.first.prose]
    for cell in section.cells[1:]:
        if "idea" in cell.tags or HEADING.search(cell.prose):
            break
        texts.append(cell.prose)
    _, *own = HEADING.split(texts[0])
    return "\n\n".join([own[1] if own else texts[0], *texts[1:]]).strip()


def _units(text: str) -> list[str]:
    """Paragraphs and list items; a fold's inside is left out, a formula or table stays whole.

    >>> _units("One.\\n\\n- a\\n- b\\n\\nTwo.")
    ['One.', '- a', '- b', 'Two.']
    """
    units = (unit for paragraph in re.split(r"\n\s*\n", text) for unit in _ITEM.split(paragraph))
    return [unit.strip() for unit in units if unit.strip()]


def _blocks(texts: Iterable[str]) -> list[str]:
    return [block.strip() for text in texts for block in re.split(r"\n\s*\n", text)]


def _before_run_in(texts: Iterable[str]) -> list[str]:
    """The texts up to the first that begins with bold words: from there, of another cell.

    >>> _before_run_in(["It grows.", "**By load.** A table follows.", "It does."])
    ['It grows.']
    """
    return list(takewhile(lambda text: not text.lstrip().startswith("**"), texts))


def _listed(part: Part) -> tuple[list[str], str] | None:
    """The first list among a part's words, if it is one of steps, and what comes before it."""
    blocks = _blocks(part.texts())
    lists = [block for block in blocks if len(_ITEM.split(f"\n{block}")) > STEPS.start]
    steps = next((block for block in lists if _MARKER.match(block)), None)
    if steps is None or len(_units(steps)) not in STEPS:
        return None
    return _first_blocks(blocks[: blocks.index(steps)]), steps


def _sentences(texts: Iterable[str]) -> list[str]:
    return [
        sentence
        for text in texts
        for unit in _units(_FOLD.sub("", text))
        for sentence in whole_sentences(_MARKER.sub("", unit))
    ]


def _can_be_title(sentence: str) -> bool:
    """Whether a sentence is short and says what is found, not what the marks of a figure mean.

    >>> _can_be_title("Energy falls by a fifth."), _can_be_title("The pale bars are requests.")
    (True, False)
    """
    return len(sentence) <= CHARACTERS_OF_A_TITLE and not _KEY.search(sentence)


def _telling(
    sentences: Sequence[str], *, has_table: bool = False, before: bool = False
) -> list[str]:
    """The whole sentences that speak of the page alone, and of limits only if all others stand."""
    whole = filter(_WHOLE.match, sentences)
    fits = [s for s in whole if not elsewhere(s, has_table=has_table, before=before)]
    return [s for s in fits if len(fits) == len(sentences) or not _LIMITS.search(s)]


def _first_blocks(blocks: Sequence[str]) -> list[str]:
    """Take the first blocks of text, as many as stand on a page beside its code."""
    fits = list(blocks)
    while sum(map(len, fits)) > CHARACTERS_BY_CODE:
        fits.pop()
    return fits


def _last_blocks(blocks: Sequence[str], num_lines: int) -> list[str]:
    """Take the blocks of text nearest to the code, as many as leave its lines large."""
    room = min(CHARACTERS_BY_CODE, CHARACTERS_BY_A_LINE * (LINES_OF_CODE + 3 - num_lines))
    fits = list(blocks)
    while len(fits) > 1 and sum(map(len, fits)) > room:
        fits.pop(0)
    return fits


def _fitting(sentences: Sequence[str], room: int) -> list[str]:
    """Those that fit ``room`` characters, in order. What our drawing does not show is left out
    first, then what the paper's shows, where ours is described apart, then the last sentences."""
    fits = list(sentences)
    ours = next((s for s in fits if re.match(r"Ours?\b", s)), None)
    while fits and sum(map(len, fits)) > room:
        limits = [s for s in fits if _LIMITS.search(s)]
        papers = fits[: fits.index(ours)] if ours in fits and ":" in ours else []
        fits.remove((limits or papers[-1:] or fits)[-1])
    return fits


def _read(text: str) -> str:
    """How to read a figure, of its text in words: what its axes are.

    >>> _read("Figure: It falls. Horizontal axis: time (s). Vertical axis: J. ours: 2 points.")
    '**How to read it.** Horizontal axis: time (s). Vertical axis: J.'
    """
    axes = [part for part in text.removesuffix(".").split(". ") if " axis: " in part]
    return f"**How to read it.** {'. '.join(axes) or 'Name what is drawn'}."


def _tabled(html: str) -> str:
    """What a table lists, in words: its caption, its columns."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(html, "html.parser")
    caption = soup.caption.get_text(" ", strip=True) if soup.caption else ""
    columns = [th.get_text(" ", strip=True) for th in soup.select("thead tr:last-child th")]
    parts = [caption, f"columns: {', '.join(filter(None, columns))}"]
    return f"**The table.** {'; '.join(filter(None, parts))}."
