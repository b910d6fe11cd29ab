"""``labkit doctor``: whether this machine and checkout can do the work, and what to do if not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from labkit.cli.checks import Finding


commands = typer.Typer()


@commands.command()
def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
    everything: bool = typer.Option(
        False, "--all", help="Show every package, also those that are well."
    ),
) -> None:
    """Check this machine and this checkout, and say what to do where something is not well.

    Warnings are things the workbook can live with, such as data that is not here. Exit code 1
    where a check fails.

    [bold]Examples[/bold]: [cyan]labkit doctor[/cyan], [cyan]labkit doctor --json[/cyan]
    """
    from labkit.cli.checks import examine

    terminal = Console(stderr=True, force_terminal=sys.stderr.isatty())
    with terminal.status("") as status:  # says what is being looked at
        findings = list(examine(about=lambda title: status.update(f"checking {title}")))
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        import json

        rows = [asdict(finding) for finding in findings]
        listed = [{"found" if k == "observed" else k: row[k] for k in row} for row in rows]
        report = {"ok": not failed, "findings": listed}
        typer.echo(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        _show(findings if everything else list(_folded(findings)))
    if failed:
        raise typer.Exit(1)


def _folded(findings: list[Finding]) -> Iterator[Finding]:
    """The findings with all well packages in one line."""
    from labkit.cli.checks import Finding

    well = [f for f in findings if f.check.startswith("package ") and f.status == "ok"]
    for finding in findings:
        if finding not in well:
            yield finding
        elif finding is well[0]:
            observed = f"{len(well)} installed, as constraints.txt pins"
            yield Finding(check="packages", status="ok", observed=observed)


def _show(findings: list[Finding]) -> None:
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.observed)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="cyan")
        table.add_row(Text(finding.status, style=styles[finding.status]), Text(finding.check), text)
    counts = {status: sum(f.status == status for f in findings) for status in styles}
    console = Console()
    console.print(table)
    console.print(
        f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed", highlight=False
    )
