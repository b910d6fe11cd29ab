"""The server: it speaks the protocol on standard input and output, and computes in a process apart.

A compiled loop listens to nobody, so a call that takes too long can only be ended with its process.
The one worker stays for the next call, with all that it has loaded.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio import to_process
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from labkit import __version__
from labkit.mcp import tools

SECONDS = 300.0
"""The longest that a call may take, in a new process that first compiles its loops."""
MOST_BYTES = 500_000
"""The longest answer, as JSON."""
ABOUT = """\
Engines for systems-for-ML questions (does a training job fit, what does a pipeline cost in seconds
and joules, which scheduler serves a cluster best), and a workbook of papers: what each claims and
what we found when we reran it. Everything is computed or simulated on this machine, nothing is
written, nothing is fetched. Numbers carry their unit at the end of their name (_s, _j, _bytes); a
_fraction of 0.05 is 5 %. "Not earned" means that the nearest rival meets the claim as well.
"""


def build(seconds: float = SECONDS) -> MCPServer:
    """Make the server, with every tool of :data:`labkit.mcp.tools.TOOLS`.

    Args:
        seconds: the longest that a call may take.
    """
    server = MCPServer("labkit", version=__version__, instructions=ABOUT, log_level="WARNING")
    in_turn = anyio.CapacityLimiter(1)
    hints = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for tool in tools.TOOLS.values():
        description = " ".join(inspect.getdoc(tool).split())  # type: ignore[union-attr]
        server.add_tool(
            _bounded(tool, in_turn, seconds), description=description, annotations=hints
        )
    return server


def serve(seconds: float = SECONDS) -> None:
    """Answer on standard input and output until the client closes them.

    The network is forbidden to the engines for as long as the process lives.
    """
    os.environ["LABKIT_OFFLINE"] = "1"
    build(seconds).run("stdio")


def _bounded(
    tool: Callable[..., tools.Answer], in_turn: anyio.CapacityLimiter, seconds: float
) -> Callable[..., Awaitable[tools.Answer]]:
    """The tool with the same signature, computed in the worker process within the limits."""

    @functools.wraps(tool)
    async def call(**arguments: Any) -> tools.Answer:
        async with in_turn:
            try:
                with anyio.fail_after(seconds):
                    data, problem = await to_process.run_sync(
                        tools.answer, tool.__name__, arguments, cancellable=True
                    )
            except TimeoutError:
                raise ToolError(
                    f"no answer within {seconds:g} s; ask for less, or start the server with "
                    "a larger --seconds"
                ) from None
        if data is None:
            raise ToolError(problem)
        size = len(json.dumps(data).encode())
        if size > MOST_BYTES:
            raise ToolError(
                f"the answer has {size:,} bytes, more than {MOST_BYTES:,}; ask for less"
            )
        return data

    return call
