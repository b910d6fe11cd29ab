"""What the READMEs tell a reader to type runs, and what they point at is there.

`tests/README.md` says how a block is run, and how one is marked that is not.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from labkit.cli import app, main
from labkit.quantities import percent
from labkit.workbook import notebooks
from labkit.workbook.review import claims
from tests.typed import ROOT, runnable, workbook

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for room in ("labkit", "tests", "data") for path in (ROOT / room).rglob("*.md")),
]
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
FENCE = re.compile(r"```(\w*)")
FILE = re.compile(r"# ([\w-]+\.\w+):")
COMMENT = re.compile(r"\s+# .*$")
SPAN = re.compile(r"(?<!`)`(labkit [^`]+)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#[^)]*)?\)")


class Block(NamedTuple):
    kind: str
    lines: list[str]
    not_run: str
    """Why it is not run; empty where it is."""


@cache
def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, each with the reason in the comment before it."""
    found: list[Block] = []
    inside = False
    before = ""
    for line in document.read_text(encoding="utf-8").splitlines():
        if inside and line.startswith("```"):
            inside = False
        elif inside:
            found[-1].lines.append(line)
        elif fence := FENCE.match(line):
            reason = NOT_RUN.fullmatch(before)
            found.append(Block(fence[1], [], reason[1] if reason else ""))
            inside = True
        if line.strip():
            before = line.strip()
    assert not inside, "a block that does not end"
    return found


def over(documents: Iterable[Path]) -> pytest.MarkDecorator:
    """Once for each of the documents."""
    names = {path: path.relative_to(ROOT).as_posix() for path in documents}
    return pytest.mark.parametrize("document", names, ids=names.values())


def running(kind: str) -> list[Path]:
    """The documents with a block of this kind that is run."""
    return [
        path
        for path in DOCUMENTS
        if any(block.kind == kind and not block.not_run for block in blocks(path))
    ]


def prose(document: Path) -> str:
    """A document without its blocks."""
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)


def typed(block: Block) -> list[str]:
    """The command lines of a block, without the prompt and what the reader need not type."""
    lines = [line.removeprefix("$ ") for line in block.lines if line.startswith("$ ")]
    return [COMMENT.sub("", line) for line in lines]


# ---------------------------------------------------------------- what runs


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A workbook of our own to change, with a reader's files in it."""
    return workbook(tmp_path)


def run(command: list[str], folder: Path) -> None:
    beside = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": os.pathsep.join([beside, os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "LABKIT_ROOT": str(folder),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@over(running("console"))
def test_console_blocks_run(document: Path, scratch: Path) -> None:
    for block in blocks(document):
        name = FILE.match(block.lines[0]) if block.lines else None
        if name:
            (scratch / name[1]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
    for block in blocks(document):
        if block.kind == "console" and not block.not_run:
            assert typed(block), "no line begins with `$ `"
            script = "\n".join(map(runnable, typed(block)))
            run(["bash", "-euxo", "pipefail", "-c", script], scratch)


@pytest.mark.slow
@over(running("python"))
def test_python_blocks_run(document: Path, scratch: Path) -> None:
    """All of a document in one process, as a reader goes on typing."""
    parts = [b for b in blocks(document) if b.kind == "python" and not b.not_run]
    program = "\n".join(line for block in parts for line in block.lines)
    run([sys.executable, "-c", program], scratch)


@over(DOCUMENTS)
def test_every_command_of_ours_has_the_options_that_are_shown(document: Path) -> None:
    """Also where a block is not run, and in the middle of a sentence."""
    lines = [line for block in blocks(document) if block.kind == "console" for line in typed(block)]
    spans = [" ".join(span.split()) for span in SPAN.findall(prose(document))]
    for line in [line for line in [*lines, *spans] if line.startswith("labkit ")]:
        words = shlex.split(line)[1:]
        words = words[: words.index("--")] if "--" in words else words
        if not words[0].isupper():  # `labkit COMMAND --help`
            assert main([*words, "--help"]) == 0, line


@over(DOCUMENTS)
def test_what_is_not_run_says_why(document: Path) -> None:
    """And a comment that stands before no block, or is misspelt, is none."""
    reasons = [block.not_run for block in blocks(document) if block.not_run]
    assert len(re.findall(r"<!--.*not run", prose(document))) == len(reasons)
    assert all(len(reason.split()) > 2 for reason in reasons)


# ---------------------------------------------------------------- what is said


@over(DOCUMENTS)
def test_links_lead_to_files(document: Path) -> None:
    for target in LINK.findall(prose(document)):
        if target and "://" not in target:
            assert (document.parent / target).exists(), target


def rows_of_commands() -> dict[str, str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("\n| command | what it does |\n")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `labkit (\w+)` \| (.*) \|$", table, flags=re.M))


def test_the_table_has_every_command() -> None:
    command = typer.main.get_command(app)
    with command.make_context("labkit", ["queue"]) as context:
        assert set(rows_of_commands()) == set(command.list_commands(context))


@pytest.mark.parametrize(("command", "said"), rows_of_commands().items())
def test_each_command_answers_and_has_what_the_table_says(
    command: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    for name in re.findall(r"`([\w-]+)`", said):
        assert re.search(rf"\B{name}\b|[│|] {name}\b", shown), name


def test_the_example_is_what_the_notebook_says() -> None:
    """Its row in the README: the paper's number, ours, the rival's, the verdict and the rule."""
    stored = claims.from_notebook(notebooks.read(notebooks.path_of(ROOT, "zeus")))
    claim = next(record for record in stored if record["id"] == "zeus-energy-max")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| [Zeus]"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == percent(claim["paper_value"], 1)
    assert cells[3] == percent(claim["our_value"], 1)
    assert cells[4].startswith(percent(claim["flip_value"], 1))
    assert cells[5] == "✔ reproduced"
    assert claim["verdict"] == "reproduced"
    assert claim["flip_verdict"] != "reproduced"
    points = round(100 * claim["tolerance"])
    assert f"within {points} percentage points" in text


def test_the_picture_is_small_and_there() -> None:
    picture = ROOT / "data" / "pictures" / "scoreboard.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200_000
