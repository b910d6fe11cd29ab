"""What is promised when something breaks, tried for real; the table is in tests/faults."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit.cli import main
from labkit.cli.run import joined
from labkit.workbook.run import batch, guard, imports, results, runs
from labkit.workbook.run.jobs import Outcome
from tests.faults import client, machine
from tests.workbook.factory import go, workbook

TOP = Path(__file__).resolve().parents[2]
RUN = (sys.executable, "-m", "labkit", "run")


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[tuple[Path, dict[str, bytes]]]:
    """A workbook of a notebook, and what a run that nobody disturbed left in it."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:  # short enough for sockets
        root = client.book(Path(folder) / "wb", "first")
        client.finish(root)
        yield root, client.outputs(root)


@pytest.fixture
def finished(undisturbed: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of that workbook, its results with it."""
    root = tmp_path / "wb"
    shutil.copytree(undisturbed[0], root)
    return root


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    """It ended with 1 and said all of that in an error, not in a traceback."""
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout
    for text in said:
        assert text in done.stdout


# ---------------------------------------------------------------- the client


def kernels_at_work(root: Path) -> Callable[[float], bool]:
    return lambda so_far_s: any(client.temporary(root).glob("labkit-*/kernel.json"))


def a_result_is_whole(root: Path) -> Callable[[float], bool]:
    return lambda so_far_s: any(results.results_folder(root).glob(f"*/*/{results.RUN_FILE}"))


@pytest.mark.parametrize("moment", [kernels_at_work, a_result_is_whole])
def test_after_a_killed_client_the_next_run_ends_the_same_and_leaves_nothing(
    undisturbed: tuple[Path, dict[str, bytes]], moment: Callable[[Path], Callable[[float], bool]]
) -> None:
    """Ten random moments: ``python -m tests.faults.client``."""
    root, expected = undisturbed
    killed = client.try_moment(root, expected, moment(root))
    assert killed is not None
    assert killed.num_processes > 0


def test_what_a_run_wrote_half_when_it_was_killed_goes(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / ".claims.parquet.abc.tmp").write_text("half")
    (folder / "claims.parquet").write_text("whole, of an earlier run")
    runs.refresh(tmp_path, lambda root: _written(runs.ledger_path(root), b"new"))
    assert {path.name: path.read_text() for path in folder.glob("*claims*")} == {
        "claims.parquet": "new"
    }


@pytest.mark.parametrize("harm", ["missing", "no table", "cut short", "a byte"])
@pytest.mark.parametrize("table", ["claims.parquet", "scoreboard.html", "a/runs.parquet"])
def test_a_table_that_was_harmed_is_written_again(tmp_path: Path, table: str, harm: str) -> None:
    """Nothing has run since: the table itself is looked at, and so it is when all is up to date."""
    root = workbook(tmp_path / "wb", a=("1",))
    results.store(root, "a", "default", {"claims.json": "[]"}, {"parameters": {"n": 1}})
    joined(root)
    path = root / "results" / table
    whole = path.read_bytes()
    middle = len(whole) // 2
    if harm == "missing":
        path.unlink()
    elif harm == "no table":
        path.write_text("x")
    elif harm == "cut short":
        path.write_bytes(whole[:middle])
    else:
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    joined(root)
    assert path.read_bytes() == whole


def test_a_table_that_is_none_stops_no_run_that_makes_results(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=("1",))
    for number in (1, 2):
        meta = {"parameters": {"n": number}}
        results.store(root, "a", f"n={number}", {"claims.json": "[]"}, meta)
        joined(root)
        assert len(pd.read_parquet(runs.path_of(root, "a"))) == number
        runs.path_of(root, "a").write_text("x")
        (root / "results" / runs.NOTE).write_text("[]")


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# ---------------------------------------------------------------- two runs at once


def test_a_result_that_came_between_plan_and_lock_is_not_made_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run ends before this one asks for the lock, so that nothing is waited for."""
    ended_later = finished / "results" / "first"
    ended_later.rename(finished / "aside")

    @contextmanager
    def lock(root: Path, note: Any) -> Iterator[bool]:
        (finished / "aside").rename(ended_later)
        yield False

    monkeypatch.setattr(guard, "lock", lock)
    report = go(finished)
    assert report.ended == []
    assert [task.reason for task in report.jobs] == [""]


def test_the_ledger_is_written_by_one_run_at_a_time_and_ends_right(tmp_path: Path) -> None:
    """A second run ends while the first, which saw the results before, still writes."""
    (tmp_path / "results").mkdir()
    writing = threading.Event()
    go_on = threading.Event()
    wrote: list[str] = []

    def slowly(root: Path) -> Path:
        keys = _keys(root)
        writing.set()
        assert go_on.wait(20)
        wrote.append("first")
        return _written(runs.ledger_path(root), keys)

    def at_once(root: Path) -> Path:
        wrote.append("second")
        return _written(runs.ledger_path(root), _keys(root))

    results.store(tmp_path, "a", "default", {"claims.json": "[]"}, {"parameters": {}})
    first = threading.Thread(target=runs.refresh, args=(tmp_path, slowly))
    first.start()
    assert writing.wait(20)
    results.store(tmp_path, "b", "default", {"claims.json": "[]"}, {"parameters": {}})
    second = threading.Thread(target=runs.refresh, args=(tmp_path, at_once))
    second.start()
    time.sleep(0.2)
    assert wrote == []  # the second waits
    go_on.set()
    first.join(20)
    second.join(20)
    assert wrote == ["first", "second"]
    assert runs.ledger_path(tmp_path).read_bytes() == b"a b"
    assert runs.refresh(tmp_path, at_once) == []


def _keys(root: Path) -> bytes:
    return " ".join(record.key for record in results.records(root)).encode()


HOLD = """
import errno, fcntl, sys, time
from pathlib import Path
from labkit.workbook.run import guard
def flock(fd, flags): raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = flock
with guard.lock(Path(sys.argv[1]), print) as waited:
    print(waited, flush=True)
    if not waited and len(sys.argv) > 2: time.sleep(1000)
"""


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_the_lock_holds_and_goes_with_its_holder_where_the_file_system_has_none(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen([*command, "hold"], stdout=subprocess.PIPE, text=True)
    waiting = None
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "False\n"
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        assert "waiting" in waiting.stdout.readline()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert waiting.communicate(timeout=60)[0] == "True\n"
    finally:
        for process in filter(None, (holder, waiting)):
            process.kill()
            process.communicate()


def test_a_file_system_whose_locks_fail_is_one_error(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(handle: int, flags: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = client.whole(finished)
    monkeypatch.setenv("LABKIT_ROOT", str(finished))
    monkeypatch.setattr(fcntl, "flock", flock)
    assert main(["run", "--force"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"{finished}/results/.lock: No locks available; use a file system that has locks" in told
    assert client.whole(finished) == before


# ---------------------------------------------------------------- disks


def test_on_a_full_disk_the_run_says_so_and_earlier_results_stay(
    finished: Path, undisturbed: tuple[Path, Any], tmp_path: Path
) -> None:
    before = client.whole(finished)
    client.book(finished, "first", big=("for _ in range(3): print('x' * 10**6)",))
    keep = tmp_path / "keep"
    (finished / "results").rename(keep)
    (finished / "results").mkdir()
    done = machine.run_on_small_disk(
        RUN,
        {"LABKIT_ROOT": str(finished)},
        disk=finished / "results",
        keep=keep,
        size="1m",
    )
    refused(done, "No space left on device; make room on that disk", "results/.tmp/big-")
    (finished / "results").rmdir()
    keep.rename(finished / "results")
    assert client.whole(finished) == before
    assert list(client.left_over(finished)) == []
    assert {task.key: task.reason for task in batch.plan(finished, batch.Request())} == {
        "big": "no result yet",
        "first": "",
    }


def test_a_results_folder_that_cannot_be_written_is_one_error_and_still_read(
    finished: Path,
) -> None:
    environment = {"LABKIT_ROOT": str(finished)}
    folder = finished / "results"
    for place in (folder, folder / ".lock", folder / ".ledger"):
        place.chmod(0o555)
    try:
        current = machine.run_bound(RUN, environment)
        assert current.returncode == 0
        assert "1 up to date" in current.stdout
        done = machine.run_bound([*RUN, "--force"], environment)
    finally:
        folder.chmod(0o755)
    path = f"{folder}/.lock"
    refused(done, f"error: {path}: Permission denied; give yourself the right to read and write")


def test_a_run_needs_no_home_to_write_to(tmp_path: Path) -> None:
    """IPython, Jupyter and Matplotlib keep nothing that a result needs."""
    root = workbook(tmp_path / "wb", a=("import IPython; print(IPython.version_info[0] > 0)",))
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o555)
    places = ("HOME", "LABKIT_CACHE", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")
    environment = dict.fromkeys((*places, "JUPYTER_DATA_DIR", "XDG_CACHE_HOME"), str(sealed))
    done = machine.run_bound(RUN, {"LABKIT_ROOT": str(root), **environment})
    assert done.returncode == 0, done.stdout
    assert [record.key for record in results.records(root)] == ["a"]
    assert list(sealed.iterdir()) == []


def test_compiled_functions_that_no_place_keeps_are_one_error(tmp_path: Path) -> None:
    module = tmp_path / "lib" / "loops.py"
    module.parent.mkdir()
    code = "from labkit.kit.compiled import njit\n@njit(cache=True)\ndef double(x): return 2 * x\n"
    module.write_text(code)
    module.parent.chmod(0o555)
    asked = "import sys\nfrom labkit.cli import main\nimport labkit.cli as c\n"
    asked += "c._whole = lambda app: lambda **_: __import__('loops')\nsys.exit(main([]))"
    sealed = {"HOME": str(module.parent), "XDG_CACHE_HOME": str(module.parent)}
    paths = {"PYTHONPATH": f"{module.parent}:{TOP}", "NUMBA_CACHE_DIR": ""}
    done = machine.run_bound([sys.executable, "-c", asked], sealed | paths)
    refused(done, f"error: {module}: ", "set NUMBA_CACHE_DIR")
    elsewhere = paths | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = machine.run_bound([sys.executable, "-c", asked], sealed | elsewhere)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "make room"), (errno.EROFS, "mount"), (errno.EDQUOT, "within your quota")],
)
def test_a_disk_that_refuses_is_an_error_of_every_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    remedy: str,
) -> None:
    """``labkit queue note`` as an example; the queue stays as it was."""
    queue = tmp_path / "reading_queue.yaml"
    shutil.copy(TOP / "reading_queue.yaml", queue)
    (tmp_path / "data").symlink_to(TOP / "data")
    before = queue.read_bytes()

    def fsync(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setattr(os, "fsync", fsync)
    assert main(["queue", "drop", "cswap", "--reason", "no"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"{queue}: {os.strerror(code)}; " in told
    assert remedy in told
    assert queue.read_bytes() == before
    assert list(tmp_path.glob(".*.tmp")) == []


# ---------------------------------------------------------------- clocks


def test_clocks_decide_nothing(finished: Path) -> None:
    """Files of any age; a result stays current, and an altered one is noticed."""
    for moment in (0, 4e9):
        for path in [*finished.rglob("*.ipynb"), *finished.rglob("*.json"), finished]:
            os.utime(path, (moment, moment))
        assert {task.reason for task in batch.plan(finished, batch.Request())} == {""}
    claims = finished / "results/first/default/claims.json"
    times = claims.stat()
    claims.write_text(claims.read_text().replace("[", "{", 1))
    os.utime(claims, ns=(times.st_atime_ns, times.st_mtime_ns))
    [task] = batch.plan(finished, batch.Request())
    assert task.reason == "result damaged: claims.json"


def test_an_edit_that_keeps_size_and_time_is_seen_by_a_session_that_stays(tmp_path: Path) -> None:
    module = tmp_path / "beside.py"
    module.write_text("x = 1\n")
    before = imports.load("beside", module, frozenset())
    times = module.stat()
    module.write_text("x = 2\n")
    os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert imports.load("beside", module, frozenset()).sha256 != before.sha256


def test_a_clock_set_back_during_a_run_makes_no_negative_time() -> None:
    outcome = Outcome(status="ok", started="2026-03-01T00:00:30+00:00", duration_s=90.4)
    assert outcome.ended == "2026-03-01T00:02:00+00:00"


# ---------------------------------------------------------------- the table


def test_every_promise_names_tests_that_exist() -> None:
    table = (TOP / "tests" / "faults" / "README.md").read_text(encoding="utf-8")
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]
    assert len(rows) > 12
    assert all(named), [row for row, tests in zip(rows, named, strict=True) if not tests]
    for file, test in (pair for pairs in named for pair in pairs):
        tree = ast.parse((TOP / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test
