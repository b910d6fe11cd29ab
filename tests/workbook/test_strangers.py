"""Notebooks from elsewhere: a kernel of another language, none, a magic that nobody defined."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from tests.workbook.factory import go, workbook

ROOT = Path(__file__).resolve().parents[2]
R = {"name": "ir", "display_name": "R", "language": "R"}
OF_A_VENV = {"name": "my-env", "display_name": "my-env", "language": "python"}


def change(root: Path, key: str, edit: Callable[[dict[str, Any]], object]) -> Path:
    path = root / "notebooks" / "tests" / f"{key}.ipynb"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


def test_what_keeps_a_notebook_from_running_is_said_with_its_remedy(tmp_path: Path) -> None:
    cells = {"r": "x = 1", "venv": "x = 1", "bare": "x = 1", "line": "%nosuch 3", "cell": "%%no\nx"}
    root = workbook(tmp_path, **{key: [source] for key, source in cells.items()})
    change(root, "r", lambda content: content["metadata"].update(kernelspec=R))
    change(root, "venv", lambda content: content["metadata"].update(kernelspec=OF_A_VENV))
    change(root, "bare", lambda content: content["metadata"].pop("kernelspec"))
    ended = {end.job.key: end.outcome for end in go(root).failures}
    said = {key: f"{outcome.error}: {outcome.message}" for key, outcome in ended.items()}
    assert set(said) == set(cells)
    assert said["r"].startswith(": no kernel 'ir' (for r) is installed here; there are: python3")
    assert "install that kernel" in said["r"]
    assert "no kernel 'my-env'" in said["venv"]
    assert "kernelspec.name: python3" in said["venv"]
    assert "name no kernel; valid: kernelspec.name: python3" in said["bare"]
    for key, magic in (("line", "`%nosuch`"), ("cell", "`%%no`")):
        assert said[key].startswith("UsageError: ")
        assert f"magic function {magic} not found" in said[key].replace(
            "Cell magic", "magic function"
        )
        assert "%load_ext" in said[key]


@pytest.mark.parametrize(("spec", "passes"), [(R, False), ({}, False), (OF_A_VENV, True)])
def test_a_notebook_of_another_language_does_not_pass_as_python(
    spec: dict[str, str], passes: bool, tmp_path: Path
) -> None:
    """``--nbval-current-env`` runs any notebook in this Python, where `x = 1` is right too."""
    root = workbook(tmp_path, r=["x = 1"])
    path = change(root, "r", lambda content: content["metadata"].update(kernelspec=spec))
    change(root, "r", lambda content: content["cells"][0].update(execution_count=1))
    options = ["-n", "0", "-q", "--nbval", "-p", "no:cacheprovider", "-p", "conftest"]
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), *options]
    done = subprocess.run(
        [*command, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == passes, done.stdout
    assert ("valid: kernelspec.name: python3" in done.stdout) == (not passes)


def test_a_long_id_leaves_the_findings_their_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jupyter's own ids are short; a UUID, as other tools write, took half of 80 columns."""
    name = "3f2b8c1e-7a4d-4c1b-9e55-0d2f6a7b8c9d"
    root = workbook(tmp_path, stray=["x = 1; y = 2"])
    change(root, "stray", lambda content: content["cells"][0].update(id=name))
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["check", "stray"]) == 1
    shown = capsys.readouterr().out
    columns = max((line.split("┳") for line in shown.splitlines() if "┳" in line), key=len)
    assert len(columns[0]) <= 16
    assert min(map(len, columns[2:])) >= 18
    assert name[:8] in shown
    assert name not in shown
    main(["check", "stray", "--json"])
    assert name in capsys.readouterr().out
