"""``labkit panel``: an engine with a control for each of its parameters, in the browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from labkit.cli import panels
from labkit.errors import UsageError, not_among

if TYPE_CHECKING:
    from labkit.workbook.review.live import Live

commands = typer.Typer()

ONLY_THIS_MACHINE = (
    "default-src 'self' data: blob:; connect-src 'self' ws:; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'"
)
"""Content security policy: whatever a library would load, the browser asks no other machine."""


@commands.command()
def panel(
    name: str = typer.Argument(
        help=f"{', '.join(panels.PANELS)}.", autocompletion=lambda: [*panels.PANELS]
    ),
    profile: str = typer.Option(
        "", help="Your own: a CSV file of the engine's profile, trace or requests, or a name."
    ),
    model: str = typer.Option("", help="Your own: a config.json, or a preset."),
    port: int = typer.Option(0, help="To listen at; 0: any that is free.", min=0, max=65535),
    browser: bool = typer.Option(True, help="Open the panel in a browser."),
) -> None:
    """Move an engine's parameters and watch its figures; Voilà serves it to this machine alone.

    Every value is computed when you ask for it; a line under the figures is the command that
    prints the same. The address carries a token; Ctrl-C ends the panel.

    [bold]Examples[/bold]

      [cyan]labkit panel pipeline[/cyan]                      clocks, frontier, memory of a plan
      [cyan]labkit panel memory --model llama-3-70b[/cyan]    does it fit, and what would make it
      [cyan]labkit panel cluster --profile jobs.csv[/cyan]    a trace of your own
    """
    from labkit.workbook.session import server

    if find_spec("voila") is None or find_spec("anywidget") is None:
        raise UsageError("labkit panel needs Voilà and anywidget: pip install 'labkit[lab]'")
    profile, model = (
        str(Path(text).resolve()) if text and Path(text).exists() else text
        for text in (profile, model)
    )
    built(name, profile=profile, model=model)  # what is wrong is said here, not in the browser
    place = server.address(port=port)
    with tempfile.TemporaryDirectory(prefix="labkit-panel-") as folder:
        path = Path(folder) / f"{name}.ipynb"
        path.write_text(notebook(name, profile, model), encoding="utf-8")
        headers = {"headers": {"Content-Security-Policy": ONLY_THIS_MACHINE}}
        settings = {"ip": place.ip, "port": place.port, "token": place.token,
                    "tornado_settings": headers, "open_browser": browser}  # fmt: skip
        pages = {"template": "live", "extension_denylist": server.NOT_IN_VOILA}
        config = {"Voila": settings, "VoilaConfiguration": pages}
        server.write_template(Path(folder))
        # In a file of the folder it starts in: no list of processes shows the token.
        (Path(folder) / "voila.json").write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", "voila", str(path)]
        Console(soft_wrap=True).print(f"{place.url('/')}  (Ctrl-C ends it)")
        code = _run(command, folder)
    if code > 0:
        raise typer.Exit(1)


def _run(command: list[str], folder: str) -> int:
    """Run the server until it ends or this process is asked to; its exit code, or 0 if asked."""
    paths = os.pathsep.join(filter(None, [folder, os.environ.get("JUPYTER_PATH", "")]))
    server = subprocess.Popen(command, cwd=folder, env=os.environ | {"JUPYTER_PATH": paths})
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
        server.terminate()
        server.wait()


def notebook(name: str, profile: str = "", model: str = "") -> str:
    """The notebook that Voilà shows: one cell, which shows the panel."""
    import nbformat

    source = f"from labkit.cli import panel\npanel.show({name!r}, {profile!r}, {model!r})"
    cells = [nbformat.v4.new_code_cell(source)]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}))


def built(name: str, *, profile: str = "", model: str = "") -> panels.Panel:
    """The panel ``name`` on what the user brought.

    Raises:
        UsageError: there is no such panel, or it cannot use what was brought.
    """
    if name not in panels.PANELS:
        raise not_among("panel", name, panels.PANELS)
    return panels.PANELS[name](profile=profile, model=model)


def show(name: str, profile: str = "", model: str = "") -> Live:
    """The panel ``name`` as widgets, under a heading."""
    from IPython.display import HTML, display

    from labkit.workbook.review import axes
    from labkit.workbook.review.live import Live

    panel = built(name, profile=profile, model=model)
    display(HTML(f"<h1>{panel.title}</h1>"))
    knobs = axes.read(panel.axes, panel.label, dict(panel.start))
    return Live(panel.figures, knobs, call=panel.call)
