"""Tests that want published data: skipped with the reason, and run once the data are here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import datasets
from tests import published

ROOT = Path(__file__).resolve().parents[1]
FILE = "zeus-nsdi23/examples/research_reproducibility/zeus_nsdi23/trace/summary_train.csv"
ASKS = """
import os
import pytest
from tests import published

def test_always():
    pass

@pytest.mark.parametrize("which", ["a", "b"])
def test_wants(which):
    if not os.environ.get("HERE"):
        published.skip("not on this machine")

def test_skipped_for_another_cause():
    pytest.skip("no GPU")
"""


def test_the_reason_is_the_one_that_datasets_gives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("LABKIT_DATA_MIRROR", "")
    with pytest.raises(datasets.DatasetUnavailable) as unavailable:
        datasets.open(FILE)
    with pytest.raises(pytest.skip.Exception) as skipped:
        published.need(FILE)
    assert skipped.value.msg == published.WANTED + str(unavailable.value)


def test_a_file_that_is_not_the_published_one_is_no_reason_to_skip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    altered = tmp_path / FILE
    altered.parent.mkdir(parents=True)
    altered.write_text("altered\n")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_DATA_MIRROR", str(tmp_path))
    with pytest.raises(datasets.CorruptDownload):
        published.need(FILE)


def test_what_wanted_data_runs_again_alone_and_once(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_asks.py").write_text(ASKS)
    (tmp_path / "test_other.py").write_text("raise AssertionError('not to be imported')\n")

    def run(*options: str, **environment: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "tests.published", "-q", *options]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
        )
        return done.stdout.splitlines()[-1]

    assert run("test_asks.py").startswith("1 passed, 3 skipped")
    assert run("--wanting").startswith("2 skipped, 2 deselected")
    assert run("--wanting", HERE="1").startswith("2 passed, 2 deselected")
    assert run("--wanting", HERE="1").startswith("no tests ran")


def test_no_test_decides_by_itself_what_to_do_without_data() -> None:
    """It would be run neither by ``--wanting`` nor, with the data, by CI."""
    deciding = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "datasets.available(" in path.read_text(encoding="utf-8")
    ]
    subject = [name for name in deciding if name.startswith("tests/datasets/")]
    assert sorted(deciding) == sorted([*subject, "tests/test_published.py"])
