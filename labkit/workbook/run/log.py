"""The log of a run: ``results/.logs/<when>-<run>.log``, a line for each start, retry and end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.workbook.run import results
from labkit.workbook.run.jobs import Event, now

if TYPE_CHECKING:
    from labkit.workbook.run.batch import Task, Watcher

MAX_LOGS = 20
"""Logs that are kept, the newest; a killed run's is as far as it came."""


class Logged:
    """A watcher that also writes what it hears to the log of the run ``run_id``."""

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

    def begin(self, tasks: Sequence[Task], num_workers: int) -> None:
        self._write("begin", f"{len(tasks)} notebooks, {num_workers} at a time")
        self._watcher.begin(tasks, num_workers)

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
