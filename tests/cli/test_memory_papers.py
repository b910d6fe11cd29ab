"""``labkit memory papers`` and ``faults``."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from labkit.cli import main
from labkit.memory import FAULTS, published


def test_papers_counts_and_names_what_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["memory", "papers"]) == 0
    shown = capsys.readouterr().out
    table = published.claims()
    good = (table["verdict"] == "reproduced").sum()
    assert f"{good} of {len(table)}" in shown
    assert "unverified" in shown
    assert "comes out in binary" in shown


def test_papers_every_number_marked_where_unverified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "papers", "zero-offload", "--all", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["claims"]) == 8
    assert all(one["unverified"] for one in told["claims"])
    assert {one["verdict"] for one in told["claims"]} == {"reproduced"}


def test_papers_writes_a_page_and_a_table(tmp_path: Path) -> None:
    page, rows = tmp_path / "papers.html", tmp_path / "papers.csv"
    assert main(["memory", "papers", "llama-3", "--html", str(page), "--csv", str(rows)]) == 0
    assert "fits where it ran" in page.read_text(encoding="utf-8")
    pd.testing.assert_frame_equal(
        pd.read_csv(rows, keep_default_na=False, dtype={"printed": str}),
        published.claims(["llama-3"]),
        check_dtype=False,
    )


def test_faults_of_one_tool_and_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "faults", "cookbook", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)["faults"]
    assert {one["convention"] for one in told} == {"cookbook"}
    assert told[0]["told_over_right"] == 0.125
    assert main(["memory", "faults", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["faults"]) == len(FAULTS)


@pytest.mark.parametrize(
    ("asked", "said"),
    [(["papers", "zer0"], "did you mean 'zero'"), (["faults", "megatorn"], "mean 'megatron'")],
)
def test_unknown_names(asked: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", *asked]) == 2
    assert said in capsys.readouterr().err
