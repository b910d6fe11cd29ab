"""Papers side by side: five lines, claims, and what companions computed on one input."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_output

from labkit.errors import BadFile, UsageError
from labkit.files import project_root
from labkit.workbook import notebooks, open_paper
from labkit.workbook.export import comparison
from labkit.workbook.export.site import write_site
from labkit.workbook.review.tables import SHARED_MIME, shared_in, shared_table
from tests.export import synthetic

INPUT = "four stages, twelve microbatches"


def carried(key: str, results: pd.DataFrame) -> nbformat.NotebookNode:
    """A cell whose output is what ``paper.shared`` shows."""
    data = shared_table(key, INPUT, results)._repr_mimebundle_()
    return new_code_cell("paper.shared(...)", outputs=[new_output("execute_result", data=data)])


def results(**saved: float) -> pd.DataFrame:
    index = pd.Index(saved, name="method")
    return pd.DataFrame({"energy_j": list(saved.values())}, index=index)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two papers with notebooks that ran on one input; beta's notebook is alpha's, renamed."""
    made = synthetic.make(tmp_path / "workbook")
    monkeypatch.setenv("LABKIT_ROOT", str(made))
    alpha = made / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(alpha, as_version=4)
    notebook.cells.append(carried("alpha", results(uniform=2000.0, alpha=1500.0)))
    nbformat.write(notebook, alpha)
    notebook.cells[-1] = carried("beta", results(beta=1234.5678))
    notebook.metadata["labkit"] = dict(notebook.metadata.get("labkit", {}), paper="beta")
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for records in output.get("data", {}).values():
                for record in records if isinstance(records, list) else []:
                    if isinstance(record, dict) and record.get("paper") == "alpha":
                        record["paper"] = "beta"
    nbformat.write(notebook, alpha.with_name("beta.ipynb"))
    return made


def test_rows_of_one_input_stand_together(root: Path) -> None:
    report = comparison.compare(root, ["alpha", "beta"])
    (sheet,) = [s for s in report.tables if INPUT in s.heading]
    rows = {row["method"]: row for row in sheet.table.to_dict("records")}
    assert rows["uniform"]["energy_j"] == 2000
    assert rows["beta"] == {"method": "beta", "notebook": "beta", "energy_j": 1235}


def test_claims_keep_paper_value_and_verdict(root: Path) -> None:
    report = comparison.compare(root, ["alpha", "beta"])
    claims = next(s for s in report.tables if s.heading.startswith("Claims")).table
    both = claims[claims["statement"].str.startswith("Energy saving with four stages")]
    assert both["paper_key"].tolist() == ["alpha", "beta"]
    assert set(both["paper"]) == {"25.2\xa0%"}
    assert claims["kind"].isin(["headline", "mechanism"]).all()
    assert "consistency" in {record["kind"] for record in report.data["claims"]}


def test_markdown_holds_every_table_and_escapes_bars(root: Path) -> None:
    report = comparison.compare(root, ["alpha", "beta"])
    report.tables[0].table.loc[0, "alpha"] = "a | b"
    text = comparison.markdown(report)
    assert text.count("\n## ") == len(report.tables)
    assert "a \\| b" in text
    for block in text.split("\n\n"):
        bars = {line.replace("\\|", "").count("|") for line in block.splitlines() if line[0] == "|"}
        assert len(bars) <= 1, block


def test_the_site_has_a_page_a_family_of_two(root: Path) -> None:
    report = write_site(root)
    assert "families/energy.html" in report.written
    page = (report.index.parent / "families" / "energy.html").read_text(encoding="utf-8")
    assert INPUT in page
    assert 'href="families/energy.html"' in report.index.read_text(encoding="utf-8")
    again = write_site(root)
    assert again.written == []


@pytest.mark.parametrize("keys", [[], ["alpha"], ["alpha", "alpha"]])
def test_fewer_than_two_papers_are_refused(root: Path, keys: list[str]) -> None:
    with pytest.raises(UsageError, match="two papers or more"):
        comparison.compare(root, keys)


def test_a_paper_with_neither_notebook_nor_lines_is_named(root: Path) -> None:
    with pytest.raises(BadFile, match="gamma"):
        comparison.compare(root, ["alpha", "gamma"])


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (results(), "one row a method"),
        (results(a=1.0).rename_axis(None), "index with a name"),
        (pd.concat([results(a=1.0), results(a=2.0)]), "no method twice"),
        (results(a=1.0).assign(how="fast"), "must hold numbers, got 'fast'"),
        (results(a=1.0).assign(ok=True), "must hold numbers, got True"),
    ],
)
def test_shared_refuses_what_cannot_be_compared(table: pd.DataFrame, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        shared_table("alpha", INPUT, table)


def test_shared_takes_methods_and_their_measures() -> None:
    table = shared_table("alpha", INPUT, {"ours": {"energy_j": 3.0}})
    assert table.carried == shared_table("alpha", INPUT, results(ours=3.0)).carried


def test_shared_is_shown_and_carried(root: Path) -> None:
    table = open_paper("alpha").shared(INPUT, results(ours=float("nan"), other=3.0))
    assert INPUT in repr(table)
    assert [record["value"] for record in table.carried[SHARED_MIME]] == [None, 3.0]
    json.dumps(table.carried, allow_nan=False)
    cell = carried("alpha", results(ours=1.0))
    assert shared_in(nbformat.v4.new_notebook(cells=[cell]))[0]["method"] == "ours"


@pytest.mark.parametrize(("second_j", "rows", "apart"), [(2000.0, 1, False), (2100.0, 2, True)])
def test_a_method_of_two_notebooks_is_one_row_or_a_warning(
    root: Path, second_j: float, rows: int, apart: bool
) -> None:
    path = root / "notebooks" / "energy" / "beta.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1] = carried("beta", results(uniform=second_j))
    nbformat.write(notebook, path)
    report = comparison.compare(root, ["alpha", "beta"])
    (sheet,) = [s for s in report.tables if INPUT in s.heading]
    uniform = sheet.table[sheet.table["method"] == "uniform"]["notebook"].tolist()
    assert uniform == (["alpha, beta"] if rows == 1 else ["alpha", "beta"])
    assert ("uniform" in sheet.note) == apart


def test_our_notebooks_agree_where_they_share_an_input() -> None:
    paths = notebooks.paths(project_root()).values()
    books = [nbformat.read(path, as_version=4) for path in paths]
    records = [record for book in books for record in shared_in(book)]
    assert len({record["paper"] for record in records}) > 3
    assert comparison.disagreements(pd.DataFrame(records)) == []
