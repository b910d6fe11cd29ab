"""What ``--help`` shows to type runs as it stands, on a workbook with stored results and no data.

``tests/typed.py`` says how a line is run that serves or takes minutes. The engines' examples are
run by the tests of each engine; here it is checked that their help shows no others.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from labkit import ENGINES
from labkit.cli import app, main
from labkit.workbook import notebooks
from labkit.workbook.queue import intake
from labkit.workbook.review import claims
from labkit.workbook.run import parameters, results
from tests.typed import ROOT, runnable, workbook

SPAN = re.compile(r"\[cyan\](.+?)\[/cyan\]|`([^`]+)`", re.DOTALL)
STYLES = ("bold", "/bold", "cyan", "/cyan", "green", "/green")
OF_DATA = r"labkit data (fetch|path|verify --remote)\b"
"""Commands that say what to do, and end with 1, where there is neither data nor a network."""
ENTRY = "@misc{{x, title={{Named: {0}}}, author={{Bell, Ann}}, year={{2023}}}}"


@cache
def commands() -> dict[str, Any]:
    """Every command by what a reader types, such as ``labkit queue add``."""
    roots: dict[tuple[str, ...], Any] = {("labkit",): typer.main.get_command(app)}
    for engine in ENGINES:
        made = import_module(f"labkit.{engine.name}.commands").commands.app
        roots["labkit", engine.name] = typer.main.get_group(made)
    return dict(pair for path, root in roots.items() for pair in below(path, root))


def below(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, further in getattr(command, "commands", {}).items():
        yield from below((*path, name), further)


def texts(command: Any) -> list[str]:
    """All that its help shows: the text, and a line for each option and argument."""
    helps = [getattr(parameter, "help", "") for parameter in command.params]
    return [text for text in (command.help, command.epilog, *helps) if text]


def typed(command: Any) -> list[str]:
    """The lines that a command's help shows to type, placeholders such as KEY left out."""
    spans = [found for text in texts(command) for found in SPAN.findall(text)]
    lines = [" ".join((cyan or quoted).replace("\\[", "[").split()) for cyan, quoted in spans]
    own = [line for line in lines if re.search(r"(^|[|(] ?)labkit ", line)]
    return [line for line in dict.fromkeys(own) if not any(map(is_name, shlex.split(line)))]


def is_name(word: str) -> bool:
    """Whether a word stands for what a reader says there, as KEY does."""
    return word.isalpha() and word.isupper()


def of_engine(name: str) -> str:
    """The engine that a command is of; empty where it is the workbook's."""
    words = name.split()
    known = {engine.name for engine in ENGINES}
    return words[1] if len(words) > 1 and words[1] in known else ""


def shown() -> dict[str, list[str]]:
    """The lines of each of the workbook's commands; a line of two helps is the deeper one's."""
    lines: dict[str, list[str]] = {}
    told: set[str] = set()
    for name in sorted(commands(), key=lambda name: -len(name.split())):
        if not of_engine(name):
            lines[name] = [line for line in typed(commands()[name]) if line not in told]
            told.update(lines[name])
    return lines


SHOWN = shown()


