"""Slides: a notebook as one HTML file that works alone, on any machine, with no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit import files
from labkit.workbook.export import origin, pages, talk
from labkit.workbook.export.markup import Markup
from labkit.workbook.review import tally
from labkit.workbook.review.claims import from_notebook


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that was written, what it shows, and what could not be shown as it stands.

    ``warning``: that results rest on stand-in data; "" where none do.
    """

    path: Path
    shows: str
    problems: list[str]
    num_slides: int = 0
    warning: str = ""


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
        path=path, shows=source.words, problems=problems, num_slides=count, warning=warning
    )


def deck(source: origin.Origin) -> tuple[str, list[str], int, str]:
    """The deck's HTML, what was wrong with its cells, how many pages it has, and the warning of
    :class:`Written`."""
    subject = source.subject()
    records = from_notebook(subject.notebook)
    warning = tally.standin_mark(records)
    markup = Markup(source.committed.parent, lambda _: None)
    shown_pages = talk.pages(subject, records, markup)
    if not shown_pages:
        markup.problems.append(f"no cell is tagged as a section: `labkit check {source.key}`")
    parts = [source.title, source.entry.cite() if source.entry else "", source.parameters]
    shown = "".join(page.body for page in shown_pages)
    html = pages.render(
        "slides.html.j2",
        title=f"{source.title} · slides",
        footer=" · ".join(part for part in parts if part),
        pages=shown_pages,
        standin=warning,
        policy=pages.policy(shown, frames_itself=True),
        code_style=pages.code_style(dark=False),
        has_plots='<figure class="plot"' in shown,
    )
    return html, list(dict.fromkeys(markup.problems)), len(shown_pages), warning
