"""``labkit run`` and ``labkit refresh``: regenerate results; write outputs back to notebooks/."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from labkit.cli import progress
from labkit.errors import LabkitError
from labkit.files import project_root
from labkit.kit.command import completing
from labkit.workbook import notebooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from labkit.workbook.run.batch import Ended, Report, Request
    from labkit.workbook.run.jobs import Watcher
    from labkit.workbook.run.parameters import Sweep
    from labkit.workbook.run.places import Cluster

complete_notebooks = completing(lambda: notebooks.paths(project_root()))
KEYS = typer.Argument(
    None,
    metavar="KEY",
    help="Papers whose notebooks to run; none: all of them.",
    autocompletion=complete_notebooks,
)
JOBS = typer.Option(
    None, "--jobs", "-j", min=1, metavar="N", help="Notebooks at a time (default: one a core)."
)
FORCE = typer.Option(False, "--force", "-f", help="Run also what is up to date.")
TIMEOUT = typer.Option(
    None,
    "--timeout",
    min=1.0,
    metavar="S",
    help="Seconds a notebook may take in all; past them it is killed and reported as hung "
    "(default: no limit on the whole).",
)
CELL_TIMEOUT = typer.Option(
    None,
    "--cell-timeout",
    min=1.0,
    metavar="S",
    help="Seconds a cell may take (default: what --timeout says, else 600).",
)
SWEEP = typer.Option(
    None, metavar="NAME=A,B,C", help="Run once for each value; several give every combination."
)
SWEEP_FILE = typer.Option(
    None, metavar="FILE", help="YAML with grid, zip, list, fixed, seeds: every combination runs."
)
SEEDS = typer.Option(
    "", metavar="N", help="Repeat with N seeds, from the notebook's own on; or list them: 3,5,8."
)
DRY_RUN = typer.Option(False, "--dry-run", "-n", help="Say what would run, and why; run nothing.")
CLUSTER = typer.Option(
    None,
    "--cluster",
    metavar="WHERE",
    help="Run on Dask workers: tcp://HOST:PORT of a scheduler, `local`, or a YAML file that says "
    "what to start with Slurm or Kubernetes.",
)


commands = typer.Typer()


@commands.command()
def run(
    keys: list[str] | None = KEYS,
    param: list[str] | None = typer.Option(
        None, "-p", "--param", metavar="NAME=VALUE", help="Set a parameter. Repeatable."
    ),
    sweep: list[str] | None = SWEEP,
    sweep_file: Path | None = SWEEP_FILE,
    seeds: str = SEEDS,
    jobs: int | None = JOBS,
    force: bool = FORCE,
    timeout: float | None = TIMEOUT,
    cell_timeout: float | None = CELL_TIMEOUT,
    cluster: str | None = CLUSTER,
    dry_run: bool = DRY_RUN,
    with_site: bool = typer.Option(
        False,
        "--site",
        help="Build the site first, of what is stored; replace a paper's pages as its run ends.",
    ),
) -> None:
    """Execute notebooks through papermill: those that changed, several at a time.

    A notebook runs again when its cells, its parameters, a labkit module it
    imports, its data or its paper's claims changed since its last result;
    changed outputs alone are no reason. A notebook that fails or hangs is
    reported at the end and stops no other; so is one that does not have a
    parameter you set, where others do.

    Each result is a folder results/KEY/PARAMETERS/; all claims are in
    results/claims.parquet and results/scoreboard.html. Runs of one paper join
    into results/KEY/runs.parquet; sweep.html beside it draws them.

    [bold]Examples[/bold]

      [cyan]labkit run[/cyan]                                              whatever changed
      [cyan]labkit run -n[/cyan]                                           what would run, and why
      [cyan]labkit run zero -p dp_degree=128[/cyan]                        with one parameter set
      [cyan]labkit run zeus --sweep eta_knob=0,0.5,1[/cyan]                three runs, a folder each
      [cyan]labkit run zeus --sweep eta_knob=0,1 --sweep seed=1,2[/cyan]   four runs
      [cyan]labkit run zeus --sweep-file eta.yaml --seeds 5[/cyan]         each of them, five seeds
      [cyan]labkit run --force -j 4 --timeout 300[/cyan]                   all, at most 5 min each
      [cyan]labkit run --site[/cyan]                                       what `make` does
      [cyan]labkit run --cluster tcp://10.0.0.1:8786[/cyan]                on Dask workers
      [cyan]labkit run --cluster slurm.yaml -n[/cyan]                      its job script
    """
    from labkit.workbook.run import batch, parameters

    given = [*parameters.choices(param or ()), *parameters.choices(sweep or (), "--sweep")]
    more = parameters.with_seeds(_from(sweep_file), seeds)
    request = batch.Request(
        keys=tuple(keys or ()),
        sweep=replace(more, choices=[*given, *more.choices]),
        force=force,
        num_jobs=jobs,
        timeout_s=timeout,
        cell_timeout_s=cell_timeout,
        cluster=_place(cluster, jobs),
    )
    if dry_run:
        _show_plan(project_root(), request)
        return
    is_good = _run_beside_site(request) if with_site else not _run(request).failures
    if not is_good:
        raise typer.Exit(1)


@commands.command()
def refresh(
    keys: list[str] | None = KEYS,
    jobs: int | None = JOBS,
    force: bool = FORCE,
    timeout: float | None = TIMEOUT,
    cluster: str | None = CLUSTER,
    allow_standin: bool = typer.Option(
        False, "--allow-standin", help="Write back outputs made on stand-in data too."
    ),
    dry_run: bool = DRY_RUN,
) -> None:
    """Run notebooks at their defaults and write the outputs back to notebooks/.

    Outputs are normalised, so that two runs write the same bytes: no times, no
    widget state, execution counts from 1. A file is replaced in one step, and
    only where it changes. What ran on stand-in data is not written back:
    committed outputs come from published data.

    [bold]Examples[/bold]

      [cyan]labkit refresh[/cyan]         every notebook, as far as something changed
      [cyan]labkit refresh zero[/cyan]    one notebook
      [cyan]labkit refresh -n[/cyan]      what would run first, and why
    """
    from labkit.workbook.run.batch import Request

    where = _place(cluster, jobs)
    request = Request(
        keys=tuple(keys or ()), force=force, num_jobs=jobs, timeout_s=timeout, cluster=where
    )
    if dry_run:
        _show_plan(project_root(), request)
        return
    report = _run(request)
    refused = _write_back(project_root(), report, allow_standin=allow_standin)
    if report.failures or refused:
        raise typer.Exit(1)


def _from(sweep_file: Path | None) -> Sweep | None:
    """The sweep that a file holds; what reads it is loaded where there is one."""
    if sweep_file is None:
        return None
    from labkit.workbook.run import sweepfile

    return sweepfile.read(sweep_file)


def _place(where: str | None, num_jobs: int | None) -> Cluster | None:
    """What ``--cluster`` asks for, checked before anything runs."""
    if where is None:
        return None
    from labkit.workbook.run import fingerprint, places

    return places.read(where, num_jobs or fingerprint.usable_cores())


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120  # a log has no edge to wrap at
    return console


def _run_beside_site(request: Request) -> bool:
    """Build the site of what is stored, run while it follows, build it whole; whether all is well.

    Where the site cannot be built, the notebooks run all the same.
    """
    from labkit.workbook.export import reference
    from labkit.workbook.export.following import Following

    root = project_root()
    console = _console()
    problems: list[str] = []
    try:
        problems = _build_site(root, console)
        console.print("  open it now: each paper's pages are replaced as its run ends")
    except LabkitError as error:
        console.print(f"no site yet: {error}", style="yellow", markup=False)
    report = _run(request, lambda watcher: Following(watcher, root))
    is_new = reference.write(root / "results" / "site")
    if report.ended or is_new:
        problems = _build_site(root, console)
    for problem in problems:
        text = f"cannot be shown as it stands: {problem}"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
    return not report.failures and not problems


def _build_site(root: Path, console: Console) -> list[str]:
    """Write the site and say where it is; returns what could not be shown as it stands."""
    from labkit.workbook.export import site

    report = site.write_site(root)
    console.print(Text.assemble(("✔ ", "green"), report.words), soft_wrap=True)
    return report.problems


def _run(request: Request, heard_by: Callable[[Watcher], Watcher] | None = None) -> Report:
    """Run, report, and bring the ledger and the scoreboard up to date.

    ``heard_by`` puts another watcher before the one that shows how the run goes.
    """
    from labkit.workbook.run import batch

    root = project_root()
    console = _console()
    begun = time.monotonic()
    watcher = progress.Watcher(console)
    heard = heard_by(watcher) if heard_by else watcher
    try:
        with watcher.bars:
            report = batch.run(root, request, heard)
    except KeyboardInterrupt:
        console.print(
            f"stopped; {watcher.summary()}. What ended is kept: the same command runs the rest",
            style="bold",
            markup=False,
        )
        raise typer.Exit(130) from None
    _show_report(console, root, report, time.monotonic() - begun)
    joined(root)
    return report


def joined(root: Path) -> None:
    """Bring what is made of all results together up to date, and remove what nothing is left of."""
    from labkit.workbook.run import runs

    def scoreboard(root: Path) -> Path:
        from labkit.workbook.export import site

        return site.write_scoreboard(root)

    def of_paper(key: str, root: Path) -> Path:
        if runs.write(root, key):
            from labkit.workbook.export import sweeps

            sweeps.write(root, key)
        return runs.path_of(root, key)

    papers = (partial(of_paper, key) for key in runs.keys(root))
    runs.refresh(root, runs.write_ledger, scoreboard, *papers)


def _write_back(root: Path, report: Report, *, allow_standin: bool) -> int:
    """Write every good result back; returns how many notebooks were refused."""
    from labkit.workbook.run import results

    console = _console()
    refused = 0
    failed = {end.job.key for end in report.failures}
    for key in [job.key for job in report.jobs if job.key not in failed]:
        try:
            changed = results.write_back(root, key, allow_standin=allow_standin)
        except LabkitError as error:
            refused += 1
            console.print(f"✘ {error}", style="red", soft_wrap=True, markup=False)
            continue
        text = "outputs written back" if changed else "outputs unchanged"
        console.print(f"✔ {key}  {text}", soft_wrap=True, markup=False)
    return refused


# ---------------------------------------------------------------- what is shown


def _show_plan(root: Path, request: Request) -> None:
    from labkit.workbook.run import batch

    if request.cluster is not None:
        from labkit.workbook.run import places

        _console().print(places.described(request.cluster), markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("notebook", "runs because", "took"):
        table.add_column(title, overflow="fold")
    for job in batch.plan(root, request):
        took = "" if job.expected_s is None else progress.seconds(job.expected_s)
        table.add_row(escape(job.name), escape(job.problem or job.reason or "up to date"), took)
    _console().print(table)


def _show_report(console: Console, root: Path, report: Report, took_s: float) -> None:
    current = sum(1 for job in report.jobs if not job.reason)
    done = len(report.ended) - len(report.failures)
    counts = [(done, "ran"), (current, "up to date"), (len(report.failures), "failed")]
    text = ", ".join(f"{number} {what}" for number, what in counts if number)
    style = "bold red" if report.failures else "bold"
    console.print(
        f"{text or 'no notebooks yet'} in {progress.seconds(took_s)}", style=style, markup=False
    )
    _tell_of_standins(console, report)
    if report.failures:
        _show_failures(console, root, report.failures)


def _tell_of_standins(console: Console, report: Report) -> None:
    """Name the results that rest on stand-ins: their claims are not judged."""
    failed = {end.job.name for end in report.failures}
    on_standin = [
        job.name
        for job in report.jobs
        if job.name not in failed and job.fingerprint and job.fingerprint.on_standin
    ]
    if on_standin:
        text = f"on stand-in data: {', '.join(on_standin)} (`labkit data` says what is missing)"
        console.print(text, style="yellow", markup=False, soft_wrap=True)


def _show_failures(console: Console, root: Path, failures: list[Ended]) -> None:
    for end in failures:
        place = progress.where(end.outcome.cell)
        console.print(f"\nfailed: {end.job.name}, {place}", style="bold red", markup=False)
        for line in _details(root, end):
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _details(root: Path, end: Ended) -> Iterator[str]:
    """The whole error, the parameters, and where to look: the notebook as far as it ran."""
    yield progress.how_it_failed(end.outcome)
    if end.outcome.cell is not None and end.outcome.cell.first_line:
        yield f"in the cell that starts `{end.outcome.cell.first_line}`"
    values = ", ".join(f"{name}={value!r}" for name, value in end.job.parameters.items())
    yield f"parameters: {values or 'none'}"
    files = [f"{end.job.key}.ipynb", "log.txt"]
    kept = [end.folder / name for name in files if end.folder and (end.folder / name).is_file()]
    for path in kept or [root / end.job.path]:
        yield path.relative_to(root).as_posix()