@pytest.fixture
def scratch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A workbook of the papers that a help's examples name, with the runs that these name."""
    lines = " ".join(SHOWN[request.getfixturevalue("name")])
    every = notebooks.paths(ROOT)
    named = [key for key in every if re.search(rf"(?<![\w-]){key}(?![\w-])", lines)]
    papers = named or ["zeus"]
    root = workbook(tmp_path / "workbook", papers)
    found = re.findall(r"\b(?:eta_knob|seed)=[\d.]+(?![\d.,])", lines)
    for key in papers:
        store(root, key, {})
    for text in dict.fromkeys(found):
        store(root, "zeus", dict([text.split("=")]))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "pbpaste").write_text(
        "#!/bin/sh\necho '@misc{p, title={T}, author={B, A}, year=2020}'\n"
    )
    (programs / "pbpaste").chmod(0o755)
    beside = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    for variable, value in {
        "PATH": os.pathsep.join(beside),
        "PYTHONPATH": str(ROOT),
        "LABKIT_ROOT": str(root),
        "LABKIT_CACHE": str(tmp_path / "cache"),
        "LABKIT_DATA_MIRROR": "",
        "LABKIT_OFFLINE": "1",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(intake, "_get", lambda identifier: ENTRY.format(identifier.value))
    monkeypatch.chdir(root)
    return root


def store(root: Path, key: str, overrides: dict[str, str]) -> None:
    """Store what the committed notebook shows as the result of a run."""
    path = notebooks.path_of(root, key)
    notebook = notebooks.read(path)
    declared = notebooks.parameters(notebook)
    changed = {
        name: parameters.coerce(text, declared[name].annotation) for name, text in overrides.items()
    }
    slug = results.slug_of(changed)
    stored = claims.from_notebook(notebook)
    files = {f"{key}.ipynb": path.read_text(encoding="utf-8"), "claims.json": results.dumps(stored)}
    values = {name: parameter.default for name, parameter in declared.items()} | changed
    meta = {"key": key, "slug": slug, "parameters": values, "overrides": changed, "metrics": {}}
    results.store(root, key, slug, files, meta)


@pytest.mark.parametrize("name", [name for name, lines in SHOWN.items() if lines])
def test_examples_work_as_they_stand(
    name: str, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of one command's help in order, as a reader tries them."""
    for line in SHOWN[name]:
        for part in line.split(" && "):
            code, shown = outcome(part, capsys)
            may_lack = re.search(OF_DATA, part) and "LABKIT_" in shown
            may_find = part.startswith("labkit check") and "finding" in shown
            assert code == 0 or (code == 1 and (may_lack or may_find)), f"{part}\n{shown}"


def outcome(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a line and what it printed; a shell's own signs are run by a shell."""
    if re.search(r"[|$]", line):
        script = f"set -euo pipefail; {line}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    arguments = [os.path.expanduser(word) for word in shlex.split(runnable(line))]
    code = main(arguments[1:])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("engine", [engine.name for engine in ENGINES])
def test_an_engines_help_shows_the_examples_that_its_tests_run(engine: str) -> None:
    made = import_module(f"labkit.{engine}.commands").commands
    own = [command for name, command in commands().items() if of_engine(name) == engine]
    shown = {line for command in own for line in typed(command)}
    assert set(made.examples) <= shown
    assert {line for line in shown if len(line.split()) > 3} <= {*made.examples}
    tests = (ROOT / "tests" / "cli" / f"test_{engine}.py").read_text(encoding="utf-8")
    assert "commands.examples" in tests


@pytest.mark.parametrize("name", commands())
def test_every_line_that_is_shown_has_the_options_there_are(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where another test runs it, and in the middle of a sentence."""
    for line in typed(commands()[name]):
        for part in re.split(r" && | \| ", line):
            inner = re.search(r"\$\((.+)\)", part)
            words = shlex.split(inner[1] if inner else part)
            words = words if words[0] == "labkit" else []
            words = words[: words.index("--")] if "--" in words else words
            if words:
                assert main([*words[1:], "--help"]) == 0, part


@pytest.mark.parametrize("name", commands())
def test_no_bracket_of_a_help_text_is_taken_for_a_style(name: str) -> None:
    """As in pip install '.[lab]', of which Rich leaves '.' where the bracket is not escaped."""
    for text in texts(commands()[name]):
        tags = re.findall(r"(?<!\\)\[([a-z/][^\]]*)\]", text)
        assert set(tags) <= set(STYLES), text


def test_the_extras_of_lab_are_in_its_help() -> None:
    shown = CliRunner().invoke(app, ["lab", "--help"], env={"COLUMNS": "200"}).stdout
    assert "pip install 'mlsys-labkit[collab]'" in Text.from_ansi(shown).plain
