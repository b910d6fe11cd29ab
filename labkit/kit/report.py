"""A command's result, made once for every form it is shown in: text, JSON, CSV, one HTML page.

A report is facts (a name, a value, a remark), tables of data frames and figures. Headings and
number formats follow from the units in the columns' names (:mod:`labkit.quantities`), so a report
says what to show and never how.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.files import CONTROL, write_atomically
from labkit.quantities import formatted, plain, split_unit

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDE_COLUMNS = 100
"""Columns of a terminal from which on a table's ``wide`` columns are shown."""
MOST_ROWS = 60
"""Rows of a table that a terminal shows; pages, JSON and CSV hold all."""

Figure = tuple[str, str, Any]
"""A heading, a note, and a Plotly figure."""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of a report, from a data frame.

    Attributes:
        table: the rows; a column's unit is the end of its name (``energy_j``).
        columns: the columns shown and their headings, or only their names, whose headings are then
            their words; default: all columns.
        formats: for columns whose unit does not say how they are printed.
        heading, note: above and below the table.
        wide: columns that only a wide terminal shows.
        ratio: how columns of prose, by name, share the width; they wrap.
        page_only: too long for a terminal.
        titles: columns that stand on a page as a line above the row's others, which so have room.
    """

    table: pd.DataFrame
    columns: Mapping[str, str] | Sequence[str] = ()
    formats: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    heading: str = ""
    note: str = ""
    wide: Sequence[str] = ()
    ratio: Mapping[str, int] = field(default_factory=dict)
    page_only: bool = False
    titles: Sequence[str] = ()

    @property
    def headings(self) -> dict[str, str]:
        """The heading of each column that is shown."""
        if isinstance(self.columns, Mapping):
            return dict(self.columns)
        names = self.columns or [str(name) for name in self.table.columns]
        return {name: split_unit(name)[0] for name in names}

    def rows(self) -> list[list[str]]:
        """Write the cells as text."""
        printed = []
        for name in self.headings:
            convert = self.formats.get(name)
            values = self.table[name].tolist()
            printed.append([convert(v) if convert else formatted(name, v) for v in values])
        return [list(row) for row in zip(*printed, strict=True)]

    def is_number(self, name: str) -> bool:
        """Tell whether a column is set to the right: it holds numbers."""
        values = [v for v in self.table[name].tolist() if v is not None]
        return name not in self.ratio and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in values
        )


@dataclass(kw_only=True)
class Report:
    """What a command answers.

    Attributes:
        title, lead: the heading, and a sentence below it.
        facts: name, value and a remark. A value that is no text is printed by its name's unit.
        tables: the rest; the first is what ``--csv`` writes, unless ``csv`` says otherwise.
        data: what ``--json`` writes.
        figures: the page's figures, drawn only where a page is made.
        banner: a warning that comes first, such as that data are stand-ins.
        notes: what the numbers rest on, a sentence each.
        files: further files the caller asked for: kind -> path (None: not asked) and writer.
        text: a plain answer instead of all this.
        exit_code: what the command exits with, once the report is shown.
    """

    title: str = ""
    lead: str = ""
    facts: Sequence[tuple[str, Any, str]] = ()
    tables: Sequence[Sheet] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    figures: Callable[[], Sequence[Figure]] = tuple
    banner: str = ""
    notes: Sequence[str] = ()
    csv: pd.DataFrame | None = None
    files: Mapping[str, tuple[Path | None, Callable[[Path], object]]] = field(default_factory=dict)
    text: str = ""
    exit_code: int = 0

    def print(self, console: Console) -> None:
        """Show the report in a terminal."""
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.table import Table

        if self.text:
            console.print(_text(self.text), soft_wrap=True)
            return
        if self.banner:
            console.print(Panel(_text(self.banner), style="black on yellow"))
        console.print(_text(self.title, style="bold"))
        if self.lead:
            console.print(_text(self.lead, style="dim"))
        if self.facts:
            facts = Table.grid(padding=(0, 2, 0, 0))
            facts.add_column(no_wrap=True)
            facts.add_column(no_wrap=True, style="bold")
            facts.add_column(style="dim")
            for name, value, remark in self._facts():
                facts.add_row(_text(name), _text(value), _text(remark))
            console.print(Padding(facts, (1, 0, 0, 0)))
        for sheet in self.tables:
            if not sheet.page_only:
                console.print(Padding(_rich_table(sheet, console.width), (1, 0, 0, 0)))
        if self.notes:
            console.print()
        for note in self.notes:
            console.print(_text(f"· {_sentence(note)}", style="dim"))

    def json(self) -> str:
        """Write the data as JSON; what is missing or not finite is null."""
        return json.dumps(plain(self.data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def csv_text(self) -> str:
        """Write the rows as CSV."""
        table = self.csv if self.csv is not None else self.tables[0].table
        return table.to_csv(index=False)

    def write_page(self, path: Path) -> None:
        """Write the report as one HTML file with figures, which fetches nothing."""
        write_atomically(path, self.page())

    def page(self, *, plotly: str = "", links: Mapping[str, str] | None = None) -> str:
        """Write the report as one HTML page.

        Args:
            plotly: where Plotly's script lies, if not in the page.
            links: words and address of what the page's bar leads to.
        """
        from labkit.kit import page

        sections: list[dict[str, Any]] = [
            {
                "heading": heading,
                "note": note,
                "figure": page.plot(figure.to_plotly_json()),
            }
            for heading, note, figure in self.figures()
        ]
        sections += [_section(sheet) for sheet in self.tables]
        if self.notes:
            points = list(map(_sentence, self.notes))
            sections.append({"heading": "Assumptions", "note": "", "points": points})
        drawn = "".join(str(section.get("figure", "")) for section in sections)
        numbers = [(v, " · ".join(filter(None, (n, remark)))) for n, v, remark in self._facts()]
        return page.render(
            "report.html.j2",
            policy=page.policy(drawn, own_files=bool(plotly)),
            plotly=plotly,
            drawn=bool(drawn),
            links=links or {},
            title=self.title,
            lead=self.lead,
            banner=self.banner,
            numbers=numbers,
            sections=sections,
        )

    def _facts(self) -> list[tuple[str, str, str]]:
        """Write the facts with their units."""
        texts = []
        for name, value, remark in self.facts:
            shown = value if isinstance(value, str) else formatted(name, value)
            texts.append((split_unit(name)[0], shown, remark))
        return texts


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Turn a data frame's rows into JSON objects."""
    return [plain(row) for row in table.to_dict("records")]


