"""Where notebooks execute: a pool of local processes, one for each notebook.

A worker of a cluster runs each of its jobs in such a pool too (:mod:`labkit.workbook.run.remote`),
so the process tree, the time limits and the logs of a notebook are the same everywhere.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.kit.sweep import main_module_hidden
from labkit.workbook.run import processes
from labkit.workbook.run.jobs import MAX_ATTEMPTS, CellPlace, Event, Job, Outcome, Terms, now

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from labkit.workbook.run.jobs import Status

GRACE_S = 30.0
"""A worker ends its own hung cell; the pool ends a worker that has not, this much later."""
_STARTING = threading.Lock()
"""Held while a process starts: threads of one process may each have a pool."""


class Stopped(Exception):
    """Nobody wants what the pool runs any more; its notebooks were ended."""


# ---------------------------------------------------------------- the worker's side


def _work(
    job: Job, terms: Terms, folder: str, pipe: Connection, environment: dict[str, str]
) -> None:
    """A worker process: runs ``job`` in its own session and sends events, then the outcome.

    ``environment`` is the pool's as it is now; a fork server would give what it started with.
    """
    os.setsid()
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(environment | terms.variables)
    threading.Thread(target=_end_with_parent, args=(pipe, folder), daemon=True).start()
    from labkit.workbook.run import runner

    pipe.send(runner.execute(job, terms, Path(folder), pipe.send))


def _end_with_parent(pipe: Connection, folder: str) -> None:
    """Blocks until the pool's end of ``pipe`` closes; if the pool was killed, end everything."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    processes.end(processes.descendants(os.getpid()), wait_s=0)
    processes.end_marked(folder, processes.KERNEL_MARK)
    processes.remove_sockets(processes.socket_prefix(pid=os.getpid()))
    processes.sweep_folders()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


# ---------------------------------------------------------------- the pool's side


@dataclass
class _Running:
    job: Job
    folder: Path
    process: Any
    pipe: Connection
    attempt: int
    started: str = field(default_factory=now)
    begun: float = field(default_factory=time.monotonic)
    last_sign: float = field(default_factory=time.monotonic)
    cell: CellPlace | None = None

    def overdue(self, terms: Terms) -> bool:
        """Whether the worker failed to end a notebook past its limit by itself."""
        limit = terms.notebook_timeout_s
        return limit is not None and time.monotonic() - self.begun > limit + GRACE_S

    def silent(self, terms: Terms) -> bool:
        """Whether the worker failed to end a cell past its limit by itself."""
        return time.monotonic() - self.last_sign > terms.cell_timeout_s + GRACE_S


class LocalPool:
    """Runs jobs in ``num_workers`` processes at a time, each in a process group of its own.

    A fork server imports papermill once for all of them. A worker that dies without a word, or
    whose kernel does, is tried again, ``MAX_ATTEMPTS`` times in all; a cell's own error never is.
    ``scratch`` gives each job a folder to work in; once ``wanted`` says no (it is asked twice a
    second) all notebooks are ended.
    """

    def __init__(
        self,
        num_workers: int,
        terms: Terms,
        scratch: Callable[[str], Path],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        with _STARTING:
            processes.claim_servers()
        self.num_workers = num_workers
        self._terms = terms
        self._scratch = scratch
        self._wanted = wanted
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["labkit.workbook.run.warm"])
        self._running: list[_Running] = []

    def run(self, jobs: Iterable[Job]) -> Generator[Event]:
        """Take jobs as there is room and yield what happens, for each one end, with its outcome.

        Closing the iterator ends what still runs; raises Stopped once ``wanted`` says no.
        """
        waiting = ((job, 1) for job in jobs)
        again = deque[tuple[Job, int]]()
        self._again = again
        try:
            while True:
                while len(self._running) < self.num_workers:
                    if (next_up := again.popleft() if again else next(waiting, None)) is None:
                        break
                    yield self._start(*next_up)
                if not self._running:
                    return
                yield from self._step()
        finally:
            for run in self._running:
                _end(run)
                self._dismiss(run)
            self._running.clear()

    def _start(self, job: Job, attempt: int) -> Event:
        folder = self._scratch(f"{job.key}-")
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work,
            args=(job, self._terms, str(folder), theirs, dict(os.environ)),
            name=job.name,
        )
        with _STARTING, main_module_hidden():
            process.start()
        theirs.close()
        self._running.append(_Running(job, folder, process, ours, attempt))
        return Event(kind="start", job=job)

    def _step(self) -> Iterator[Event]:
        """Wait for signs of life; runs that ended are taken off the list."""
        if not self._wanted():
            raise Stopped
        ready = connection.wait([run.pipe for run in self._running], timeout=0.5)
        for run in list(self._running):
            sign = _hear(run) if run.pipe in ready else None
            if isinstance(sign, Outcome):
                yield self._ended(run, sign)
                continue
            if sign is not None:
                run.cell = sign
                yield Event(kind="cell", job=run.job, cell=sign)
            elif run.pipe.poll():
                continue  # it came meanwhile and is heard next
            if run.overdue(self._terms) or run.silent(self._terms):
                hung = _unfinished(run, "hung", "Stuck", "no sign of life past the time limit")
                yield self._ended(run, hung)

    def _ended(self, run: _Running, outcome: Outcome) -> Event:
        outcome = replace(outcome, attempts=run.attempt, log=_log(run.folder))
        self._running.remove(run)
        self._dismiss(run)
        if outcome.status != "died" or run.attempt == MAX_ATTEMPTS:
            return Event(kind="end", job=run.job, outcome=outcome)
        self._again.append((run.job, run.attempt + 1))
        return Event(kind="retry", job=run.job, outcome=outcome)

    def _dismiss(self, run: _Running) -> None:
        """Let the worker go, it has nothing left to do; its folder goes too, and its sockets."""
        run.process.kill()
        run.process.join(5)
        run.pipe.close()
        processes.remove_sockets(processes.socket_prefix(self._terms.run_id, run.process.pid))
        shutil.rmtree(run.folder, ignore_errors=True)


def _hear(run: _Running) -> CellPlace | Outcome:
    run.last_sign = time.monotonic()
    try:
        sign: CellPlace | Outcome = run.pipe.recv()
        return sign
    except (EOFError, OSError):
        run.process.join(5)
        death = processes.death("the notebook's process", run.process.exitcode)
        return _unfinished(run, "died", "WorkerDied", death)


def _end(run: _Running) -> None:
    """End a worker and all that its kernel started, daemons included."""
    processes.end_tree(run.process.pid)
    processes.end_marked(str(run.folder), processes.KERNEL_MARK)


def _unfinished(run: _Running, status: Status, error: str, message: str) -> Outcome:
    """The outcome of a worker that can no longer report: what it had saved, and where it was."""
    _end(run)
    partial = run.folder / f"{run.job.key}.ipynb"
    return Outcome(
        status=status,
        notebook=partial.read_text(encoding="utf-8") if partial.is_file() else "",
        cell=run.cell,
        error=error,
        message=message,
        started=run.started,
        duration_s=round(time.monotonic() - run.begun, 3),
    )


def _log(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (folder / "log").read_text(encoding="utf-8", errors="replace")[-20_000:]
    return ""
