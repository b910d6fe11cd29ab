"""REEF's clients: the workloads of its artifact, recorded moments, turns of real-time clients."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit import serving
from labkit.errors import BadValue, UsageError
from labkit.papers import reef
from labkit.papers.reef import Policy, workload_of
from labkit.serving.device.kernels import Program
from tests.published import Need


def program() -> Program:
    """Two kernels of 10 ms."""
    waves = ((0.01, 0.02, 0.03),) * 2
    return Program(name="p", blocks=(60, 60), total_s=(0.01, 0.01), wave_s=waves)


def experiment(**changes: float) -> reef.Experiment:
    """A real-time client beside a best-effort one that would fill all its gaps, twice."""
    rows = []
    for workload in ("DISB A", "DISB B"):
        rows.append({"workload": workload, "model": "p", "real_time": 1, "rate_per_s": 9})
        rows.append({"workload": workload, "model": "p", "real_time": 0, "rate_per_s": 100})
    return reef.Experiment(
        clients=pd.DataFrame(rows),
        programs={"p": program()},
        until_s=1.0,
        gpu=serving.Gpu(mode="alone", reset_s=1e-3),
        **changes,
    )


def test_policies_differ_by_what_they_are_named_for() -> None:
    """A program of 20 ms nine times a second, beside one that runs all the time."""
    tried = experiment()
    latency, throughput = tried.over_alone(Policy.NO_PADDING, "DISB A")
    resets = 8 / 9  # the first real-time program finds nothing to kill
    assert latency == pytest.approx(1 + resets * 1e-3 / 0.02), "a reset, no more"
    assert 1 < throughput <= tried.bound("DISB A")
    waited, _ = tried.over_alone(Policy.WAIT, "DISB A")
    no_reset, _ = tried.over_alone(Policy.NO_RESET, "DISB A")
    assert waited > latency
    assert no_reset > latency
    assert tried.over_alone(Policy.ALONE, "DISB A") == (1, 1)
    assert tried.load("DISB A") == pytest.approx(0.18)
    assert tried.bound("DISB A") == pytest.approx(1 + 100 / 9)


def test_rarer_real_time_programs_raise_the_bound() -> None:
    assert experiment(share=0.5).bound("DISB A") > experiment().bound("DISB A")


def test_preemption_leaves_out_the_workload_without_gaps() -> None:
    added = experiment().preemption(Policy.NO_PADDING)
    assert added.index.tolist() == ["DISB A"]
    table = experiment().compare(Policy.NO_PADDING)
    assert added["DISB A"] == table.loc["DISB A", "latency"] - 1


def test_figures_show_each_policy_the_bound_and_the_paper() -> None:
    tables = {"REEF": experiment().compare(Policy.REEF)}
    bounds = pd.Series({"DISB A": 11.0, "DISB B": 11.0})
    figure = reef.figure_disb(tables, bounds, paper=(7.7, 0.02), title="")
    *added, papers = figure.layout.annotations
    assert [note.text for note in added] == ["+4 %", "+4 %"]
    bars = figure.data[0]
    assert [(note.x, note.y) for note in added] == [*zip(bars.x, bars.y, strict=True)]
    assert [trace.y[0] for trace in figure.data[1:]] == [11, 11], "the bounds"
    assert papers.text == "paper: up to 7.7 times, at +2 % latency"
    units = reef.figure_units({"p": program()}, title="")
    assert units.data[0].y[59] == 0
    assert units.data[0].y[60] == 1
    idea = reef.figure_idea(program(), program(), kernels=2, reset_s=1e-3)
    real_time = [trace for trace in idea.data if trace.fill and trace.name == "real time"]
    assert [max(trace.x) for trace in real_time] == [11000, 21000]


def test_workloads_are_those_of_the_artifact(published_data: Need) -> None:
    root = Path(__file__).resolve().parents[2] / "data" / "papers" / "reef"
    table = pd.read_csv(root / "workloads.csv")
    for workload, rows in table.groupby("workload"):
        name = str(workload)
        folder = "fig10" if name.startswith("DISB") else "fig1"
        if name == "DISB E":
            continue  # below
        file = f"evaluation/{folder}/{name[-1]}.json"
        published = json.loads(published_data("reef-osdi22", [file]).path(file).read_text())
        for kind, flag in (("rt", 1), ("be", 0)):
            ours = rows[rows["real_time"] == flag]
            theirs = [(client["name"], client["frequency"]) for client in published[kind]]
            assert list(zip(ours["model"], ours["rate_per_s"], strict=True)) == theirs


def test_disb_e_is_the_published_file_to_the_byte() -> None:
    """``evaluation/fig10/E.json`` says a minute of arrivals; each second is the first again."""
    root = Path(__file__).resolve().parents[2] / "data" / "papers" / "reef"
    table = pd.read_csv(root / "workloads.csv").query("workload == 'DISB E'")
    content: dict[str, object] = {"time": 1}
    for kind, flag in (("rt", 1), ("be", 0)):
        content[kind] = [
            {"name": row["model"], "frequency": row["rate_per_s"]}
            | (
                {
                    "trace": [
                        1000 * second + int(ms)
                        for second in range(60)
                        for ms in row["moments_ms"].split()
                    ]
                }
                if flag
                else {}
            )
            for row in table[table["real_time"] == flag].to_dict("records")
        ]
    lines = json.dumps(content, indent=4).split("\n")  # the file's own indent begins with two
    text = "\n".join(line[2:] if line.startswith(" " * 4) else line for line in lines)
    published = "3cab32b56af28309c818143a6dfdecc3155703d7c3fd61ccfb1d993d0c976cc6"
    assert hashlib.sha256(text.encode()).hexdigest() == published


def test_recorded_moments_come_in_every_second() -> None:
    rows = pd.DataFrame(
        {
            "model": ["p", "p"],
            "real_time": [1, 0],
            "rate_per_s": [2, 4],
            "moments_ms": ["100 900", None],
        }
    )
    recorded, periodic = workload_of(rows, {"p": program()}, until_s=1.95).clients
    assert recorded.arrival_s == pytest.approx((0.1, 0.9, 1.1, 1.9))
    assert len(periodic.arrival_s or ()) == 8
    rare = workload_of(rows, {"p": program()}, until_s=1.95, share=0.5).clients[0]
    assert rare.arrival_s == pytest.approx((0.2, 1.8))
    later = workload_of(rows, {"p": program()}, until_s=1.95, rng=1).clients[0].arrival_s or ()
    assert np.diff(later)[:2] == pytest.approx([0.8, 0.2])
    in_turn = workload_of(
        rows.assign(moments_ms="900 100"), {"p": program()}, until_s=1.95
    ).clients[0]
    assert in_turn.arrival_s == recorded.arrival_s
    one_each = workload_of(
        rows.assign(moments_ms=[100.0, None]), {"p": program()}, until_s=1.95
    ).clients[0]
    assert one_each.arrival_s == pytest.approx((0.1, 1.1)), "a column of numbers, as CSV has it"
    for wrong in ("1000", "a few", "", " "):
        with pytest.raises(BadValue, match="moments_ms needs numbers from 0 to below 1000"):
            workload_of(rows.assign(moments_ms=wrong), {"p": program()}, until_s=1.0)
    for rate in ("often", np.inf, np.nan, 0):
        with pytest.raises(BadValue, match="a rate_per_s above 0, finite"):
            workload_of(rows.assign(rate_per_s=rate), {"p": program()}, until_s=1.0)


def test_real_time_clients_of_a_workload_start_one_after_another() -> None:
    """Two programs of 20 ms, 10 times a second each: 30 ms of rest after each."""
    rows = pd.DataFrame({"model": ["p", "p", "p"], "real_time": [1, 1, 0], "rate_per_s": [10] * 3})
    clients = workload_of(rows, {"p": program()}, until_s=0.21)
    assert [c.arrival_s for c in clients.clients] == [
        pytest.approx((0.0, 0.1, 0.2)),
        pytest.approx((0.05, 0.15)),
        pytest.approx((0.0, 0.1, 0.2)),
    ]
    rare = workload_of(rows, {"p": program()}, until_s=1.0, share=0.5, rng=1)
    assert [len(c.arrival_s or ()) for c in rare.clients] == [5, 5, 10]


def test_wrong_clients_are_refused_with_what_would_be_valid() -> None:
    rows = pd.DataFrame({"model": ["p"], "real_time": [1], "rate_per_s": [10]})
    with pytest.raises(UsageError, match="model of the clients"):
        workload_of(rows, {"q": program()}, until_s=1.0)
    for broken in (rows.assign(rate_per_s=0), rows.drop(columns="real_time")):
        with pytest.raises(BadValue, match="a rate_per_s above 0"):
            workload_of(broken, {"p": program()}, until_s=1.0)
