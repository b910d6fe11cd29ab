"""A report as one HTML file: numbers, tables and figures, with nothing to fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.files import write_atomically
from labkit.workbook.export import pages
from labkit.workbook.export.markup import json_for_script


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, and below it any of a note, a figure and a table.

    Attributes:
        figure: as Plotly's ``to_plotly_json()`` gives it.
        columns, rows: the table's headings and its cells, as text.
        words: the columns, by number, that hold words: all others are set as numbers.
    """

    heading: str
    note: str = ""
    figure: Mapping[str, Any] | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    words: Sequence[int] = (0,)

    @property
    def height(self) -> float:
        return float((self.figure or {}).get("layout", {}).get("height") or 450)

    @property
    def json(self) -> str:
        return json_for_script(self.figure)

    def is_number(self, column: int) -> bool:
        return column not in self.words


def write_report(
    path: Path,
    *,
    title: str,
    sections: Sequence[Section],
    lead: str = "",
    banner: str = "",
    numbers: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the page to ``path``, whole or not at all.

    Args:
        banner: a warning that stands out, such as that data are stand-ins.
        numbers: the results in large type: value and name.
    """
    body = "".join(section.json for section in sections if section.figure)
    html = pages.render(
        "report.html.j2",
        policy=pages.policy(body),
        title=title,
        lead=lead,
        banner=banner,
        numbers=numbers,
        sections=sections,
    )
    write_atomically(path, html)
