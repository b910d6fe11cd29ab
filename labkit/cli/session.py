"""``labkit lab``, ``present``, ``ask`` and ``panel``: what a reading group does in a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console

from labkit import extras
from labkit.cli import panel as panels
from labkit.cli.queue import complete_keys
from labkit.cli.run import complete_notebooks
from labkit.errors import UsageError
from labkit.files import project_root, workbook_around, write_atomically

commands = typer.Typer(rich_markup_mode="rich")
PORT = typer.Option(0, min=0, max=65535, help="Default: the first free one from 8888 on.")
BROWSER = typer.Option(True, help="Whether to open the browser.")
AS_ROOT = typer.Option(False, "--allow-root", help="Run as root, as in a container.")
KEY = typer.Argument("", metavar="KEY", autocompletion=complete_keys, show_default=False)


@commands.command()
def lab(
    collaborative: bool = typer.Option(
        False, "--collaborative", help="Edit together (pip install 'mlsys-labkit\\[collab]')."
    ),
    ip: str = typer.Option(
        "127.0.0.1", help="With --collaborative: this machine's address on the group's network."
    ),
    port: int = PORT,
    browser: bool = BROWSER,
    allow_root: bool = AS_ROOT,
) -> None:
    """Open JupyterLab on the start page: next paper, open questions, last session, all papers.

    It listens on this machine only and asks for a token (part of the address it prints); running
    and saving leave committed notebooks as they were. For a group on one network, set
    JUPYTER_TOKEN and say on which address to listen.

    [bold]Examples[/bold]: [cyan]labkit lab[/cyan],
    [cyan]labkit lab --collaborative --ip 192.168.1.20[/cyan]
    """
    from labkit.workbook.session import server

    if ip != server.LOOPBACK and not collaborative:
        raise UsageError(f"--ip {ip} lets others in: say --collaborative too")
    root = project_root()
    place = server.address(ip, port)
    arguments = server.lab_arguments(root, collaborative=collaborative)
    server.write_start(root)
    _print(f"JupyterLab: {place.url('/')}")
    shown = {name: panels.notebook(name) for name in panels.PANELS}
    server.serve(root, "lab", place, [*arguments, *_flags(browser, allow_root)], shown)


@commands.command()
def present(
    key: str = typer.Argument(metavar="KEY", autocompletion=complete_notebooks),
    port: int = PORT,
    browser: bool = BROWSER,
    allow_root: bool = AS_ROOT,
) -> None:
    """Serve a paper's deck with its explorable live, on this machine only, behind a token.

    The slides are those of [cyan]labkit slides KEY[/cyan]; until the kernel is ready the explorable
    shows its stored states. Escape leaves the live figure, PageUp and PageDown turn the page from
    within it. Ctrl-C stops the server.

    [bold]Example[/bold]: [cyan]labkit present envpipe[/cyan]
    """
    from labkit.workbook import notebooks
    from labkit.workbook.session import server

    root = project_root()
    place = server.address(port=port)
    page = f"/labkit/deck/{key}"
    notebooks.path_of(root, key)  # raises where there is none
    _print(f"The deck of {key}: {place.url(page)} (Ctrl-C stops it)")
    server.serve(root, page, place, _flags(browser, allow_root))
    _print(f"Has the group heard it? labkit queue done {key} --presented")


@commands.command()
def ask(
    key: str = KEY,
    text: str = typer.Argument("", metavar="TEXT", help="In quotes.", show_default=False),
    by: str = typer.Option("", "--by", help="Who asks.", show_default=False),
    remark: bool = typer.Option(False, "--remark", help="A remark, not a question."),
    answer: int = typer.Option(None, metavar="N", help="TEXT answers question N."),
    done: int = typer.Option(None, metavar="N", help="Question N was answered in the room."),
) -> None:
    """Keep a question or a remark with a paper, in data/papers/KEY/questions.yaml.

    Pages and decks show them after their discussion, the start page lists the open ones. Without
    TEXT it lists those of the paper; without KEY, of every paper.

    [bold]Examples[/bold]

      [cyan]labkit ask zeus "Does the saving survive a shared GPU?" --by Ann[/cyan]
      [cyan]labkit ask zeus "Fig. 9 starts at 1.0" --remark[/cyan]
      [cyan]labkit ask zeus --answer 1 "See the third weakness"[/cyan]
      [cyan]labkit ask zeus --done 1[/cyan]
    """
    from labkit.workbook.queue import edits, questions, reading_queue

    root = project_root()
    number = done if answer is None else answer
    if (answer is not None and not text) or (done is not None and (text or answer is not None)):
        raise UsageError('say --answer N "…", or --done N without a text')
    if (by or remark) and (not text or number is not None):
        raise UsageError("--by and --remark are of a new question: give its TEXT")
    if number is not None:
        edits.answer(root, key, number, text)
    elif text:
        edits.ask(root, key, text, by=by, remark=remark)
    queue = reading_queue.load(root)
    asked = {p.key: questions.load(root, p.key) for p in ([queue[key]] if key else queue)}
    for name, listed in asked.items():
        for place, question in enumerate(listed, 1):
            state = question.state if question.kind == "question" else "remark"
            _print(f"{name} {place} ({state}; {question.origin}): {question.text}")
            _print(f"    {question.answer}") if question.answer else None
    if not any(asked.values()):
        _print(f'Nobody asked anything yet: labkit ask {key or "KEY"} "…"')


@commands.command()
def panel(
    name: str = typer.Argument(
        help=f"{', '.join(panels.PANELS)}.", autocompletion=lambda: [*panels.PANELS]
    ),
    profile: str = typer.Option(
        "", help="Your own: a CSV file of the engine's profile, trace or requests, or a name."
    ),
    model: str = typer.Option("", help="Your own: a config.json, or a preset."),
    port: int = PORT,
    browser: bool = BROWSER,
) -> None:
    """Move an engine's parameters and watch its figures; Voilà serves it to this machine alone.

    Every value is computed when you ask for it; a line under the figures is the command that
    prints the same. The address carries a token; Ctrl-C ends the panel.

    [bold]Examples[/bold]

      [cyan]labkit panel pipeline[/cyan]                      clocks, frontier, memory of a plan
      [cyan]labkit panel memory --model llama-3-70b[/cyan]    does it fit, and what would make it
      [cyan]labkit panel cluster --profile jobs.csv[/cyan]    a trace of your own
    """
    profile, model = (
        str(Path(text).resolve()) if text and Path(text).exists() else text
        for text in (profile, model)
    )
    made = panels.built(name, profile=profile, model=model)
    extras.need("`labkit panel`", "lab", "voila", "anywidget")
    from labkit.workbook.session import server

    _print("drawing its figures once; what computes them is compiled the first time, in seconds")
    panels.drawn_once(made)  # what is wrong is said here, not in a page, which then need not wait
    with _served_folder() as root:
        place = server.address(port=port)
        path = server.PANELS / f"{name}-{place.port}.ipynb"  # no other server has this port
        write_atomically(root / path, panels.notebook(name, profile, model))
        page = f"/voila/render/{path.as_posix()}"
        _print(f"{place.url(page)}  (Ctrl-C ends it)")
        server.serve(root, page, place, _flags(browser, allow_root=True))


@contextmanager
def _served_folder() -> Iterator[Path]:
    """Where a panel's notebook and its server's settings stand: in the workbook's folder, outside a
    workbook in one that goes when the panel ends."""
    if (root := workbook_around()) is not None:
        yield root
        return
    with TemporaryDirectory(prefix="labkit-panel-") as folder:
        yield Path(folder)


def _flags(browser: bool, allow_root: bool) -> list[str]:
    return [f"--ServerApp.open_browser={browser}", f"--ServerApp.allow_root={allow_root}"]


def _print(line: str) -> None:
    Console(highlight=False, markup=False, soft_wrap=True).print(line)
