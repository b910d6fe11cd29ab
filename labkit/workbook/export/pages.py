"""A notebook as HTML: a page to read, with its contents at the side and code folded, and slides.

The slides are one file that works alone, on any machine, with no network; the page stands in the
site. Figures are live in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from labkit import files
from labkit.kit.page import carried, code_style, package_file, policy
from labkit.workbook.export import origin, talk
from labkit.workbook.export.markup import Markup, highlighted, render
from labkit.workbook.review import tally
from labkit.workbook.review.anatomy import WAYS, Cell, Subject
from labkit.workbook.review.claims import from_notebook

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)
_PLOT = '<figure class="plot"'
# reveal.js with its speaker's view (key S). Source: https://revealjs.com; under the MIT licence.
_REVEAL = "sphinx_revealjs"
_REVEAL_SCRIPT = ("_static/revealjs/dist/reveal.js",)
_NOTES_SCRIPT = ("_static/revealjs/plugin/notes/notes.js",)
_REVEAL_STYLE = ("_static/revealjs/dist/reset.css", "_static/revealjs/dist/reveal.css")
_SPEAKER_VIEW = "_static/revealjs/plugin/notes/speaker-view.html"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One cell: its prose, or its code (folded unless ``is_open``) and what the code showed.

    ``ways``: the ways through the notebook that it stands on, as :data:`anatomy.WAYS` tags them.
    """

    id: str
    html: str
    code: str = ""
    is_open: bool = False
    ways: tuple[str, ...] = ()


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
    blocks = list(_blocks(subject, markup))
    claims = from_notebook(subject.notebook)
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
        standin=tally.standin_warning(claims),
        verdict=_verdict(subject, markup),
        ways=_ways(subject),
        blocks=blocks,
        has_plots=_PLOT in body,
    )
    return html, markup.problems


def _blocks(subject: Subject, markup: Markup) -> Iterator[Block]:
    """Every cell that says anything, in order; raw cells are left out."""
    mechanism = subject.section("mechanism")
    for cell in subject.cells:
        source = cell.source.strip()
        ways = tuple(tag for tag in cell.tags if tag in WAYS)
        if source and cell.is_code:
            html = "\n".join(markup.outputs(_without_verdict(subject, cell)))
            failed = any(output["output_type"] == "error" for output in cell.outputs)
            shown = "parameters" in cell.tags or (mechanism and cell in mechanism.cells)
            is_open = bool(failed or shown)
            code = highlighted(source)
            yield Block(id=cell.id, html=html, code=code, is_open=is_open, ways=ways)
        elif source and cell.node.cell_type == "markdown":
            yield Block(id=cell.id, html=markup.markdown(cell.node), ways=ways)


def _ways(subject: Subject) -> dict[str, str]:
    """The ways through the notebook that its cells are tagged with, and how long each takes."""
    return {tag: words for tag, words in WAYS.items() if subject.tagged(tag)}


def _verdict(subject: Subject, markup: Markup) -> str:
    """The verdict's sentence, which stands below the title wherever its cell stands."""
    return "".join(markup.text(text) for text in subject.verdict)


def _without_verdict(subject: Subject, cell: Cell) -> Any:
    """A cell's node; where the verdict would stand right below the page's head, without it."""
    headline = subject.section("reproduction")
    is_early = headline is None or cell.number < headline.first.number
    if "verdict" not in cell.tags or not is_early:
        return cell.node
    kept = [output for output in cell.outputs if "text/markdown" not in output.get("data", {})]
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
    """Write the deck of paper ``key``; from ``results/`` where it was run, else as committed.

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
        shows=source.words,
        problems=problems,
        num_slides=count,
        num_bytes=len(files.encoded(html)),
        warning=warning,
    )


def _standin(source: origin.Origin) -> talk.Standin:
    """What a talk on stand-in data is compared with: the committed notebook, unless that stands on
    stand-ins itself."""
    committed = source.as_committed()
    is_published = not tally.standin_warning(from_notebook(committed.notebook))
    return talk.Standin(published=committed if is_published else None)


def deck(source: origin.Origin) -> tuple[str, list[str], int, str]:
    """The deck's HTML, what was wrong with its cells, how many pages it has, and the warning of
    :class:`Written`."""
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
        policy=policy(shown, framed=package_file(_REVEAL, _SPEAKER_VIEW)),
        code_style=code_style(dark=False),
        reveal_style=carried(_REVEAL, *_REVEAL_STYLE),
        reveal_script=carried(_REVEAL, *_REVEAL_SCRIPT),
        notes_script=carried(_REVEAL, *_NOTES_SCRIPT),
        has_plots=_PLOT in shown,
    )
    return html, list(dict.fromkeys(markup.problems)), len(shown_pages), warning
