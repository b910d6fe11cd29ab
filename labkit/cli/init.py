"""``labkit init``: a workbook of one's own in an empty folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer
from rich.console import Console

commands = typer.Typer()


@commands.command()
def init(
    folder: Path = typer.Argument(
        Path(), metavar="[FOLDER]", help="An empty folder, or the name of a new one. Default: here."
    ),
) -> None:
    """Make a workbook of your own: an empty queue, a bibliography, folders for notebooks.

    The engines and their models, accelerators and data sets come from labkit; papers, notebooks and
    results are the folder's. One that holds files of its own is refused.

    [bold]Examples[/bold]: [cyan]labkit init[/cyan], [cyan]labkit init our-papers[/cyan]
    """
    from labkit.workbook import founding

    made = founding.found(folder)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"made a workbook in {made.folder}", markup=False)
    console.print(f"  {', '.join(made.names)}", markup=False)
    console.print("next:")
    for line in _next(folder, made.folder):
        console.print(f"  {line}", markup=False)


def _next(said: Path, folder: Path) -> list[str]:
    """The commands that come next, typed where the reader is."""
    lines = [
        'labkit queue add 2309.06180 --key paged --why "one sentence"',
        "labkit new paged --family serving",
        "make",
    ]
    if folder != Path.cwd().resolve():
        lines.insert(0, f"cd {shlex.quote(str(said))}")
    if os.environ.get("LABKIT_ROOT"):
        lines.insert(0, "unset LABKIT_ROOT  # it leads to another workbook")
    return lines
