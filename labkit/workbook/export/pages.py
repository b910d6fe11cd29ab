"""A notebook as HTML: a page to read, with its contents at the side and code folded, and slides.

The slides are one file that works alone, on any machine, with no network; in the site, talks and
pages share one copy of the large scripts. Figures are live in all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from labkit import files
from labkit.datasets.sources import SAID_MARK, STANDIN_MARK
from labkit.kit.page import carried, code_style, package_file, plot, policy
from labkit.workbook.export import origin, talk
from labkit.workbook.export.markup import Markup, highlighted, render
from labkit.workbook.notebooks import joined
from labkit.workbook.review import tally
from labkit.workbook.review.anatomy import WAYS, Cell, Subject
from labkit.workbook.review.claims import from_notebook

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)
_PLOT = '<figure class="plot"'
_FIGURE = re.compile(rf'{_PLOT}[^>]*><script type="application/json">(.*?)</script>', re.DOTALL)
# reveal.js with its speaker's view (key S). Source: https://revealjs.com; under the MIT licence.
_REVEAL = "sphinx_revealjs"
_REVEAL_SCRIPTS = ("_static/revealjs/dist/reveal.js", "_static/revealjs/plugin/notes/notes.js")
_REVEAL_STYLE = ("_static/revealjs/dist/reset.css", "_static/revealjs/dist/reveal.css")
_SPEAKER_VIEW = "_static/revealjs/plugin/notes/speaker-view.html"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One cell: its prose, or its code (folded unless ``is_open``) and what the code showed.

    ``number``: the cell's place in the notebook, from 1.

    ``ways``: the ways through the notebook that it stands on, as :data:`anatomy.WAYS` tags them.
    """

    id: str
    number: int
    html: str
    code: str = ""
    is_open: bool = False
    ways: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a page begins with: the paper, what we found, its headline figure, a warning.

    Attributes:
        title: the title and the authors; the whole first cell where no verdict is printed.
        rest: what else the first cell says.
        verdict: the verdict's sentence.
        figure: the headline figure, which stands in its section too.
        place: the id of that section's heading.
        warning: in a line, that results rest on stand-in data; "" where none do.
        standins: what the notebook says of each stand-in, a list of lines.
        unsure: the claims whose verdict hangs on a fitted model.
    """

    title: str
    rest: str
    verdict: str
    figure: str
    place: str
    warning: str
    standins: list[list[str]]
    unsure: list[str]


def page(source: origin.Origin, families: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """The page's HTML (for ``site/papers/``), and what was wrong with the notebook's cells.

    ``families`` holds the papers that have a page, by family: links between notebooks lead there,
    and in this order a page leads to the one before and the one after it.
    """
    known = [key for keys in families.values() for key in keys]
    place = known.index(source.key)
    family = source.committed.parent.name
    subject = source.subject()
    markup = Markup(source.committed.parent, lambda key: f"{key}.html" if key in known else None)
    claims = from_notebook(subject.notebook)
    blocks = list(_blocks(subject, markup))
    first = blocks[0] if blocks and not blocks[0].code else None
    opening = _opening(subject, markup, blocks, claims, first.html if first else "")
    glance, story, set_up = _arranged(subject, blocks[1:] if first else blocks)
    body = "".join(block.html for block in blocks)
    headings = [(id, re.sub(r"<[^>]+>", "", text)) for id, text in _HEADING.findall(body)]
    html = render(
        "page.html.j2",
        source=source,
        title=source.title,
        policy=policy(body, own_files=True),
        contents=[tuple(map(unescape, heading)) for heading in headings],
        family=family if len(families[family]) > 1 else "",
        before=known[place - 1] if place else "",
        after=known[place + 1] if place + 1 < len(known) else "",
        tally=tally.tally(claims),
        opening=opening,
        first=first,
        ways=_ways(subject),
        glance=glance,
        story=story,
        set_up=set_up,
        has_plots=_PLOT in body,
    )
    return html, list(dict.fromkeys(markup.problems))


def _blocks(subject: Subject, markup: Markup) -> Iterator[Block]:
    """Every cell that says anything, in order; raw cells are left out."""
    mechanism = subject.section("mechanism")
    for cell in subject.cells:
        source = cell.source.strip()
        ways = tuple(tag for tag in cell.tags if tag in WAYS)
        if source and cell.is_code:
            html = "\n".join(markup.outputs(_without_what_stands_above(subject, cell)))
            failed = any(output["output_type"] == "error" for output in cell.outputs)
            is_open = bool(failed or (mechanism and cell in mechanism.cells))
            code = highlighted(source)
            yield Block(
                id=cell.id, number=cell.number, html=html, code=code, is_open=is_open, ways=ways
            )
        elif source and cell.node.cell_type == "markdown":
            html = markup.markdown(cell.node)
            yield Block(id=cell.id, number=cell.number, html=html, ways=ways)


def _ways(subject: Subject) -> dict[str, str]:
    """The ways through the notebook that its cells are tagged with, and how long each takes."""
    return {tag: words for tag, words in WAYS.items() if subject.tagged(tag)}


def _arranged(
    subject: Subject, blocks: Sequence[Block]
) -> tuple[list[Block], list[Block], list[Block]]:
    """The blocks up to the end of the glance, those after it, and the code that sets up.

    What sets up is the code before the glance, parameters and imports, without which a reader
    understands the paper: it is folded below the glance. A cell that failed stays in its place.
    """
    glance = subject.section("at-a-glance")
    start = glance.first.number if glance else 0
    end = glance.cells[-1].number if glance else 0
    set_up = [b for b in blocks if b.code and not b.is_open and b.number < start]
    shown = [block for block in blocks if block not in set_up]
    early = [block for block in shown if block.number <= end]
    return early, shown[len(early) :], set_up


def _opening(
    subject: Subject,
    markup: Markup,
    blocks: Sequence[Block],
    claims: Sequence[Mapping[str, Any]],
    title: str,
) -> Opening:
    """What the page begins with, whose first cell is ``title``; see :class:`Opening`."""
    printed = "".join(markup.text(text) for text in subject.verdict)
    authors, end, rest = title.partition("</p>")
    headline = subject.section("reproduction")
    numbers = {cell.number for cell in headline.cells} if headline else set()
    shown = "".join(block.html for block in blocks if block.number in numbers)
    heading = _HEADING.search(shown)
    figure = _FIGURE.search(shown)
    standins = _standins(subject)
    no_claim = "stand-in data, on which no claim rests" if standins else ""
    warning = tally.standin_warning(claims, tally.MARKS) or no_claim
    return Opening(
        title=authors + end if printed else title,
        rest=rest if printed else "",
        verdict=printed,
        figure=_still(figure[1]) if figure else "",
        place=unescape(heading[1]) if heading else "",
        warning=warning[:1].upper() + warning[1:],
        standins=standins,
        unsure=tally.unsure(claims, subject.claims),
    )


def _still(content: str) -> str:
    """A figure from its JSON, without controls: those belong to the one in its section."""
    figure = json.loads(content)
    layout = {k: v for k, v in figure["layout"].items() if k not in ("sliders", "updatemenus")}
    return plot({"data": figure["data"], "layout": layout})


def _standins(subject: Subject) -> list[list[str]]:
    """What the notebook says of each stand-in that it opened, as lines; each once.

    The first line says in place of what it stands.
    """
    texts = (_plain(output) for cell in subject.code for output in cell.outputs)
    loud = dict.fromkeys(text for text in texts if text.startswith(STANDIN_MARK))
    said = [text.removeprefix(STANDIN_MARK).strip() for text in loud]
    boxes = [(text[:1].upper() + text[1:]).splitlines() for text in said]
    return [[*lines[1:2], lines[0], *lines[2:]] for lines in boxes if lines]


def _plain(output: Mapping[str, Any]) -> str:
    return joined(output.get("data", {}).get("text/plain", ""))


def _without_what_stands_above(subject: Subject, cell: Cell) -> Any:
    """A cell's node without banners of stand-ins, for which the page has one, and without the
    verdict where that would stand right below the page's head."""
    headline = subject.section("reproduction")
    is_early = headline is None or cell.number < headline.first.number
    has_verdict = "verdict" in cell.tags and is_early
    kept = [
        output
        for output in cell.outputs
        if not _plain(output).startswith((STANDIN_MARK, SAID_MARK))
        and not (has_verdict and "text/markdown" in output.get("data", {}))
    ]
    return cell.node | {"outputs": kept}


