"""A cluster worker's side of a run: what a job would rest on there, and running it.

Jobs travel as bytes (:func:`packed`): a Dask scheduler unpickles the tasks that it hands on, and
this way it needs no labkit of its own. A job runs in a one-job
:class:`~labkit.workbook.run.executors.LocalPool` in the worker's own checkout, whose fingerprint of
the notebook must be the client's.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import labkit
from labkit.errors import LabkitError
from labkit.files import project_root
from labkit.workbook import notebooks
from labkit.workbook.run import fingerprint, imports
from labkit.workbook.run.executors import LocalPool, Stopped
from labkit.workbook.run.fingerprint import Fingerprint
from labkit.workbook.run.jobs import Job, Outcome, Terms

MAX_NAMED = 4
_OF_THE_RUN = ("parameters", "versions")
"""Parts of a fingerprint that are compared otherwise: a run's own, and each library by name."""


class WrongWorker(LabkitError):
    """A worker on which the results would rest on something else than here."""


# ---------------------------------------------------------------- what a worker stands on


def to_send(job: Job) -> Job:
    """The job as it travels: without the outputs that its notebook had."""
    return replace(job, text=_without_outputs(job.text))


@lru_cache(maxsize=64)  # runs of one notebook share its text
def _without_outputs(text: str) -> str:
    bare = json.loads(text)
    for cell in bare["cells"]:
        if "outputs" in cell:
            cell["outputs"] = []
    return json.dumps(bare)


def rests_on(known: Fingerprint | None) -> dict[str, str]:
    """The parts of a notebook's fingerprint that all its runs share."""
    parts = known.parts if known else {}
    return {name: value for name, value in parts.items() if name not in _OF_THE_RUN}


@lru_cache(maxsize=1)
def standing() -> dict[str, str]:
    """What every notebook rests on: labkit and its sources, Python, libraries that compute."""
    package = imports.source_root() / "labkit"
    content = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content.update(path.relative_to(package).as_posix().encode() + b"\0")
            content.update(hashlib.sha256(path.read_bytes()).digest())
    own = {"labkit": labkit.__version__, "labkit's sources": content.hexdigest()}
    return own | fingerprint.versions() | fingerprint.installed(("distributed",))


def surveyed(job: Job) -> dict[str, str]:
    """What the notebook would rest on here; data sets that the client has are fetched first."""
    from labkit import datasets

    root = project_root()
    ours = rests_on(job.fingerprint)
    for name, files in datasets.needed(job.datasets, root).items():
        standin = ours.get(f"data {name}", "").startswith("stand-in:")
        if not standin and not datasets.available(name, files, root):
            datasets.fetch(name, files, root)  # what fails shows as a difference
    notebook = notebooks.parse(job.text)
    return rests_on(fingerprint.of_notebook(root, root / job.path, notebook, {}))


_checked: set[tuple[str, Path]] = set()
"""The notebooks, by run and path, that this worker process has checked."""


def check(run_id: str, ours: Mapping[str, str], jobs: Iterable[Job], dask_worker: Any) -> None:
    """Refuse work where this worker does not stand as the client does, on ``ours`` and on what the
    notebooks of ``jobs`` rest on; each is looked at once a run. Raises WrongWorker."""
    new = [job for job in jobs if (run_id, job.path) not in _checked]
    unlike = differences(standing(), ours) if new else []
    for job in new:
        unlike += differences(surveyed(job), rests_on(job.fingerprint), f" of {job.key}")
    if unlike:
        more = len(unlike) - MAX_NAMED
        shown = "; ".join(unlike[:MAX_NAMED] + ([f"and {more} more"] if more > 0 else []))
        raise WrongWorker(
            f"worker {dask_worker.name} ({dask_worker.address}) would not give the same results: "
            f"{shown}. Give it the same checkout, packages and data as here "
            "(`pip install -c constraints.txt`, `labkit data fetch`)"
        )
    _checked.update((run_id, job.path) for job in new)


def differences(theirs: Mapping[str, str], ours: Mapping[str, str], of: str = "") -> list[str]:
    """The fields that are not the same, in words; ``of`` names the notebook.

    >>> differences({"numpy": "2.4.6"}, {"numpy": "2.3.0", "torch": "2.13.0"})
    ['numpy is 2.4.6 there and 2.3.0 here', 'torch is missing there and 2.13.0 here']
    """
    return [
        f"{name}{of} is {_short(theirs.get(name))} there and {_short(ours.get(name))} here"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]


def _short(value: str | None) -> str:
    if value is None:
        return "missing"
    kind, colon, digest = value.rpartition(":")
    return f"{kind}{colon}{digest[:12]}"


# ---------------------------------------------------------------- running a job there


class _Unpacked:
    """Pickles as a call, so that unpickling it on a worker runs the job."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def packed(job: Job, terms: Terms) -> bytes:
    """A job as bytes; ``pickle.loads`` of them, on a worker, runs it and gives its outcome."""
    return pickle.dumps(_Unpacked(execute, to_send(job), terms, standing()))


def execute(job: Job, terms: Terms, ours: Mapping[str, str]) -> Outcome:
    """Run ``job`` in the Dask task that this thread is in; the client stands on ``ours``.

    Raises WrongWorker where this worker stands on something else, and Dask's Reschedule where it is
    closing, or nobody wants the outcome any more.
    """
    from distributed import Reschedule, get_worker

    worker = get_worker()
    check(terms.run_id, ours, [job], worker)
    # The process of a nanny's worker is a daemon, which Python lets start no process.
    multiprocessing.current_process().daemon = False
    # Dask clears its workers' folders away, also those of workers that were killed.
    scratch = worker.local_directory
    pool = LocalPool(
        1,
        replace(terms, root=project_root()),
        lambda prefix: Path(tempfile.mkdtemp("", prefix, scratch)),
        _wanted(worker),
    )
    name = str(worker.name)
    bare = replace(job, text="", fingerprint=None)
    try:
        with closing(pool.run([job])) as events:
            for event in events:
                if event.kind != "end":
                    ending = event.outcome and replace(event.outcome, notebook="", log="")
                    sign = replace(event, job=bare, outcome=ending, worker=name)
                    worker.log_event(terms.run_id, pickle.dumps(sign))
    except Stopped:
        raise Reschedule from None
    assert event.outcome is not None  # the last event is the job's end
    origin = {"versions": fingerprint.full_versions(), "machine": fingerprint.machine()}
    return replace(event.outcome, worker=name, provenance=origin)


def _wanted(worker: Any) -> Callable[[], bool]:
    """Whether this thread's task is still to be run: not cancelled, on a worker that stays."""
    from distributed.core import Status
    from distributed.worker import thread_state

    key = thread_state.key
    leaving = (Status.closing, Status.closed, Status.failed)

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled" and worker.status not in leaving

    return wanted
