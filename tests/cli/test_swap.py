"""``labkit swap`` as a person runs it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit import swap
from labkit.swap.commands import commands

GROUP = "swap"


@pytest.mark.parametrize("example", commands.examples)
def test_examples_work_as_they_stand(example: str, ran: Callable[..., tuple[str, str]]) -> None:
    pytest.importorskip("torch")
    program, group, *arguments = shlex.split(example)
    assert (program, group) == ("labkit", GROUP)
    assert ran(*arguments)[0]


def test_every_method_is_compared(told: Callable[..., dict[str, Any]]) -> None:
    rows = {row["method"]: row for row in told("compare", "--layers", 0, "--blocks", 16)["rows"]}
    assert list(rows) == list(swap.METHODS)
    assert rows["all-kept"]["added_cost_fraction"] == 0
    assert rows["square-root"]["peak_bytes"] == 3 * 4 + 2


def test_a_page_shows_the_methods_beside_the_optimum(
    ran: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    page = tmp_path / "swap.html"
    ran("compare", "--layers", 0, "--blocks", 16, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert "exact optimum" in text
    assert "square-root" in text


def test_a_plan_is_its_operations(told: Callable[..., dict[str, Any]]) -> None:
    answer = told("plan", "--layers", 0, "--blocks", 8, "--method", "recursive")
    assert max(row["live_bytes"] for row in answer["operations"]) == answer["peak_bytes"] == 8
    assert sum(row["action"] == "backward" for row in answer["operations"]) == 8


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("plan", "--layers", 0, "--method", "squareroot"), "did you mean 'square-root'"),
        (("compare", "--layers", 7), "num_layers must be a whole number, at least 13"),
    ],
)
def test_wrong_use_names_the_rule(
    refused: Callable[..., str], arguments: tuple[object, ...], rule: str
) -> None:
    assert rule in refused(*arguments)
