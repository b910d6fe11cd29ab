"""JupyterLab on the workbook: what a save may change in a committed notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.workbook import normalise, notebooks


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
    model["content"] = normalise.normalise(notebook)
