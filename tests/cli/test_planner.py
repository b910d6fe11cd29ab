"""``labkit planner`` as a person meets it: tables, JSON, files, errors and exit codes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from labkit import planner
from labkit.planner.commands import commands
from tests.cli.conftest import Ran, Refused, Told

GROUP = "planner"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Six equal layers, nearly all weights in the last."""
    chain = planner.Chain.even(6, forward_s=0.1, backward_s=0.2, cut_bytes=1e6)
    path = tmp_path / "chain.csv"
    chain.frame().assign(parameter_bytes=[1e6] * 5 + [1e9]).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("line", commands.examples)
def test_every_example_runs(ran: Ran, line: str) -> None:
    out, err = ran(*shlex.split(line)[2:])
    assert out
    assert not err


def test_plan_is_the_engines(told: Told, profile: Path) -> None:
    answer = told("plan", profile, "-d", 4, "--bandwidth", "1GB")
    plan = planner.plan(
        planner.Chain.read(profile), planner.Fabric.flat(4, bandwidth_bytes_per_s=1e9)
    )
    assert answer["plan"]["name"] == plan.name
    assert answer["plan"]["cost_s"] == pytest.approx(plan.cost_s)
    assert answer["plan"]["gap"] == 0
    assert [row["replicas"] for row in answer["stages"]] == plan.name.split("-")
    assert [row["bandwidth"] for row in answer["bandwidth"]] == [0.25, 0.5, 2, 4]
    assert all(row["regret_fraction"] >= 0 for row in answer["bandwidth"])


def test_two_levels_and_microbatches(told: Told, profile: Path) -> None:
    two = told("plan", profile, "-d", 4, "--inside", 2)
    assert two["plan"]["num_devices"] == 4
    assert two["bandwidth"] == []
    once = told("plan", profile, "-d", 4, "--objective", "latency", "-m", 8)
    assert once["plan"]["gap"] == pytest.approx(0, abs=2e-6)


def test_compare_has_a_row_for_every_costing_and_rate(
    told: Told, profile: Path, tmp_path: Path, ran: Ran
) -> None:
    page = tmp_path / "page.html"
    rows = tmp_path / "rows.csv"
    answer = told("compare", profile, "-d", 4, "--bandwidths", "0.1,1")
    assert len(answer["plans"]) == 8
    assert all(row["speedup"] >= 1 for row in answer["plans"])
    assert all(row["cost_s"] >= row["perfect_s"] * (1 - 1e-12) for row in answer["plans"])
    ran("compare", profile, "--csv", rows)
    assert len(rows.read_text().splitlines()) == 5
    out, _ = ran("plan", profile, "-d", 4, "--html", page)
    assert "limits it" in " ".join(out.split())
    assert "plotly" in page.read_text().lower()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("plan", "vgg61"), "did you mean 'vgg16'"),
        (("plan", "PROFILE", "--objective", "speed"), "no objective 'speed'"),
        (("plan", "PROFILE", "--costing", "rings"), "did you mean 'ring'"),
        (("plan", "PROFILE", "--bandwidth", "fast"), "is no number of bytes"),
        (("plan", "PROFILE", "--bandwidth", "1GB,2GB"), "must be one number of bytes"),
        (("plan", "PROFILE", "-d", 6, "--inside", 4), "no multiple of --inside 4"),
        (("plan", "PROFILE", "-d", 0), "count must be a whole number, at least 1"),
        (("plan", "PROFILE", "-m", 4), "belongs to objective 'latency' or 'flush'"),
        (("compare", "PROFILE", "--inside", 4), "compare takes links that are all alike"),
    ],
)
def test_refusals(
    refused: Refused, profile: Path, arguments: tuple[object, ...], problem: str
) -> None:
    answer = refused(*(profile if a == "PROFILE" else a for a in arguments))
    assert problem in answer


def test_split_is_the_engines_and_beats_its_rivals(told: Told) -> None:
    answer = told("split", "alexnet", "-d", 4, "--batch", 128, "--tflops", 8)
    fabric = planner.Fabric.flat(4, bandwidth_bytes_per_s=1.25e9)
    network = planner.network("alexnet", batch=128)
    best = planner.choose(planner.split(network, fabric, flops_per_s=8e12).problem)
    assert answer["step_s"] == pytest.approx(best.cost)
    assert answer["bound_s"] == pytest.approx(best.bound)
    assert answer["layouts"] == best.plan
    assert min(answer["rivals_s"].values()) >= answer["step_s"]
    covered = sum(row["operators"] for row in answer["stretches"])
    assert covered == len(best.plan) - 1  # the images are there already
    seconds = [
        row["compute_s"] + row["transfers_s"] + row["gradients_s"] for row in answer["stretches"]
    ]
    assert sum(seconds) == pytest.approx(best.cost)


def test_split_with_fewer_samples_than_devices_has_no_data_parallelism(told: Told) -> None:
    assert told("split", "alexnet", "-d", 4, "--batch", 2)["rivals_s"] == {}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("vgg61",), "vgg16"),
        (("vgg16", "--batch", 0), "batch"),
        (("vgg16", "--tflops", "nan"), "flops_per_s"),
        (("vgg16", "-d", 0), "must be a whole number, at least 1"),
    ],
)
def test_split_refuses_with_the_name(
    refused: Refused, asked: tuple[object, ...], message: str
) -> None:
    assert message in refused("split", *asked)
