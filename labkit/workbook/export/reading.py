"""A notebook as a page to read: contents at the side, code folded, figures live."""

from __future__ import annotations

import re
from collections.abc import Mapping

from labkit.workbook.export import blocks, origin, pages
from labkit.workbook.export.markup import Markup
from labkit.workbook.review import tally
from labkit.workbook.review.claims import from_notebook

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)


def page(source: origin.Origin, families: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """The page's HTML (for ``site/papers/``), and what was wrong with the notebook's cells.

    ``families`` holds the papers that have a page, by family: links between notebooks lead there,
    and in this order a page leads to the one before and the one after it.
    """
    known = [key for keys in families.values() for key in keys]
    place, family = known.index(source.key), source.committed.parent.name
    notebook = source.read()
    markup = Markup(source.committed.parent, lambda key: f"{key}.html" if key in known else None)
    content = blocks.from_notebook(notebook, markup)
    claims = from_notebook(notebook)
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


def _contents(body: str) -> list[tuple[str, str]]:
    """(id, text) of every section heading."""
    from html import unescape

    headings = _HEADING.findall(body)
    return [(unescape(name), unescape(re.sub(r"<[^>]+>", "", text))) for name, text in headings]
