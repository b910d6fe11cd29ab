"""One run at a time in a workbook, and a clean start after one that was killed.

A run holds a lock that the operating system drops with the process, and notes its id in
``results/.running``. A note nobody holds the lock for is a killed run's: its kernels, if any
outlived it, carry that id in their environment and are ended; its half-built folders and
sockets are removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.workbook.run import processes, results


@contextmanager
def lock(root: Path, note: Callable[[str], None]) -> Iterator[bool]:
    """Holds the workbook's run lock; yields whether another run had it first."""
    from filelock import FileLock, Timeout

    folder = results.results_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    held = FileLock(folder / ".lock")
    try:
        mine, waited = held.acquire(timeout=0), False
    except Timeout:
        note("another labkit run is at work in this workbook; waiting for it to end")
        mine, waited = held.acquire(), True
    with mine:
        yield waited


@contextmanager
def journal(root: Path) -> Iterator[str]:
    """Notes this run on disk while it lasts, after clearing away a killed one; yields its id.

    Call it with the lock held.
    """
    file = _journal_file(root)
    _clear_away(root)
    run_id = uuid.uuid4().hex
    file.write_text(run_id, encoding="utf-8")
    try:
        yield run_id
    finally:
        # Of workers that were killed; the others removed their own.
        processes.remove_sockets(processes.socket_prefix(run_id))
        results.sweep_scratch(root)
        file.unlink(missing_ok=True)


def tidy(root: Path) -> None:
    """Clear away what a killed run left, if there is anything and no other run is at work."""
    if not _journal_file(root).exists():
        return
    from filelock import FileLock, Timeout

    with suppress(Timeout), FileLock(results.results_folder(root) / ".lock", timeout=0):
        _clear_away(root)


def _journal_file(root: Path) -> Path:
    return results.results_folder(root) / ".running"


def _clear_away(root: Path) -> None:
    """What a killed run can leave: kernels that outlived it, their sockets, half-built folders."""
    file = _journal_file(root)
    if file.exists():
        run_id = file.read_text(encoding="utf-8").strip()
        if run_id:
            processes.end_marked(run_id)
            processes.remove_sockets(processes.socket_prefix(run_id))
    results.sweep_scratch(root)
    file.unlink(missing_ok=True)
