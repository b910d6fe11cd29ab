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
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import labkit
from labkit.errors import LabkitError
from labkit.files import project_root
from labkit.workbook import notebooks
from labkit.workbook.run import fingerprint, imports, provenance
from labkit.workbook.run.executors import LocalPool, Stopped
from labkit.workbook.run.jobs import Event, Job, Outcome

MAX_NAMED = 4
_OF_THE_RUN = ("parameters", "versions")
"""Parts of a fingerprint that are compared otherwise: a run's own, and each library by name."""


class WrongWorker(LabkitError):
    """A worker on which the results would rest on something else than here."""


@dataclass(frozen=True, kw_only=True)
class Footing:
    """A notebook, and what its results rest on by name.

    ``path`` is below the workbook's folder; ``notebook`` is the text without its outputs.
    """

    path: str
    notebook: str = field(repr=False)
    datasets: tuple[str, ...] = ()
    rests_on: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One job for a worker, to run the footing's notebook; progress is told under ``topic``."""

    job: Job
    footing: Footing
    standing: Mapping[str, str] = field(repr=False)
    topic: str


# ---------------------------------------------------------------- what a worker stands on


def footing(root: Path, path: Path, text: str, datasets: Iterable[str]) -> Footing:
    """What a run of the notebook ``text`` at ``path`` rests on in this checkout."""
    parts = fingerprint.of_notebook(root, path, notebooks.parse(text), {}).parts
    bare = json.loads(text)
    for cell in bare["cells"]:
        if "outputs" in cell:
            cell["outputs"] = []
    return Footing(
        path=path.relative_to(root).as_posix(),
        notebook=json.dumps(bare),
        datasets=tuple(datasets),
        rests_on={name: value for name, value in parts.items() if name not in _OF_THE_RUN},
    )


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


def surveyed(ours: Footing) -> Mapping[str, str]:
    """What the notebook would rest on here; data sets that the client has are fetched first."""
    from labkit import datasets

    root = project_root()
    for name, files in datasets.needed(ours.datasets, root).items():
        standin = ours.rests_on.get(f"data {name}", "").startswith("stand-in:")
        if not standin and not datasets.available(name, files, root):
            datasets.fetch(name, files, root)  # what fails shows as a difference
    return footing(root, root / ours.path, ours.notebook, ()).rests_on


_checked: set[tuple[str, str]] = set()
"""The notebooks, by topic (one a run) and path, whose footing this worker process has checked."""


def check(
    topic: str, ours: Mapping[str, str], footings: Mapping[str, Footing], dask_worker: Any
) -> None:
    """Refuse work where this worker does not stand as the client does, on ``ours`` and on the
    notebooks' ``footings``, by key; each is looked at once a run. Raises WrongWorker."""
    new = {key: f for key, f in footings.items() if (topic, f.path) not in _checked}
    unlike = differences(standing(), ours) if new else []
    for key, footing in new.items():
        unlike += differences(surveyed(footing), footing.rests_on, f" of {key}")
    if unlike:
        more = len(unlike) - MAX_NAMED
        shown = "; ".join(unlike[:MAX_NAMED] + ([f"and {more} more"] if more > 0 else []))
        raise WrongWorker(
            f"worker {dask_worker.name} ({dask_worker.address}) would not give the same results: "
            f"{shown}. Give it the same checkout, packages and data as here "
            "(`pip install -c constraints.txt`, `labkit data fetch`)"
        )
    _checked.update((topic, footing.path) for footing in new.values())


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

    def __init__(self, function: Callable[..., Any], argument: Any) -> None:
        self.function, self.argument = function, argument

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, (self.argument,)


def packed(call: Call) -> bytes:
    """``call`` as bytes; ``pickle.loads`` of them, on a worker, gives its outcome."""
    return pickle.dumps(_Unpacked(execute, call))


def execute(call: Call) -> Outcome:
    """Run ``call`` in the Dask task that this thread is in.

    Raises:
        WrongWorker: this worker stands on something else than the client.
        distributed.Reschedule: the worker is closing, or nobody wants the outcome any more.
    """
    from distributed import Reschedule, get_worker

    worker, root = get_worker(), project_root()

    def tell(event: Event) -> None:
        if event.kind == "end":
            return
        ending = event.outcome
        sign: dict[str, Any] = {"kind": event.kind, "job": call.job.name, "at": str(worker.name)}
        sign["cell"] = asdict(event.cell) if event.cell else None
        sign["outcome"] = {"error": ending.error, "message": ending.message} if ending else None
        worker.log_event(call.topic, sign)

    job = replace(
        call.job,
        notebook=call.footing.notebook,
        cwd=str((root / call.footing.path).parent),
        environment={**call.job.environment, "LABKIT_ROOT": str(root)},
    )
    check(call.topic, call.standing, {call.job.key: call.footing}, worker)
    # The process of a nanny's worker is a daemon, which Python lets start no process.
    multiprocessing.current_process().daemon = False
    # Dask clears its workers' folders away, also those of workers that were killed.
    scratch = worker.local_directory
    pool = LocalPool(1, lambda prefix: Path(tempfile.mkdtemp("", prefix, scratch)), _wanted(worker))
    try:
        [(_, outcome)] = pool.run([job], tell)
    except Stopped:
        raise Reschedule from None
    origin = {"versions": provenance.full_versions(), "machine": provenance.machine()}
    return replace(outcome, worker=str(worker.name), provenance=origin)


def _wanted(worker: Any) -> Callable[[], bool]:
    """Whether this thread's task is still to be run: not cancelled, on a worker that stays."""
    from distributed.core import Status
    from distributed.worker import thread_state

    key, leaving = thread_state.key, (Status.closing, Status.closed, Status.failed)

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state != "cancelled" and worker.status not in leaving

    return wanted
