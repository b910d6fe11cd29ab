"""``labkit queue``: what to read next, why, and how far each paper has come."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from labkit.errors import UsageError
from labkit.files import project_root, write_atomically
from labkit.kit.command import completing, deliver, is_stdout

if TYPE_CHECKING:
    from labkit.workbook.queue.bibliography import Entry
    from labkit.workbook.queue.reading_queue import Paper, Queue

COLOURS = {
    "reading": "bold yellow",
    "queued": "cyan",
    "reviewed": "green",
    "presented": "blue",
    "dropped": "bright_black",
}
MANY_AUTHORS = 8
WIDE = 120
MAX_TAGS = 40
MIN_TITLE = 20
MAX_CARD = 100  # columns; tags show from WIDE on

commands = typer.Typer(
    name="queue",
    rich_markup_mode="rich",
    help="""
    The reading queue: what to read next, why, and how far each paper has come.

    A paper is queued → reading → reviewed → presented, or dropped with a reason.
    The queue is reading_queue.yaml, its bibliography data/papers.bib: edit both by hand
    or here, comments and order stay.

    [bold]Examples[/bold]

      [cyan]labkit queue[/cyan]                             the whole queue
      [cyan]labkit queue -s queued -t pipeline[/cyan]       a part of it
      [cyan]labkit queue next[/cyan]                        what to read now, and why
      [cyan]labkit queue add 2309.06180 --why "…"[/cyan]    from arXiv (or a DOI)
      [cyan]labkit queue add paper.bib[/cyan]               from BibTeX, no network needed
      [cyan]labkit queue start farm --presenter Ann[/cyan]
      [cyan]labkit queue plan zeus --presenter Ann --date 2026-03-14[/cyan]
      [cyan]labkit queue done farm[/cyan]                   the review is written
      [cyan]labkit queue done zeus --presented[/cyan]       and the group has heard it
      [cyan]labkit queue export -t energy -o energy.bib[/cyan]
    """,
)


def _load() -> Queue:
    from labkit.workbook.queue.reading_queue import load

    return load(project_root())


complete_keys = completing(lambda: [paper.key for paper in _load()])
_complete_tags = completing(lambda: sorted({tag for paper in _load() for tag in paper.tags}))
_complete_statuses = completing(lambda: COLOURS)

KEY = typer.Argument(..., metavar="KEY", help="A paper's key.", autocompletion=complete_keys)
STATUS = typer.Option(
    None,
    "--status",
    "-s",
    help="Only papers of this status; may be given again for more.",
    autocompletion=_complete_statuses,
)
TAG = typer.Option(
    None,
    "--tag",
    "-t",
    help="Only papers with this tag; given again, papers with all of them.",
    autocompletion=_complete_tags,
)
PRESENTER = typer.Option(None, "--presenter", help="Who presents it.")
SESSION = typer.Option(
    None, "--date", formats=["%Y-%m-%d"], help="The session's date, such as 2026-03-14."
)


@commands.callback(invoke_without_command=True)
def overview(context: typer.Context, status: list[str] = STATUS, tag: list[str] = TAG) -> None:
    if context.invoked_subcommand is not None:
        if status or tag:
            raise UsageError(
                f"give --status and --tag after {context.invoked_subcommand!r}, or without it"
            )
        return
    catalogue = _load()
    papers = catalogue.select(status=status or (), tags=tag or ())
    console = _console()
    if not len(catalogue):
        console.print("The queue is empty. Add a paper: labkit queue add paper.bib")
        return
    if not papers:
        console.print("No paper has all of that; `labkit queue` shows every one.")
        return
    console.print(table(catalogue, papers, console.width))
    print_summary(console, catalogue, papers)


@commands.command("next")
def next_paper(
    count: int = typer.Option(1, "--count", "-n", min=1, help="How many papers to show."),
) -> None:
    """What to read now: the first queued paper by priority, and why we want to.

    [bold]Example[/bold]: [cyan]labkit queue next -n 3[/cyan]
    """
    catalogue = _load()
    console = _console()
    reading = catalogue.select(status=["reading"])
    if reading:
        console.print(f"Being read: {', '.join(paper.key for paper in reading)}", style="yellow")
    waiting = catalogue.select(status=["queued"])[:count]
    for paper in waiting:
        console.print(card(catalogue, paper, console.width))
    if not waiting:
        console.print("Nothing is queued. Add a paper: labkit queue add 2309.06180")
        return
    console.print(f"Start it: [cyan]labkit queue start {waiting[0].key}[/cyan]")


@commands.command()
def show(
    key: str = KEY, bibtex: bool = typer.Option(False, "--bibtex", help="Its BibTeX entry instead.")
) -> None:
    """Everything about one paper: why, tags, companions, session, links, notebook.

    [bold]Example[/bold]: [cyan]labkit queue show zeus[/cyan]
    """
    catalogue = _load()
    if bibtex:
        typer.echo(catalogue.entry(key).text)
        return
    console = _console()
    console.print(card(catalogue, catalogue[key], console.width))


@commands.command()
def search(
    words: list[str] = typer.Argument(..., metavar="WORD...", help="All must occur somewhere."),
) -> None:
    """Find papers by key, title, author, venue, year, tag or reason.

    Case and accents do not matter. [bold]Examples[/bold]:
    [cyan]labkit queue search recomputation[/cyan],
    [cyan]labkit queue search narayanan 2019[/cyan]
    """
    catalogue = _load()
    papers = catalogue.search(" ".join(words))
    console = _console()
    if not papers:
        console.print(f"No paper holds {' and '.join(map(repr, words))}.")
        raise typer.Exit(1)
    console.print(table(catalogue, papers, console.width))


@commands.command()
def add(
    source: str = typer.Argument(
        ...,
        metavar="SOURCE",
        help="A .bib file, a BibTeX entry in quotes, - (BibTeX on standard input), an arXiv id, "
        "a DOI, a link to either, or a key that data/papers.bib has already.",
    ),
    key: str = typer.Option("", "--key", "-k", help="The paper's key here, such as zeus."),
    why: str = typer.Option("", "--why", "-w", help="Why we want to read it, one sentence."),
    tag: list[str] = typer.Option(
        None, "--tag", "-t", help="A tag; again for more.", autocompletion=_complete_tags
    ),
    companion: list[str] = typer.Option(
        None,
        "--companion",
        "-c",
        help="A paper to read beside it; again for more.",
        autocompletion=complete_keys,
    ),
    priority: int = typer.Option(2, "--priority", "-p", help="1 next, 2 soon, 3 some day."),
) -> None:
    """Add a paper to the queue and its entry to the bibliography, both or neither.

    [bold]Examples[/bold]

      [cyan]labkit queue add paper.bib --why "…" --tag energy[/cyan]
      [cyan]labkit queue add 2309.06180 --key vllm --priority 1[/cyan]     from arXiv
      [cyan]labkit queue add 10.1145/1327452.1327492 --key mapreduce[/cyan]    by its DOI
      [cyan]pbpaste | labkit queue add - --key pasted[/cyan]    from the clipboard
    """
    from labkit.workbook.queue import edits, intake

    catalogue = _load()
    entries = intake.read(source, catalogue.library, key=key)
    if not why and source != "-" and sys.stdin.isatty():
        why = typer.prompt("Why do we want to read it (empty to say later)", default="")
    papers = intake.papers(
        entries, priority=priority, why=why, tags=tag or (), companions=companion or ()
    )
    edits.add(catalogue.root, [entry.text for entry in entries], papers)
    console = _console()
    for entry in entries:
        console.print(f"[green]added[/green] [bold]{entry.key}[/bold]: ", end="")
        console.print(f"{entry.cite()}. {entry.title}", markup=False, highlight=False)
    if not why:
        console.print("Say why in reading_queue.yaml, or with --why next time.", style="yellow")


@commands.command()
def start(key: str = KEY, presenter: str = PRESENTER, day: datetime = SESSION) -> None:
    """Begin to read: queued → reading. A dropped paper is taken up again.

    [bold]Example[/bold]: [cyan]labkit queue start farm --presenter Ann --date 2026-03-14[/cyan]
    """
    from labkit.workbook.queue import edits

    paper = edits.start(project_root(), key, presenter=presenter, date=day and day.date())
    _print_change(paper)
    _console().print(f"Write its review: [cyan]labkit new {key}[/cyan]")


@commands.command()
def plan(key: str = KEY, presenter: str = PRESENTER, day: datetime = SESSION) -> None:
    """Say who presents a paper, and when; its status stays.

    [bold]Example[/bold]: [cyan]labkit queue plan zeus --presenter Ann --date 2026-03-14[/cyan]
    """
    from labkit.workbook.queue import edits

    date = day and day.date()
    _print_change(edits.plan(project_root(), key, presenter=presenter, date=date))


@commands.command()
def done(
    key: str = KEY,
    presented: bool = typer.Option(
        False, "--presented", help="The group has heard it: reading or reviewed → presented."
    ),
    presenter: str = PRESENTER,
    day: datetime = SESSION,
) -> None:
    """The review is written: reading → reviewed; with --presented it becomes presented.

    Without --date, --presented keeps the session's date, or else writes today's.

    [bold]Examples[/bold]

      [cyan]labkit queue start farm && labkit queue done farm[/cyan]    its review is written
      [cyan]labkit queue done zeus --presented --presenter Ann[/cyan]
    """
    from labkit.workbook.queue import edits

    root = project_root()
    date = day and day.date()
    _print_change(edits.done(root, key, presented=presented, presenter=presenter, date=date))


@commands.command()
def drop(
    key: str = KEY,
    reason: str = typer.Option(..., "--reason", "-r", help="Why we shall not read it."),
) -> None:
    """Take a paper off the list, with the reason: queued or reading → dropped.

    [bold]Example[/bold]: [cyan]labkit queue drop cswap --reason "needs a GPU we lack"[/cyan]
    """
    from labkit.workbook.queue import edits

    _print_change(edits.drop(project_root(), key, reason))


@commands.command()
def move(
    key: str = KEY,
    priority: int = typer.Option(None, "--priority", "-p", help="1 next, 2 soon, 3 some day."),
    before: str = typer.Option(
        None, "--before", help="Right before this paper.", autocompletion=complete_keys
    ),
    after: str = typer.Option(
        None, "--after", help="Right after this paper.", autocompletion=complete_keys
    ),
) -> None:
    """Change when a paper's turn comes: by priority, or beside another paper.

    Before or after another paper it also gets that paper's priority.
    [bold]Examples[/bold]: [cyan]labkit queue move orca --priority 1[/cyan],
    [cyan]labkit queue move orca --before kungfu[/cyan]
    """
    from labkit.workbook.queue import edits

    paper = edits.move(project_root(), key, priority=priority, before=before, after=after)
    waiting = [other.key for other in _load().select(status=["queued"])]
    turn = f", number {waiting.index(key) + 1} of {len(waiting)} waiting" if key in waiting else ""
    _print_change(paper, f"priority {paper.priority}{turn}")


@commands.command()
def export(
    keys: list[str] = typer.Argument(
        None, metavar="[KEY]...", help="Papers. Default: all.", autocompletion=complete_keys
    ),
    status: list[str] = STATUS,
    tag: list[str] = TAG,
    output: Path = typer.Option(Path("-"), "--output", "-o", help="A file instead of the screen."),
) -> None:
    """BibTeX of a selection, as it stands in the bibliography (Zotero and papis read it).

    [bold]Examples[/bold]: [cyan]labkit queue export zeus envpipe[/cyan],
    [cyan]labkit queue export --status reviewed -o reviewed.bib[/cyan]
    """
    from labkit.workbook.queue import bibliography

    catalogue = _load()
    chosen = catalogue.select(status=status or (), tags=tag or ())
    if keys:
        asked = {key: catalogue[key] for key in keys}
        chosen = [paper for paper in asked.values() if paper in chosen]
    text = "\n\n".join(catalogue.entry(paper.key).text for paper in chosen)
    if output.resolve() == (catalogue.root / bibliography.FILE).resolve():
        raise UsageError(f"{output} is the bibliography itself; name another file")
    deliver(output, lambda path: write_atomically(path, text + "\n"))
    if is_stdout(output):
        return
    count = "1 entry" if len(chosen) == 1 else f"{len(chosen)} entries"
    _console().print(f"{count} in {output}", markup=False)


def _console() -> Console:
    return Console(highlight=False)


def _print_change(paper: Paper, text: str = "") -> None:
    line = Text(paper.key, style="bold").append(" is ", style="not bold")
    line.append(text or paper.status, style="not bold" if text else COLOURS[paper.status])
    detail = [paper.presenter, str(paper.date or ""), paper.reason]
    shown = ", ".join(part for part in detail if part)
    _console().print(line.append(f" ({shown})" if shown and not text else "", style="not bold"))


# ---------------------------------------------------------------- how it looks


def table(catalogue: Queue, papers: Sequence[Paper], width: int) -> Table:
    rows = [_row(catalogue, paper) for paper in papers]
    hidden = {name for name in ("Session", "Tags") if not any(row[name] for row in rows)}
    if width < WIDE:
        hidden.add("Tags")
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown = [name for name in rows[0] if name not in hidden]
    for name in shown:  # the title alone gives way where all do not fit
        style = "" if name in ("Paper", "Status", "Title", "Session") else "dim"
        least, most = {"Title": (MIN_TITLE, None), "Tags": (None, MAX_TAGS)}.get(name, (None, None))
        fixed = name != "Title"
        result.add_column(name, no_wrap=fixed, style=style, min_width=least, max_width=most)
    look: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}
    for status, of_status in groupby(rows, key=lambda row: row["Status"]):
        styles = {"Paper": "bold", "Status": COLOURS[status]}
        for row in of_status:
            result.add_row(*(Text(row[name], styles.get(name, ""), **look) for name in shown))
        result.add_section()
    return result


def _row(catalogue: Queue, paper: Paper) -> dict[str, str]:
    entry = catalogue.library[paper.key]
    return {
        "P": str(paper.priority),
        "Paper": paper.key,
        "Status": paper.status,
        "Title": _short_title(entry, paper),
        "Venue": f"{entry.venue} {entry.year}",
        "Session": " ".join(filter(None, (str(paper.date or ""), paper.presenter))),
        "Tags": ", ".join(paper.tags),
    }


def _short_title(entry: Entry, paper: Paper) -> str:
    """The title without the system's name where that is the key already."""
    from labkit.workbook.queue.reading_queue import as_key

    name, colon, rest = entry.title.partition(": ")
    return rest if colon and as_key(name) == paper.key else entry.title


