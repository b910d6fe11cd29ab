"""What makes a notebook run again, and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from labkit.workbook import notebooks
from labkit.workbook.run import fingerprint, imports
from tests.workbook.factory import workbook, write

PACKAGE = {
    "labkit/__init__.py": "from importlib import import_module\n_LAZY = ('pipe', 'mem')\n"
    "def __getattr__(name):\n    if name not in _LAZY:\n        raise AttributeError(name)\n"
    "    return import_module(f'labkit.{name}')\n",
    "labkit/base.py": "X = 1\n",
    "labkit/pipe/__init__.py": "from importlib import import_module\n"
    "from labkit.pipe.plan import plan\n_FIGURES = {'draw': 'figures'}\n"
    "def __getattr__(name):\n    if name not in _FIGURES:\n        raise AttributeError(name)\n"
    "    return import_module(f'labkit.pipe.{_FIGURES[name]}')\n",
    "labkit/pipe/plan.py": "def plan():\n    from labkit import base\n    return base.X\n",
    "labkit/pipe/figures.py": "from . import colours\n",
    "labkit/pipe/colours.py": "RED = 'red'\n",
    "labkit/mem/__init__.py": "from typing import TYPE_CHECKING\n"
    "from labkit.mem.state import State\nif TYPE_CHECKING:\n    from labkit.pipe import plan\n",
    "labkit/mem/state.py": "import pathlib\nTABLE = pathlib.Path('data') / 'hardware.yaml'\n"
    "class State: ...\n",
    "labkit/unused.py": "",
}
ROOT = "labkit"
BASE = "labkit.base"
PIPE = {"labkit.pipe", "labkit.pipe.plan", "labkit.pipe.figures", "labkit.pipe.colours"}
MEM = {"labkit.mem", "labkit.mem.state"}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package laid out as ours is: lazy names at the top, figures loaded late."""
    home = tmp_path / "code"
    for name, text in PACKAGE.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return home


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import numpy", set()),
        ("import labkit", {ROOT}),
        ("from labkit import pipe", {ROOT, BASE, *PIPE}),
        ("from labkit.pipe import draw", {ROOT, BASE, *PIPE}),
        ("import labkit.mem", {ROOT, *MEM}),
        ("from labkit.mem.state import State", {ROOT, *MEM}),
        ("import labkit\nlabkit.mem.State()", {ROOT, *MEM}),
        ("import labkit as lk\nlk.base.X", {ROOT, BASE}),
        ("def f():\n    from labkit import base", {ROOT, BASE}),
        ("%matplotlib inline\nfrom labkit import base\n!ls", {ROOT, BASE}),
    ],
)
def test_modules_reached(package: Path, code: str, expected: set[str]) -> None:
    assert set(imports.reached([notebooks.tree(code)], [package])) == expected


def test_the_closure_agrees_with_what_python_loads(package: Path) -> None:
    """Oracle: import for real, use the late names, and look at sys.modules."""
    import subprocess
    import sys

    code = "import sys, labkit.pipe as p; p.plan(); p.draw; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=package, capture_output=True, text=True, check=True
    )
    loaded = {name for name in run.stdout.split() if name.split(".")[0] == "labkit"}
    assert set(imports.reached([notebooks.tree("from labkit import pipe")], [package])) == loaded


def test_our_engines_do_not_reach_each_other() -> None:
    for engine in ("pipeline", "memory", "tuning"):
        found = imports.reached(
            [notebooks.tree(f"from labkit import {engine}")], [imports.source_root()]
        )
        rooms = {name.split(".")[1] for name in found if "." in name}
        assert engine in rooms
        assert not rooms & ({"pipeline", "memory", "tuning", "workbook", "cli"} - {engine})


def test_a_notebook_depends_on_its_own_paper_alone() -> None:
    """Also on the modules of a paper's package, which are loaded late."""
    code = "from labkit.papers import hived\nhived.Buddies"
    found = imports.reached([notebooks.tree(code)], [imports.source_root()])
    assert {"labkit.papers.hived", "labkit.papers.hived.cells"} <= set(found)
    papers = {name.split(".")[2] for name in found if name.count(".") > 1 and ".papers." in name}
    assert papers == {"hived"}


def test_a_notebook_does_not_depend_on_how_it_is_run() -> None:
    found = imports.reached(
        [notebooks.tree("from labkit import workbook")], [imports.source_root()]
    )
    assert "labkit.workbook.review.paper" in found
    assert "labkit.workbook.review.explore" in found
    assert not {
        "labkit.workbook.run.runner",
        "labkit.workbook.run.batch",
        "labkit.workbook.export",
    } & set(found)


# ---------------------------------------------------------------- parts that change

