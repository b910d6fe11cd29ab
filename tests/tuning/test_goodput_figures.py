from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from labkit.tuning import goodput, large_batch
from labkit.tuning import goodput_figures as figures
from tests.tuning.test_goodput import JUMPY, SHAPES, steps_of

JOB = goodput.GoodputModel(step_times=JUMPY, init_batch_size=64, noise_scale=900.0)


@pytest.fixture(scope="module")
def surface() -> pd.DataFrame:
    return goodput.surface(JOB, SHAPES, max_batch_size=4096, atomic_bsz_range=(2, 128))


def test_the_surface_marks_what_was_chosen_on_the_ridge(surface: pd.DataFrame) -> None:
    best = surface[surface["is_best"]]
    chosen = best[best["num_gpus"] == 16].iloc[0]
    contour, ridge, star = figures.figure_surface(surface, chosen=chosen).data
    assert (star.x[0], star.y[0]) == (16, chosen["batch_size"])
    assert (16, chosen["batch_size"]) in set(zip(ridge.x, ridge.y, strict=True))
    assert len(contour.z) == len(contour.y)
    high = max(v for row in contour.z for v in row if v is not None)
    assert high == pytest.approx(surface["goodput"].max(), rel=0.05)


def test_speedups_draw_the_best_allocation_of_each_number_of_gpus() -> None:
    table = goodput.speedups(JOB, SHAPES, max_batch_size=4096, atomic_bsz_range=(2, 128))
    fig = figures.figure_speedups(table.assign(job="a"))
    ideal, line = fig.data
    assert list(line.x) == sorted(set(table["num_gpus"]))
    assert np.allclose(line.y, table.groupby("num_gpus")["speedup"].max(), rtol=1e-5)
    assert list(ideal.x) == list(ideal.y)


def test_the_fit_shows_every_left_out_step() -> None:
    table = goodput.cross_validate(steps_of(JUMPY, spread=0.05))
    fig = figures.figure_fit(table)
    points = [t for t in fig.data if t.mode == "markers"]
    assert sum(len(t.x) for t in points) == len(table)
    assert {t.name for t in points} == {f"nodes: {n}" for n in table["num_nodes"].unique()}


def test_the_trade_off_stars_are_its_minima() -> None:
    critical = large_batch.CriticalBatch(min_steps=1000, min_examples=1e6)
    sizes = np.geomspace(32, 8192, 40)
    step_s = 0.1 + 0.001 * sizes
    table = large_batch.tradeoff(
        critical, sizes, step_time_s=step_s, power_w=(5 + 0.2 * sizes) / step_s
    )
    fig = figures.figure_tradeoff(table, critical=critical.batch_size)
    stars = [t.x[0] for t in fig.data if t.name.startswith("least")]
    assert stars == pytest.approx(
        [large_batch.pays_up_to(table), large_batch.pays_up_to(table, "energy_j")], rel=1e-5
    )
    assert fig.data[-1].name == "critical batch: 1,000"


def test_every_figure_is_plain_json(surface: pd.DataFrame) -> None:
    table = goodput.speedups(JOB, SHAPES, max_batch_size=4096, atomic_bsz_range=(2, 128))
    for fig in (figures.figure_surface(surface), figures.figure_speedups(table.assign(job="a"))):
        content = fig.to_plotly_json()
        content["layout"].pop("template")
        json.dumps(content, allow_nan=False)
