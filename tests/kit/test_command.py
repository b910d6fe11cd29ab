"""A command from one declaration: options, examples, every form of its report."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import plotly.graph_objects as go
import pytest
from rich.console import Console
from typer.testing import CliRunner

from labkit.errors import LabkitError, UsageError
from labkit.files import CONTROL, write_atomically
from labkit.kit import command
from labkit.kit.command import Commands, argument, option
from labkit.kit.report import Report, Sheet

commands = Commands("bench", "What a bench costs.")


@dataclass(frozen=True, kw_only=True)
class Load:
    workload: Annotated[str, argument("A workload.", metavar="WORKLOAD")]
    limit_w: Annotated[float, option("Power limit.", "--limit", panel="Power")] = 250.0


@commands.add(examples=["labkit bench cost cifar100 --limit 100", "labkit bench cost squad"])
def cost(
    load: Load,
    *,
    runs: Annotated[int, option("Runs.")] = 2,
    further: Annotated[Path | None, option("A further file.")] = None,
) -> Report:
    """The cost of a workload."""
    table = pd.DataFrame({"run": range(runs), "energy_j": 1234.5, "saving_fraction": 0.25})
    table.loc[1, "saving_fraction"] = float("nan")
    return Report(
        title=load.workload,
        facts=[("limit_w", load.limit_w, "as given")],
        tables=[Sheet(table=table, heading="Runs")],
        data={"command": "cost", "limit_w": load.limit_w, "rows": table.to_dict("records")},
        figures=lambda: [("Energy", "by run", go.Figure(go.Bar(x=[0, 1], y=[1, 2])))],
        notes=["nothing is measured"],
        files={"further": (further, lambda path: write_atomically(path, "a\r\n"))},
    )


@commands.add(examples=["labkit bench empty"])
def empty() -> Report:
    """A report of text."""
    return Report(text="nothing to show")


def run(*words: str) -> str:
    done = CliRunner().invoke(commands.app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_units_in_names_decide_how_numbers_print() -> None:
    text = run("cost", "cifar100", "--limit", "100")
    for part in ("limit  100 W", "as given", "1,234 J", "25.00 %", "Nothing is measured."):
        assert part in text


def test_nothing_that_a_terminal_obeys_reaches_it() -> None:
    hostile = "\x1b[31mred\x07\x9b1m"
    table = pd.DataFrame({"name": [hostile], hostile: [1]})
    report = Report(
        title=hostile,
        lead=hostile,
        facts=[(hostile, hostile, hostile)],
        tables=[Sheet(table=table, heading=hostile, note=hostile)],
        banner=hostile,
        notes=[hostile],
    )
    for shown in (report, Report(text=hostile)):
        written = io.StringIO()
        shown.print(Console(file=written, width=120))
        assert CONTROL.findall(written.getvalue()) == []
        assert "\\x1b[31mred" in written.getvalue()


def test_json_alone_on_standard_output() -> None:
    report = json.loads(run("cost", "cifar100", "--json", "-"))
    assert report["limit_w"] == 250.0
    assert report["rows"][1]["saving_fraction"] is None


@pytest.mark.parametrize("place", ["-", "/dev/stdout"])
def test_any_file_may_go_to_standard_output_and_comes_alone(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(pd.read_csv(io.StringIO(run("cost", "x", "--csv", place)))) == 2
    assert run("cost", "x", "--html", place).startswith("<!DOCTYPE html>")
    assert run("cost", "x", "--further", place) == "a\n"  # as the runner shows it
    assert list(tmp_path.iterdir()) == []
    assert Path("/dev/stdout").is_symlink()


def test_two_files_cannot_share_standard_output() -> None:
    done = CliRunner().invoke(commands.app, ["cost", "x", "--csv", "-", "--json", "-"])
    assert "CSV and JSON cannot both go to standard output" in str(done.exception)


@pytest.mark.parametrize("option", ["--json", "--csv", "--html"])
def test_an_output_that_cannot_be_written_is_named(option: str, tmp_path: Path) -> None:
    for place in (tmp_path / "file" / "x", Path("/proc/x")):
        (tmp_path / "file").write_text("")
        done = CliRunner().invoke(commands.app, ["cost", "x", option, str(place)])
        assert isinstance(done.exception, LabkitError)
        assert str(done.exception).startswith(f"cannot write {place}: ")


def test_a_full_standard_output_is_named() -> None:
    code = "from tests.kit.test_command import commands; commands.app()"
    for words in (["cost", "x"], ["cost", "x", "--json", "-"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-c", code, *words], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert "cannot write standard output: No space left on device" in done.stderr


def test_files_are_written_whole(tmp_path: Path) -> None:
    page, table, data = (tmp_path / name for name in ("a.html", "a.csv", "a.json"))
    run("cost", "x", "--html", str(page), "--csv", str(table), "--json", str(data))
    html = page.read_text(encoding="utf-8")
    assert "http://" not in html.split("</style>")[0]
    assert "<h2>Energy</h2>" in html
    assert "Nothing is measured." in html
    assert len(pd.read_csv(table)) == 2
    assert json.loads(data.read_text())["command"] == "cost"


def test_help_has_options_panels_and_examples() -> None:
    text = run("cost", "--help")
    for part in ("WORKLOAD", "--limit", "Power", "--json", "labkit bench cost squad"):
        assert part in text
    overview = run("--help")
    assert "labkit bench cost cifar100" in overview
    assert "labkit bench cost squad" not in overview, "one example a command"


def test_a_field_given_twice_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="options given twice: limit_w"):

        @commands.add(examples=[])
        def twice(load: Load, *, limit_w: Annotated[float, option("Again.")] = 1.0) -> Report:
            return Report(title=f"{load}{limit_w}")


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (command.numbers, "1,1.2,1", [1.0, 1.2, 1.0]),
        (command.whole_numbers, "2,4", [2, 4]),
        (command.byte_counts, "24GiB, 1e9", [24 * 2**30, 1e9]),
        (command.byte_counts, "24 gib,80 gb, 1KB", [24 * 2**30, 80 * 10**9, 1000]),
        (command.byte_count, "24 GIB", 24 * 2**30),
    ],
)
def test_texts_are_read_with_their_units(read, text: str, value: float | list[float]) -> None:
    assert read("--x", text) == value
    with pytest.raises(UsageError, match="--x: 'seven'"):
        read("--x", "seven")


def test_assignments_have_plain_values() -> None:
    texts = ["a=1", "b=1,2", "c=0.5", "d=true", "e-f=word"]
    values = command.assignments("--set", texts)
    assert values == {"a": 1, "b": [1, 2], "c": 0.5, "d": True, "e_f": "word"}
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        command.assignments("--set", ["a"])


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_narrow_terminal_loses_no_letter_of_a_table(width: int) -> None:
    rows = {"component": ["gathered layer"], "zero_bytes": [1.68e9], "deepspeed_bytes": [5.24e8]}
    rows |= {"megatron_bytes": [2.7e10], "torch_bytes": [4.05e8]}
    log = io.StringIO()
    Report(tables=[Sheet(table=pd.DataFrame(rows))]).print(Console(file=log, width=width))
    lines = [line for line in log.getvalue().splitlines() if line.strip()]
    assert max(map(len, lines)) <= width
    table = "component zero deepspeed megatron torch gathered layer 1.68 GB 524 MB 27 GB 405 MB"
    assert Counter("".join(log.getvalue().split())) == Counter("".join(table.split()))
