"""``labkit cluster`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit import cluster
from labkit.cluster.commands import commands
from tests.cli.conftest import Ran, Refused, Told

GROUP = "cluster"
SMALL = ("--jobs", 200, "--gpus", 32)


@pytest.mark.parametrize("line", commands.examples)
def test_examples_work_as_they_stand(line: str, ran: Ran) -> None:
    out, _ = ran(*line.split()[2:])
    assert "generated" in out


def test_simulate_says_what_python_says(told: Told) -> None:
    answer = told("simulate", "--policy", "srsf", *SMALL, "--seed", 3)
    trace = cluster.generate(200, num_gpus=32, load=0.9, rng=3)
    gpus = cluster.Cluster.nodes(4)
    run = cluster.simulate(trace, gpus, cluster.srsf())
    assert answer["mean_jct_s"] == run.summary()["mean_jct_s"]
    assert answer["bound_jct_s"] == cluster.bound(trace, gpus).mean_jct_s


def test_a_file_of_jobs_is_replayed_and_a_job_explained(
    ran: Ran, told: Told, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    rows = tmp_path / "rows.csv"
    path.write_text("job_id,arrival_s,duration_s,gpus\na,0,10,8\nb,1,5,8\n")
    arguments = ("simulate", path, "--policy", "fifo", "--gpus", 8, "--why", "b")
    assert "waited 9 s for enough free GPUs" in told(*arguments)["why"]
    ran(*arguments, "--csv", rows, "--html", tmp_path / "page.html")
    assert rows.read_text().splitlines()[2].startswith("b,1.0,5.0,8,10.0,15.0,14.0,9.0")
    assert "The cluster over time" in (tmp_path / "page.html").read_text()


def test_compare_has_every_policy_and_sweep_every_size(told: Told, tmp_path: Path) -> None:
    rows = told("compare", *SMALL)["rows"]
    assert [row["policy"] for row in rows] == list(cluster.POLICIES)
    assert min(row["times_bound_ratio"] for row in rows) >= 1
    page = tmp_path / "page.html"
    table = told(
        "sweep",
        "--jobs",
        100,
        "--gpus",
        "16,32",
        "--policies",
        "fifo,las2d:100,900",
        "--html",
        page,
    )["rows"]
    assert [(row["gpus"], row["policy"]) for row in table] == [
        (16, "fifo"),
        (16, "las2d"),
        (32, "fifo"),
        (32, "las2d"),
    ]
    assert "Mean completion time" in page.read_text()


def test_options_reach_the_simulation(told: Told) -> None:
    plain = told("simulate", *SMALL, "--load", 1.2)
    dear = told("simulate", *SMALL, "--load", 1.2, "--restart-s", 600)
    packed = told("simulate", *SMALL, "--load", 1.2, "--placement", "consolidated")
    few = told("simulate", *SMALL, "--load", 1.2, "--first", 50, "--warmup", 0.1)
    assert dear["utilisation_fraction"] != plain["utilisation_fraction"]
    assert packed["mean_jct_s"] != plain["mean_jct_s"]
    assert few["jobs"] == 45


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("simulate", "--policy", "fif"), "no policy 'fif'; did you mean 'fifo'"),
        (("simulate", "--gpus", "12"), "--gpus 12 is no whole number of nodes of 8 GPUs"),
        (("simulate", "--gpus", "8,16"), "valid: one number"),
        (("simulate", "--gpus", ""), "--gpus names no number"),
        (("simulate", "--placement", "near"), "Invalid value for"),
        (("simulate", "--why", "nobody"), "has no job 'nobody'"),
        (("simulate", "--load", "0"), "load must be"),
        (("simulate", "nope.csv"), "nope.csv: the file is missing"),
        (("simulate", "itp"), "no trace 'itp'"),
        (("compare", "--policies", ""), "--policies names none"),
        (("compare", "--warmup", "1"), "no job ran after a warmup of 1"),
    ],
)
def test_wrong_use_is_one_paragraph(
    refused: Refused, arguments: tuple[str, ...], text: str
) -> None:
    assert text in refused(*arguments)


def test_json_comes_alone(ran: Ran) -> None:
    out, _ = ran("compare", *SMALL, "--json", "-")
    assert json.loads(out)["command"] == "compare"


def test_a_job_that_is_not_there_is_told_before_anything_is_simulated(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(*_: object, **__: object) -> None:
        pytest.fail("it was simulated first")

    monkeypatch.setattr(cluster, "simulate", simulated)
    assert "has no job 'zz'; valid: an id such as" in refused("simulate", *SMALL, "--why", "zz")


def test_one_job_offers_work_and_no_load_without_end(ran: Ran, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_s,duration_s,gpus\n5,10,4\n")
    for command in ("simulate", "compare"):
        out = " ".join(ran(command, path, "--gpus", 8)[0].split())
        assert "1 job of 40 GPU-s, submitted at one moment" in out
        assert " inf " not in out


def test_a_sweep_over_sizes_keeps_going_where_a_job_does_not_fit(
    ran: Ran, told: Told, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_s,duration_s,gpus\n0,10,64\n1,10,8\n")
    arguments = ("sweep", path, "--gpus", "32,64", "--policies", "fifo")
    assert [row["never_ran"] for row in told(*arguments)["rows"]] == [1, 0]
    assert "never run" in " ".join(ran(*arguments)[0].split())


def test_recorded_starts_are_a_line_of_the_report(ran: Ran, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_s,duration_s,gpus,start_s\n0,10,8,0\n1,5,8,21\n")
    out = " ".join(ran("simulate", path, "--policy", "fifo", "--gpus", 8)[0].split())
    assert "median simulated wait 4.5 s recorded: 10 s" in out
