"""Normalised notebooks: the same bytes for the same content, and nothing of substance lost."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.workbook.normalise import (
    clean_outputs,
    dumps,
    normalise,
    without_traces,
)
from labkit.workbook.notebooks import WIDGET_VIEW


def stream(name: str, text: str) -> Any:
    return new_output("stream", name=name, text=text)


def executed(run: int) -> Any:
    """One notebook as two runs would leave it: ``run`` changes only what a run may change."""
    shown = {"text/plain": "IntSlider(value=1)", WIDGET_VIEW: {"model_id": f"id{run}"}}
    cells = [
        new_markdown_cell("# Title", id="title", metadata={"tags": ["title"], "papermill": {}}),
        new_code_cell(
            "seed: int = 0",
            id="params",
            execution_count=run,
            metadata={"tags": ["parameters"], "execution": {"iopub.status.busy": f"t{run}"}},
        ),
        new_code_cell("seed = 3", id=f"r{run}", metadata={"tags": ["injected-parameters"]}),
        new_code_cell(
            "go()",
            id="go",
            execution_count=run + 5,
            metadata={"tags": [], "scrolled": True, "slideshow": {"slide_type": "slide"}},
            outputs=[
                stream("stdout" if run % 2 else "stderr", "a\n" if run % 2 else "w\n"),
                stream("stderr" if run % 2 else "stdout", "w\n" if run % 2 else "a\n"),
                stream("stdout", "b\n"),
                new_output("execute_result", data=shown, execution_count=run + 5),
            ],
        ),
        new_code_cell("", id="empty"),
    ]
    notebook = new_notebook(cells=cells)
    notebook.metadata.update(
        kernelspec={"name": "python3", "display_name": f"venv {run}"},
        language_info={"name": "python", "version": f"3.1{run}.0"},
        papermill={"start_time": f"{run}"},
        widgets={"state": run},
        labkit={"paper": "zero", "datasets": []},
    )
    return notebook


def test_two_runs_come_out_byte_for_byte_the_same() -> None:
    assert dumps(normalise(executed(1))) == dumps(normalise(executed(2)))


def test_what_the_author_wrote_stays() -> None:
    clean = normalise(executed(1))
    nbformat.validate(clean)
    assert [cell.id for cell in clean.cells] == ["title", "params", "go", "empty"]
    assert [cell.source for cell in clean.cells] == ["# Title", "seed: int = 0", "go()", ""]
    assert clean.cells[0].metadata == {"tags": ["title"]}
    assert clean.cells[2].metadata == {"slideshow": {"slide_type": "slide"}}
    assert clean.metadata.labkit == {"paper": "zero", "datasets": []}
    assert set(clean.metadata) == {"kernelspec", "language_info", "labkit"}


def test_counts_run_from_one_and_an_empty_cell_has_none() -> None:
    clean = normalise(executed(4))
    assert [cell.get("execution_count") for cell in clean.cells] == [None, 1, 2, None]
    assert clean.cells[2].outputs[-1].execution_count == 2


def test_a_notebook_never_executed_gets_no_counts() -> None:
    clean = normalise(new_notebook(cells=[new_code_cell("1"), new_code_cell("2")]))
    assert [cell.execution_count for cell in clean.cells] == [None, None]


def test_streams_merge_and_the_widget_keeps_its_text() -> None:
    outputs = normalise(executed(1)).cells[2].outputs
    assert [output.get("name") for output in outputs] == ["stdout", "stderr", None]
    assert outputs[0].text == "a\nb\n"
    assert outputs[2].data == {"text/plain": "IntSlider(value=1)"}


def test_streams_do_not_move_across_a_display() -> None:
    display = new_output("display_data", data={"text/plain": "x"})
    kept = clean_outputs([stream("stdout", "1"), display, stream("stdout", "2")])
    assert [output.output_type for output in kept] == ["stream", "display_data", "stream"]


def test_an_output_that_is_only_a_widget_view_goes() -> None:
    assert clean_outputs([new_output("display_data", data={WIDGET_VIEW: {"model_id": "1"}})]) == []


@pytest.mark.parametrize("run", [1, 2])
def test_normalising_twice_changes_nothing_and_the_original_is_untouched(run: int) -> None:
    notebook = executed(run)
    before = nbformat.writes(notebook)
    once = normalise(notebook)
    assert dumps(normalise(once)) == dumps(once)
    assert nbformat.writes(notebook) == before


def test_a_stored_result_keeps_widgets_and_injected_parameters() -> None:
    kept = without_traces(executed(1), keep_banner=True)
    assert kept.metadata.widgets == {"state": 1}
    assert kept.cells[2].metadata.tags == ["injected-parameters"]
    assert "papermill" not in kept.metadata
    assert not any({"papermill", "execution"} & set(cell.metadata) for cell in kept.cells)
