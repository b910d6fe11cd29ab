"""A scaffold runs as it is, keeps the rules of form, and the check lists what is left to write."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

from labkit.errors import BadFile, UsageError
from labkit.workbook import normalise, notebooks
from labkit.workbook.review import anatomy, check, claims, glance, scaffold

BIB = """\
@inproceedings{alpha, title = {Alpha: A {Title}}, author = {Ada One and Bo Two},
  booktitle = {NSDI}, year = {2023}, url = {https://example.org/alpha}}
@inproceedings{beta, title = {Beta}, author = {Cy Three}, booktitle = {SOSP}, year = {2024},
  url = {https://example.org/beta}}
@inproceedings{gamma, title = {Gamma}, author = {Di Four}, booktitle = {ATC}, year = {2025},
  url = {https://example.org/gamma}}
"""
QUEUE = """\
papers:
  - {key: alpha, status: queued, priority: 1, tags: [pipeline, energy], companions: [beta, gamma]}
  - {key: beta, status: queued, priority: 2, tags: [memory]}
  - {key: gamma, status: queued, priority: 3}
"""
LINES = {name: f"the {name} | of beta" for name in glance.ASPECTS}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = "".join(f"{name}: '{line}'\n" for name, line in LINES.items())
    for name, text in {
        "reading_queue.yaml": QUEUE,
        "data/papers.bib": BIB,
        "data/papers/beta/glance.yaml": rows + "source: abstract\nverified: true\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("size", anatomy.SIZES)
def test_a_scaffold_lists_what_is_to_be_written_and_nothing_else(root: Path, size: str) -> None:
    made = scaffold.create(root, "alpha", size=size)
    assert made.notebook == root / "notebooks/pipeline/alpha.ipynb"
    assert made.claims_made
    found = check.check(root, ["alpha"]).findings
    rules = {finding.rule for finding in found}
    # Beside TODOs: the paper is still queued, the claims are unwritten, nothing ever ran.
    assert rules == {"todo", "queue", "claims", "abstract", "executed"}
    todo = {finding.cell_id for finding in found if finding.rule == "todo"}
    notebook = notebooks.read(made.notebook)
    assert todo == {cell.id for cell in notebook.cells if "TODO" in cell.source}
    subject = anatomy.Subject(root, "alpha", made.notebook, notebook)
    kinds = {cell.section_tag for cell in subject.cells if cell.section_tag}
    assert kinds == set(anatomy.SECTIONS) - set(anatomy.OPTIONAL)
    assert subject.size == size
    assert {tag for tag in anatomy.CELL_TAGS if subject.tagged(tag)} == set(anatomy.CELL_TAGS)


def test_a_scaffold_says_what_we_know_of_the_paper(root: Path) -> None:
    notebook = notebooks.read(scaffold.create(root, "alpha").notebook)
    title = notebooks.tagged(notebook, "title")[0].source
    assert title.startswith(
        "# Alpha: A Title\n\nAda One, Bo Two · NSDI 2023 · [paper](https://example.org/alpha)"
    )
    sources = "\n".join(cell.source for cell in notebook.cells)
    assert 'open_paper("alpha")' in sources
    assert 'paper.beside("beta")' in sources  # gamma has neither a notebook nor glance.yaml
    assert "«" not in sources
    assert [claim.kind for claim in claims.load(root, "alpha")] == [
        "headline",
        "headline",
        "mechanism",
    ]


def test_a_scaffold_takes_over_the_companions_five_lines(root: Path) -> None:
    made = scaffold.create(root, "beta")
    assert made.notebook.parent.name == "memory"
    assert glance.of(root, "beta") == glance.Glance(rows=LINES, reviewed=True, verified=True)


@pytest.mark.slow
def test_a_scaffold_runs_and_then_is_normalised(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import papermill

    made = scaffold.create(root, "alpha")
    ran = tmp_path / "ran.ipynb"
    papermill.execute_notebook(
        str(made.notebook), str(ran), cwd=str(root), progress_bar=False, log_output=False
    )
    clean = normalise.normalise(nbformat.read(ran, as_version=4))
    made.notebook.write_text(normalise.dumps(clean), encoding="utf-8")
    assert {record["kind"] for record in claims.from_notebook(clean)} == {"headline", "mechanism"}
    rules = {finding.rule for finding in check.check(root, ["alpha"]).findings}
    # No claim was judged.
    assert rules == {"todo", "queue", "claims", "abstract", "amounts"}


def test_nothing_is_overwritten(root: Path) -> None:
    made = scaffold.create(root, "alpha")
    made.claims.write_text("claims: mine", encoding="utf-8")
    before = made.notebook.read_bytes()
    with pytest.raises(UsageError, match=r"notebooks/pipeline/alpha\.ipynb is there already"):
        scaffold.create(root, "alpha", "energy")
    assert made.notebook.read_bytes() == before
    made.notebook.unlink()
    again = scaffold.create(root, "alpha")
    assert not again.claims_made
    assert again.claims.read_text(encoding="utf-8") == "claims: mine"


def test_a_notebook_made_meanwhile_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "notebooks/memory/beta.ipynb"
    link = os.link

    def beaten(source: Path, target: Path) -> None:
        if target == path:
            path.write_text("theirs", encoding="utf-8")
        link(source, target)

    monkeypatch.setattr(os, "link", beaten)
    with pytest.raises(UsageError, match="is there already"):
        scaffold.create(root, "beta")
    assert path.read_text(encoding="utf-8") == "theirs"
    assert [entry.name for entry in path.parent.iterdir()] == ["beta.ipynb"]


def test_the_family_is_a_tag_that_is_a_folder_already(root: Path) -> None:
    scaffold.create(root, "beta", "energy")
    assert scaffold.create(root, "alpha").notebook.parent.name == "energy"


@pytest.mark.parametrize(
    ("key", "family", "words"),
    [
        ("alfa", "", r"'alfa'.*did you mean 'alpha'.*labkit queue add"),
        ("gamma", "", "no tags.*--family NAME.*none yet"),
        ("gamma", "../up", "small letters"),
        ("gamma", "Energy", "small letters"),
        ("gamma", "huge", "no size of notebook 'huge'.*standard"),
    ],
)
def test_requests_that_cannot_be_met(root: Path, key: str, family: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        scaffold.create(root, key, family, "huge" if family == "huge" else "standard")
    assert not (root / "notebooks").exists() or not list((root / "notebooks").rglob("*.ipynb"))
    assert not (root / "data/papers/gamma").exists()


def test_a_broken_glance_file_is_named(root: Path) -> None:
    (root / "data/papers/beta/glance.yaml").write_text("insight: x\n", encoding="utf-8")
    with pytest.raises(BadFile, match=r"glance\.yaml.*method"):
        scaffold.create(root, "beta")
    assert not (root / "notebooks").exists()
    assert not (root / "data/papers/beta/claims.yaml").exists()
