"""Running many notebooks: what has to run and why; a failure stops no other notebook.

:func:`plan` compares each notebook's fingerprint with the one in its result folder; :func:`run`
executes what is out of date in an executor and puts each result in place as it ends. Everything
between is safe to kill: see :mod:`labkit.workbook.run.results` for the folders and
:mod:`labkit.workbook.run.guard` for what a killed run leaves behind.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from labkit.errors import LabkitError, UsageError, refused
from labkit.workbook import notebooks
from labkit.workbook.run import (
    executors,
    fingerprint,
    guard,
    parameters,
    processes,
    provenance,
    results,
)
from labkit.workbook.run.jobs import Event, Executor, Job, Outcome
from labkit.workbook.run.parameters import Sweep, option_choices

if TYPE_CHECKING:
    from labkit.workbook.notebooks import Parameter
    from labkit.workbook.run.fingerprint import Fingerprint
    from labkit.workbook.run.places import Cluster

CELL_TIMEOUT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run: notebooks (none: all); ``fixed`` values and those to sweep, as texts; and what
    a sweep file and ``--seeds`` say (``more``).

    ``cluster`` says where (None: in processes of this machine).
    """

    keys: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    sweeps: Mapping[str, str] = field(default_factory=dict)
    more: Sweep = field(default_factory=Sweep)
    force: bool = False
    num_jobs: int | None = None
    cluster: Cluster | None = None
    timeout_s: float | None = None
    cell_timeout_s: float | None = None

    @property
    def sweep(self) -> Sweep:
        """All values that it gives."""
        given = option_choices("-p", self.fixed, several=False)
        given += option_choices("--sweep", self.sweeps, several=True)
        return replace(self.more, choices=(*given, *self.more.choices))


@dataclass(frozen=True, kw_only=True)
class Task:
    """One notebook with one set of parameters. ``reason`` to run it; empty when up to date."""

    key: str
    slug: str
    path: Path
    text: str = field(default="", repr=False)
    overrides: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    fingerprint: Fingerprint | None = field(default=None, repr=False)
    datasets: tuple[str, ...] = ()
    reason: str = ""
    expected_s: float | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return self.key if self.slug == results.DEFAULT else f"{self.key} [{self.slug}]"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a task ended: ``folder`` holds the result, or the partial notebook of a failure."""

    task: Task
    outcome: Outcome
    folder: Path | None

    @property
    def ok(self) -> bool:
        return self.outcome.status == "ok"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All tasks of a run, and how those that ran ended."""

    tasks: list[Task]
    ended: list[Ended]

    @property
    def failures(self) -> list[Ended]:
        return [end for end in self.ended if not end.ok]


class Watcher(Protocol):
    """Who is told how a run goes."""

    def note(self, text: str) -> None: ...
    def begin(self, tasks: Sequence[Task], num_workers: int) -> None: ...
    def event(self, event: Event) -> None: ...


# ---------------------------------------------------------------- planning


def plan(root: Path, request: Request) -> list[Task]:
    """Every task of ``request``, with the reason to run it or none.

    A notebook that cannot be read, or that refuses a parameter others take, is a task with a
    ``problem``; it keeps no other from running.

    Raises:
        UsageError: an unknown notebook, or parameters that none of the notebooks takes.
    """
    known = notebooks.paths(root)
    chosen = {notebooks.path_of(root, key) for key in request.keys} or known.values()
    keys = [key for key in known if known[key] in chosen]
    tasks: list[Task] = []
    refusals: list[UsageError] = []
    for key in keys:
        try:
            tasks += _tasks(root, known[key], request)
        except UsageError as problem:
            refusals.append(problem)
            tasks.append(_broken(known[key], problem))
    if refusals and len(refusals) == len(keys):
        raise refusals[0]
    return tasks


def _broken(path: Path, problem: LabkitError) -> Task:
    """A notebook that cannot run, with the reason; it counts as failed."""
    return Task(key=path.stem, slug=results.DEFAULT, path=path, problem=str(problem), reason="—")


def _tasks(root: Path, path: Path, request: Request) -> Iterator[Task]:
    key = path.stem
    try:
        notebook, text = notebooks.glimpse(path), path.read_text(encoding="utf-8")
        defaults = fingerprint.of_notebook(root, path, notebook, {})
    except LabkitError as problem:
        yield _broken(path, problem)
        return
    declared = _declared(key, notebook, request)
    datasets, took_s = tuple(notebooks.dataset_names(notebook)), _durations(root, key)
    usual_s = statistics.median(took_s.values()) if took_s else None
    for overrides in parameters.combinations(key, declared, request.sweep):
        folder = results.folder_of(root, key, results.slug_of(overrides))
        current = defaults.with_parameters(overrides)
        yield Task(
            key=key,
            slug=folder.name,
            path=path,
            text=text,
            overrides=overrides,
            parameters=parameters.resolved(declared, overrides),
            fingerprint=current,
            datasets=datasets,
            reason="forced" if request.force else _reason(folder, current),
            expected_s=took_s.get(folder.name, usual_s),
        )


