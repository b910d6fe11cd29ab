"""The ``labkit`` command: the one place that knows every part, and loads each on first use.

Exit codes: 0 fine, 1 something failed, 2 wrong use.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click
import typer
from rich.console import Console

from labkit import __version__
from labkit.errors import LabkitError

app = typer.Typer(
    name="labkit",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""
    The workbook of systems-for-ML papers: what to read, what was claimed, what we measured.

    [bold]First steps[/bold]: [cyan]labkit queue[/cyan] shows the reading list, [cyan]labkit
    run[/cyan] regenerates every result, [cyan]labkit site[/cyan] builds the page that shows them.
    [cyan]labkit COMMAND --help[/cyan] explains each command with examples.
    """,
    epilog="Exit codes: 0 fine, 1 something failed, 2 wrong use.",
)

for _part in ("queue", "review", "run", "export", "data", "doctor"):
    import_module(f"labkit.cli.{_part}").register(app)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version and stop."),
) -> None:
    if version:
        typer.echo(f"labkit {__version__}")
        raise typer.Exit()


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; every foreseen error is one paragraph on stderr."""
    try:
        code = app(args=argv, prog_name="labkit", standalone_mode=False)
    except LabkitError as error:
        Console(stderr=True, soft_wrap=True).print(
            "[bold red]error:[/bold red]", str(error), markup=True, highlight=False
        )
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return 1
    return code if isinstance(code, int) else 0
