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
from tests.export import offline, synthetic

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


# ---------------------------------------------------------------- figures and tables of a family


def shares_an_input(root: Path, table: pd.DataFrame) -> None:
    """Let alpha's notebook end with ``table`` as what ran on the input, beta's with nothing."""
    for key in ("alpha", "beta"):
        path = root / "notebooks" / "energy" / f"{key}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[-1] = carried(key, table) if key == "alpha" else new_code_cell("pass")
        nbformat.write(notebook, path)


def drawn(root: Path, family: str = "") -> list[tuple[str, str]]:
    """The heading over each figure of alpha beside beta, and what its axis measures."""
    figures = comparison.compare(root, ["alpha", "beta"], family=family).figures()
    return [(title, figure.layout.xaxis.title.text) for title, _, figure in figures]


MEASURES = pd.DataFrame(
    {
        "makespan_s": [2.8, 2.8, 3.4],
        "energy_j": [7300.0, 6200.0, 5700.0],
        "gpus": [16.0, 16.0, 16.0],
        "peak_bytes": [None, None, 1e9],
    },
    index=pd.Index(["max-clock", "perseus", "uniform"], name="method"),
)


def test_a_familys_figure_shows_its_quantity_first(root: Path) -> None:
    shares_an_input(root, MEASURES)
    heading = f"On one input: {INPUT}"
    assert drawn(root, "energy") == [(heading, "energy (J)"), ("", "makespan (s)")]


def test_papers_of_no_family_show_what_differs_most(root: Path) -> None:
    """7300 / 5700 J against 3.4 / 2.8 s; then the other way round."""
    shares_an_input(root, MEASURES)
    assert [what for _, what in drawn(root)] == ["energy (J)", "makespan (s)"]
    shares_an_input(root, MEASURES.assign(makespan_s=[2.0, 2.0, 9.0]))
    assert [what for _, what in drawn(root)] == ["makespan (s)", "energy (J)"]


def test_one_measure_makes_one_figure(root: Path) -> None:
    shares_an_input(root, MEASURES[["gpus"]])
    assert drawn(root, "energy") == [(f"On one input: {INPUT}", "GPUs")]


def test_a_figure_says_who_has_least_and_who_most_in_one_order(root: Path) -> None:
    shares_an_input(root, MEASURES)
    (_, first, energy), (_, second, makespan) = comparison.compare(
        root, ["alpha", "beta"], family="energy"
    ).figures()
    assert first == "Least: uniform (5,700 J); most: max-clock (7,300 J)."
    assert second.startswith("The same methods in the same order.")
    assert list(energy.data[0].y) == list(makespan.data[0].y) == ["max-clock", "perseus", "uniform"]
    assert list(energy.data[0].text) == ["7,300 J", "6,200 J", "5,700 J"]


def test_a_figure_says_units_that_a_measure_has_in_brackets(root: Path) -> None:
    table = pd.DataFrame({"64 KiB (µs)": [2.0, 4.5, 3.0]}, index=MEASURES.index)
    shares_an_input(root, table)
    ((_, words, figure),) = comparison.compare(root, ["alpha", "beta"]).figures()
    least, most = (table.index[place] for place in (0, 1))
    assert words == f"Least: {least} (2 µs); most: {most} (4.5 µs)."
    assert list(figure.data[0].text) == ["4.5 µs", "3 µs", "2 µs"]


def test_a_bar_that_would_flatten_all_others_is_cut(root: Path) -> None:
    shares_an_input(root, MEASURES.assign(energy_j=[2.0, 60.0, 3.0])[["energy_j"]])
    ((_, _, figure),) = comparison.compare(root, ["alpha", "beta"]).figures()
    assert tuple(figure.layout.xaxis.range) == pytest.approx((0, 3.9))
    assert figure.layout.xaxis.title.text.endswith("longest cut")
    assert list(figure.data[0].textposition) == ["inside", "auto", "auto"]


def test_quantities_are_measures_that_families_share() -> None:
    paths = notebooks.paths(project_root())
    shown: dict[str, set[str]] = {}
    for path in paths.values():
        records = shared_in(nbformat.read(path, as_version=4))
        shown.setdefault(path.parent.name, set()).update(r["measure"] for r in records)
    assert {f for f in comparison.QUANTITIES if comparison.QUANTITIES[f] not in shown[f]} == set()


def test_many_papers_have_their_titles_above_their_lines(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "SIDE_BY_SIDE", 1)
    soup = offline.parse(comparison.compare(root, ["alpha", "beta"]).page())
    table = next(t for t in soup.select("table.texts") if "insight" in t.thead.get_text())
    titles = [row.get_text(" ", strip=True) for row in table.select("tr.title")]
    assert titles[0].startswith("alpha Alpha: Idle Time")
    columns = [th.get_text() for th in table.select("thead th")]
    assert columns == ["insight", "method", "results", "advantages", "weaknesses"]
    cells = table.select("tbody tr:not(.title)")[0].select("td")
    assert [cell["data-is"] for cell in cells] == columns
