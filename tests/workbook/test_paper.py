"""A paper in a notebook: opened by its key, its companions' rows pulled, its sources told."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
import weakref
from pathlib import Path

import nbformat
import nbformat.v4 as v4
import pytest

from labkit import workbook
from labkit.errors import BadFile, UsageError
from labkit.workbook.review import glance
from labkit.workbook.review.claims import CLAIMS_MIME
from labkit.workbook.review.paper import title_markdown

BIB = """\
@inproceedings{alpha, title = {Alpha: Bubbles Are Free}, author = {Ada One and Bo Two},
  booktitle = {NSDI}, year = {2023}, url = {https://example.org/alpha}}
@inproceedings{beta, title = {On the Energy of Everything}, author = {Cy Three and others},
  booktitle = {SOSP}, year = {2024}, url = {https://example.org/beta}}
"""
GLANCE = """\
insight: a stage that waits
  could run slower
method: stretch it
results: 30 % less | at once
advantages: no slowdown
weaknesses: one schedule only
source: abstract
verified: false
"""
CSV = b"stage,time_s\n0,1.5\n1,2.5\n"
DATASETS = f"""\
datasets:
  profiles:
    title: Stage profiles
    origin: https://example.org/owner/repo
    commit: {"a" * 40}
    licence: MIT
    citation: beta
    notes: none
    files:
      - path: folder/profile.csv
        url: https://example.org/profile.csv
        sha256: {hashlib.sha256(CSV).hexdigest()}
        bytes: {len(CSV)}
"""
ROWS = {
    "insight": "bubbles are `free` time",
    "method": "**stretch** work into them",
    "results": "28 % (abstract)",
    "advantages": r"fast \| simple",
    "weaknesses": "would be stronger with memory",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "reading_queue.yaml").write_text("papers: []\n", encoding="utf-8")
    (tmp_path / "data/papers/beta").mkdir(parents=True)
    (tmp_path / "data/papers.bib").write_text(BIB, encoding="utf-8")
    (tmp_path / "data/papers/beta/glance.yaml").write_text(GLANCE, encoding="utf-8")
    (tmp_path / "data/datasets.yaml").write_text(DATASETS, encoding="utf-8")
    mirrored = tmp_path / "mirror/profiles/folder/profile.csv"
    mirrored.parent.mkdir(parents=True)
    mirrored.write_bytes(CSV)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("LABKIT_DATA_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    write_notebook(tmp_path, "alpha", ROWS)
    return tmp_path


def write_notebook(root: Path, key: str, rows: dict[str, str], tag: str = "at-a-glance") -> None:
    table = "\n".join(f"| **{name}** | {line} |" for name, line in rows.items())
    cell = v4.new_markdown_cell(f"## At a glance\n\n| | |\n|---|:--|\n{table}")
    cell.metadata["tags"] = [tag]
    path = root / f"notebooks/energy/{key}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(v4.new_notebook(cells=[cell]), path)


def test_a_paper_opens_from_anywhere_in_the_workbook(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_ROOT")
    monkeypatch.chdir(root / "notebooks/energy")
    paper = workbook.open_paper("alpha")
    assert paper.root == root.resolve()
    assert repr(paper) == "Alpha: Bubbles Are Free (One and Two, NSDI 2023)"
    assert title_markdown(paper.entry) == (
        "# Alpha: Bubbles Are Free\n\n"
        "Ada One, Bo Two · NSDI 2023 · [paper](https://example.org/alpha)"
    )


def test_an_unknown_paper_names_its_neighbours(root: Path) -> None:
    with pytest.raises(UsageError, match=r"'alhpa'.*did you mean 'alpha'.*labkit queue add"):
        workbook.open_paper("alhpa")


def test_companions_are_pulled_from_notebook_and_glance_file(root: Path) -> None:
    table = workbook.open_paper("alpha").beside("beta")
    frame = table.frame()
    assert list(frame.index) == list(glance.ASPECTS)
    assert frame.loc["insight", "alpha"] == "bubbles are free time"
    assert frame.loc["advantages", "alpha"] == "fast | simple"
    assert frame.loc["insight", "beta"] == "a stage that waits could run slower"
    assert table.headers == [
        "",
        "Alpha: One and Two, NSDI 2023",
        "beta: Three et al., SOSP 2024 (not yet reviewed here, unverified)",
    ]
    assert table.html() == workbook.open_paper("alpha").beside("beta").html()


@pytest.mark.parametrize(
    ("title", "shorttitle", "shown"),
    [("Less Energy", "Beta", "Beta"), ("Beta: Less Energy", "", "Beta"), ("Less", "", "beta")],
)
def test_a_companion_is_headed_by_the_name_it_is_known_by(
    root: Path, title: str, shorttitle: str, shown: str
) -> None:
    fields = f"{{{title}}}, shorttitle = {{{shorttitle}}}"
    bib = BIB.replace("{On the Energy of Everything}", fields)
    (root / "data" / "papers.bib").write_text(bib)
    (heading,) = workbook.open_paper("alpha").beside("beta").headers[2:]
    assert heading.startswith(f"{shown}: Three et al.")


def test_a_notebook_replaces_the_glance_file_once_written(root: Path) -> None:
    write_notebook(root, "beta", {**ROWS, "method": "TODO: one line"})
    draft = workbook.open_paper("alpha").beside("beta")
    assert draft.frame().loc["method", "beta"] == "stretch it"
    write_notebook(root, "beta", {**ROWS, "method": "other"})
    written = workbook.open_paper("alpha").beside("beta")
    assert written.frame().loc["method", "beta"] == "other"
    assert written.headers[2] == "beta: Three et al., SOSP 2024"


def test_companions_that_cannot_be_shown(root: Path) -> None:
    paper = workbook.open_paper("alpha")
    with pytest.raises(UsageError, match=r"no paper in .* with the key 'gamma'"):
        paper.beside("gamma")
    (root / "data/papers/beta/glance.yaml").write_text(GLANCE.replace("method", "methods"))
    with pytest.raises(BadFile, match=r"glance\.yaml.*method"):
        paper.beside("beta")
    (root / "data/papers/beta/glance.yaml").unlink()
    with pytest.raises(BadFile, match="has no notebook, so its five lines belong here"):
        paper.beside("beta")
    (root / "notebooks/energy/beta.ipynb").write_text('{"cells": 3}', encoding="utf-8")
    with pytest.raises(BadFile, match=r"beta\.ipynb: not a Jupyter notebook"):
        paper.beside("beta")
    (root / "notebooks/energy/beta.ipynb").unlink()
    write_notebook(root, "alpha", {"insight": "x", "method": "y"})
    with pytest.raises(BadFile, match="lacks the row results and advantages and weaknesses"):
        paper.beside()
    write_notebook(root, "alpha", ROWS, tag="glance")
    with pytest.raises(BadFile, match="no cell is tagged 'at-a-glance'"):
        paper.beside()


def test_data_claims_and_sources_go_together(root: Path) -> None:
    claims = root / "data/papers/alpha/claims.yaml"
    claims.parent.mkdir()
    claims.write_text(
        "claims:\n  - {id: total, kind: consistency, statement: s, paper: 4, source: §1,"
        " verified: false, judge: ratio, tolerance: 0.01, dataset: profiles}\n",
        encoding="utf-8",
    )
    paper = workbook.open_paper("alpha")
    data = paper.data("profiles", "profile.csv")
    total_s = data.frame("profile.csv")["time_s"].sum()
    assert paper.claims({"total": total_s}, data).carried[CLAIMS_MIME][0]["verdict"] == "reproduced"
    sources = paper.sources(data).frame()
    assert list(sources["kind"]) == ["paper", "paper", "data"]
    assert sources["where"].tolist()[:2] == [
        "https://example.org/alpha",
        "https://example.org/beta",  # the data set's own paper, cited without being named
    ]
    assert sources.loc[2, "licence"] == "MIT"
    assert str(root) not in paper.sources(data).html()


def test_a_notebooks_imports_stay_light(root: Path) -> None:
    code = (
        "import sys; from labkit import workbook; p = workbook.open_paper('alpha');"
        "p.beside('beta'); workbook.table({'x': [1]});"
        "bad = {'plotly', 'papermill', 'nbconvert', 'nbclient', 'nbformat', 'torch', 'scipy'};"
        "ours = {'run', 'engine', 'export', 'queue.reading_queue', 'review.explore',"
        "        'review.check', 'review.scaffold'};"
        "bad |= {'labkit.workbook.' + name for name in ours};"
        "print(*bad & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_explore_stays_the_function_after_its_module_was_imported() -> None:
    code = (
        "import labkit.workbook.review.explore; from labkit import workbook;"
        "from labkit.workbook.review.explore import explore;"
        "assert workbook.explore is explore and callable(workbook.explore)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_of_the_package_are_errors() -> None:
    with pytest.raises(AttributeError, match=r"labkit\.workbook attribute tables_of"):
        workbook.tables_of  # noqa: B018
    assert set(workbook.__all__) <= set(dir(workbook))


def test_opening_a_paper_again_keeps_no_garbage(root: Path) -> None:
    """What was imported is left out of the search for garbage, but what came later is not."""
    workbook.open_paper("alpha")

    class Node:
        pass

    node = Node()
    node.itself = node  # type: ignore[attr-defined]
    gone = weakref.ref(node)
    del node
    workbook.open_paper("beta")
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- the paper's own numbers

CLAIMS = """\
claims:
  - {id: saving, kind: headline, statement: It saves, flip: one clock, paper: 0.284, unit: fraction,
     source: abstract, verified: false, judge: ratio, tolerance: 0.1}
"""


def test_figures_read_the_papers_numbers(root: Path) -> None:
    folder = root / "data/papers/alpha"
    folder.mkdir(parents=True)
    (folder / "claims.yaml").write_text(CLAIMS, encoding="utf-8")
    (folder / "points.csv").write_text("# Fig. 8, read off\nx,y\n1,2.5\n2,3.5\n", encoding="utf-8")
    (folder / "fig8.csv").write_text("x\n1\n", encoding="utf-8")
    paper = workbook.open_paper("alpha")
    assert paper.claim("saving").paper == 0.284
    assert paper.points().to_dict("list") == {"x": [1, 2], "y": [2.5, 3.5]}
    assert paper.points("fig8").x.tolist() == [1]
    assert paper.points("fig8.csv").equals(paper.points("fig8"))
    with pytest.raises(UsageError, match="no claim 'savings'; did you mean 'saving'"):
        paper.claim("savings")


def test_points_that_are_not_there_are_named(root: Path) -> None:
    paper = workbook.open_paper("alpha")
    with pytest.raises(UsageError, match=r"data/papers/alpha: it holds no table yet"):
        paper.points()
    folder = root / "data/papers/alpha"
    folder.mkdir(parents=True)
    (folder / "points.csv").write_text("x,y\n", encoding="utf-8")
    with pytest.raises(UsageError, match="did you mean 'points'"):
        paper.points("point")
    with pytest.raises(UsageError, match="among the tables"):
        paper.points("../beta/glance")
    with pytest.raises(BadFile, match=r"points\.csv: no point in it"):
        paper.points()
    (folder / "points.csv").write_text("", encoding="utf-8")
    with pytest.raises(BadFile, match="not a table"):
        paper.points()


# ---------------------------------------------------------------- ways through


def test_the_ways_through_are_the_tags(root: Path) -> None:
    from labkit.workbook.review import ways

    assert ways.markdown(root, "alpha") == ""
    assert ways.markdown(root, "gamma") == ""
    path = root / "notebooks/energy/alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    short = {"tags": ["path-5", "path-30"]}
    long = {"tags": ["path-30"]}
    notebook.cells += [
        v4.new_markdown_cell("## The *headline*", metadata=short),
        v4.new_code_cell("1", metadata=short),
        v4.new_markdown_cell("## Weaknesses"),
        v4.new_code_cell("2", metadata=long),
        v4.new_markdown_cell("## Symbols"),
    ]
    nbformat.write(notebook, path)
    assert ways.markdown(root, "alpha").splitlines() == [
        "**Ways through**",
        "",
        "- **5 minutes**: [The headline](<#The-headline>)",
        "- **half an hour**: [The headline](<#The-headline>) · [Weaknesses](<#Weaknesses>)",
    ]
