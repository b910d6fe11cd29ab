"""The ways through a notebook, as a reader in JupyterLab sees them once the paper is open."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.workbook import notebooks
from labkit.workbook.review.anatomy import HEADING, WAYS, Subject

_MARKS = re.compile(r"[*`]|\]\([^)]*\)|\[")


def markdown(root: Path, key: str) -> str:
    """A line a way: how long it takes, and links to the headings on it; "" where no cell is tagged.

    Nobody types it: the tags ``path-5`` and ``path-30`` of the notebook's cells say it.
    """
    path = notebooks.paths(root).get(key)
    if path is None:
        return ""
    subject = Subject(root, key, path, notebooks.glimpse(path))
    lines = []
    for tag, words in WAYS.items():
        headings = _headings(subject, tag)
        if headings:
            lines.append(f"- **{words}**: " + " · ".join(map(_link, headings)))
    return "\n".join(["**Ways through**", "", *lines]) if lines else ""


def _headings(subject: Subject, tag: str) -> list[str]:
    """The headings under which cells that carry ``tag`` stand, in order, each once."""
    found: list[str] = []
    last = ""
    for cell in subject.cells:
        above = HEADING.findall(cell.prose)
        last = above[0] if above else last
        if tag in cell.tags and last and last not in found:
            found.append(last)
        last = above[-1] if above else last
    return found


def _link(heading: str) -> str:
    """A link to a heading by the address that JupyterLab gives it.

    >>> _link("Fig. 3 (§2): *one* timeline")
    '[Fig. 3 (§2): one timeline](<#Fig.-3-(§2):-one-timeline>)'
    """
    words = _MARKS.sub("", heading).strip()
    return f"[{words}](<#{'-'.join(words.split())}>)"
