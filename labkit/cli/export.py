"""``labkit slides`` and ``labkit site``: what the workbook found, to show with no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    app.command()(slides)
    app.command()(site)


def _complete_keys(incomplete: str) -> list[str]:
    """Papers with a notebook, for the shell; nothing where there is no workbook."""
    from labkit import files
    from labkit.errors import LabkitError
    from labkit.workbook import notebooks

    try:
        return [key for key in notebooks.paths(files.project_root()) if key.startswith(incomplete)]
    except LabkitError:
        return []


def slides(
    key: str = typer.Argument(
        help="Paper to present; it needs a notebook.", autocompletion=_complete_keys
    ),
    parameters: list[str] = typer.Option(
        [],
        "--parameter",
        "-p",
        metavar="NAME=VALUE",
        help="Show the run with this parameter instead of the default one; repeatable.",
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="File to write. Default: results/slides/KEY.html."
    ),
) -> None:
    """Write a paper's slides as one HTML file that works with no network.

    Figures move, formulas and tables render, answers unfold; mail the file or carry it on a stick.
    The slides show the notebook as [cyan]labkit run[/cyan] left it in results/, else as committed.

    In the browser: arrows move, [bold]Esc[/bold] shows all slides, [bold]S[/bold] opens the
    speaker's notes, [bold]F[/bold] fills the screen. To print, open the file with
    [bold]?print-pdf[/bold] at the end of its address and print to PDF.

    [bold]Examples[/bold]

      [cyan]labkit slides envpipe[/cyan]
      [cyan]labkit slides envpipe -o ~/talk.html[/cyan]
      [cyan]labkit slides zeus -p eta=0.8[/cyan]         a run with another parameter
    """
    from rich.console import Console

    from labkit import files
    from labkit.workbook import export

    root = files.project_root()
    wanted = dict(_assignment(text) for text in parameters)
    written = export.write_slides(root, key, wanted, out)
    console = Console(soft_wrap=True)
    size_mb = written.path.stat().st_size / 1e6
    console.print(
        f"[green]✔[/green] {written.path}\n"
        f"  {written.num_slides} slides of {key} ({written.shows}), {size_mb:.1f} MB, one file"
    )
    _finish(Console(stderr=True, soft_wrap=True), written.problems)


def _assignment(text: str) -> tuple[str, str]:
    from labkit.errors import UsageError

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"-p {text}: write -p NAME=VALUE, such as -p num_stages=8")
    return name.strip(), value.strip()


def site() -> None:
    """Build results/site: the index, a page and slides for each notebook, the scoreboard.

    Every paper of the reading queue is listed with its status, its two lines and its verdicts.
    Only what changed is rewritten. Open results/site/index.html in a browser; no server and no
    network are needed, so the folder may be copied anywhere.

    [bold]Examples[/bold]

      [cyan]labkit site[/cyan]
      [cyan]labkit run zeus && labkit site[/cyan]        after a change
    """
    from rich.console import Console

    from labkit import files
    from labkit.workbook import export

    report = export.write_site(files.project_root())
    console = Console(soft_wrap=True)
    if report.written or report.removed:
        parts = [f"{len(report.written)} written", f"{report.unchanged} unchanged"]
        parts += [f"{len(report.removed)} removed"] if report.removed else []
        console.print(f"[green]✔[/green] {report.index} ({', '.join(parts)})")
    else:
        console.print(f"[green]✔[/green] {report.index} is up to date")
    _finish(Console(stderr=True, soft_wrap=True), report.problems)


def _finish(console: Console, problems: list[str]) -> None:
    """List what could not be shown as it stands; exit 1 where there is any."""
    from rich.text import Text

    if not problems:
        return
    console.print(Text("These could not be shown as they stand:", style="bold yellow"))
    for problem in problems:
        console.print(Text(f"  {problem}"))
    raise typer.Exit(1)
