"""``labkit slides``, ``site`` and ``compare``: what the workbook says, to show with no network."""

from __future__ import annotations

from inspect import getdoc
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from labkit import files
from labkit.cli.run import complete_notebooks
from labkit.kit.command import deliver, example_lines, expanded, is_stdout, option
from labkit.kit.report import Report

_COMPARISONS = (
    "labkit compare envpipe zeus",
    "labkit compare envpipe perseus --markdown -",
    "labkit compare zero zeropp mics --html results/zero-family.html",
)

commands = typer.Typer()


@commands.command()
def slides(
    key: str = typer.Argument(
        help="Paper to present; it needs a notebook.", autocompletion=complete_notebooks
    ),
    param: list[str] = typer.Option(
        [],
        "--parameter",
        "-p",
        metavar="NAME=VALUE",
        help="Show the run with this parameter instead of the default one; repeatable.",
    ),
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="File to write; - for standard output. Default: results/slides/KEY.html.",
    ),
) -> None:
    """Write a paper's slides as one HTML file that works with no network.

    A talk of the notebook's sections: verdict, mechanism, figures, two or three claims, a weakness,
    the slider, the questions. Figures move; what does not fit, and the answers, are in the notes.
    The slides show the notebook as [cyan]labkit run[/cyan] left it in results/; where the notebook
    is newer than that, or never ran here, with the outputs that are stored in it.

    In the browser: arrows move, a remote's PageUp and PageDown also out of a slider or a menu,
    [bold]Esc[/bold] leaves those, then shows all slides, [bold]S[/bold] opens the speaker's notes
    with a pace, [bold]F[/bold] fills the screen. To print, open the file with
    [bold]?print-pdf[/bold] at the end of its address and print to PDF.

    [bold]Examples[/bold]

      [cyan]labkit slides envpipe[/cyan]
      [cyan]labkit slides envpipe -o ~/talk.html[/cyan]
      [cyan]labkit slides zeus -p eta_knob=0.8[/cyan]    a run with another parameter
    """
    from labkit.workbook.export import pages

    root = files.project_root()
    to_stdout = is_stdout(out)
    if out is None:
        written = pages.write_slides(root, key, param)
    else:
        written = deliver(out, lambda path: pages.write_slides(root, key, param, path))
    console = Console(soft_wrap=True, stderr=to_stdout)
    size_mb = written.num_bytes / 1e6
    console.print(
        f"[green]✔[/green] {'standard output' if to_stdout else written.path}\n"
        f"  {written.num_slides} slides of {key} ({written.shows}), {size_mb:.1f} MB, one file"
    )
    errors = Console(stderr=True, soft_wrap=True)
    if written.warning:
        errors.print(f"[yellow]⚠[/yellow] on {written.warning}; every slide says so")
    _finish(errors, written.problems)


@commands.command()
def site(
    *,
    reference: Annotated[
        bool, typer.Option(help="Also the library's reference, where the library changed.")
    ] = True,
) -> None:
    """Build results/site: the index, a page and slides for each notebook, the scoreboard.

    Every paper of the reading queue is listed with its status, its two lines and its verdicts.
    A page shows the notebook's run in results/; where the notebook is newer than that, or never
    ran here, its stored outputs, and says so. Only what changed is rewritten. Open
    results/site/index.html in a browser; no server and no network are needed, so the folder may be
    copied anywhere. Its talks share their scripts: [cyan]labkit slides KEY[/cyan] writes one file.

    [bold]Examples[/bold]

      [cyan]labkit site[/cyan]
      [cyan]labkit run zeus && labkit site[/cyan]        after a change
      [cyan]labkit run --site[/cyan]                     all of it: the site first, then each run
    """
    from labkit.workbook.export import reference as library
    from labkit.workbook.export.site import write_site

    root = files.project_root()
    if reference:
        library.write(root / "results" / "site")
    report = write_site(root)
    Console(soft_wrap=True).print(Text.assemble(("✔ ", "green"), report.words))
    _finish(Console(stderr=True, soft_wrap=True), report.problems)


def _finish(console: Console, problems: list[str]) -> None:
    """List what could not be shown as it stands; exit 1 where there is any."""
    if not problems:
        return
    console.print(Text("These could not be shown as they stand:", style="bold yellow"))
    for problem in problems:
        console.print(Text(f"  {problem}"))
    raise typer.Exit(1)


def compare(
    keys: Annotated[
        list[str],
        typer.Argument(
            help="Papers, two or more.", metavar="KEY...", autocompletion=complete_notebooks
        ),
    ],
    *,
    markdown: Annotated[
        Path | None, option("Write Markdown; - for standard output.", panel="Output")
    ] = None,
) -> Report:
    """Papers side by side: their five lines, their claims, their results on shared inputs.

    Pulled from the notebooks as last run ([cyan]labkit run[/cyan]), else as stored. The site
    has such a page for each family of papers.
    """
    from labkit.workbook.export import comparison

    report = comparison.compare(files.project_root(), keys)
    text = comparison.markdown(report)
    report.files = {"Markdown": (markdown, lambda path: files.write_atomically(path, text))}
    return report


commands.command(help=f"{getdoc(compare)}\n\n{example_lines(_COMPARISONS)}")(expanded(compare))
