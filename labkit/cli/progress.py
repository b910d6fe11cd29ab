"""What a run shows while it goes: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import heapq
import math
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import TaskID

    from labkit.workbook.run.jobs import CellPlace, Event, Job, Outcome


def seconds(value: float) -> str:
    """A duration for people.

    >>> seconds(0.44), seconds(12.34), seconds(135)
    ('0.4 s', '12 s', '2 min 15 s')
    """
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value // 60:.0f} min {value % 60:.0f} s"


def where(cell: CellPlace | None) -> str:
    """A cell in a few words: its number, and its tag or first line."""
    if cell is None:
        return "before its first cell"
    known_by = f"[{cell.tag}]" if cell.tag else cell.first_line
    return f"cell {cell.number} of {cell.total} {known_by}".strip()


def how_it_failed(outcome: Outcome) -> str:
    """The error in one line, named by its kind where no exception of a cell's names it."""
    name = outcome.error
    if outcome.status == "hung":
        name = "hung"
    elif outcome.status == "died":
        name = "kernel died" + (f" ({outcome.attempts} times)" if outcome.attempts > 1 else "")
    return ": ".join(part for part in (name, outcome.message) if part)


class Estimate:
    """How long the rest of a run should take, from how long its notebooks took before."""

    def __init__(self, jobs: Sequence[Job], num_workers: int) -> None:
        known = [job.expected_s for job in jobs if job.expected_s is not None]
        self._usual_s = statistics.median(known) if known else None
        self._num_workers = num_workers
        self._expected_s = {job.name: job.expected_s or self._usual_s or 0.0 for job in jobs}
        self._begun: dict[str, float] = {}

    def start(self, name: str) -> None:
        self._begun[name] = time.monotonic()

    def retry(self, name: str) -> None:
        del self._begun[name]

    def end(self, name: str) -> None:
        for times in (self._begun, self._expected_s):
            times.pop(name, None)

    def remaining_s(self) -> float | None:
        """Seconds until the last ends, if each takes as long as before; None if none is known."""
        if self._usual_s is None:
            return None
        moment = time.monotonic()
        running = self._begun.items()
        ends = [max(self._expected_s[name] - (moment - begun), 0.0) for name, begun in running]
        ends += [0.0] * (self._num_workers - len(ends))
        heapq.heapify(ends)
        for name, expected_s in self._expected_s.items():
            if name not in self._begun:
                heapq.heapreplace(ends, ends[0] + expected_s)
        return max(ends, default=0.0)


class Watcher:
    """Says when a notebook starts, is tried again, or ends.

    On a terminal a bar for each running notebook (cells done of all) and one for the whole run
    stand below.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[at]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[says]}", style="dim", markup=False),
            console=console,
            transient=True,
            get_time=time.monotonic,
            refresh_per_second=4,
            disable=not (console.is_interactive and console.file.isatty()),  # FORCE_COLOR is no tty
        )
        self._bar_of: dict[str, TaskID] = {}
        self._total = self._done = self._failed = 0
        self._looked = -math.inf
        self._left_s: float | None = None

    def note(self, text: str) -> None:
        self._say(Text(text, style="yellow"))

    def begin(self, jobs: Sequence[Job], num_workers: int) -> None:
        self._total = len(jobs)
        self._reasons = {job.name: job.reason for job in jobs}
        self._estimate = Estimate(jobs, num_workers)
        self._begun = time.monotonic()
        plural = "s" if len(jobs) != 1 else ""
        at_once = f", {num_workers} at a time" if num_workers > 1 else ""
        self._say(Text(f"{len(jobs)} notebook{plural} to run{at_once}{self._state()}"))
        self._overall = self.bars.add_task("all", total=len(jobs), at="", says="")

    def event(self, event: Event) -> None:
        name = event.job.name
        cell = event.cell
        if event.kind == "cell" and cell is not None:
            self.bars.update(
                self._bar_of[name],
                completed=cell.number - 1,
                total=cell.total,
                at=f"cell {cell.number}/{cell.total}",
                says=cell.tag or cell.first_line[:40],
            )
        elif event.kind == "start":
            self._started(name, event.worker)
        elif event.outcome is not None:
            if name in self._bar_of:
                self.bars.remove_task(self._bar_of.pop(name))
            (self._retried if event.kind == "retry" else self._ended)(name, event.outcome)
        at = f"{self._done}/{self._total}"
        says = f"{len(self._bar_of)} running{self._state()}"
        self.bars.update(self._overall, completed=self._done, at=at, says=says)

    def _started(self, name: str, worker: str) -> None:
        self._estimate.start(name)
        label = f"{name} on {worker}" if worker else name
        self._bar_of[name] = self.bars.add_task(label, total=1, at="", says="starting its kernel")
        reason = "  ".join(filter(None, [f"on {worker}" * bool(worker), self._reasons.get(name)]))
        if reason or self.bars.disable:
            self._say(Text(f"▶ {name}").append(f"  {reason}", style="dim"))

    def _retried(self, name: str, outcome: Outcome) -> None:
        self._estimate.retry(name)
        self.note(f"↻ {name}: {how_it_failed(outcome)}; trying once more")

    def _ended(self, name: str, outcome: Outcome) -> None:
        self._estimate.end(name)
        self._done += 1
        self._failed += outcome.status != "ok"
        took = f"{name}  {seconds(outcome.duration_s)}"
        if outcome.status == "ok":
            line = Text("✔ ", style="green").append(took, style="default")
        else:
            why = Text(how_it_failed(outcome))
            why.truncate(160, overflow="ellipsis")  # the report at the end has all of it
            failure = f"{took}, {where(outcome.cell)}: {why}"
            line = Text("✘ ", style="bold red").append(failure, style="not bold default")
        line.append(f"  ({self._done}/{self._total}{self._state()})", style="dim")
        self._say(line)

    def summary(self) -> str:
        return f"{self._done} of {self._total} notebooks had ended, {self._failed} of them failed"

    def _state(self) -> str:
        """Failed, rate, time left."""
        took_s = time.monotonic() - self._begun
        left_s = self._remaining_s()
        parts = [f"{self._failed} failed"] if self._failed else []
        parts += [f"{60 * self._done / took_s:.3g} a minute"] if self._done > 1 and took_s else []
        parts += [f"about {seconds(left_s)} left"] if left_s else []
        return "".join(f", {part}" for part in parts)

    def _remaining_s(self) -> float | None:
        """Looked at once a second, since a run may have 10,000 jobs."""
        moment = time.monotonic()
        if moment - self._looked > 1.0 or self._done == self._total:
            self._looked = moment
            self._left_s = self._estimate.remaining_s()
            if self._left_s is None and self._done:  # never timed: as fast as so far
                self._left_s = (self._total - self._done) * (moment - self._begun) / self._done
        return self._left_s

    def _say(self, line: Text) -> None:
        self.console.print(line, soft_wrap=True)