# ---------------------------------------------------------------- slides


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that was written, what it shows, and what could not be shown as it stands.

    ``warning``: that results rest on stand-in data; "" where none do.
    """

    path: Path
    shows: str
    problems: list[str]
    num_slides: int
    num_bytes: int
    warning: str


def write_slides(
    root: Path, key: str, parameters: Sequence[str] = (), out: Path | None = None
) -> Written:
    """Write the deck of paper ``key``, of the notebook that :mod:`origin` chooses.

    Args:
        parameters: of a run in ``results/``, as ``name=value`` (none: the default one).
        out: the file to write (default ``results/slides/<key>.html``).

    Raises:
        UsageError: there is no such notebook, or no run with these parameters.
        BadFile: the notebook cannot be read.
    """
    source = origin.find(root, key, parameters)
    name = f"{source.key}--{source.slug}" if source.slug else source.key
    path = out or root / "results" / "slides" / f"{name}.html"
    html, problems, count, warning = deck(source)
    files.write_atomically(path, html)
    return Written(
        path=path,
        shows="; ".join(filter(None, [source.words, source.outdated])),
        problems=problems,
        num_slides=count,
        num_bytes=len(files.encoded(html)),
        warning=warning,
    )


def reveal_scripts() -> list[str]:
    """reveal.js, then its speaker's view."""
    return [carried(_REVEAL, name) for name in _REVEAL_SCRIPTS]


