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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabkitError, UsageError, refused
from labkit.workbook import notebooks
from labkit.workbook.run import executors, fingerprint, guard, parameters, results
from labkit.workbook.run.jobs import CELL_TIMEOUT_S, Job, Outcome, Terms, Watcher
from labkit.workbook.run.parameters import Sweep

if TYPE_CHECKING:
    from labkit.workbook.notebooks import Parameter
    from labkit.workbook.run.cluster import DaskExecutor
    from labkit.workbook.run.fingerprint import Fingerprint
    from labkit.workbook.run.places import Cluster


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run: notebooks (none: all), with which values of their parameters, and where.

    ``cluster`` None: in processes of this machine.
    """

    keys: tuple[str, ...] = ()
    sweep: Sweep = field(default_factory=Sweep)
    force: bool = False
    num_jobs: int | None = None
    cluster: Cluster | None = None
    timeout_s: float | None = None
    cell_timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: ``folder`` holds the result, or the partial notebook of a failure."""

    job: Job
    outcome: Outcome
    folder: Path | None

    @property
    def ok(self) -> bool:
        return self.outcome.status == "ok"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All jobs of a run, and how those that ran ended."""

    jobs: list[Job]
    ended: list[Ended]

    @property
    def failures(self) -> list[Ended]:
        return [end for end in self.ended if not end.ok]


# ---------------------------------------------------------------- planning


def plan(root: Path, request: Request) -> list[Job]:
    """Every job of ``request``, with the reason to run it or none.

    A notebook that cannot be read, or that refuses a parameter others take, is a job with a
    ``problem``; it keeps no other from running. Raises UsageError for an unknown notebook, or
    parameters that none of the notebooks takes.
    """
    known = notebooks.paths(root)
    chosen = {notebooks.path_of(root, key) for key in request.keys} or known.values()
    keys = [key for key in known if known[key] in chosen]
    jobs: list[Job] = []
    refusals: list[UsageError] = []
    for key in keys:
        try:
            jobs += _jobs(root, known[key], request)
        except UsageError as problem:
            refusals.append(problem)
            jobs.append(_broken(root, known[key], problem))
    if refusals and len(refusals) == len(keys):
        raise refusals[0]
    return jobs


def _broken(root: Path, path: Path, problem: LabkitError) -> Job:
    """A notebook that cannot run, with the reason; it counts as failed."""
    below = path.relative_to(root)
    why = str(problem)
    return Job(key=path.stem, slug=results.DEFAULT, path=below, problem=why, reason="—")


def _jobs(root: Path, path: Path, request: Request) -> Iterator[Job]:
    key = path.stem
    try:
        notebook = notebooks.glimpse(path)
        text = path.read_text(encoding="utf-8")
        defaults = fingerprint.of_notebook(root, path, notebook, {})
    except LabkitError as problem:
        yield _broken(root, path, problem)
        return
    if len(cells := notebooks.tagged(notebook, "parameters")) > 1:
        names = " and ".join(str(cell.get("id", "without an id")) for cell in cells)
        raise UsageError(
            f"notebook {key!r}: cells {names} are all tagged 'parameters', and the later would undo"
            " what a run sets; valid: one cell with all of them"
        )
    declared = _declared(key, notebook, request)
    datasets = tuple(notebooks.dataset_names(notebook))
    took_s = _durations(root, key)
    usual_s = statistics.median(took_s.values()) if took_s else None
    require = parameters.requirement(root, key) if request.sweep.sets_any else None
    for overrides in parameters.combinations(key, declared, request.sweep, require):
        folder = results.folder_of(root, key, results.slug_of(overrides))
        current = defaults.with_parameters(overrides)
        yield Job(
            key=key,
            slug=folder.name,
            path=path.relative_to(root),
            text=text,
            overrides=overrides,
            parameters={n: overrides.get(n, p.default) for n, p in declared.items()},
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
        if request.sweep.sets_any:
            raise UsageError(f"notebook {key!r}: its parameters cell: {error}") from None
        return {}


def _reason(folder: Path, current: Fingerprint) -> str:
    meta, problem = results.inspect(folder)
    return problem if meta is None else current.since(meta)


def _durations(root: Path, key: str) -> dict[str, float]:
    """How long the notebook took with each set of parameters, by slug."""
    metas = {folder.name: results.read_meta(folder) for folder in results.folders(root, key)}
    return {
        slug: meta["duration_s"] for slug, meta in metas.items() if meta and "duration_s" in meta
    }


# ---------------------------------------------------------------- running


def run(root: Path, request: Request, watcher: Watcher) -> Report:
    """Plan (raises as :func:`plan`, before anything has run), then execute what is out of date."""
    jobs = plan(root, request)
    if not any(job.reason for job in jobs):
        guard.tidy(root)
        return Report(jobs=jobs, ended=[])
    with guard.lock(root, watcher.note) as waited, guard.journal(root) as run_id:
        # Another run may have ended since the plan was made, waited for or not.
        jobs = plan(root, request) if waited else [_again(root, job) for job in jobs]
        watcher = guard.Logged(watcher, root, run_id)
        # However many run at once, so that no number depends on it; and several threads on small
        # matrices mostly wait for each other.
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        environment = {"OMP_NUM_THREADS": threads}
        if _fetch(root, jobs, environment, watcher):
            jobs = plan(root, request)
        terms = Terms(
            root=root,
            run_id=run_id,
            environment=environment,
            cell_timeout_s=request.cell_timeout_s or request.timeout_s or CELL_TIMEOUT_S,
            notebook_timeout_s=request.timeout_s,
        )
        return Report(jobs=jobs, ended=_execute(jobs, request, terms, watcher))


def _again(root: Path, job: Job) -> Job:
    """The job as it stands now: the run before this one may have made its result."""
    if job.fingerprint is None or job.reason in ("", "forced"):
        return job
    folder = results.folder_of(root, job.key, job.slug)
    return replace(job, reason=_reason(folder, job.fingerprint))


def _execute(jobs: Sequence[Job], request: Request, terms: Terms, watcher: Watcher) -> list[Ended]:
    stale = [job for job in jobs if job.reason]
    ended = [
        Ended(job=job, outcome=Outcome(status="broken", message=job.problem), folder=None)
        for job in stale
        if job.problem
    ]
    # The longest first; before them those never timed, any of which may be longer.
    times_s = {job.name: math.inf if (s := job.expected_s) is None else s for job in stale}
    ready = sorted((j for j in stale if not j.problem), key=lambda job: -times_s[job.name])
    if not ready:
        return ended
    with _executor(request, ready, terms, watcher) as executor:
        watcher.begin(ready, executor.num_workers)
        with closing(executor.run(ready)) as events:
            for event in events:
                if event.kind == "end" and event.outcome is not None:
                    ended.append(_put(terms.root, event.job, event.outcome))
                    watcher.event(replace(event, outcome=ended[-1].outcome))
                else:
                    watcher.event(event)
    return ended


@contextmanager
def _executor(
    request: Request, ready: Sequence[Job], terms: Terms, watcher: Watcher
) -> Iterator[executors.LocalPool | DaskExecutor]:
    """Where the notebooks run: processes of this machine, or the workers of a cluster."""
    num_jobs = min(request.num_jobs or fingerprint.usable_cores(), len(ready))
    if request.cluster is None:
        yield executors.LocalPool(num_jobs, terms, partial(results.scratch_folder, terms.root))
        return
    from labkit.workbook.run import cluster, places  # Dask's import takes a second

    of_each = list({job.key: job for job in ready}.values())
    with places.opened(request.cluster, terms.root) as connect:
        yield cluster.DaskExecutor(connect, of_each, terms, watcher.note, request.num_jobs)


def _put(root: Path, job: Job, outcome: Outcome) -> Ended:
    """Keep what a job made on disk, its result or what there is of a failure, and not here."""
    light = replace(outcome, notebook="", log="")
    if outcome.status == "ok":
        try:
            files = result_files(outcome.notebook, job.key)
            kept = results.store(root, job.key, job.slug, files, _meta(root, job, outcome))
            return Ended(job=job, outcome=light, folder=kept)
        except Exception as error:  # the notebook's output is at fault, or the disk is full
            message = f"it ran, but its result could not be kept: {_said(error)}"
            light = replace(light, status="broken", error=type(error).__name__, message=message)
    files = {"log.txt": outcome.log} if outcome.log else {}
    if outcome.notebook:
        files[f"{job.key}.ipynb"] = outcome.notebook
    try:
        folder = results.store_failure(root, job.key, job.slug, files) if files else None
    except OSError as error:
        message = f"{light.message}; nor was the partial notebook kept: {_said(error)}"
        return Ended(job=job, outcome=replace(light, message=message), folder=None)
    return Ended(job=job, outcome=light, folder=folder)


def _said(error: Exception) -> str:
    return str((refused(error) if isinstance(error, OSError) else None) or error)


def result_files(text: str, key: str) -> dict[str, str]:
    """The files of a result, by name: the notebook, its claims and its Plotly figures."""
    from labkit.workbook.review import claims

    notebook = notebooks.parse(text)
    files = {
        f"{key}.ipynb": text,
        results.CLAIMS_FILE: results.dumps(claims.from_notebook(notebook)),
    }
    for number, figure in enumerate(notebooks.carried(notebook, notebooks.PLOTLY_MIME), start=1):
        files[f"figures/{number:02}.json"] = results.dumps(figure)
    return files


def _meta(root: Path, job: Job, outcome: Outcome) -> dict[str, Any]:
    """What ``run.json`` says."""
    from labkit.workbook.review import tables

    assert job.fingerprint is not None
    datasets = {
        name: {"fingerprint": value, "standin": value.startswith("stand-in:")}
        for name, value in job.fingerprint.datasets().items()
    }
    return {
        "key": job.key,
        "notebook": job.path.as_posix(),
        "parameters": job.parameters,
        "overrides": job.overrides,
        "metrics": tables.metrics_in(notebooks.parse(outcome.notebook)),
        "datasets": datasets,
        "started": outcome.started,
        "ended": outcome.ended,
        "duration_s": outcome.duration_s,
        "attempts": outcome.attempts,
        "worker": outcome.worker,
        "versions": fingerprint.full_versions(),
        "machine": fingerprint.machine(),
        **outcome.provenance,
        "git_commit": fingerprint.git_commit(root),
        "fingerprint": job.fingerprint.digest,
        "fingerprint_parts": dict(job.fingerprint.parts),
    }


# ---------------------------------------------------------------- data


def _fetch(root: Path, jobs: Sequence[Job], environment: dict[str, str], watcher: Watcher) -> bool:
    """Have the data sets of what will run, once for all; whether anything was looked for.

    Where one cannot be had, ``environment`` tells the kernels not to try the network again.
    """
    stale = (job for job in jobs if job.reason and not job.problem)
    if not (entries := {entry for job in stale for entry in job.datasets}):
        return False
    from labkit import datasets
    from labkit.datasets.store import offline

    looked = False
    for name, files in datasets.needed(sorted(entries), root).items():
        if datasets.available(name, files, root):
            continue
        looked = True
        watcher.note(f"fetching {name}")
        problems = datasets.fetch(name, files, root)
        failed = [p for p in problems if isinstance(p, datasets.DatasetUnavailable)]
        if failed:
            if not offline():  # where the user says so, that is the reason
                reason = f"{failed[0].reason} when this run began"  # of whichever data set
                environment |= {"LABKIT_OFFLINE": "1", "LABKIT_OFFLINE_REASON": reason}
            watcher.note(f"{name}: stand-in data are used. {problems[0]}")
        elif problems:
            watcher.note(f"{name}: {problems[0]}")
    return looked
