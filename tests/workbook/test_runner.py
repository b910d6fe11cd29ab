"""Batches of real notebooks: failures told apart, nothing half-written, killed runs picked up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.errors import LabkitError, UsageError
from labkit.workbook import notebooks
from labkit.workbook.run import batch, executors, guard, jobs, processes, results
from tests.workbook.factory import Recorder, go, workbook, write

CLAIM = {
    "id": "a",
    "paper": "good",
    "kind": "headline",
    "statement": "s",
    "unit": "s",
    "source": "§1",
    "verdict": "reproduced",
    "paper_value": 1,
    "our_value": 1,
    "ratio": 1,
    "verified": True,
}
GOOD = (
    ("seed: int = 3\neta: float = 0.5", "parameters"),
    "# Text",
    "import os\nprint(seed, os.environ['OMP_NUM_THREADS'], os.path.basename(os.getcwd()))",
    "from IPython.display import display\n"
    f"display({{'application/vnd.labkit.claims+json': [{CLAIM}]}}, raw=True)\n"
    "display({'application/vnd.plotly.v1+json': {'data': [{'x': [1]}], 'layout': {}}}, raw=True)",
)
HANGS = (
    "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    ("x = 1\nwhile True: time.sleep(1e6)", "figure"),
)


def dies_once(marker: Path, victim: str) -> str:
    """Code that kills process ``victim`` the first time it runs."""
    return (
        f"import os, pathlib, signal, time\nmarker = pathlib.Path({str(marker)!r})\n"
        f"if not marker.exists():\n    marker.touch(); os.kill({victim}, signal.SIGKILL)\n"
        "    time.sleep(20)"
    )


def soon(condition: Callable[[], Any], within_s: float = 20.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def kernels_of(root: Path) -> list[int]:
    """Processes that carry the mark of a run in ``root``."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        ours = environment.get("LABKIT_ROOT") == str(root) and processes.RUN_MARK in environment
        if ours and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def sockets(run_id: str) -> list[Path]:
    """Folders of kernels' sockets that run ``run_id`` has left."""
    return list(Path(tempfile.gettempdir()).glob(f"{processes.socket_prefix(run_id)}*"))


def printed(root: Path) -> str:
    """What the first cell of notebook ``a`` printed."""
    record = results.read(results.folder_of(root, "a", "default"))
    assert record is not None
    return notebooks.glimpse(record.notebook).cells[0].outputs[0].text


def tree(root: Path) -> set[str]:
    base = root / "results"
    return {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- how notebooks end


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, batch.Report, Recorder]:
    """One run of good, failing, hanging and dying notebooks, two at a time."""
    folder = tmp_path_factory.mktemp("mixed")
    root = workbook(
        folder / "wb",
        good=GOOD,
        fails=("# Text", "x = 1", ("\nx / 0", "claims")),
        hangs=HANGS,
        kernel_dies=(dies_once(folder / "kernel", "os.getpid()"), "print('second try')"),
        worker_dies=(dies_once(folder / "worker", "os.getppid()"), "print('second try')"),
        always_dies=("1", ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "figure")),
        no_memory=(
            "import resource\n"
            "resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))\nbytearray(2**34)",
        ),
        expected_error=(("1/0", "raises-exception"), "print('went on')"),
        other_error=(("1/0", "raises-exception"), "{}['x']"),
        exits=("import sys; sys.exit()", "print('never reached')"),
        leaves=(
            "import subprocess\n"
            "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint(child.pid)",
            "import os; print(os.environ['LABKIT_RUN_ID'])",
        ),
    )
    (root / "notebooks/tests/broken.ipynb").write_text("{")
    watcher = Recorder()
    report = go(root, watcher=watcher, num_jobs=3, cell_timeout_s=6.0)
    return root, report, watcher


Mixed = tuple[Path, batch.Report, Recorder]


def end_of(mixed: Mixed, key: str) -> batch.Ended:
    [end] = [end for end in mixed[1].ended if end.job.key == key]
    return end


def test_each_notebook_ends_as_it_should_and_stops_no_other(mixed: Mixed) -> None:
    statuses = {end.job.key: end.outcome.status for end in mixed[1].ended}
    assert statuses == {
        "good": "ok",
        "fails": "failed",
        "hangs": "hung",
        "kernel_dies": "ok",
        "worker_dies": "ok",
        "always_dies": "died",
        "no_memory": "failed",
        "expected_error": "ok",
        "other_error": "failed",
        "exits": "failed",
        "leaves": "ok",
        "broken": "broken",
    }


