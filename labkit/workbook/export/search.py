"""What the site's search box looks through: papers, their claims, the sections of notebooks.

The texts stand in a script beside the pages, since a page opened from disk may not fetch; the
browser indexes them on the first word (elasticlunr, which pdoc ships, with its stemmer; words as
``filters.js`` cuts them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.kit.page import json_for_script
from labkit.workbook.export.catalogue import Item
from labkit.workbook.export.markup import anchor

_HEADING = re.compile(r"^## +(.+)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"<[^>]*>|[*`|#$\\{}]|(?<=\s)-{2,}")


def script(items: Iterable[Item]) -> str:
    """The script that sets ``SEARCH``: a record (key, url, where, text) for each place to find."""
    return f"const SEARCH = {json_for_script([r for item in items for r in _records(item)])};\n"


def _records(item: Item) -> Iterator[dict[str, Any]]:
    key = item.paper.key
    yield {"key": key, "url": "", "where": item.entry.title, "text": item.search}
    for claim in item.claims:
        text = " ".join(claim[name] for name in ("statement", "source", "flip", "paper", "ours"))
        url = f"scoreboard.html#{key}:{claim['id']}"
        yield {"key": key, "url": url, "where": f"Claim, {claim['verdict']}", "text": text}
    cells = item.subject.notebook.cells if item.subject else []
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    for heading, text in sections("\n\n".join(prose)) if prose else ():
        url = f"papers/{key}.html" + (f"#{anchor(heading)}" if heading else "")
        yield {"key": key, "url": url, "where": heading or "Verdict", "text": text}


def sections(markdown: str) -> list[tuple[str, str]]:
    """(heading, text) of each part under a second-level heading; the first has no heading.

    >>> sections("# T\\n\\nIt *holds*.\\n\\n## Why [so](x.ipynb)\\n\\nSee `f`.")
    [('', 'T It holds.'), ('Why so', 'See f.')]
    """
    first, *rest = _HEADING.split(markdown)
    pairs = [("", first), *zip(rest[::2], rest[1::2], strict=True)]
    return [(_plain(heading), _plain(text)) for heading, text in pairs]


def _plain(markdown: str) -> str:
    return " ".join(_MARKS.sub("", _LINK.sub(r"\1", markdown)).split())
