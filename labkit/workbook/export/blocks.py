"""A notebook as a row of blocks, each a cell already turned into HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.workbook import notebooks
from labkit.workbook.export.markup import Markup, highlighted
from labkit.workbook.review.anatomy import SECTIONS

if TYPE_CHECKING:
    from nbformat import NotebookNode


@dataclass(frozen=True, kw_only=True)
class Block:
    """One cell: its prose, or its code and what the code showed."""

    id: str
    tags: tuple[str, ...]
    html: str
    code: str
    errors: bool
    is_mechanism: bool

    @property
    def is_code(self) -> bool:
        return bool(self.code)


def from_notebook(notebook: NotebookNode, markup: Markup) -> list[Block]:
    """Every cell that says anything, in order; raw cells are left out."""
    blocks = []
    section = ""
    for cell in notebook.cells:
        tags, source = tuple(notebooks.tags(cell)), cell.source.strip()
        section = next((tag for tag in tags if tag in SECTIONS), section)
        is_code = cell.cell_type == "code"
        if not source or cell.cell_type == "raw":
            continue
        block = Block(
            id=str(cell.get("id", "")),
            tags=tags,
            html="\n".join(markup.outputs(cell)) if is_code else markup.markdown(cell),
            code=highlighted(source) if is_code else "",
            errors=any(output["output_type"] == "error" for output in cell.get("outputs", [])),
            is_mechanism=is_code and section == "mechanism",
        )
        blocks.append(block)
    return blocks
