"""The anatomy of a notebook: its sections by cell tag, and a view of one notebook through them.

A section starts at the first cell that carries its tag and lasts to the next section's first cell.
The order of :data:`SECTIONS` is the order of the story every notebook tells.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabkitError
from labkit.workbook import notebooks
from labkit.workbook.review import claims as claims_file
from labkit.workbook.review.glance import TODO
from labkit.workbook.review.verdicts import Claim

if TYPE_CHECKING:
    from nbformat import NotebookNode

SECTIONS = (
    "title",
    "parameters",
    "at-a-glance",
    "insight",
    "mechanism",
    "figure",
    "reproduction",
    "claims",
    "rivals",
    "differences",
    "weaknesses",
    "companions",
    "explorable",
    "discussion",
    "comments",
    "symbols",
    "sources",
)
"""In this order, each once; only ``figure`` comes two times or more."""

OPTIONAL = ("comments", "symbols")
"""Sections a notebook may leave out, or put where they help."""

CELL_TAGS = ("setup", "verdict", "idea", "predict", "weakness", "change-me")
"""Tags of single cells in a section: imports, the verdict's sentence, the picture of the idea, the
question to the reader, a weakness that runs, one line to edit and what should happen."""

WAYS = {"path-5": "5 minutes", "path-30": "half an hour"}
"""Tags of the cells on a way through the notebook, and how long it takes."""

SIZES = ("flagship", "standard")
MAX_PAGES = {"flagship": 14, "standard": 9}
"""Pages of a talk, which the exporter keeps."""
QUESTIONS = range(3, 7)

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{2,4}\s+(.+)$", re.MULTILINE)
_WEAKNESS = re.compile(r"^###\s+(.+)$", re.MULTILINE)
FOLD = re.compile(r"<details>.*?</details>", re.DOTALL)
"""What a reader unfolds, and may leave folded."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell and its place, counted from 1 as a reader counts."""

    number: int
    node: NotebookNode

    @property
    def id(self) -> str:
        return str(self.node.get("id", ""))

    @property
    def source(self) -> str:
        return str(self.node.source)

    @property
    def is_code(self) -> bool:
        return bool(self.node.cell_type == "code")

    @property
    def tags(self) -> list[str]:
        return notebooks.tags(self.node)

    @property
    def section_tag(self) -> str:
        """The anatomy tag this cell carries, "" for none."""
        return next((tag for tag in self.tags if tag in SECTIONS), "")

    @property
    def prose(self) -> str:
        """The text a reader sees of a Markdown cell: no HTML comments, no fenced code."""
        if self.node.cell_type != "markdown":
            return ""
        return _FENCE.sub("", _COMMENT.sub("", self.source)).strip()

    @property
    def magics(self) -> list[str]:
        """Lines that only IPython understands (``%``, ``!``, ``?``); none where all is Python."""
        with suppress(SyntaxError):
            ast.parse(self.source)
            return []
        return [line.strip() for line in self.source.splitlines() if notebooks.MAGIC.search(line)]

    @cached_property
    def tree(self) -> ast.Module | None:
        """The cell's code parsed, None where it is not Python."""
        return notebooks.tree(self.source)

    @property
    def outputs(self) -> list[NotebookNode]:
        return list(self.node.get("outputs", []))

    def output_data(self, mime: str) -> list[Any]:
        """The outputs of one MIME type; what is no figure counts for none."""
        bundles = (output.get("data", {}) for output in self.outputs)
        shown = [bundle[mime] for bundle in bundles if mime in bundle]
        return [x for x in shown if mime != notebooks.PLOTLY_MIME or notebooks.is_figure(x)]

    def calls(self, method: str) -> Iterator[ast.Call]:
        """The calls ``something.method(...)`` in this cell."""
        return notebooks.calls(self.tree, method)


@dataclass(frozen=True)
class Part:
    """What stands under one heading of a section, which ``cell`` holds: texts and code cells."""

    heading: str
    cell: Cell
    items: list[str | Cell] = field(default_factory=list)

    def texts(self, start: int = 0, stop: int | None = None) -> list[str]:
        return [item for item in self.items[start:stop] if isinstance(item, str)]

    def cells(self, tag: str = "") -> list[tuple[int, Cell]]:
        """The code cells (that carry ``tag``) and their places."""
        cells = [(n, item) for n, item in enumerate(self.items) if isinstance(item, Cell)]
        return [(n, cell) for n, cell in cells if not tag or tag in cell.tags]


