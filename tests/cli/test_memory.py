"""``labkit memory`` as a person meets it: tables, JSON, pages, errors and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit import memory
from labkit.cli import main

MODEL = "tiny-gpt"


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that must succeed; gives standard output."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> str:
        code = main(["memory", *map(str, arguments)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


@pytest.fixture
def told(ran: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """What a command says as JSON on standard output."""

    def run(*arguments: object) -> dict[str, Any]:
        found = json.loads(ran(*arguments, "--json", "-"))
        assert found["command"] == arguments[0]
        return dict(found)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused as wrong use; gives its one paragraph."""

    def run(*arguments: object) -> str:
        assert main(["memory", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        return " ".join(captured.err.split())

    return run


Told = Callable[..., dict[str, Any]]


def plan(**parallel: Any) -> memory.Plan:
    return memory.Plan(
        model=memory.Model.preset(MODEL),
        parallel=memory.Parallel(**parallel),
        recipe=memory.Recipe.bf16_mixed(),
        batch=memory.Batch(seq=32),
    )


def test_plan_says_what_python_says(told: Told) -> None:
    found, same = told("plan", MODEL, "--dp", 4, "--zero", 3, "--seq", 32), plan(dp=4, zero=3)
    assert found["peak_bytes"] == same.peak_bytes
    assert found["peak_moment"] == same.peak_moment
    assert sum(one["num_bytes"] for one in found["components"]) == same.peak_bytes
    assert [one["moment"] for one in found["moments"]] == same.moments().index.tolist()
    assert found["assumptions"] == list(same.assumptions)
    assert found["traffic"]
    assert found["fits"]


def test_plan_shows_tables_and_writes_files(ran: Callable[..., str], tmp_path: Path) -> None:
    page, data = tmp_path / "plan.html", tmp_path / "plan.json"
    out = ran("plan", MODEL, "--dp", 4, "--seq", 32, "--html", page, "--json", data)
    for text in ("At the peak", "Moments of a step", "optimizer step", "all-reduce of gradients"):
        assert text in out
    assert "Moments of a step" in page.read_text()
    assert json.loads(data.read_text())["command"] == "plan"


def test_plan_takes_every_other_field_and_explains(ran: Callable[..., str], told: Told) -> None:
    away = ("offload_optimizer=cpu", "offload_gradients=cpu", "attention=eager")
    sets = [item for one in away for item in ("--set", one)]
    found = told("plan", MODEL, "--dp", 2, "--zero", 2, "--seq", 32, *sets)
    assert {one["place"] for one in found["elsewhere"]} == {"cpu"}
    text = ran("plan", MODEL, "--seq", 32, "--explain", "activation.mlp")
    assert "activation.mlp.up: l·(2·b·s·f)" in text


@pytest.mark.parametrize("vary", ["micro_batch", "seq", "layers", "dp", "zero"])
def test_fit_says_what_python_says(told: Told, vary: str) -> None:
    given = ("--seq", 32, "--headroom", 0.5, "--vary", vary)
    found = told("fit", MODEL, *given)
    same = memory.fit(plan(), vary=vary, device="H100-80GB", headroom=0.5)
    assert (found["value"], found["vary"]) == (same.value, vary)
    assert same.plan is not None
    assert found["peak_bytes"] == same.plan.peak_bytes <= found["usable_bytes"]


def test_sweep_has_a_row_for_every_combination(told: Told, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    axes = ("-a", "dp=1,8", "-a", "zero=0,3", "-a", "tp=1,3", "-a", "recompute=none,full")
    found = told("sweep", MODEL, "--seq", 32, *axes, "--csv", table)
    assert len(found["rows"]) == 16
    bad = [row for row in found["rows"] if row["tp"] == 3]
    assert all(row["peak_bytes"] is None and not row["fits"] for row in bad)
    assert all("must divide by tp (3)" in row["problem"] for row in bad)
    assert len(table.read_text().splitlines()) == 17


def test_check_and_compare(told: Told) -> None:
    pytest.importorskip("torch")
    found = told("check", MODEL, "--seq", 32, "--recipe", "fp32-adam")
    assert {one["difference_bytes"] for one in found["components"]} == {0}
    counts = told("compare", MODEL, "--seq", 32, "--dp", 8)
    assert "deepspeed" in counts["refused"]
    assert any(row["megatron"] for row in counts["components"])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("plan", "lama-2-7b"), "did you mean 'llama-2-7b'"),
        (("plan", "llama-2-7b", "--tp", 3), "heads (32) must divide by tp (3)"),
        (("plan", MODEL, "--dp", 2, "--world-size", 9), "world size must be dp"),
        (("plan", MODEL, "--seq", -4), "must be >= 1, got -4"),
        (("plan", MODEL, "--dp", 0), "dp must be >= 1, got 0"),
        (("plan", MODEL, "--recipe", "bf16"), "no recipe 'bf16'"),
        (("plan", MODEL, "--device", "H200"), "no accelerator 'H200'"),
        (("plan", MODEL, "--set", "colour=red"), "no field (--set) 'colour'"),
        (("plan", MODEL, "--set", "offload_optimizer=cpu"), "zero must be >= 1"),
        (("fit", MODEL, "--vary", "colour"), "no quantity to vary 'colour'"),
        (("sweep", MODEL), "--axis must be given"),
        (("sweep", MODEL, "-a", "dp"), "--axis must be NAME=V,V"),
        (("sweep", MODEL, "-a", "dpp=1"), "no axis 'dpp'; did you mean"),
        (("check", MODEL), "no master copy"),
        (("check", MODEL, "--oracle", "magic"), "no oracle 'magic'"),
    ],
)
def test_wrong_use_names_the_rule(
    refused: Callable[..., str], arguments: tuple[object, ...], rule: str
) -> None:
    assert rule in refused(*arguments)
