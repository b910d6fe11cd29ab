"""``labkit new``: a notebook by the anatomy, ready to run and to be written.

What the workbook knows of the paper is filled in; every text or cell that a person must write says
TODO, which ``labkit check`` lists. Guidance stands in HTML comments, which no reader sees.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.errors import LabkitError, UsageError, not_among
from labkit.kit import page
from labkit.workbook import normalise, notebooks
from labkit.workbook.queue import bibliography, reading_queue
from labkit.workbook.review import claims, glance
from labkit.workbook.review.anatomy import QUESTIONS, SIZES
from labkit.workbook.review.glance import TODO
from labkit.workbook.review.paper import known_entry, title_markdown
from labkit.workbook.review.rules.amounts import SPANS
from labkit.workbook.review.rules.story import CHANGES

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FAMILY = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    """The files ``labkit new`` made; ``claims_made`` is False where they were there before."""

    notebook: Path
    claims: Path
    claims_made: bool


def create(root: Path, key: str, family: str = "", size: str = "standard") -> Scaffold:
    """Write ``notebooks/<family>/<key>.ipynb`` and, where missing, the paper's ``claims.yaml``.

    ``size`` is "standard" or "flagship" (a paper the group argues about for an hour); ``family``
    defaults to the first of the paper's tags that is a folder of notebooks already,
    else to its first tag.

    Raises:
        UsageError: the paper is unknown, has a notebook, or no family can be told.
    """
    if size not in SIZES:
        raise not_among("size of notebook", size, SIZES)
    entry = known_entry(bibliography.load(root), key, root)
    if (there := notebooks.paths(root).get(key)) is not None:
        raise UsageError(f"{there.relative_to(root)} is there already; it is not overwritten")
    paper = next((paper for paper in reading_queue.load(root) if paper.key == key), None)
    family = family or _family(root, key, paper.tags if paper else ())
    if not _FAMILY.match(family):
        raise UsageError(f"--family {family!r}: small letters, digits and hyphens, as in 'energy'")
    companions = [name for name in (paper.companions if paper else ()) if _has_rows(root, name)]
    text = normalise.dumps(build(root, entry, companions, size))
    target = claims.path_of(root, key)
    if claims_made := not target.exists():
        _create(target, claims_text(size))
    path = root / "notebooks" / family / f"{key}.ipynb"
    _create(path, text)
    return Scaffold(notebook=path, claims=target, claims_made=claims_made)


def _family(root: Path, key: str, tags: Sequence[str]) -> str:
    folders = {path.parent.name for path in notebooks.paths(root).values()}
    for tag in [tag for tag in tags if tag in folders] or tags:
        return tag
    there = ", ".join(sorted(folders)) or "none yet"
    raise UsageError(
        f"{key!r} has no tags in reading_queue.yaml to tell its family of notebooks: "
        f"`labkit new {key} --family NAME` (families: {there})"
    )


def _has_rows(root: Path, key: str) -> bool:
    try:
        glance.of(root, key)
    except LabkitError:
        return False
    return True


def _create(path: Path, text: str) -> None:
    """Write a new file whole, or not at all; never over one that another process just made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
        whole = Path(folder) / path.name
        files.write_atomically(whole, text)
        try:
            os.link(whole, path)
        except FileExistsError:
            raise UsageError(f"{path} is there already; it is not overwritten") from None


def claims_text(size: str) -> str:
    """A ``claims.yaml`` to be written, with as many claims as a notebook of ``size`` needs."""
    least = SPANS["judged claims"][size][0]
    headlines = SPANS["claims of kind 'headline'"][size][0]
    return filled("claims.j2", kinds={"headline": headlines, "mechanism": least - headlines})


def build(
    root: Path, entry: bibliography.Entry, companions: Sequence[str], size: str
) -> NotebookNode:
    """The notebook of one paper, unwritten."""
    import nbformat.v4 as v4

    lines = {name: f"{TODO}: the {name}, in one line" for name in glance.ASPECTS}
    if glance.path_of(root, entry.key).is_file():
        lines = glance.load(root, entry.key).rows
    text = filled(
        "notebook.j2",
        title=title_markdown(entry),
        key=entry.key,
        flagship=size == "flagship",
        num_changes=CHANGES[size],
        glance=lines,
        companions=companions,
        num_questions=QUESTIONS.start,
    )
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    ours = {"paper": entry.key, "size": size, "datasets": []}
    notebook = v4.new_notebook(metadata={"kernelspec": kernel, "labkit": ours})
    notebook.cells = [_cell(part) for part in text.split("=== ")[1:]]
    return notebook


def _cell(part: str) -> NotebookNode:
    """A cell of the template: ``id kind [tag …]`` on a line, then its source."""
    import nbformat.v4 as v4

    header, _, source = part.partition("\n")
    name, kind, *tags = header.split()
    metadata: dict[str, Any] = {"tags": tags} if tags else {}
    create_cell = v4.new_markdown_cell if kind == "markdown" else v4.new_code_cell
    return create_cell(source=source.rstrip(), id=name, metadata=metadata)


def filled(template: str, package: str = "labkit.workbook.review", **values: Any) -> str:
    """A text that is no page: ``template`` of ``package`` with ``values``."""
    plain = page.environment(package).overlay(autoescape=False)
    return plain.get_template(template).render(**values)