def test_a_failure_names_its_cell_as_the_author_counts(mixed: Mixed) -> None:
    outcome = end_of(mixed, "fails").outcome
    assert outcome.cell is not None
    assert (outcome.cell.number, outcome.cell.total) == (3, 3)
    assert (outcome.cell.tag, outcome.cell.first_line) == ("claims", "x / 0")
    assert (outcome.error, outcome.message) == ("ZeroDivisionError", "division by zero")


def test_a_hang_names_its_cell(mixed: Mixed) -> None:
    outcome = end_of(mixed, "hangs").outcome
    assert outcome.cell is not None
    assert (outcome.cell.number, outcome.cell.tag) == (2, "figure")
    assert "6 s" in outcome.message


def test_a_kernel_killed_each_time_is_named_with_its_cell(mixed: Mixed) -> None:
    outcome = end_of(mixed, "always_dies").outcome
    assert outcome.cell is not None
    assert (outcome.cell.number, outcome.cell.tag) == (2, "figure")
    assert "killed (signal 9)" in outcome.message
    assert "out of memory" in outcome.message
    assert end_of(mixed, "no_memory").outcome.error == "MemoryError"


@pytest.mark.parametrize(
    ("key", "attempts"),
    [
        ("kernel_dies", jobs.MAX_ATTEMPTS),
        ("worker_dies", jobs.MAX_ATTEMPTS),
        ("always_dies", jobs.MAX_ATTEMPTS),
        ("no_memory", 1),
        ("fails", 1),
    ],
)
def test_only_infrastructure_is_tried_again_and_not_for_ever(
    mixed: Mixed, key: str, attempts: int
) -> None:
    assert end_of(mixed, key).outcome.attempts == attempts
    retries = [e for e in mixed[2].events if e.kind == "retry" and e.job.key == key]
    assert len(retries) == attempts - 1


def test_partial_notebooks_are_kept_apart_from_results(mixed: Mixed) -> None:
    root = mixed[0]
    failed = {"fails", "hangs", "always_dies", "no_memory", "other_error", "exits"}
    for key in failed:
        folder = end_of(mixed, key).folder
        assert folder == root / "results/.failed" / key / "default"
        assert notebooks.glimpse(folder / f"{key}.ipynb").cells
        assert not (root / "results" / key).exists()
    kept = {name.split("/")[0] for name in tree(root)}
    assert kept == {
        ".failed",
        ".lock",
        ".logs",
        "good",
        "kernel_dies",
        "worker_dies",
        "expected_error",
        "leaves",
    }
    text = (root / "results/.failed/fails/default/fails.ipynb").read_text()
    assert "ZeroDivisionError" in text


def test_an_error_that_a_cell_is_there_to_show_is_none(mixed: Mixed) -> None:
    record = results.read(results.folder_of(mixed[0], "expected_error", "default"))
    assert record is not None
    shown = notebooks.glimpse(record.notebook).cells
    assert [cell.cell_type for cell in shown] == ["code", "code"]
    assert shown[0].outputs[0].ename == "ZeroDivisionError"
    assert shown[1].outputs[0].text == "went on\n"
    other = end_of(mixed, "other_error").outcome
    assert (other.error, other.message) == ("KeyError", "'x'")


def test_no_process_outlives_its_notebook(mixed: Mixed) -> None:
    record = results.read(results.folder_of(mixed[0], "leaves", "default"))
    assert record is not None
    child = int(notebooks.glimpse(record.notebook).cells[0].outputs[0].text)
    assert soon(lambda: not psutil.pid_exists(child), 5)
    assert soon(lambda: not kernels_of(mixed[0]), 5)
    run_id = notebooks.glimpse(record.notebook).cells[1].outputs[0].text.strip()
    assert not sockets(run_id)  # also not of the worker that was killed


def test_a_result_holds_notebook_claims_figures_and_where_it_comes_from(mixed: Mixed) -> None:
    root = mixed[0]
    record = results.read(results.folder_of(root, "good", "default"))
    assert record is not None
    assert record.claims == [CLAIM]
    assert json.loads((record.folder / "figures/01.json").read_text())["data"] == [{"x": [1]}]
    printed = notebooks.glimpse(record.notebook).cells[2].outputs[0].text
    assert printed == "3 1 tests\n"  # one thread each when several run, in the notebook's folder
    meta = record.meta
    assert meta["parameters"] == {"seed": 3, "eta": 0.5}
    assert meta["notebook"] == "notebooks/tests/good.ipynb"
    assert meta["started"] <= meta["ended"]
    assert 0 < meta["duration_s"] < 60
    assert meta["machine"]["memory_bytes"] > 2**28
    assert meta["versions"]["python"].startswith(f"{sys.version_info.major}.")
    assert "papermill" not in record.notebook.read_text()


