"""``labkit new`` and ``labkit check``: a notebook by the anatomy, and whether it still is one."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.files import project_root

if TYPE_CHECKING:
    from labkit.workbook.review.check import Report


commands = typer.Typer()
_LONGEST_ID = 28


@commands.command()
def new(
    key: str = typer.Argument(
        help="The paper's key, as in papers.bib.", metavar="KEY", show_default=False
    ),
    family: str = typer.Option(
        "", help="Folder under notebooks/; default: by the paper's tags.", show_default=False
    ),
    size: str = typer.Option(
        "standard", help="standard, or flagship: a paper the group argues about for an hour."
    ),
) -> None:
    """Start a notebook on a paper, by the anatomy, with all that we know of it filled in.

    Makes [cyan]notebooks/FAMILY/KEY.ipynb[/cyan] and, where it is missing,
    [cyan]data/papers/KEY/claims.yaml[/cyan]. It runs as it is; [cyan]labkit check KEY[/cyan] lists
    what is still to be written. Nothing is ever overwritten.

    [bold]Examples[/bold]: [cyan]labkit new farm[/cyan],
    [cyan]labkit new erpc --family networking --size flagship[/cyan]
    """
    from labkit.workbook.review import scaffold

    root = project_root()
    created = scaffold.create(root, key, family, size)
    typer.echo(f"made {created.notebook.relative_to(root)}")
    verb = "made" if created.claims_made else "kept"
    typer.echo(f"{verb} {created.claims.relative_to(root)}")
    typer.echo(
        f"next: `labkit queue start {key}`, write the claims, then `labkit check {key}` says what "
        "is missing"
    )


@commands.command()
def check(
    keys: list[str] | None = typer.Argument(
        None, metavar="KEY", help="Papers to check; default: all.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    list_rules: bool = typer.Option(False, "--rules", help="List the rules and stop."),
) -> None:
    """Check notebooks against the anatomy: sections, code, claims, prose, stored outputs.

    Nothing is executed: the committed notebook is read. Without a KEY, every file of
    [cyan]data/papers/[/cyan] is read as well. Exit code 1 where more
    than a warning is found.

    [bold]Examples[/bold]: [cyan]labkit check[/cyan], [cyan]labkit check envpipe zeus[/cyan],
    [cyan]labkit check --json[/cyan]
    """
    if list_rules:
        _show_rules()
        return
    from labkit.workbook.review import check

    report = check.check(project_root(), keys or ())
    if as_json:
        import json

        content = {
            "notebooks": list(report.notebooks),
            "rules": report.num_rules,
            "findings": [asdict(finding) for finding in report.findings],
        }
        typer.echo(json.dumps(content, indent=1))
    else:
        _show(report)
    if not report.is_clean:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    console = Console()
    for file, findings in groupby(report.findings, key=lambda finding: finding.file):
        table = Table(title=file, title_justify="left", title_style="bold", expand=False)
        table.add_column("cell", no_wrap=True)
        table.add_column("rule", no_wrap=True)
        table.add_column("what is wrong")
        table.add_column("what would be right")
        for finding in findings:
            place = "" if finding.cell is None else f"{finding.cell} {_short(finding.cell_id)}"
            name = f"{finding.rule}\n(warning)" if finding.warns else finding.rule
            table.add_row(Text(place), name, Text(finding.problem), Text(finding.fix))
        console.print(table)
    num_notebooks = len(report.notebooks)
    num_findings = len(report.findings)
    noun = "notebook" if num_notebooks == 1 else "notebooks"
    outcome = (
        f"{num_findings} finding{'s' * (num_findings > 1)}" if num_findings else "nothing found"
    )
    console.print(f"{num_notebooks} {noun}, {report.num_rules} rules: {outcome}")


def _short(cell_id: str) -> str:
    """Cut a cell's id to what tells it apart, where it is as long as a UUID; --json has it whole.

    >>> _short("claims-code"), _short("3f2b8c1e-7a4d-4c1b-9e55-0d2f6a7b8c9d")
    ('claims-code', '3f2b8c1e…')
    """
    return cell_id if len(cell_id) <= _LONGEST_ID else f"{cell_id[:8]}…"


def _show_rules() -> None:
    from labkit.workbook.review import rules

    table = Table("rule", "what it asks", title="What labkit check asks", title_justify="left")
    for rule in rules.RULES:
        table.add_row(rule.name, Text(rule.demand))
    Console().print(table)
