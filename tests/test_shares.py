"""What workers share: a module's tests stay together, unless they stand apart; long ones begin."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from labkit.files import project_root
from tests import shares

ROOT = project_root()
MEETING = """
import time
from pathlib import Path

import pytest

@pytest.mark.parametrize(("mine", "other"), ["ab", "ba"])
def test_the_other_runs_meanwhile(mine, other):
    Path(mine).touch()
    until = time.monotonic() + 60
    while not Path(other).exists():
        assert time.monotonic() < until
        time.sleep(0.02)
"""
TOGETHER = """
import os

import pytest

@pytest.mark.parametrize("number", range(6))
def test_where(number):
    with open("where", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_tests_that_stand_apart_run_at_once_and_others_on_one_worker(tmp_path: Path) -> None:
    apart = tmp_path / shares.APART[0]
    apart.parent.mkdir()
    apart.write_text(MEETING)
    (tmp_path / "test_another.py").write_text(TOGETHER)
    plugins = ("-p", "xdist", "-p", "tests.shares")
    ways = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-q")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *plugins, *ways]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    assert len(set((tmp_path / "where").read_text().split())) == 1


def test_long_work_begins_before_short_and_families_take_turns() -> None:
    names = ["tests/test_z.py", "n/a/1.ipynb", "n/a/2.ipynb", "n/b/3.ipynb", "tests/test_a.py"]
    early = [f"tests/{name}" for name in reversed(shares.EARLY)]
    items = [SimpleNamespace(path=Path(name)) for name in names + early]
    shares.pytest_collection_modifyitems(items)
    found = [item.path.stem for item in items]
    first = [Path(name).stem for name in shares.EARLY]
    assert found == ["1", "3", "2", *first, "test_z", "test_a"]


def test_every_module_named_is_there_and_what_stands_apart_shares_no_fixture() -> None:
    """A fixture made once for a module would be made once for each worker."""
    modules = list((ROOT / "tests").rglob("test_*.py"))
    for name in shares.EARLY:
        [path] = [path for path in modules if path.as_posix().endswith(name)]
        assert name not in shares.APART or "scope=" not in path.read_text(encoding="utf-8")
    assert shares.EARLY[: len(shares.APART)] == shares.APART


def test_garbage_is_looked_for_again_after_collection() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