def standin_banner(reasons: Mapping[str, str]) -> str:
    """Warn of data that are stand-ins, by what they hold and why they are read.

    The warning is empty where every reason is.

    >>> standin_banner({"step times": "", "the power trace": ""})
    ''
    """
    ours = {origin: why for origin, why in reasons.items() if why}
    if not ours:
        return ""
    return (
        f"STAND-IN DATA: {' and '.join(ours)} come from a model of ours, not from the published "
        "measurements; the numbers show how things work, not how they are. Why: "
        f"{'; '.join(dict.fromkeys(ours.values()))}"
    )


def _section(sheet: Sheet) -> dict[str, Any]:
    """Arrange a sheet as the page's template shows it."""
    headings = sheet.headings
    in_title = [name in sheet.titles for name in headings]
    in_row = [not is_title for is_title in in_title]
    columns = [(title, sheet.is_number(name)) for name, title in headings.items()]
    rows = sheet.rows()
    return {
        "heading": sheet.heading,
        "note": sheet.note,
        "columns": list(compress(columns, in_row)),
        "titles": [list(compress(row, in_title)) for row in rows],
        "rows": [list(compress(row, in_row)) for row in rows],
        "is_prose": bool(sheet.ratio),
    }


def _rich_table(sheet: Sheet, width: int) -> Table:
    """Arrange a sheet as a terminal shows it."""
    from rich import box
    from rich.table import Table

    names = [n for n in sheet.headings if width >= WIDE_COLUMNS or n not in sheet.wide]
    shown = Sheet(table=sheet.table.head(MOST_ROWS)[names], columns=names, formats=sheet.formats)
    lines = [[sheet.headings[name] for name in names], *shown.rows()]
    fits = sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2 <= width
    wraps = bool(sheet.ratio) and not fits  # rows of several lines need a rule between them
    more = len(sheet.table) - MOST_ROWS
    rest = f"and {more:,} more rows: --csv, --json or --html has them" if more > 0 else ""
    caption = "; ".join(filter(None, (sheet.note, rest)))
    table = Table(
        box=box.HORIZONTALS if wraps else None,
        show_edge=False,
        show_lines=wraps,
        expand=wraps,
        border_style="bright_black",
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title=_text(sheet.heading) if sheet.heading else None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        caption=_text(caption) if caption else None,
        caption_justify="left",
    )
    for name in names:
        table.add_column(
            _text(sheet.headings[name]),
            justify="right" if sheet.is_number(name) else "left",
            no_wrap=fits and name not in sheet.ratio,  # else letters at its edge are lost
            overflow="fold",
            ratio=sheet.ratio.get(name),
        )
    for row in lines[1:]:
        table.add_row(*map(_text, row))
    return table


def _text(text: str, style: str = "") -> Text:
    """Make what a terminal shows; what it would obey instead is written as its escape."""
    from rich.text import Text

    return Text(CONTROL.sub(_escape, text), style=style)


def _escape(control: re.Match[str]) -> str:
    r"""Write a control character as Python does.

    >>> CONTROL.sub(_escape, "\x1b[31mred")
    '\\x1b[31mred'
    """
    return repr(control[0])[1:-1]


def _sentence(text: str) -> str:
    """Begin with a capital and end with a full stop.

    >>> _sentence("messages take no time")
    'Messages take no time.'
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