def test_every_run_has_a_log(mixed: Mixed) -> None:
    [log] = (mixed[0] / "results/.logs").iterdir()
    lines = [line.split("\t")[1:] for line in log.read_text().splitlines()]
    assert lines[0] == ["begin", "11 notebooks, 3 at a time"]
    kinds = [kind for kind, _ in lines]
    assert (kinds.count("start"), kinds.count("retry"), kinds.count("end")) == (14, 3, 11)
    [fails] = [text for kind, text in lines if kind == "end" and text.startswith("fails")]
    assert fails.startswith("fails  failed  ")
    assert fails.endswith("cell 3  ZeroDivisionError  division by zero")


def test_progress_is_told_cell_by_cell(mixed: Mixed) -> None:
    events = [event for event in mixed[2].events if event.job.key == "good"]
    assert [event.kind for event in events] == ["start", *["cell"] * 4, "end"]
    numbers = [event.cell.number for event in events if event.cell]
    assert numbers == [1, 2, 3, 4]


def test_a_worker_that_is_stuck_itself_is_ended_by_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook stops its own worker, which then enforces no limit."""
    stops = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(1000)"
    root = workbook(tmp_path / "wb", stuck=("print('before')", stops))
    monkeypatch.setattr(executors, "GRACE_S", 6.0)
    [end] = go(root, cell_timeout_s=2.0).ended
    assert end.outcome.status == "hung"
    assert end.outcome.cell is not None
    assert end.outcome.cell.number == 2
    assert end.folder is not None
    assert "before" in (end.folder / "stuck.ipynb").read_text()
    assert soon(lambda: not kernels_of(root), 5)


# ---------------------------------------------------------------- what runs again


def test_only_what_changed_runs_again(tmp_path: Path) -> None:
    counter = f"with open({str(tmp_path / 'count')!r}, 'a') as f: f.write('x')"
    root = workbook(tmp_path / "wb", a=(("n: int = 1", "parameters"), counter), b=("1",))
    path = root / "notebooks/tests/a.ipynb"
    first = go(root)
    assert {end.job.reason for end in first.ended} == {"no result yet"}
    assert go(root).ended == []

    notebook = json.loads(path.read_text())
    notebook["cells"][1]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "changed by hand"}
    ]
    path.write_text(json.dumps(notebook))
    assert go(root).ended == []

    notebook["cells"][1]["source"] += "\n# changed"
    path.write_text(json.dumps(notebook))
    again = go(root)
    assert [(end.job.key, end.job.reason) for end in again.ended] == [("a", "changed: source")]

    (root / "results/a/default/claims.json").unlink()
    planned = {task.key: task.reason for task in batch.plan(root, batch.Request())}
    assert planned == {"a": "result damaged: claims.json", "b": ""}
    assert [end.job.key for end in go(root).ended] == ["a"]
    assert go(root, "a", fixed={"n": "1"}).ended == []  # the default, spelled out
    assert (tmp_path / "count").read_text() == "xxx"


def test_the_longest_goes_first_and_the_untimed_before(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", quick=("1",), slow=("2",), new=("3",))
    for key, duration_s in (("quick", 1.0), ("slow", 9.0)):
        meta = {"parameters": {}, "duration_s": duration_s}
        results.store(root, key, "default", {"claims.json": "[]"}, meta)
    watcher = Recorder()
    go(root, watcher=watcher, num_jobs=1)
    assert watcher.began == ["new", "slow", "quick"]


def test_a_refused_request_runs_nothing(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=(("n: int = 1", "parameters"), "1"), b=("1",))
    for request, said in (
        ({"fixed": {"m": "2"}}, "notebook 'a' has no parameter 'm'.*n: int = 1"),
        ({"fixed": {"n": "2"}, "keys": ("b",)}, "notebook 'b' has no parameter 'n'"),
        ({"fixed": {"n": "x"}, "keys": ("a",)}, "parameter n: 'x' is not of type int"),
        ({"keys": ("c",)}, "no notebook for 'c'"),
    ):
        with pytest.raises(UsageError, match=said):
            go(root, *request.get("keys", ()), fixed=request.get("fixed"))
    assert not (root / "results").exists()


def test_two_cells_of_parameters_stop_a_notebook(tmp_path: Path) -> None:
    """The second would undo what papermill injects after the first."""
    cells = (("a: int = 1", "parameters"), ("b: int = 2", "parameters"), "b")
    root = workbook(tmp_path / "wb", a=cells)
    for fixed in (None, {"b": "5"}):
        with pytest.raises(UsageError, match="cells cell0 and cell1 are all tagged 'parameters'"):
            go(root, fixed=fixed)
    assert not (root / "results").exists()


def test_a_parameter_that_only_some_notebooks_take_stops_only_the_others(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=(("n: int = 1", "parameters"), "n"), b=("1",))
    report = go(root, fixed={"n": "2"})
    assert [end.job.key for end in report.failures] == ["b"]
    assert "has no parameter 'n'" in report.failures[0].outcome.message
    assert "a/n=2/run.json" in tree(root)
    assert not (root / "results" / "b").exists()


def test_a_result_that_cannot_be_kept_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = workbook(tmp_path / "wb", a=("1",), b=("1",))
    real = results.store

    def full(root: Path, key: str, *rest: Any) -> Path:
        if key == "a":
            raise OSError(28, "No space left on device")
        return real(root, key, *rest)

    monkeypatch.setattr(results, "store", full)
    report = go(root)
    assert [(end.job.key, end.ok) for end in sorted(report.ended, key=lambda e: e.job.key)] == [
        ("a", False),
        ("b", True),
    ]
    assert "No space left" in report.failures[0].outcome.message


# ---------------------------------------------------------------- data


def test_a_kernel_does_not_wait_again_for_a_dataset_that_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit import datasets

    monkeypatch.delenv("LABKIT_OFFLINE", raising=False)
    root = workbook(tmp_path / "wb", a=())
    code = "import os\nprint(*(os.environ.get('LABKIT_OFFLINE' + end) for end in ('', '_REASON')))"
    write(root, "a", code, datasets=["traces"])
    asked: list[str] = []

    def fetch(name: str, files: Any, root: Path) -> list[LabkitError]:
        asked.append(name)
        return [datasets.DatasetUnavailable(name, "x.csv", "host did not answer for 5 s")]

    monkeypatch.setattr(datasets, "needed", lambda entries, root: {"traces": ("x.csv",)})
    monkeypatch.setattr(datasets, "available", lambda name, files, root: False)
    monkeypatch.setattr(datasets, "fetch", fetch)
    monkeypatch.setattr(datasets, "fingerprint", lambda name, files, root: "stand-in:1")
    watcher = Recorder()
    go(root, watcher=watcher)
    record = results.read(results.folder_of(root, "a", "default"))
    assert record is not None
    assert record.meta["datasets"] == {"traces": {"fingerprint": "stand-in:1", "standin": True}}
    assert printed(root) == "1 host did not answer for 5 s when this run began\n"
    assert asked == ["traces"]
    assert any("stand-in" in note and "did not answer" in note for note in watcher.notes)

    with pytest.raises(LabkitError, match="stand-in data for traces"):
        results.write_back(root, "a")
    assert results.write_back(root, "a", allow_standin=True)
    assert go(root).ended == []  # a stand-in is up to date until the data can be had
    assert asked == ["traces"]

    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    go(root, force=True)
    assert printed(root) == "1 None\n", "what the user said is the reason"


# ---------------------------------------------------------------- killed runs


def start(root: Path) -> subprocess.Popen[bytes]:
    code = (
        "from pathlib import Path; from tests.workbook.factory import go; import signal, sys\n"
        # A shell's background job ignores SIGINT, and hands that on to all it starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "if __name__ == '__main__': go(Path(sys.argv[1]), num_jobs=2)"
    )
    top = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code, str(root)], cwd=top, stderr=subprocess.DEVNULL
    )


def test_an_interrupted_run_leaves_no_process_and_the_next_one_ends_right(tmp_path: Path) -> None:
    root = workbook(
        tmp_path / "wb",
        quick=("1",),
        slow=(
            "import time, os\nopen('started', 'w').close()",
            "from labkit.kit import scratch\n"
            "with scratch.folder(scratch.RANKS) as folder:  # as real ranks have it\n"
            "    print(folder, file=open('held', 'w'), flush=True)\n"
            "    time.sleep(SECONDS)",
        ),
    )
    slow = root / "notebooks/tests/slow.ipynb"
    held = root / "notebooks/tests/held"
    text = slow.read_text()
    slow.write_text(text.replace("SECONDS", "1000"))
    run = start(root)
    try:
        assert soon(lambda: results.read(results.folder_of(root, "quick", "default")), 60)
        assert soon((root / "notebooks/tests/started").exists, 60)
        assert soon(lambda: held.exists() and held.read_text(), 60)
        folder = Path(held.read_text().strip())
        assert folder.is_dir()
        assert kernels_of(root)
        run_id = (root / "results/.running").read_text()
        assert sockets(run_id)
        run.send_signal(signal.SIGINT)
        run.wait(20)
    finally:
        run.kill()
    assert soon(lambda: not kernels_of(root), 10)
    assert soon(lambda: not folder.exists(), 10)
    assert [record.key for record in results.records(root)] == ["quick"]
    slow.write_text(text.replace("SECONDS", "0"))
    report = go(root)
    assert [(end.job.key, end.ok) for end in report.ended] == [("slow", True)]
    folders = {path.name for path in (root / "results").iterdir()}
    assert folders == {".lock", ".logs", "quick", "slow"}
    assert not sockets(run_id)


def test_kernels_that_outlived_a_killed_run_are_ended(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=("1",))
    with guard.lock(root, print), guard.journal(root) as run_id:
        note = (root / "results/.running").read_text()
    environment = {**os.environ, processes.RUN_MARK: run_id}
    orphan = subprocess.Popen(["sleep", "1000"], env=environment)
    stranger = subprocess.Popen(["sleep", "1000"], env={**environment, processes.RUN_MARK: "x"})
    try:
        (root / "results/.running").write_text(note)  # as kill -9 leaves it
        (root / "results/.tmp/a-half").mkdir(parents=True)
        guard.tidy(root)
        assert not psutil.pid_exists(orphan.pid)
        assert stranger.poll() is None
        assert {path.name for path in (root / "results").iterdir()} == {".lock"}
    finally:
        orphan.kill()
        stranger.kill()
        stranger.wait()


def test_a_run_whose_note_is_lost_still_ends_its_kernels(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=("1",))
    with guard.lock(root, print), guard.journal(root) as run_id:
        environment = {**os.environ, processes.RUN_MARK: run_id}
        kernel = subprocess.Popen(["sleep", "1000"], env=environment)
        (root / "results/.running").unlink()  # as `rm -rf results` beside a run does
    try:
        assert not psutil.pid_exists(kernel.pid)
    finally:
        kernel.kill()


def test_a_run_at_work_is_left_alone_and_waited_for(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=("1",))
    watcher = Recorder()
    ended: list[batch.Report] = []
    second = threading.Thread(target=lambda: ended.append(go(root, watcher=watcher)))
    with guard.lock(root, print), guard.journal(root):
        guard.tidy(root)  # what an up-to-date run does
        assert (root / "results/.running").exists()
        second.start()
        assert soon(lambda: watcher.notes, 10)
        assert "waiting" in watcher.notes[0]
        assert not ended
    second.join(60)
    assert [end.ok for end in ended[0].ended] == [True]


# ---------------------------------------------------------------- refresh


def test_refresh_writes_the_same_bytes_twice(tmp_path: Path) -> None:
    code = "import sys\nprint('a'); print('w', file=sys.stderr); print('b')"
    root = workbook(tmp_path / "wb", a=(("n: int = 1", "parameters"), "# Text", code, "n"))
    path = root / "notebooks/tests/a.ipynb"
    go(root)
    assert results.write_back(root, "a")
    first = path.read_bytes()
    notebook = notebooks.glimpse(path)
    assert [cell.get("execution_count") for cell in notebook.cells] == [1, None, 2, 3]
    assert [output.text for output in notebook.cells[2].outputs] == ["a\nb\n", "w\n"]
    assert go(root).ended == []  # outputs are no reason to run
    go(root, force=True)
    assert not results.write_back(root, "a")
    assert path.read_bytes() == first


def test_refresh_takes_a_notebook_from_elsewhere(tmp_path: Path) -> None:
    """One that says nothing of labkit in its metadata."""
    root = workbook(tmp_path / "wb", a=("1 + 1",))
    path = root / "notebooks/tests/a.ipynb"
    content = json.loads(path.read_text())
    del content["metadata"]["labkit"]
    path.write_text(json.dumps(content))
    go(root)
    assert results.write_back(root, "a")
    assert notebooks.glimpse(path).cells[0].outputs[0].data["text/plain"]
    assert not results.write_back(root, "a")


def test_refresh_never_overwrites_an_edit(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=("1",))
    go(root)
    path = write(root, "a", "2")
    before = path.read_bytes()
    with pytest.raises(LabkitError, match="has changed since it was executed"):
        results.write_back(root, "a")
    assert path.read_bytes() == before