def print_summary(console: Console, catalogue: Queue, shown: Sequence[Paper]) -> None:
    counts = {name: sum(paper.status == name for paper in shown) for name in COLOURS}
    parts = [Text(f"{n} {name}", style=COLOURS[name]) for name, n in counts.items() if n]
    total = f"{len(shown)} papers" if len(shown) != 1 else "1 paper"
    part = f" of {len(catalogue)}" if len(shown) < len(catalogue) else ""
    console.print(Text(f"\n{total}{part}: ").append_text(Text(", ").join(parts)))
    waiting = catalogue.select(status=["queued"])
    if waiting and len(shown) == len(catalogue):
        console.print(
            f"Next: [bold]{waiting[0].key}[/bold]; [cyan]labkit queue next[/cyan] says why, "
            "[cyan]labkit queue show KEY[/cyan] tells more of any paper."
        )


def card(catalogue: Queue, paper: Paper, width: int) -> RenderableType:
    entry = catalogue.library[paper.key]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(catalogue, paper):
        facts.add_row(name, value)
    head = [
        Text(entry.title, style="bold"),
        Text(_authors(entry)),
        Text(entry.where, style="dim"),
        Text(entry.link, style="blue", overflow="fold"),
    ]
    body = Group(*filter(None, head), Text(), facts)
    status = f"[{COLOURS[paper.status]}]{paper.status}[/], priority {paper.priority}"
    return Panel(
        body,
        title=f"[bold]{paper.key}[/bold] ({status})",
        title_align="left",
        padding=(1, 2),
        width=min(MAX_CARD, width),
    )


def _facts(catalogue: Queue, paper: Paper) -> list[tuple[str, str]]:
    from labkit.workbook import notebooks

    session = ", ".join(filter(None, (str(paper.date or ""), paper.presenter)))
    beside = "\n".join(
        f"{key} ({catalogue[key].status}): {_short_title(catalogue.library[key], catalogue[key])}"
        for key in paper.companions
    )
    path = notebooks.paths(catalogue.root).get(paper.key)
    notebook = path.relative_to(catalogue.root) if path else f"none: labkit new {paper.key}"
    facts = [
        ("Why", paper.why or "not said yet"),
        ("Dropped", paper.reason),
        ("Session", session),
        ("Tags", ", ".join(paper.tags)),
        ("Beside", beside),
        ("Notebook", str(notebook)),
    ]
    return [(name, value) for name, value in facts if value]


def _authors(entry: Entry) -> str:
    rest = len(entry.authors) - MANY_AUTHORS
    if rest > 1:
        return ", ".join(entry.authors[:MANY_AUTHORS]) + f" and {rest} more"
    return ", ".join(entry.authors) + (", et al." if entry.et_al else "")
