"""The ``labkit`` command: the one place that knows every part, and loads each on first use.

Exit codes: 0 fine, 1 something failed, 2 wrong use.
"""

from __future__ import annotations

import io
import sys
from functools import cache
from importlib import import_module
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from labkit import ENGINES, __version__, extras
from labkit.errors import LabkitError, refused

# From every command's signature: 30 ms, which a process that calls again does not pay again.
_whole = cache(typer.main.get_command)
_group = cache(typer.main.get_group)


ENGINE_NAMES = {engine.name for engine in ENGINES}
OF_THE_ENGINES = {*ENGINE_NAMES, "data", "doctor", "mcp", "panel"}
"""Commands that answer without a workbook; ``panel`` and ``mcp`` say themselves what they need."""
OF_LAB = {"lab", "present"}
"""Commands of the workbook that serve JupyterLab's pages."""


class _Parts(TyperGroup):
    """The commands of the workbook, and those of each engine, loaded when one of them is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(engine.name for engine in ENGINES)]

    def get_command(self, ctx: Any, name: str) -> Any:
        for engine in ENGINES:
            if name == engine.name:  # enough for the list of commands
                return TyperCommand(name, help=engine.summary, rich_help_panel="Engines")
        command = super().get_command(ctx, name)
        if isinstance(command, TyperCommand | TyperGroup):
            command.rich_help_panel = "Engines" if name in OF_THE_ENGINES else "Workbook"
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in ENGINE_NAMES:
            command = _group(import_module(f"labkit.{name}.commands").commands.app)
        elif name not in OF_THE_ENGINES and "--help" not in rest and not ctx.resilient_parsing:
            extra, package = ("lab", "voila") if name in OF_LAB else ("workbook", "papermill")
            extras.need(f"`labkit {name}`", extra, package)  # one stands for all that it brings
        return name, command, rest


app = typer.Typer(
    name="labkit",
    cls=_Parts,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""
    The workbook of systems-for-ML papers: what to read, what was claimed, what we measured.
    Its engines answer anywhere; its own commands need a workbook's folder, and
    [cyan]pip install 'mlsys-labkit\\[workbook]'[/cyan].

    [bold]First steps[/bold]: [cyan]labkit queue[/cyan] shows the reading list,
    [cyan]labkit run[/cyan] regenerates every result, [cyan]labkit site[/cyan] builds the pages
    that show them. [cyan]labkit COMMAND --help[/cyan] explains each command with examples.
    """,
    epilog="Exit codes: 0 fine, 1 something failed, 2 wrong use.",
)

PARTS = ("init", "queue", "review", "run", "results", "export", "session", "data", "doctor", "mcp")
for _part in PARTS:
    app.add_typer(import_module(f"labkit.cli.{_part}").commands)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version and stop."),
) -> None:
    if version:
        typer.echo(f"labkit {__version__}")
        raise typer.Exit()


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; every foreseen error is one paragraph on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a sign that the terminal lacks ends no command
            stream.reconfigure(errors="replace")
    try:
        _whole(app)(args=argv, prog_name="labkit")
    except (LabkitError, OSError) as error:
        if (problem := error if isinstance(error, LabkitError) else refused(error)) is None:
            raise
        message = Text("error: ", style="bold red").append(str(problem), style="not bold default")
        Console(stderr=True, soft_wrap=True).print(message)
        return problem.exit_code
    except SystemExit as done:  # how Typer ends every command, also a successful one
        return done.code if isinstance(done.code, int) else 0
    return 0
