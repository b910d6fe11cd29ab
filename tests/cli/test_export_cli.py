"""``labkit slides``, ``labkit site`` and ``labkit compare`` as typed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import typer
from typer.testing import CliRunner, Result

from labkit.cli import export
from labkit.errors import LabkitError, UsageError
from labkit.workbook import notebooks
from labkit.workbook.review import glance
from tests.export import synthetic


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = synthetic.make(tmp_path / "workbook")
    monkeypatch.setenv("LABKIT_ROOT", str(made))
    return made


def labkit(*arguments: str) -> Result:
    app = typer.Typer()
    app.add_typer(export.commands)
    return CliRunner().invoke(app, arguments)


def test_slides_says_where_the_file_is_what_it_shows_and_how_large(root: Path) -> None:
    done = labkit("slides", "alpha")
    assert done.exit_code == 0
    path = root / "results" / "slides" / "alpha.html"
    assert path.is_file()
    assert str(path) in done.output.replace("\n", "")
    assert "9 slides of alpha (stored outputs: not run here yet)" in done.output


def test_slides_go_where_they_are_told(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "talk.html"
    assert labkit("slides", "alpha", "-o", str(out)).exit_code == 0
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert not (root / "results").exists()


def test_slides_go_to_standard_output(root: Path) -> None:
    done = labkit("slides", "alpha", "-o", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert "9 slides of alpha" in done.stderr


def test_slides_of_a_run_with_parameters(root: Path) -> None:
    synthetic.run(root, num_stages=8, eta=0.25)
    done = labkit("slides", "alpha", "-p", "eta=0.25", "--parameter", "num_stages = 8")
    assert done.exit_code == 0, done.output
    assert (root / "results" / "slides" / "alpha--eta=0.25,num_stages=8.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slides", "nobody"], "nobody"),
        (["slides", "alpha", "-p", "eta"], "name=value"),
        (["slides", "alpha", "-p", "=3"], "name=value"),
        (["slides", "alpha", "-p", "etta=1"], "did you mean 'eta'? Valid: its parameters"),
        (["slides", "alpha", "-p", "eta=1"], "labkit run alpha -p eta=1"),
    ],
)
def test_wrong_use_raises_what_main_prints(root: Path, arguments: list[str], message: str) -> None:
    done = labkit(*arguments)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert not (root / "results").exists()


def test_site_writes_then_is_up_to_date(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not cell.id.startswith("hostile")]
    nbformat.write(notebook, path)
    first = labkit("site", "--no-reference")
    second = labkit("site", "--no-reference")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "9 written" in first.output
    assert "up to date" in second.output
    assert (root / "results" / "site" / "index.html").is_file()


def test_what_cannot_be_shown_is_listed_and_fails(root: Path) -> None:
    done = labkit("site", "--no-reference")
    assert done.exit_code == 1
    assert "cell 'hostile" in done.output
    assert (root / "results" / "site" / "papers" / "alpha.html").is_file()


def test_a_malformed_queue_is_one_clear_error(root: Path) -> None:
    (root / "reading_queue.yaml").write_text("papers: {}\n")
    done = labkit("site", "--no-reference")
    assert isinstance(done.exception, LabkitError)
    assert "reading_queue.yaml" in str(done.exception)


def test_every_parameter_of_the_examples_is_a_notebooks() -> None:
    here = Path(__file__).resolve().parents[2]
    examples = re.findall(r"labkit slides (\S+) -p (\w+)=", labkit("slides", "--help").output)
    assert examples
    for key, name in examples:
        assert name in notebooks.parameters(notebooks.read(notebooks.path_of(here, key)))


def test_help_shows_examples_and_keys() -> None:
    text = labkit("slides", "--help").output
    assert "labkit slides envpipe" in text
    assert "print-pdf" in text
    assert "index.html" in labkit("site", "--help").output


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, typer; from labkit.cli import export;"
        "typer.Typer().add_typer(export.commands);"
        "heavy = {'plotly', 'pandas', 'numpy', 'nbconvert', 'jinja2', 'nbformat'};"
        "print(*heavy & set(sys.modules))"
    )
    lines = [
        "import sys, types",
        "package = types.ModuleType('labkit.cli'); import labkit",
        "package.__path__ = [labkit.__path__[0] + '/cli']; sys.modules['labkit.cli'] = package",
        code,
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_compare_writes_markdown_alone_to_standard_output(root: Path) -> None:
    synthetic_second(root)
    done = labkit("compare", "alpha", "beta", "--markdown", "-")
    assert done.exit_code == 0
    assert done.stdout.startswith("# alpha · beta")
    assert "| aspect" not in done.stdout.splitlines()[0]


def test_compare_writes_what_is_asked_for(root: Path, tmp_path: Path) -> None:
    synthetic_second(root)
    names = {kind: tmp_path / f"c.{kind}" for kind in ("markdown", "html", "json", "csv")}
    options = [part for kind, path in names.items() for part in (f"--{kind}", str(path))]
    assert labkit("compare", "alpha", "beta", *options).exit_code == 0
    assert all(path.stat().st_size > 100 for path in names.values())
    assert json.loads(names["json"].read_text())["papers"].keys() == {"alpha", "beta"}


def synthetic_second(root: Path) -> None:
    """Beta's five lines, as a companion without a notebook has them."""
    folder = root / "data" / "papers" / "beta"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name}: a line\n" for name in glance.ASPECTS)
    (folder / "glance.yaml").write_text(lines + "source: abstract\nverified: true\n")
