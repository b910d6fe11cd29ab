"""``labkit data``: which published data is here, what is missing, under which licence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labkit import extras
from labkit.errors import LabkitError
from labkit.files import workbook_around
from labkit.kit.command import completing

if TYPE_CHECKING:
    from labkit.datasets.registry import Dataset, PublishedFile, Registry
    from labkit.datasets.remote import Address

commands = typer.Typer(
    name="data",
    rich_markup_mode="rich",
    help="""
    Published datasets: what is here, what is missing, each licence.

    Files come from the cache, else from the folder LABKIT_DATA_MIRROR names, else from their
    published address; each is checked against its hash. Nothing fetched enters the repository.
    Where a dataset cannot be had, notebooks run on stand-ins of ours and say so.

    [bold]Examples[/bold]

      [cyan]labkit data[/cyan]                              what is here
      [cyan]labkit data fetch[/cyan]                        download what is missing
      [cyan]labkit data fetch zeus-nsdi23[/cyan]            one dataset only
      [cyan]labkit data show perseus-sosp24[/cyan]          files, units, licence, citation
      [cyan]labkit data path zeus-nsdi23/summary_train.csv[/cyan]
      [cyan]labkit data verify[/cyan]                       hash every copy again
      [cyan]labkit data verify --remote[/cyan]              is each published address still there
    """,
)


def _registry() -> Registry:
    from labkit.datasets.registry import load_registry

    return load_registry()


_complete_names = completing(lambda: _registry().datasets)


@commands.callback(invoke_without_command=True)
def overview(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from labkit.datasets.store import cache_folder, mirror_folder, offline

    registry = _registry()
    Console().print(_overview_table(registry))
    mirror = mirror_folder()
    typer.echo("`labkit data fetch` downloads what is missing; `labkit data show NAME` tells more.")
    typer.echo(f"cache   {cache_folder()}")
    typer.echo(f"mirror  {mirror or 'none (LABKIT_DATA_MIRROR is not set)'}")
    if offline():
        typer.echo("network not tried (LABKIT_OFFLINE is set)")


_REMEDIES = {"cache": "it is fetched again when next needed", "mirror": "replace it"}
NAMES = typer.Argument(
    None,
    metavar="NAME",
    help="Datasets, or single files as NAME/FILE. Default: every dataset.",
    autocompletion=_complete_names,
)


@commands.command()
def fetch(names: list[str] = NAMES) -> None:
    """Download what is missing, each file checked against its hash.

    One that fails does not stop the others; the summary lists what failed, and the exit code is 1.

    [bold]Examples[/bold]: [cyan]labkit data fetch[/cyan],
    [cyan]labkit data fetch zeus-nsdi23/summary_train.csv[/cyan]
    """
    from labkit import datasets

    problems: list[LabkitError] = []
    for dataset, files in _chosen(names):
        failed = datasets.fetch(dataset.name, [file.path for file in files])
        problems += failed
        typer.echo(f"{dataset.name}: {len(files) - len(failed)} of {len(files)} files here")
    if problems:
        _report_failures(problems)
        raise typer.Exit(1)


@commands.command()
def show(name: str = typer.Argument(metavar="NAME", autocompletion=_complete_names)) -> None:
    """Show one dataset: origin, licence, what its columns and units are, and its files.

    [bold]Example[/bold]: [cyan]labkit data show perseus-sosp24[/cyan]
    """
    dataset = _registry().dataset(name)
    console = Console()
    console.print(f"[bold]{dataset.name}[/bold]  {dataset.title}", highlight=False)
    console.print(f"origin    {dataset.origin} at {dataset.commit[:12]}", highlight=False)
    console.print(f"licence   {dataset.licence}", highlight=False)
    console.print(f"citation  {dataset.citation} (data/papers.bib)", highlight=False)
    console.print(Padding(dataset.notes, (1, 0)), highlight=False)
    console.print(_files_table(dataset))


@commands.command()
def path(
    reference: str = typer.Argument(metavar="NAME/FILE", autocompletion=_complete_names),
) -> None:
    """Print where one published file is on this machine, downloading it where need be.

    The end of the file's path will do where only one file ends so.

    [bold]Example[/bold]: [cyan]head "$(labkit data path zeus-nsdi23/summary_train.csv)"[/cyan]
    """
    from labkit import datasets

    typer.echo(datasets.open(reference))


@commands.command()
def verify(
    names: list[str] = NAMES,
    *,
    remote: bool = typer.Option(
        False, "--remote", help="Ask each published address instead, for its headers alone."
    ),
    as_json: bool = typer.Option(False, "--json", help="With --remote: the answers as JSON."),
) -> None:
    """Hash every copy on this machine again, in the cache and in the mirror.

    Exit code 1 where one is not the published file; a missing file is no fault.

    [cyan]--remote[/cyan] asks the network instead, a few addresses at a time and no body: every
    file's address, every repository, and, for all datasets of a workbook, the look-up of an arXiv
    id and a DOI. A line each: fine, moved, changed (another size), gone, refused or unreachable.
    Exit code 1 where one is changed or gone, or where there is no network.

    [bold]Examples[/bold]: [cyan]labkit data verify[/cyan],
    [cyan]labkit data verify --remote zeus-nsdi23[/cyan]
    """
    if remote or as_json:
        _ask_hosts(names, as_json=as_json)
        return
    from labkit.datasets.store import copies

    damaged: list[str] = []
    intact = missing = 0
    for dataset, files in _chosen(names):
        for file in files:
            present = list(copies(dataset, file, None))
            damaged += [
                f"{copy.path} ({copy.where}): {copy.difference}; {_REMEDIES[copy.where]}"
                for copy in present
                if not copy.intact
            ]
            intact += any(copy.intact for copy in present)
            missing += not present
    typer.echo(f"{intact} files intact, {len(damaged)} damaged copies, {missing} not here")
    if damaged:
        _complain(damaged)
        raise typer.Exit(1)


def _ask_hosts(names: list[str] | None, *, as_json: bool) -> None:
    from labkit.datasets import remote, store

    if store.offline():
        raise LabkitError("the network is not asked: LABKIT_OFFLINE is set; unset it")
    answers: list[remote.Answer] = []
    for answer in remote.ask(_addresses(names)):
        answers.append(answer)
        if not as_json and answer.state != "unreachable":
            typer.echo(f"{answer.state:<12}{answer.address.url}  {answer.words}".rstrip())
    counts = Counter(answer.state for answer in answers)
    lost = [answer for answer in answers if answer.state == "unreachable"]
    if as_json:
        records = [
            {
                "url": a.address.url,
                "state": a.state,
                "words": a.words,
                "size_bytes": a.size_bytes,
                "registered_bytes": a.address.size_bytes,
                "moved_to": a.moved_to or None,
            }
            for a in answers
        ]
        typer.echo(json.dumps(records, indent=1))
    elif len(lost) == len(answers):
        why = f"none of {len(lost)} addresses answered ({lost[0].words})"
        typer.echo(f"no network: {why}", err=True)
    else:
        for answer in lost:
            typer.echo(f"{answer.state:<12}{answer.address.url}  {answer.words}")
        typer.echo(
            ", ".join(f"{counts[state]} {state}" for state in remote.STATES if counts[state])
        )
    if len(lost) == len(answers) or counts["changed"] or counts["gone"]:
        raise typer.Exit(1)


def _addresses(names: list[str] | None) -> list[Address]:
    """What the registry names, and, of a workbook where all is asked for, the hosts of look-ups."""
    from labkit.datasets.remote import Address

    chosen = _chosen(names)
    files = [Address(url=f.url, size_bytes=f.size_bytes) for _, files in chosen for f in files]
    origins = [Address(url=url) for url in dict.fromkeys(dataset.origin for dataset, _ in chosen)]
    root = workbook_around()
    lookups = [] if names or root is None else _lookups(root)
    return [*files, *origins, *lookups]


def _lookups(root: Path) -> list[Address]:
    """Where an arXiv id and a DOI are looked up: one of each from the workbook's bibliography."""
    extras.need("asking for a paper's look-ups", "workbook", "pybtex")
    from labkit.datasets.remote import Address
    from labkit.workbook.queue import bibliography, intake

    entries = bibliography.load(root).values()
    papers = [
        next((e.eprint for e in entries if e.eprint), ""),
        next((e.doi for e in entries if e.doi), ""),
    ]
    known = [identifier for paper in papers if (identifier := intake.recognise(paper))]
    urls = [f"{intake.RESOLVER}/{identifier.doi}" for identifier in known]
    return [Address(url=url, headers=intake.HEADERS) for url in urls]


