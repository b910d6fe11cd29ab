"""``python -m tests.faults.client [MOMENTS] [SEED]``: ``labkit run`` killed at random moments.

Each time results/ starts empty, the run is killed by SIGKILL somewhere between its first import
and its last file, and the next run has to end with the results of an undisturbed run, without
executing again what was whole, and with nothing left: no process, socket, half-built folder, lock.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock

from labkit.workbook.run import results
from tests.workbook.factory import workbook

LIMIT_S = 300.0
GONE_WITHIN_S = 20.0
"""Processes of a run end a moment after it; on a busy machine it is a long one."""
DAEMON = "import subprocess\nsubprocess.run('setsid sleep 1000 & exit 0', shell=True)"
NOTEBOOKS = {
    "first": (DAEMON, "sum(range(1000))"),
    "second": ("import time; time.sleep(0.5)", "print('late')"),
    "third": ("import os; os.path.basename(os.getcwd())",),
}


@dataclass(frozen=True, kw_only=True)
class Killed:
    """A run that was killed: after how long, how far it was, and how many processes it had."""

    after_s: float
    whole: dict[str, str]
    num_processes: int


def book(folder: Path, *keys: str, **more: tuple[str, ...]) -> Path:
    """A workbook with those of :data:`NOTEBOOKS` (none: all), and ``more``."""
    return workbook(folder, **{key: NOTEBOOKS[key] for key in keys or NOTEBOOKS}, **more)


def temporary(root: Path) -> Path:
    """Where the runs of ``root`` keep sockets, and nobody else anything."""
    folder = root.with_name("tmp")
    folder.mkdir(exist_ok=True)
    return folder


def start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "labkit", "run", "--jobs", "2"]
    environment = {**os.environ, "LABKIT_ROOT": str(root), "TMPDIR": str(temporary(root))}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(root: Path) -> tuple[float, str]:
    """Seconds and output of a run that nobody disturbs."""
    begun = time.monotonic()
    run = start(root)
    output, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, output
    return time.monotonic() - begun, output


def kill_when(root: Path, due: Callable[[float], object]) -> Killed | None:
    """Start a run and kill it once ``due`` (of the seconds so far); None where it ended before."""
    begun = time.monotonic()
    run = start(root)
    while run.poll() is None and not due(time.monotonic() - begun):
        time.sleep(0.01)
    after_s = time.monotonic() - begun
    num_processes = len(left_running(root)) - 1
    run.kill()
    run.communicate()
    if run.returncode == 0:
        return None
    return Killed(after_s=after_s, whole=whole(root), num_processes=num_processes)


def whole(root: Path) -> dict[str, str]:
    """Key -> text of run.json of every whole result."""
    return {r.key: (r.folder / results.RUN_FILE).read_text() for r in results.records(root)}


def outputs(root: Path) -> dict[str, bytes]:
    """Every file that a run left but logs; of those that hold times, only that they are there."""
    folder = results.results_folder(root)
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != ".logs")
    dated = {results.RUN_FILE, ".stamp", "runs.parquet"}
    return {
        path.relative_to(folder).as_posix(): b"" if path.name in dated else path.read_bytes()
        for path in files
    }


def left_running(root: Path) -> list[int]:
    """Processes that runs of ``root`` started: kernels, workers, daemons, the fork server."""
    alive = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("LABKIT_ROOT") == str(root)
        except psutil.Error:
            continue
        if ours and process.pid != os.getpid():
            alive.append(process.pid)
    return alive


def left_over(root: Path) -> Iterator[str]:
    """What a run should have cleared away, in words."""
    end = time.monotonic() + GONE_WITHIN_S
    while (alive := left_running(root)) and time.monotonic() < end:
        time.sleep(0.1)
    yield from (f"process {pid}" for pid in alive)
    folder = results.results_folder(root)
    half = [folder / ".running", *folder.glob(".tmp/*"), *folder.glob(".*.tmp")]
    yield from (str(path) for path in (*half, *temporary(root).iterdir()) if path.exists())
    for name in (".lock", ".ledger"):
        with FileLock(folder / name, timeout=0):
            pass


def try_moment(
    root: Path, expected: dict[str, bytes], due: Callable[[float], object]
) -> Killed | None:
    """Kill a run once ``due``, run again, and check what the next run leaves."""
    shutil.rmtree(results.results_folder(root), ignore_errors=True)
    killed = kill_when(root, due)
    if killed is None:
        return None
    finish(root)
    assert outputs(root) == expected
    again = whole(root)
    assert {key: again[key] for key in killed.whole} == killed.whole  # not executed twice
    left = list(left_over(root))
    assert left == [], f"killed after {killed.after_s:.2f} s; left: {left}"
    return killed


def main(num_moments: int = 10, seed: int = 0) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        root = book(Path(folder) / "wb")
        finish(root)  # compiles what Python compiles once
        shutil.rmtree(results.results_folder(root))
        span_s, _ = finish(root)
        expected = outputs(root)
        print(f"undisturbed: {span_s:.1f} s, {len(expected)} files; seed {seed}")
        tried = 0
        while tried < num_moments:
            moment_s = draw.uniform(0.1, 1.0) * span_s
            killed = try_moment(root, expected, lambda so_far_s, at=moment_s: so_far_s >= at)
            if killed is None:
                continue
            tried += 1
            print(
                f"{tried:2}: killed after {killed.after_s:5.2f} s with {len(killed.whole)} of "
                f"{len(NOTEBOOKS)} results whole and {killed.num_processes} processes beside it; "
                "the next run ended with the same results, nothing was left",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
