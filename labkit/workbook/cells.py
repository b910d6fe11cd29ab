"""Notebooks read in milliseconds: their JSON as it is, without nbformat and its validation.

Deciding that nothing has to run must be quick, and importing nbformat alone takes longer than
that decision. What is read here is only ever looked at; notebooks are written by nbformat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.workbook import notebooks


class Node(dict[str, Any]):
    """A JSON object whose fields are attributes, as nbformat's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def read(path: Path) -> Any:
    """The notebook at ``path``, sources and texts joined to one string each.

    Raises:
        BadFile: it is no notebook of format 4 (nbformat then says what is wrong with it).
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return notebooks.read(path)


def parse(text: str) -> Any:
    """:func:`read` for the text of a notebook; raises ValueError and its like where it is none."""
    notebook = json.loads(text, object_hook=Node)
    if notebook.nbformat != 4:
        raise ValueError(f"nbformat {notebook.nbformat}")
    for cell in notebook.cells:
        cell["source"] = _joined(cell["source"])
        cell.setdefault("metadata", Node())
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
    notebook.setdefault("metadata", Node())
    return notebook


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