def _overview_table(registry: Registry) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("dataset", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for heading in ("where", "licence", "cite", "stand-ins"):
        table.add_column(heading)
    for dataset in registry.datasets.values():
        places = [_where(dataset, file) for file in dataset.files]
        num_present = sum(where in ("cache", "mirror") for where in places)
        table.add_row(
            dataset.name,
            f"{num_present}/{len(places)}",
            f"{dataset.size_bytes:,}",
            _counted(places),
            dataset.licence,
            dataset.citation,
            str(sum(file.standin is not None for file in dataset.files) or "none"),
        )
    return table


def _files_table(dataset: Dataset) -> Table:
    """The files under their folders, so that long paths are not repeated."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("file", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("where", no_wrap=True)
    above = ""
    for file in dataset.files:
        folder, _, name = file.path.rpartition("/")
        if folder != above:
            table.add_row(Text(f"{folder}/", style="bold"))
            above = folder
        where = _styled(_where(dataset, file))
        table.add_row(Text(f"  {name}"), f"{file.size_bytes:,}", where)
        if file.standin is not None:
            table.add_row(Text(f"    stand-in: {file.standin}", style="dim"))
    return table


def _where(dataset: Dataset, file: PublishedFile) -> str:
    from labkit.datasets.store import locate

    copy = locate(dataset, file, None)
    if copy is None:
        return "missing"
    return copy.where if copy.intact else "damaged"


def _styled(where: str, text: str = "") -> str:
    style = {"missing": "yellow", "damaged": "bold red"}.get(where)
    return f"[{style}]{text or where}[/{style}]" if style else text or where


def _counted(places: Iterable[str]) -> str:
    """For one place its name, for several each with its count: ``cache 4, missing 16``."""
    counts = Counter(places)
    if len(counts) == 1:
        return _styled(next(iter(counts)))
    return ", ".join(_styled(where, f"{where} {n}") for where, n in sorted(counts.items()))


def _chosen(names: list[str] | None) -> list[tuple[Dataset, list[PublishedFile]]]:
    """The datasets and files that command-line names ask for; every name is checked first."""
    from labkit import datasets

    registry = _registry()
    wanted = datasets.needed(names or registry.datasets)
    return [
        (dataset, [dataset.file(path) for path in paths])
        for dataset, paths in ((registry.dataset(name), paths) for name, paths in wanted.items())
    ]


def _report_failures(problems: list[LabkitError]) -> None:
    """Files that failed for one reason share a line; a corrupt download is told in full."""
    from labkit.datasets import DatasetUnavailable

    reasons: dict[str, Counter[str]] = {}
    lines: list[str] = []
    for problem in problems:
        if isinstance(problem, DatasetUnavailable):
            reasons.setdefault(problem.reason, Counter())[problem.name] += 1
        else:
            lines.append(str(problem))
    for reason, counts in reasons.items():
        among = ", ".join(f"{count} of {name}" for name, count in counts.items())
        lines.append(f"{counts.total()} files not fetched ({among}): {reason}")
    _complain(lines)
    if reasons:
        typer.echo(
            "Until they are here, notebooks run on stand-ins; run this again with a network, or "
            "set LABKIT_DATA_MIRROR to a folder that holds the files as <dataset>/<path>.",
            err=True,
        )


def _complain(lines: list[str]) -> None:
    console = Console(stderr=True, soft_wrap=True)
    for line in lines:
        console.print(Text("failed  ", style="bold red").append(line, style="not bold default"))
