"""``labkit collectives`` as a person meets it: tables, JSON, files, errors and exit codes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from labkit import collectives
from labkit.collectives.commands import commands
from tests.cli.conftest import Ran, Refused, Told

GROUP = "collectives"


@pytest.mark.parametrize("line", commands.examples)
def test_every_example_runs(ran: Ran, line: str) -> None:
    out, err = ran(*shlex.split(line)[2:])
    assert out
    assert not err


def test_cost_is_the_engines(told: Told) -> None:
    answer = told("cost", "ring", "-n", 4, "--bandwidth", "1GB", "--bytes", "100MB")
    fabric = collectives.Fabric.flat(4, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    ring = collectives.cost(collectives.program("ring", 4, 100_000_000), fabric)
    assert answer["time_s"] == pytest.approx(ring.time_s)
    assert answer["bound_s"] == pytest.approx(0.15)
    assert len(answer["steps"]) == 6
    assert {link["num_bytes"] for link in answer["links"]} == {150_000_000}


def test_compare_has_a_row_for_every_algorithm(told: Told, ran: Ran, tmp_path: Path) -> None:
    answer = told("compare", "-n", 8, "--inside", 4, "--bytes", "1kB,1MB")
    names = {row["algorithm"] for row in answer["algorithms"]}
    assert {"ring", "tree", "hierarchical"} <= names
    assert len(answer["algorithms"]) == 2 * len(names)
    assert all(row["of_bound"] >= 1 for row in answer["algorithms"])
    page = tmp_path / "page.html"
    ran("compare", "--html", page)
    assert "plotly" in page.read_text().lower()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("cost", "rings"), "did you mean 'ring'"),
        (("cost", "tree", "--op", "all-to-all"), "no operation of 'tree' 'all-to-all'"),
        (("cost", "ring", "--op", "allreduce"), "did you mean 'all-reduce'"),
        (("cost", "ring", "--bytes", "0"), "must be at least one byte"),
        (("cost", "ring", "--bandwidth", "fast"), "is no number of bytes"),
        (("cost", "ring", "--bandwidth", "1GB,2GB"), "must be one number of bytes"),
        (("cost", "ring", "--latency", "nan"), "latency_s must be"),
        (("cost", "ring", "-n", 0), "must be a whole number, at least 1"),
        (("cost", "ring", "-n", 6, "--inside", 4), "no multiple of --inside 4"),
        (("cost", "hierarchical"), "'hierarchical' needs per_node"),
        (("compare", "--bytes", "1MB,"), "is no number of bytes"),
    ],
)
def test_wrong_requests_are_refused(refused: Refused, arguments: tuple, problem: str) -> None:
    assert problem in refused(*arguments)
