"""The paper a notebook reviews: its data, its claims, its companions, its sources."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.errors import BadFile, UsageError
from labkit.workbook import claims as claims_module
from labkit.workbook import notebooks, tables

if TYPE_CHECKING:
    from labkit.datasets import Source
    from labkit.workbook.bibliography import Entry
    from labkit.workbook.claims import ClaimsTable

ASPECTS = ("insight", "method", "results", "advantages", "weaknesses")
"""The five rows of an at-a-glance table: what comparison tables are made of."""


@dataclass(frozen=True)
class Paper:
    """One paper of the workbook; make it with :func:`open_paper`."""

    key: str
    root: Path
    entry: Entry

    @property
    def title(self) -> str:
        return self.entry.title

    def title_markdown(self) -> str:
        """What the title cell says of the paper: title, authors, venue and link."""
        return title_markdown(self.entry)

    def data(self, name: str, *paths: str) -> Source:
        """The data set ``name``, or its stand-in where it cannot be had (``.is_standin`` says so).

        ``paths`` are the files the notebook opens (default: all). As a cell's last expression it
        shows where the data come from.
        """
        from labkit import datasets

        return datasets.source(name, files=list(paths) or None, root=self.root)

    def claims(self, values: Mapping[str, Any], *data: Source) -> ClaimsTable:
        """Our ``values`` (claim id -> value) beside the paper's, each with its verdict.

        Pass every data set the values were computed from: on a stand-in a claim is not judged.
        """
        return claims_module.judge(self.root, self.key, values, data)

    def beside(self, *keys: str) -> tables.Table:
        """This paper and its companions, side by side in the five at-a-glance rows."""
        import pandas as pd

        entries = _bibliography(self.root)
        columns: dict[str, list[str]] = {"": list(ASPECTS)}
        for key in (self.key, *keys):
            _require(entries, key, self.root)
            glance = at_a_glance(self.root, key)
            columns[_header(entries[key], glance)] = [glance.rows[name] for name in ASPECTS]
        frame = pd.DataFrame(columns)
        grid = tables.Grid(
            headers=list(columns),
            rows=[list(row) for row in zip(*columns.values(), strict=True)],
            align=["left"] * len(columns),
            bold=frozenset((row, 0) for row in range(len(ASPECTS))),
            wrap=36,
        )
        return tables.Table(frame, grid)

    def sources(self, *data: Source, cites: Sequence[str] = ()) -> tables.Table:
        """What the notebook rests on: this paper, papers it cites, data sets and licences."""
        import pandas as pd

        entries = _bibliography(self.root)
        rows = []
        for key in (self.key, *cites):
            _require(entries, key, self.root)
            entry = entries[key]
            rows.append(("paper", entry.citation().removesuffix(entry.link).rstrip(), entry.link))
        rows += [("data", *_dataset_line(source)) for source in data]
        frame = pd.DataFrame(rows, columns=["kind", "source", "where"])
        return tables.table(frame)


def open_paper(key: str) -> Paper:
    """The paper ``key`` of ``data/papers.bib``.

    Raises:
        UsageError: the bibliography has no such key; the message says what is near.
    """
    root = files.project_root()
    entries = _bibliography(root)
    _require(entries, key, root)
    return Paper(key=key, root=root, entry=entries[key])


def title_markdown(entry: Entry) -> str:
    names = ", ".join(entry.authors) + (" et al." if entry.et_al else "")
    venue = f"{entry.venue} {entry.year}".strip()
    link = f" · [paper]({entry.link})" if entry.link else ""
    return f"# {entry.title}\n\n{names} · {venue}{link}"


def _bibliography(root: Path) -> dict[str, Entry]:
    from labkit.workbook import bibliography

    return bibliography.load(root)


def _require(entries: Mapping[str, Any], key: str, root: Path) -> None:
    if key in entries:
        return
    near = difflib.get_close_matches(str(key), list(entries), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise UsageError(
        f"no paper {key!r} in {root / 'data' / 'papers.bib'}: {hint}`labkit queue search TEXT` "
        "finds a key, `labkit queue add` adds a paper"
    )


# ---------------------------------------------------------------- at a glance


@dataclass(frozen=True, kw_only=True)
class Glance:
    """A paper in five lines, and where they come from."""

    rows: dict[str, str]
    reviewed: bool
    verified: bool
    source: str = ""


def at_a_glance(root: Path, key: str) -> Glance:
    """The five lines of paper ``key``: from its notebook, else from its ``glance.yaml``.

    Raises:
        BadFile: the table lacks a row, or neither of the two is there.
    """
    path = notebooks.paths(root).get(key)
    if path is not None:
        cells = notebooks.tagged(notebooks.read(path), "at-a-glance")
        if not cells:
            raise BadFile(path, "no cell is tagged 'at-a-glance'")
        rows = parse_glance(cells[0].source)
        missing = [name for name in ASPECTS if name not in rows]
        if missing:
            raise BadFile(path, f"the at-a-glance table lacks {', '.join(missing)}")
        return Glance(rows=rows, reviewed=True, verified=True)
    return _glance_file(root, key)


def _glance_file(root: Path, key: str) -> Glance:
    from pydantic import BaseModel, ConfigDict

    class GlanceFile(BaseModel):
        model_config = ConfigDict(extra="forbid")

        insight: str
        method: str
        results: str
        advantages: str
        weaknesses: str
        source: str
        verified: bool

    path = root / "data" / "papers" / key / "glance.yaml"
    if not path.is_file():
        raise BadFile(
            path, f"{key!r} has no notebook, so its five lines must stand here, and they do not"
        )
    given = files.read_yaml(path, GlanceFile)
    rows = {name: " ".join(getattr(given, name).split()) for name in ASPECTS}
    return Glance(rows=rows, reviewed=False, verified=given.verified, source=given.source)


_ROW = re.compile(r"^\s*\|(?P<name>[^|]*)\|(?P<text>.*?)\|?\s*$")


def parse_glance(markdown: str) -> dict[str, str]:
    """The rows of an at-a-glance table in Markdown, in order.

    >>> parse_glance("| | |\\n|---|---|\\n| **insight** | bubbles are free time |")
    {'insight': 'bubbles are free time'}
    """
    rows = {}
    for line in markdown.splitlines():
        match = _ROW.match(line)
        if match is None:
            continue
        name = match["name"].strip().strip("*_` ").lower()
        if name and set(name) - set(":- "):
            rows[name] = match["text"].strip().replace("\\|", "|")
    return rows


def _header(entry: Entry, glance: Glance) -> str:
    marks = [] if glance.reviewed else ["not yet reviewed in a notebook"]
    if not glance.verified:
        marks.append("unverified")
    return entry.cite() + (f" ({', '.join(marks)})" if marks else "")


def _dataset_line(source: Any) -> tuple[str, str]:
    bundle = source._repr_mimebundle_()
    return " ".join(str(bundle["text/plain"]).split()), source.name
