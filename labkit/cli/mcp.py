"""``labkit mcp``: the engines and the claims as tools of an assistant."""

from __future__ import annotations

import typer

from labkit import extras

commands = typer.Typer()


@commands.command()
def mcp(
    seconds: float = typer.Option(300.0, help="The longest that a call may take.", min=1.0),
) -> None:
    """Serve the engines and the claims to an assistant, by the Model Context Protocol.

    A client starts this command and talks to it on standard input and output. It plans memory and
    pipelines, compares schedulers, looks up claims with their verdicts and papers of the queue. It
    writes nothing, fetches nothing, and listens on no port; the README of labkit/mcp shows how a
    client is told of it.

    [bold]Example[/bold]: [cyan]labkit mcp --seconds 60[/cyan]
    """
    extras.need("`labkit mcp`", "mcp", "mcp")
    from labkit.mcp import server

    server.serve(seconds)