def _declared(key: str, notebook: Any, request: Request) -> dict[str, Parameter]:
    """The notebook's parameters; a cell that cannot be read as such fails when it runs."""
    try:
        return notebooks.parameters(notebook)
    except (SyntaxError, ValueError) as error:
        if request.sweep.choices or request.sweep.seeds is not None:
            raise UsageError(f"notebook {key!r}: its parameters cell: {error}") from None
        return {}


def _reason(folder: Path, current: Fingerprint) -> str:
    meta, problem = results.inspect(folder)
    return problem if meta is None else current.since(meta)


def _durations(root: Path, key: str) -> dict[str, float]:
    """How long the notebook took with each set of parameters, by slug."""
    metas = {folder.name: results.read_meta(folder) for folder in results.folders(root, key)}
    return {slug: float(meta["duration_s"]) for slug, meta in metas.items() if meta}


# ---------------------------------------------------------------- running


def run(root: Path, request: Request, watcher: Watcher) -> Report:
    """Plan (raises as :func:`plan`, before anything has run), then execute what is out of date."""
    tasks = plan(root, request)
    if not any(task.reason for task in tasks):
        guard.tidy(root)
        return Report(tasks=tasks, ended=[])
    with guard.lock(root, watcher.note) as waited, guard.journal(root) as run_id:
        # Another run may have ended since the plan was made, waited for or not.
        tasks = plan(root, request) if waited else [_again(root, task) for task in tasks]
        watcher = guard.Logged(watcher, root, run_id)
        environment = {"LABKIT_ROOT": str(root), processes.RUN_MARK: run_id}
        if _fetch(root, tasks, environment, watcher):
            tasks = plan(root, request)
        return Report(tasks=tasks, ended=_execute(root, tasks, request, environment, watcher))


def _again(root: Path, task: Task) -> Task:
    """The task as it stands now: the run before this one may have made its result."""
    if task.fingerprint is None or task.reason in ("", "forced"):
        return task
    folder = results.folder_of(root, task.key, task.slug)
    return replace(task, reason=_reason(folder, task.fingerprint))


def _execute(
    root: Path,
    tasks: Sequence[Task],
    request: Request,
    environment: dict[str, str],
    watcher: Watcher,
) -> list[Ended]:
    stale = [task for task in tasks if task.reason]
    ended = [
        Ended(task=task, outcome=Outcome(status="broken", message=task.problem), folder=None)
        for task in stale
        if task.problem
    ]
    # The longest first; before them those never timed, any of which may be longer.
    expected = {task.name: math.inf if (s := task.expected_s) is None else s for task in stale}
    ready = sorted((t for t in stale if not t.problem), key=lambda task: -expected[task.name])
    if not ready:
        return ended
    by_name = {task.name: task for task in ready}
    with _executor(root, request, ready, environment, watcher) as executor:
        # However many run at once, so that no number depends on it; and several threads on small
        # matrices mostly wait for each other.
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **environment}
        jobs = (_job(task, request, environment) for task in ready)
        watcher.begin(ready, executor.num_workers)
        with closing(executor.run(jobs, watcher.event)) as outcomes:
            for job, outcome in outcomes:
                end = _put(root, by_name[job.name], outcome, environment)
                if end.outcome.status != outcome.status:  # it ran, but could not be kept
                    watcher.event(Event(kind="end", job=job, outcome=end.outcome))
                ended.append(end)
    return ended


@contextmanager
def _executor(
    root: Path,
    request: Request,
    ready: Sequence[Task],
    environment: Mapping[str, str],
    watcher: Watcher,
) -> Iterator[Executor]:
    """Where the notebooks run: processes of this machine, or the workers of a cluster."""
    num_jobs = min(request.num_jobs or provenance.usable_cores(), len(ready))
    if request.cluster is None:
        yield executors.LocalPool(num_jobs, lambda prefix: results.scratch_folder(root, prefix))
        return
    from labkit.workbook.run import cluster, places, remote  # Dask's import takes a second

    first = {task.key: task for task in ready}.values()
    footings = {t.key: remote.footing(root, t.path, t.text, t.datasets) for t in first}
    run_id = environment[processes.RUN_MARK]
    with places.opened(request.cluster, root) as connect:
        yield cluster.DaskExecutor(connect, footings, run_id, watcher.note, request.num_jobs)


