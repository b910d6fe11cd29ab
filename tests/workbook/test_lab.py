"""JupyterLab's save: running changes nothing on disk, an edit changes what was edited."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from labkit.files import project_root
from labkit.workbook import notebooks

manager = pytest.importorskip("jupyter_server.services.contents.largefilemanager")


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    """Lab's own contents manager, as ``make lab`` sets it up, on a copy of a notebook."""
    source = next(iter(notebooks.paths(project_root()).values()))
    shutil.copy(source, tmp_path / "paper.ipynb")
    hook = "labkit.workbook.normalise.keep_outputs"
    return manager.LargeFileManager(root_dir=str(tmp_path), pre_save_hook=hook)


def save(lab: Any, notebook: nbformat.NotebookNode, name: str = "paper.ipynb") -> str:
    model = {"type": "notebook", "content": copy.deepcopy(notebook), "path": name}
    lab.save(model, name)
    return (Path(lab.root_dir) / name).read_text(encoding="utf-8")


def run(notebook: nbformat.NotebookNode) -> None:
    """What running leaves: other outputs, counts, times, the kernel's version, widgets."""
    notebook.metadata["language_info"]["version"] = "3.99.0"
    notebook.metadata["widgets"] = {"state": {}}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            cell.outputs = [new_output("stream", text="another run")]
            cell.execution_count = 40 + number
            cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}


def test_a_notebook_that_was_run_is_saved_as_it_was(lab: Any) -> None:
    before = (Path(lab.root_dir) / "paper.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(before, as_version=4)
    run(notebook)
    assert save(lab, notebook) == before


def test_an_edit_is_saved_and_its_stale_output_is_not(lab: Any) -> None:
    path = Path(lab.root_dir) / "paper.ipynb"
    before = nbformat.read(path, as_version=4)
    notebook = copy.deepcopy(before)
    run(notebook)
    place = next(n for n, cell in enumerate(before.cells) if cell.get("outputs"))
    notebook.cells[place].source += "\n# edited"
    notebook.cells.append(new_code_cell("1 + 1"))
    saved = nbformat.reads(save(lab, notebook), as_version=4)
    assert saved.cells[place].source.endswith("# edited")
    assert saved.cells[place].outputs == saved.cells[-1].outputs == []
    kept = [n for n in range(len(before.cells)) if n != place]
    shown = [[out.get("data") for out in saved.cells[n].get("outputs", [])] for n in kept]
    assert shown == [[out.get("data") for out in before.cells[n].get("outputs", [])] for n in kept]


def test_a_notebook_of_no_paper_keeps_what_it_ran(lab: Any) -> None:
    notebook = nbformat.v4.new_notebook(cells=[new_code_cell("1 + 1")])
    save(lab, notebook, "scratch.ipynb")
    notebook.cells[0].outputs = [new_output("stream", text="2")]
    assert '"2"' in save(lab, notebook, "scratch.ipynb")