CELLS = (
    ("seed: int = 0", "parameters"),
    "# Title",
    "from labkit import mem",
    'open_paper("zero").beside("zeus")\nopen("data/profiles/x.csv")',
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = workbook(tmp_path / "wb", zero=CELLS, zeus=[("# glance zeus", "at-a-glance"), "1"])
    for name in ("data/profiles/x.csv", "data/hardware.yaml", "data/papers/zero/claims.yaml"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    with (root / "data/papers.bib").open("a") as stream:
        stream.write("@misc{unread, title={T}, author={A}, year=2021}\n")
    return root


def taken(root: Path, package: Path, **parameters: Any) -> fingerprint.Fingerprint:
    path = root / "notebooks/tests/zero.ipynb"
    with mock.patch("labkit.workbook.run.imports.source_root", return_value=package):
        return fingerprint.of_notebook(root, path, notebooks.glimpse(path), parameters)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    notebook = json.loads(path.read_text())
    change(notebook)
    path.write_text(json.dumps(notebook))


def append(name: str, text: str = "\n# more\n") -> Callable[[Path, Path], None]:
    def change(root: Path, package: Path) -> None:
        path = root / name if (root / name).exists() else package / name
        path.write_text(path.read_text() + text)

    return change


def notebook(change: Callable[[Any], Any], key: str = "zero") -> Callable[[Path, Path], None]:
    return lambda root, _: edit(root / f"notebooks/tests/{key}.ipynb", lambda nb: change(nb))


def replace_in(name: str, old: str, new: str) -> Callable[[Path, Path], None]:
    def change(root: Path, package: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (notebook(lambda nb: nb["cells"][1].update(source="# New title")), ["source"]),
        (notebook(lambda nb: nb["cells"].reverse()), ["source"]),
        (notebook(lambda nb: nb["cells"][1]["metadata"].update(tags=["title"])), ["source"]),
        (notebook(lambda nb: nb["metadata"]["labkit"].update(x=1)), ["source"]),
        (append("labkit/mem/state.py"), ["labkit.mem.state"]),
        (append("labkit/__init__.py"), ["labkit"]),
        (append("data/hardware.yaml"), ["file data/hardware.yaml"]),
        (append("data/profiles/x.csv"), ["file data/profiles/x.csv"]),
        (append("data/papers/zero/claims.yaml"), ["file data/papers/zero/claims.yaml"]),
        (replace_in("data/papers.bib", "{zero, title={T}", "{zero, title={U}"), ["bibliography"]),
        (replace_in("data/papers.bib", "{zeus, title={T}", "{zeus, title={U}"), ["bibliography"]),
        (notebook(lambda nb: nb["cells"][0].update(source="# new"), "zeus"), ["glance zeus"]),
    ],
)
def test_what_matters_is_noticed_and_named(
    project: Path, package: Path, change: Callable[[Path, Path], None], parts: list[str]
) -> None:
    before = taken(project, package)
    change(project, package)
    after = taken(project, package)
    assert after.digest != before.digest
    assert after.changes_since(before.parts) == parts


def ran(nb: Any) -> None:
    nb["cells"][2].update(
        execution_count=7,
        outputs=[{"output_type": "stream", "name": "stdout", "text": ["x"]}],
        metadata={"collapsed": True, "papermill": {"duration": 1}, "tags": []},
    )
    nb["metadata"].update(
        papermill={}, widgets={}, language_info={"name": "python", "version": "3.13.1"}
    )


@pytest.mark.parametrize(
    "change",
    [
        notebook(ran),
        append("labkit/pipe/plan.py"),
        append("labkit/unused.py"),
        append("reading_queue.yaml"),
        replace_in("data/papers.bib", "{unread, title={T}", "{unread, title={U}"),
        notebook(lambda nb: nb["cells"][1].update(source="2"), "zeus"),
    ],
    ids=["outputs", "another engine", "unused module", "queue", "another paper", "companion code"],
)
def test_what_does_not_matter_is_not(
    project: Path, package: Path, change: Callable[[Path, Path], None]
) -> None:
    before = taken(project, package)
    change(project, package)
    assert taken(project, package) == before


def test_parameters_count(project: Path, package: Path) -> None:
    assert taken(project, package, seed=1).changes_since(taken(project, package).parts) == [
        "parameters"
    ]


def test_a_file_beside_the_notebook_counts(project: Path, package: Path) -> None:
    write(project, "zero", "import helper")
    helper = project / "notebooks/tests/helper.py"
    helper.write_text("X = 1")
    before = taken(project, package)
    helper.write_text("X = 2")
    assert taken(project, package).changes_since(before.parts) == ["helper"]


def test_data_count_by_what_would_be_opened(project: Path, package: Path) -> None:
    """With the registry of this workbook: the stand-in and the published files differ."""
    from labkit import datasets, files

    path = project / "notebooks/tests/zero.ipynb"
    write(project, "zero", "1", datasets=["zeus-nsdi23"])
    real = files.project_root(Path(__file__).parent)
    (project / "data/datasets.yaml").write_bytes((real / "data/datasets.yaml").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "fingerprint", lambda name, files, root: "published")
        published = fingerprint.of_notebook(project, path, notebooks.glimpse(path), {})
        patch.setattr(datasets, "fingerprint", lambda name, files, root: "stand-in:1")
        standin = fingerprint.of_notebook(project, path, notebooks.glimpse(path), {})
    assert standin.changes_since(published.parts) == ["data zeus-nsdi23"]
    assert standin.datasets() == {"zeus-nsdi23": "stand-in:1"}