def _job(task: Task, request: Request, environment: Mapping[str, str]) -> Job:
    whole = request.timeout_s
    cell_s = request.cell_timeout_s or whole or CELL_TIMEOUT_S
    return Job(
        key=task.key,
        slug=task.slug,
        notebook=task.text,
        parameters=task.overrides,
        cwd=str(task.path.parent),
        environment=dict(environment),
        cell_timeout_s=cell_s,
        notebook_timeout_s=whole,
    )


def _put(root: Path, task: Task, outcome: Outcome, environment: Mapping[str, str]) -> Ended:
    """Keep what a task made on disk, its result or what there is of a failure, and not here."""
    light = replace(outcome, notebook="", log="")
    if outcome.status == "ok":
        try:
            files = result_files(outcome.notebook, task.key)
            kept = results.store(root, task.key, task.slug, files, _meta(root, task, outcome))
            return Ended(task=task, outcome=light, folder=kept)
        except Exception as error:  # the notebook's output is at fault, or the disk is full
            message = f"it ran, but its result could not be kept: {_said(error)}"
            light = replace(light, status="broken", error=type(error).__name__, message=message)
    files = {"log.txt": outcome.log} if outcome.log else {}
    if outcome.notebook:
        files[f"{task.key}.ipynb"] = outcome.notebook
    try:
        folder = results.store_failure(root, task.key, task.slug, files) if files else None
    except OSError as error:
        message = f"{light.message}; nor was the partial notebook kept: {_said(error)}"
        return Ended(task=task, outcome=replace(light, message=message), folder=None)
    return Ended(task=task, outcome=light, folder=folder)


def _said(error: Exception) -> str:
    return str((refused(error) if isinstance(error, OSError) else None) or error)


def result_files(text: str, key: str) -> dict[str, str]:
    """The files of a result, by name: the notebook, its claims and its Plotly figures."""
    from labkit.workbook.review import claims

    notebook = notebooks.parse(text)
    files = {f"{key}.ipynb": text, "claims.json": results.dumps(claims.from_notebook(notebook))}
    for number, figure in enumerate(notebooks.carried(notebook, notebooks.PLOTLY_MIME), start=1):
        files[f"figures/{number:02}.json"] = results.dumps(figure)
    return files


def _meta(root: Path, task: Task, outcome: Outcome) -> dict[str, Any]:
    """What ``run.json`` says."""
    from labkit.workbook.review import recorded

    assert task.fingerprint is not None
    datasets = {
        name: {"fingerprint": value, "standin": value.startswith("stand-in:")}
        for name, value in task.fingerprint.datasets().items()
    }
    return {
        "key": task.key,
        "notebook": task.path.relative_to(root).as_posix(),
        "parameters": task.parameters,
        "overrides": task.overrides,
        "seeds": {n: value for n, value in task.parameters.items() if n.startswith("seed")},
        "metrics": recorded.metrics_in(notebooks.parse(outcome.notebook)),
        "datasets": datasets,
        "started": outcome.started,
        "ended": outcome.ended,
        "duration_s": outcome.duration_s,
        "attempts": outcome.attempts,
        "worker": outcome.worker,
        "versions": provenance.full_versions(),
        "machine": provenance.machine(),
        **outcome.provenance,
        "git_commit": provenance.git_commit(root),
        "fingerprint": task.fingerprint.digest,
        "fingerprint_parts": dict(task.fingerprint.parts),
    }


# ---------------------------------------------------------------- data


def _fetch(
    root: Path, tasks: Sequence[Task], environment: dict[str, str], watcher: Watcher
) -> bool:
    """Have the data sets of what will run, once for all; whether anything was looked for.

    Where one cannot be had, ``environment`` tells the kernels not to try the network again.
    """
    stale = (task for task in tasks if task.reason and not task.problem)
    if not (entries := {entry for task in stale for entry in task.datasets}):
        return False
    from labkit import datasets

    looked = False
    for name, files in datasets.needed(sorted(entries), root).items():
        if datasets.available(name, files, root):
            continue
        looked = True
        watcher.note(f"fetching {name}")
        problems = datasets.fetch(name, files, root)
        failed = [p for p in problems if isinstance(p, datasets.DatasetUnavailable)]
        if failed:
            reason = f"{failed[0].reason} when this run looked for {name}"
            environment |= {"LABKIT_OFFLINE": "1", "LABKIT_OFFLINE_REASON": reason}
            watcher.note(f"{name}: stand-in data are used. {problems[0]}")
        elif problems:
            watcher.note(f"{name}: {problems[0]}")
    return looked
