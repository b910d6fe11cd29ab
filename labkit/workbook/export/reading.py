"""A notebook as a page to read: contents at the side, code folded, figures live."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape

from labkit.workbook.export import origin, pages
from labkit.workbook.export.markup import Markup, highlighted
from labkit.workbook.review import tally
from labkit.workbook.review.anatomy import Subject
from labkit.workbook.review.claims import from_notebook

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One cell: its prose, or its code (folded unless ``is_open``) and what the code showed."""

    id: str
    html: str
    code: str = ""
    is_open: bool = False


def page(source: origin.Origin, families: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """The page's HTML (for ``site/papers/``), and what was wrong with the notebook's cells.

    ``families`` holds the papers that have a page, by family: links between notebooks lead there,
    and in this order a page leads to the one before and the one after it.
    """
    known = [key for keys in families.values() for key in keys]
    place, family = known.index(source.key), source.committed.parent.name
    subject = source.subject()
    markup = Markup(source.committed.parent, lambda key: f"{key}.html" if key in known else None)
    content = list(_blocks(subject, markup))
    claims = from_notebook(subject.notebook)
    body = "".join(block.html for block in content)
    html = pages.render(
        "page.html.j2",
        source=source,
        title=source.title,
        policy=pages.policy(body, own_files=True),
        contents=_contents(body),
        family=family if len(families[family]) > 1 else "",
        before=known[place - 1] if place else "",
        after=known[place + 1] if place + 1 < len(known) else "",
        tally=tally.tally(claims),
        standin=tally.standin_warning(claims),
        blocks=content,
        has_plots='<figure class="plot"' in body,
    )
    return html, markup.problems


def _blocks(subject: Subject, markup: Markup) -> Iterator[Block]:
    """Every cell that says anything, in order; raw cells are left out."""
    mechanism = subject.section("mechanism")
    for cell in subject.cells:
        source = cell.source.strip()
        if source and cell.is_code:
            html = "\n".join(markup.outputs(cell.node))
            failed = any(output["output_type"] == "error" for output in cell.outputs)
            shown = "parameters" in cell.tags or (mechanism and cell in mechanism.cells)
            is_open = bool(failed or shown)
            yield Block(id=cell.id, html=html, code=highlighted(source), is_open=is_open)
        elif source and cell.node.cell_type == "markdown":
            yield Block(id=cell.id, html=markup.markdown(cell.node))


def _contents(body: str) -> list[tuple[str, str]]:
    """(id, text) of every section heading."""
    headings = _HEADING.findall(body)
    return [(unescape(name), unescape(re.sub(r"<[^>]+>", "", text))) for name, text in headings]