@dataclass(frozen=True, eq=False)
class Section:
    """A section's cells, the tagged one first."""

    tag: str
    cells: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        return self.cells[0]

    @property
    def code(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_code]

    @property
    def prose(self) -> str:
        return "\n\n".join(cell.prose for cell in self.cells if cell.prose)

    @property
    def body(self) -> str:
        """The prose without its headings."""
        return "\n".join(line for line in self.prose.splitlines() if not line.startswith("#"))

    def parts(self, heading: re.Pattern[str] = HEADING) -> list[Part]:
        """What comes before the first heading, then what stands under each; a cell may hold
        several."""
        parts = [Part(self.tag.capitalize(), self.first)]
        for cell in self.cells:
            first, *rest = heading.split(cell.prose)
            parts[-1].items.extend([cell] if cell.is_code else filter(None, [first.strip()]))
            for title, text in zip(rest[::2], rest[1::2], strict=True):
                parts.append(Part(title.strip(), cell, [text.strip()] if text.strip() else []))
        return parts

    @property
    def weaknesses(self) -> list[Part]:
        """What stands under each ``### `` heading."""
        return self.parts(_WEAKNESS)[1:]

    @property
    def is_unwritten(self) -> bool:
        """Whether it still says TODO; the `todo` rule then reports it, and no other rule does."""
        return any(TODO in cell.source for cell in self.cells)


@dataclass(frozen=True, eq=False)
class Subject:
    """One notebook under review."""

    root: Path
    key: str
    path: Path
    notebook: NotebookNode

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(Cell(number, node) for number, node in enumerate(self.notebook.cells, 1))

    @property
    def code(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_code]

    @property
    def size(self) -> str:
        """The size the metadata name, "" where they name none or an unknown one."""
        size = self.notebook.metadata.get("labkit", {}).get("size", "")
        return size if size in SIZES else ""

    def tagged(self, tag: str) -> list[Cell]:
        """The cells that carry ``tag``, in order."""
        return [cell for cell in self.cells if tag in cell.tags]

    @property
    def verdict(self) -> list[str]:
        """What the cells tagged ``verdict`` print, as Markdown, wherever they stand."""
        cells = [cell for cell in self.tagged("verdict") if cell.is_code]
        texts = (text for cell in cells for text in cell.output_data("text/markdown"))
        return [notebooks.joined(text) for text in texts]

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections as they stand. A tag repeated on the very next cell, or on code further on,
        goes on the section, except ``figure``, which starts a new one each time."""
        starts: list[int] = []
        tag = before = ""
        for place, cell in enumerate(self.cells):
            own = cell.section_tag
            goes_on = own == before or (own == tag and cell.is_code)
            if own and (own == "figure" or not goes_on):
                starts.append(place)
                tag = own
            before = own
        return tuple(
            Section(self.cells[start].section_tag, self.cells[start:end])
            for start, end in pairwise([*starts, len(self.cells)])
        )

    def section(self, tag: str) -> Section | None:
        """The first section of that tag."""
        return next((section for section in self.sections if section.tag == tag), None)

    @cached_property
    def parameter_names(self) -> list[str]:
        """Names of the parameters; none where their cell does not read: its own rule says why."""
        try:
            return list(notebooks.parameters(self.notebook))
        except (SyntaxError, ValueError):
            return []

    @cached_property
    def claims(self) -> list[Claim]:
        """The paper's claims; none where the file does not read: the `claims` rule says why."""
        try:
            return claims_file.load(self.root, self.key)
        except LabkitError:
            return []

    @cached_property
    def stored_claims(self) -> dict[str, dict[str, Any]]:
        """The claims of the stored outputs, by id."""
        return {record["id"]: record for record in claims_file.from_notebook(self.notebook)}

    @property
    def was_executed(self) -> bool:
        """Whether the stored outputs come from a run at all."""
        return any(cell.node.get("execution_count") for cell in self.code)


def words(text: str) -> int:
    """How many words a reader reads: table rules, list marks and tags do not count.

    >>> words("- **one** two\\n|---|---|\\n<br> three")
    3
    """
    text = re.sub(r"<[^>]+>", " ", text)
    return sum(1 for word in text.split() if re.search(r"\w", word))