def _standin(source: origin.Origin) -> talk.Standin:
    """What a talk on stand-in data is compared with: the committed notebook, unless that stands on
    stand-ins itself."""
    committed = source.as_committed()
    is_published = not tally.standin_warning(from_notebook(committed.notebook))
    return talk.Standin(published=committed if is_published else None)


def deck(source: origin.Origin, shared: str = "") -> tuple[str, list[str], int, str]:
    """The deck's HTML, what was wrong with its cells, how many pages it has, and the warning of
    :class:`Written`.

    Args:
        source: the notebook to show.
        shared: the address, from the deck, of the folder where its site keeps :file:`reveal.js`
            and :file:`plotly.min.js`; "" for a deck that holds them, one file that works alone.
    """
    subject = source.subject()
    records = from_notebook(subject.notebook)
    warning = tally.standin_warning(records, tally.MARKS)
    markup = Markup(source.committed.parent, lambda _: None)
    shown_pages = talk.pages(
        subject,
        records,
        markup,
        standin=_standin(source) if warning else None,
        presented=source.presented,
    )
    if not shown_pages:
        markup.problems.append(f"no cell is tagged as a section: `labkit check {source.key}`")
    parts = [source.title, source.entry.cite() if source.entry else "", source.parameters]
    shown = "".join(page.body for page in shown_pages)
    html = render(
        "slides.html.j2",
        title=f"{source.title} · slides",
        footer=" · ".join(part for part in parts if part),
        pages=shown_pages,
        standin=warning,
        policy=policy(shown, own_files=bool(shared), framed=package_file(_REVEAL, _SPEAKER_VIEW)),
        code_style=code_style(dark=False),
        reveal_style=carried(_REVEAL, *_REVEAL_STYLE),
        reveal_scripts=reveal_scripts(),
        shared=shared,
        key=source.key,
        has_plots=_PLOT in shown,
    )
    return html, list(dict.fromkeys(markup.problems)), len(shown_pages), warning
