"""Terminals that lack our signs: what people read is replaced, what programs read is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.export import synthetic
from tests.workbook.factory import write


def typed(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    variables = {"LABKIT_ROOT": str(root), "PYTHONIOENCODING": "ascii"}
    return subprocess.run(
        [sys.executable, "-m", "labkit", *words],
        env={**os.environ, **variables},
        capture_output=True,
        timeout=300,
    )


def test_a_sign_that_the_terminal_lacks_ends_no_command(tmp_path: Path) -> None:
    """``run`` begins with ▶ and ends with ✔; the queue and the results have signs too."""
    root = synthetic.make(tmp_path / "workbook")
    write(root, "beta", "1")
    for words in (["run", "beta"], ["queue"], ["results"], ["queue", "show", "alpha"]):
        done = typed(root, *words)
        assert b"Traceback" not in done.stderr
        assert done.returncode == 0, done.stderr
        assert b"?" in done.stdout or words == ["results"]


def test_files_on_standard_output_are_utf_8_whatever_the_terminal_is(tmp_path: Path) -> None:
    root = synthetic.make(tmp_path / "workbook")
    synthetic.run(root)
    csv = typed(root, "results", "alpha", "--claims", "--csv", "-").stdout.decode("utf-8")
    assert csv.startswith("paper,run,state,id")
    names = "data/papers.bib"
    title = "{Über Größe}"
    path = root / names
    path.write_text(path.read_text().replace("{Delta: Swapping by Hand}", title))
    assert title.encode() in typed(root, "queue", "export", "delta").stdout
    assert title in typed(root, "queue", "export", "-o", "-").stdout.decode("utf-8")
    json.loads(typed(root, "check", "--json").stdout)
