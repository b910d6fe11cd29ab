from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from labkit import tuning
from tests.tuning.conftest import make_job


@pytest.fixture(scope="module")
def job(standin: tuning.TrainingTrace) -> tuning.Job:
    return standin.job("cifar100")


def test_the_map_is_relative_to_the_default_and_leaves_the_unreachable_empty(
    job: tuning.Job,
) -> None:
    fig = tuning.figures.figure_map(tuning.outcomes(job))
    cells, default, best = fig.data
    assert cells.z[-1][job.batch_sizes.index(1024)] == 1  # default column, highest limit
    assert all(row[job.batch_sizes.index(4096)] is None for row in cells.z)
    place = lambda mark: (round(mark.y[0]), round(mark.x[0]))  # noqa: E731
    assert place(default) == (len(cells.z) - 1, job.batch_sizes.index(1024))
    low = min(v for row in cells.z for v in row if v is not None)
    row, column = place(best)
    assert cells.z[row][column] == low
    least = tuning.optimum(job, eta=1.0).batch_size
    assert fig.layout.xaxis.ticktext[column] == f"{least:,}"


def test_the_front_runs_along_the_lower_left(job: tuning.Job) -> None:
    chosen = tuning.optimum(job)
    fig = tuning.figures.figure_pareto(tuning.outcomes(job), chosen=chosen, power_lines_w=(90,))
    named = {trace.name: trace for trace in fig.data}
    front = named["Pareto front"]
    points = named["configurations"]
    assert list(front.x) == sorted(front.x)
    assert list(front.y) == sorted(front.y, reverse=True)
    assert min(points.y) == min(front.y)
    star = named[f"chosen: {chosen['batch_size']:g} @ {chosen['power_limit_w']:g} W"]
    assert (star.x[0], star.y[0]) in set(zip(front.x, front.y, strict=True))
    line = fig.data[0]
    assert fig.layout.annotations[0].text == "90 W drawn"
    base = tuning.default_choice(job)
    drawn_w = base.energy_to_accuracy_j / base.time_to_accuracy_s
    assert line.y[1] / line.x[1] == pytest.approx(90 / drawn_w, rel=1e-4)


def test_the_path_goes_through_every_move_in_order(job: tuning.Job) -> None:
    run = tuning.simulate(job, seeds=[0])
    runs = run.frame()
    best = tuning.optimum(job)
    fig = tuning.figures.figure_search_path(run.path(0), best)
    walk = next(t for t in fig.data if t.name == "moves to")
    moves = run.path(0)
    assert list(walk.x) == moves["batch_size"].tolist()
    assert list(walk.marker.color) == list(range(len(moves)))
    assert next(round(y) for y in walk.y) == moves["power_limit_w"].iloc[0]
    assert (np.array(walk.y) >= moves["power_limit_w"]).all()
    settled = next(t for t in fig.data if t.name == "last run")
    assert settled.x[0] == runs["batch_size"].iloc[-1]
    failed = next(t for t in fig.data if t.name == "failed or stopped early")
    assert len(failed.x) == sum(~runs[runs["time_s"] > 0]["reached"])


def test_a_path_that_never_moves_is_a_single_point(job: tuning.Job) -> None:
    run = tuning.simulate(job, policy="default", seeds=[0], recurrences=4)
    fig = tuning.figures.figure_search_path(run.path(0), tuning.optimum(job))
    assert [len(t.x) for t in fig.data if t.name == "moves to"] == [1]


def test_savings_show_every_policy_with_its_interval(standin: tuning.TrainingTrace) -> None:
    table = tuning.sweep(standin.jobs(), ["default", "zeus"], seeds=range(3))
    fig = tuning.figures.figure_savings(table, (0.153, 0.758))
    assert [t.name for t in fig.data] == ["default", "zeus"] * 2
    zeus = table[table["policy"] == "zeus"]
    assert np.allclose(fig.data[1].y, zeus["energy_reduction"], rtol=1e-5)
    half = zeus["energy_reduction_high"] - zeus["energy_reduction"]
    assert np.allclose(fig.data[1].error_y.array, half, rtol=1e-4)
    assert {shape.y0 for shape in fig.layout.shapes} == {0.153, 0.758}


def test_every_figure_is_plain_json(standin: tuning.TrainingTrace, job: tuning.Job) -> None:
    """No NaN, no infinity, no arrays: what notebooks store compares exactly."""
    never = make_job([[3.0], [np.inf]], [[1.0, 2.0]] * 2, [[50.0, 40.0]] * 2)
    sweep = pd.DataFrame([{**tuning.optimum(job, eta=eta), "eta": eta} for eta in (0, 1)])
    figures = [
        tuning.figures.figure_map(tuning.outcomes(never)),
        tuning.figures.figure_pareto(tuning.outcomes(never)),
        tuning.figures.figure_regret({"zeus": tuning.simulate(job, seeds=[0]).regret_j()}),
        tuning.figures.figure_lines(
            sweep.assign(which="a"), x="eta", y="batch_size", by="which", x_title="η", y_title="b"
        ),
        tuning.figures.figure_map(tuning.outcomes(replace(job, host_power_w=50.0))),
    ]
    for fig in figures:
        content = fig.to_plotly_json()
        content["layout"].pop("template")
        json.dumps(content, allow_nan=False)
