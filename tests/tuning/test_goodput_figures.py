from __future__ import annotations

import json

import pandas as pd
import pytest

from labkit.tuning import goodput
from labkit.tuning import goodput_figures as figures
from labkit.tuning.choice.choose import JointChoice
from tests.tuning.test_choose import chosen, fastest_s, within
from tests.tuning.test_goodput import JUMPY, SHAPES, steps_of

JOB = goodput.GoodputModel(step_times=JUMPY, init_batch_size=64, noise_scale=900.0)


@pytest.fixture(scope="module")
def surface() -> pd.DataFrame:
    return goodput.surface(JOB, SHAPES, max_batch_size=4096, atomic_bsz_range=(2, 128))


def test_goodput_is_drawn_for_every_number_of_gpus(surface: pd.DataFrame) -> None:
    lines = {line.name: line for line in figures.figure_goodput(surface).data}
    counts = sorted(surface["num_gpus"].unique())
    assert list(lines) == [f"{n} GPU{'' if n == 1 else 's'}" for n in counts]
    assert max(lines["16 GPUs"].y) == pytest.approx(
        surface.loc[surface["num_gpus"] == 16, "goodput"].max(), rel=1e-5
    )


def test_the_fit_shows_every_left_out_step() -> None:
    table = goodput.cross_validate(steps_of(JUMPY, spread=0.05))
    fig = figures.figure_fit(table)
    points = [t for t in fig.data if t.mode == "markers"]
    assert sum(len(t.x) for t in points) == len(table)
    assert {t.name for t in points} == {f"nodes: {n}" for n in table["num_nodes"].unique()}


def test_a_fit_to_made_up_steps_is_not_called_measured() -> None:
    table = goodput.cross_validate(steps_of(JUMPY, spread=0.05))
    assert "measured step (s)" in figures.figure_fit(table).to_json()
    assert "measured" not in figures.figure_fit(table, of="made-up").to_json()


@pytest.fixture(scope="module")
def choice() -> JointChoice:
    found = chosen()
    return within(found, 1.5 * fastest_s(found))


def test_the_front_marks_the_choice_left_of_the_deadline(choice: JointChoice) -> None:
    fig = figures.figure_choice(choice)
    named = {trace.name: trace for trace in fig.data}
    star = named["chosen"]
    minute = 60
    best = choice.best
    assert star.x[0] * minute == pytest.approx(best.time_s, rel=1e-5)
    assert star.x[0] <= named["deadline"].x[0]
    assert named["deadline"].x[0] * minute == pytest.approx(choice.deadline_s, rel=1e-5)
    shown = sum(len(t.x) for name, t in named.items() if "GPU" in str(name))
    assert shown == len(choice.frontier)


def test_knobs_that_miss_the_deadline_say_so(choice: JointChoice) -> None:
    table = choice.one_by_one(num_nodes=1, num_gpus=1, batch_size=24)
    (bars,) = figures.figure_knobs(table).data
    late = table["energy_j"].isna().to_numpy()[::-1]
    assert late.any()
    assert [text == "not in time" for text in bars.text] == late.tolist()
    assert bars.y[0] == "all together"


def test_every_figure_is_plain_json(surface: pd.DataFrame, choice: JointChoice) -> None:
    knobs = choice.one_by_one(num_nodes=1, num_gpus=1, batch_size=24)
    for fig in (
        figures.figure_goodput(surface),
        figures.figure_choice(choice),
        figures.figure_knobs(knobs),
    ):
        content = fig.to_plotly_json()
        content["layout"].pop("template")
        json.dumps(content, allow_nan=False)
