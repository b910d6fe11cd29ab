"""One run at a time in a workbook, its log, and a clean start after one that was killed.

A run holds a lock that the operating system drops with the process, and notes its id in
``results/.running``. A note nobody holds the lock for is a killed run's: its kernels, if any
outlived it, carry that id in their environment and are ended; its half-built folders and
sockets are removed. Processes are looked for on this machine alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.files import naming
from labkit.workbook.run import processes, results
from labkit.workbook.run.jobs import Event, Job, Watcher, now

MAX_LOGS = 20
"""Logs that are kept, the newest; a killed run's is as far as it came."""


@contextmanager
def lock(root: Path, note: Callable[[str], None]) -> Iterator[bool]:
    """Holds the workbook's run lock; yields whether another run had it first."""
    from filelock import FileLock, Timeout

    folder = results.results_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    held = FileLock(folder / ".lock")
    with naming(folder / ".lock"):
        try:
            mine = held.acquire(timeout=0)
            waited = False
        except Timeout:
            note("another labkit run is at work in this workbook; waiting for it to end")
            mine = held.acquire()
            waited = True
    with mine:
        yield waited


@contextmanager
def journal(root: Path) -> Iterator[str]:
    """Notes this run on disk while it lasts, after clearing away a killed one; yields its id.

    Call it with the lock held.
    """
    file = journal_file(root)
    _clear_away(root)
    run_id = uuid.uuid4().hex
    with naming(file):
        file.write_text(run_id, encoding="utf-8")
    try:
        yield run_id
    finally:
        _clear_away(root, run_id)


def tidy(root: Path) -> None:
    """Clear away what a killed run left, if there is anything and no other run is at work."""
    processes.sweep_folders()
    if not journal_file(root).exists():
        return
    from filelock import FileLock, Timeout

    with suppress(Timeout), FileLock(results.results_folder(root) / ".lock", timeout=0):
        _clear_away(root)


def left_over(root: Path) -> list[str]:
    """What the next run makes good, in words: damaged results, failures, a killed run's note."""
    folder = results.results_folder(root)
    stored = sorted(results.folders(root))
    states = {f"{path.parent.name}/{path.name}": results.inspect(path)[1] for path in stored}
    left = [f"{name}: {problem}" for name, problem in states.items() if problem]
    left += [f"{path.parent.name}/{path.name} failed" for path in folder.glob(".failed/*/*")]
    return left + ["a run is at work or was killed"] * journal_file(root).exists()


def journal_file(root: Path) -> Path:
    return results.results_folder(root) / ".running"


def _clear_away(root: Path, run_id: str = "") -> None:
    """What a run (else: the one noted) can leave: kernels, their sockets and temporary folders,
    half-built results."""
    file = journal_file(root)
    if not run_id and file.exists():
        run_id = file.read_text(encoding="utf-8").strip()
    if run_id:
        processes.end_marked(run_id)
        processes.remove_sockets(processes.socket_prefix(run_id))
    processes.sweep_folders()
    results.sweep_scratch(root)
    file.unlink(missing_ok=True)


class Logged:
    """A watcher that also writes starts, retries and ends to ``results/.logs/<when>-<run>.log``."""

    def __init__(self, watcher: Watcher, root: Path, run_id: str) -> None:
        self._watcher = watcher
        folder = results.results_folder(root) / ".logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{now()[:19].replace(':', '')}-{run_id[:8]}.log"
        for old in sorted(folder.glob("*.log"))[: 1 - MAX_LOGS]:
            old.unlink(missing_ok=True)

    def note(self, text: str) -> None:
        self._write("note", text)
        self._watcher.note(text)

    def begin(self, jobs: Sequence[Job], num_workers: int) -> None:
        self._write("begin", f"{len(jobs)} notebooks, {num_workers} at a time")
        self._watcher.begin(jobs, num_workers)

    def event(self, event: Event) -> None:
        if event.kind != "cell":
            parts = [event.job.name, f"on {event.worker}" if event.worker else ""]
            if (outcome := event.outcome) is not None:
                cell = f"cell {outcome.cell.number}" if outcome.cell else ""
                tries = f"{outcome.attempts} attempts" if outcome.attempts > 1 else ""
                parts += [outcome.status, f"{outcome.duration_s:.1f} s", tries, cell]
                parts += [outcome.error, outcome.message]
            self._write(event.kind, "  ".join(filter(None, parts)))
        self._watcher.event(event)

    def _write(self, kind: str, text: str) -> None:
        # A full disk is told by what must be kept there, the results.
        with suppress(OSError), self.path.open("a", encoding="utf-8") as log:
            log.write(f"{now()}\t{kind}\t{text}\n")
