"""A notebook as it is committed: outputs kept, everything that differs from run to run dropped.

Dropped: papermill's and nbclient's traces, the state of widgets and the views onto it, what an
editor remembers about the screen, the injected parameters. Kept: sources, cell ids, tags, slide
types, outputs. Execution counts become 1, 2, 3 …, and neighbouring stream outputs one, standard
output first. Two runs of a deterministic notebook then come out byte for byte the same.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.files import write_atomically
from labkit.workbook import notebooks
from labkit.workbook.notebooks import WIDGET_VIEW

if TYPE_CHECKING:
    from nbformat import NotebookNode

BANNER = "papermill-error-cell-tag"
_INJECTED = "injected-parameters"

_NOTEBOOK_NOISE = ("papermill", "widgets", "signature", "orig_nbformat")
_LANGUAGE = ("file_extension", "mimetype", "name", "nbconvert_exporter", "pygments_lexer")
_CELL_NOISE = ("papermill", "execution", "ExecuteTime", "collapsed", "scrolled", "trusted")
_VIEW_DEFAULTS: dict[str, Any] = {"editable": True, "deletable": True}


def normalise(notebook: NotebookNode) -> NotebookNode:
    """A copy of ``notebook`` in its committed form; normalising twice changes nothing more."""
    clean = copy.deepcopy(notebook)
    clean.cells = [cell for cell in clean.cells if not made_by_papermill(cell)]
    _clean_notebook_metadata(clean.metadata)
    count = 0
    for cell in clean.cells:
        cell.metadata = type(cell.metadata)(cell_metadata(cell.metadata))
        if cell.cell_type != "code":
            continue
        cell.outputs = clean_outputs(cell.outputs)
        ran = cell.get("execution_count") is not None or bool(cell.outputs)
        count += ran
        cell.execution_count = count if ran else None
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return clean


def dumps(notebook: NotebookNode) -> str:
    """The notebook's file as text: sorted keys, one space of indent, a newline at the end."""
    import nbformat

    return nbformat.writes(notebook).rstrip("\n") + "\n"


def made_by_papermill(cell: NotebookNode) -> bool:
    """Whether papermill put the cell in: injected parameters, or the banner of a failure."""
    return not {_INJECTED, BANNER}.isdisjoint(notebooks.tags(cell))


def without_traces(notebook: NotebookNode, *, keep_banner: bool) -> NotebookNode:
    """A copy of an executed notebook without papermill's metadata; all else as it ran.

    This is what ``results/`` holds: the injected parameters and the widgets' state stay, since
    an export needs them; times and paths go to ``run.json``. The banner, a cell that papermill
    adds to point at a failure, stays where it is kept.
    """
    clean = copy.deepcopy(notebook)
    if not keep_banner:
        clean.cells = [cell for cell in clean.cells if BANNER not in notebooks.tags(cell)]
    clean.metadata.pop("papermill", None)
    for cell in clean.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        if "id" in cell and _INJECTED in cell.metadata.get("tags", []):
            cell["id"] = _INJECTED  # papermill draws a new one in every run
    return clean


def _clean_notebook_metadata(metadata: NotebookNode) -> None:
    for name in _NOTEBOOK_NOISE:
        metadata.pop(name, None)
    language = metadata.get("language_info", {})
    for name in [name for name in language if name not in _LANGUAGE]:
        del language[name]
    kernel = metadata.get("kernelspec", {})
    if kernel.get("name") == "python3":  # its display name differs from machine to machine
        kernel.update(display_name="Python 3 (ipykernel)", language="python")


def cell_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """A cell's metadata without what running or looking at the cell leaves there."""
    kept = {
        name: value
        for name, value in metadata.items()
        if name not in _CELL_NOISE and value != _VIEW_DEFAULTS.get(name)
    }
    if "jupyter" in kept:
        kept["jupyter"] = {k: v for k, v in kept["jupyter"].items() if k != "outputs_hidden"}
    if not kept.get("slideshow", {}).get("slide_type", "x"):
        del kept["slideshow"]
    return {name: value for name, value in kept.items() if value not in ([], {})}


def clean_outputs(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Outputs with neighbouring streams merged and views onto widgets taken out.

    A widget's text (what a page without the widget shows, and what nbval compares) stays.
    """
    merged: list[NotebookNode] = []
    for is_stream, run in groupby(outputs, key=lambda output: output.output_type == "stream"):
        if not is_stream:
            merged += [output for output in run if not _only_widget_view(output)]
            continue
        streams: dict[str, NotebookNode] = {}
        for output in run:
            if streams.setdefault(output.name, output) is not output:
                streams[output.name].text += output.text
        # Standard output first: which of the two arrives first is chance.
        merged += [streams[name] for name in sorted(streams, reverse=True)]
    return merged


def _only_widget_view(output: NotebookNode) -> bool:
    """Take the widget view out of ``output``; True where nothing else is left of it."""
    data = output.get("data")
    if not data or WIDGET_VIEW not in data:
        return False
    del data[WIDGET_VIEW]
    return not data


# ---------------------------------------------------------------- a save in JupyterLab


def keep_outputs(model: dict[str, Any], path: str, contents_manager: Any, **_: Any) -> None:
    """Jupyter's ``pre_save_hook``: outputs stay as committed, so that running edits nothing.

    A cell whose source is as on disk keeps the outputs that are on disk; one that was edited or is
    new has none until ``labkit refresh`` runs the notebook. Reading and running thus leave the file
    byte for byte as it was, and an edit changes what was edited. New notebooks, and those that are
    no paper's, are saved as they are.
    """
    import nbformat

    file = Path(contents_manager.root_dir) / path.lstrip("/")
    if model.get("type") != "notebook" or not file.is_file():
        return
    stored = notebooks.read(file)
    if "labkit" not in stored.metadata:
        return
    notebook = nbformat.from_dict(model["content"])
    on_disk = {cell.get("id"): cell for cell in stored.cells}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            before = on_disk.get(cell.get("id"), {})
            same = before.get("source") == cell.source
            cell.outputs = before["outputs"] if same else []
            cell.execution_count = before["execution_count"] if same else None
    notebook.metadata.pop("language_info", None)  # the running kernel's
    if "language_info" in stored.metadata:
        notebook.metadata.language_info = stored.metadata.language_info
    model["content"] = normalise(notebook)


# ---------------------------------------------------------------- before a commit


def rewrite(paths: Sequence[Path]) -> list[Path]:
    """Write those of the notebooks anew that are not in their committed form, and list them.

    Nothing is executed; a notebook is read, and its outputs stay.

    Raises:
        BadFile: one is no notebook; those before it are written.
    """
    changed = []
    for path in paths:
        text = dumps(normalise(notebooks.read(path)))
        if text != path.read_text(encoding="utf-8"):
            write_atomically(path, text)
            changed.append(path)
    return changed


if __name__ == "__main__":  # the hook of .pre-commit-config.yaml
    rewritten = rewrite([Path(text) for text in sys.argv[1:]])
    for changed_path in rewritten:
        print(f"{changed_path}: written in its committed form")
    sys.exit(bool(rewritten))
