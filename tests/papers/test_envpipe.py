"""EnvPipe: what its policies save, the README's plan, and the figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from labkit.errors import UsageError
from labkit.papers import envpipe
from labkit.papers.envpipe import CASES, Policy
from labkit.papers.envpipe.readme import unit_names

ROOT = Path(__file__).parents[2]
ROWS = [  # one stage whose least energy lies at 1,200 MHz, and whose least above waiting at 1,000
    (0, kind, mhz, factor * seconds, factor * joules)
    for kind, factor in (("forward", 1.0), ("backward", 2.0))
    for mhz, seconds, joules in ((1400, 1.0, 400.0), (1200, 1.2, 380.0), (1000, 1.5, 385.0))
]
COLUMNS = ["stage", "instruction", "frequency", "time", "energy"]


@pytest.fixture
def profile() -> pipeline.EnergyProfile:
    table = pd.DataFrame(ROWS, columns=COLUMNS)
    return pipeline.EnergyProfile.from_frame(table, blocking_power_w=80.0)


@pytest.fixture
def printed() -> pd.DataFrame:
    return pd.read_csv(ROOT / "data/papers/envpipe/readme_plan.csv")


def test_the_valley_is_marked_where_it_is(profile: pipeline.EnergyProfile) -> None:
    figure = envpipe.figure_valley(profile.stage_table(0))
    assert [note.x for note in figure.layout.annotations] == [1200, 1000]


def test_a_shaped_pipeline_is_equal_but_for_its_last_stage(
    profile: pipeline.EnergyProfile,
) -> None:
    four = envpipe.shaped(profile, 4, 1.5)
    work_s = four.frame().groupby("stage")["time_s"].sum().to_numpy()
    assert work_s / work_s[0] == pytest.approx([1, 1, 1, 1.5])


def test_equal_shapes_are_computed_once_and_agree_with_single_plans(
    profile: pipeline.EnergyProfile,
) -> None:
    shapes = pd.DataFrame({"stages": [3, 3], "last_stage": [1.3, 1.3], "microbatches": [4, 4]})
    cases = {str(policy): CASES[policy] for policy in Policy}
    table = envpipe.savings({"one": profile}, shapes, cases, bounds=True).set_index("plan")
    assert [*table.index] == [*Policy]

    three = envpipe.shaped(profile, 3, 1.3)
    highest = pipeline.plan(pipeline.build("1f1b", 3, 4), three, "max-clock")
    order = pipeline.build_for(three, "envpipe", 4)
    plan = pipeline.plan(order, three, "envpipe")
    ours = table.loc[Policy.ENVPIPE]
    assert ours["saving_fraction"] == pytest.approx(1 - plan.energy_j / highest.energy_j)
    assert ours["slowdown_fraction"] == pytest.approx(0, abs=1e-9)
    assert ours["best_saving_fraction"] >= ours["saving_fraction"]
    assert table.loc[Policy.ONE_CLOCK, "slowdown_fraction"] == pytest.approx(0, abs=1e-9)


def test_replayed_waits_are_those_that_the_readme_prints(printed: pd.DataFrame) -> None:
    fit = envpipe.fit_readme(printed)
    assert fit.worst_ms < 4
    assert fit.last_stage > 1.5
    line = fit.timeline()
    table = line.frame()
    free_s = table.groupby("device")["end_s"].shift(fill_value=0.0)
    wait_ms = 1000 * (table["start_s"] - free_s).to_numpy()
    assert np.abs(wait_ms - printed["wait_ms"]).max() == pytest.approx(fit.worst_ms, abs=1e-6)
    critical = (table["slack_s"] == 0).to_numpy()
    assert critical.tolist() == (printed["bracketed"] == "yes").tolist()
    assert fit.timeline(1.0).makespan_s < line.makespan_s


def test_a_plan_in_another_order_is_refused(printed: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="order of the README's plan"):
        envpipe.readme_order(printed.iloc[::-1])
    assert unit_names(envpipe.readme_order(printed))[:5] == ["F0", "F1", "F2", "F3", "B0"]


def test_the_idea_shows_every_unit_once(profile: pipeline.EnergyProfile) -> None:
    _, outside, inside = envpipe.figure_idea(profile).data
    assert len(outside.x) + len(inside.x) == 4 * 5 * 2
    assert len(outside.x) == 10 + 3 * 2  # the last stage's units, first and last of the others


def test_the_plane_draws_the_chosen_policy_large(profile: pipeline.EnergyProfile) -> None:
    shapes = pd.DataFrame({"stages": [2], "last_stage": [1.3], "microbatches": [3]})
    cases = {str(policy): CASES[policy] for policy in Policy}
    table = envpipe.savings({"one": profile}, shapes, cases)
    panels = {"few": table, "many": table}
    figure = envpipe.figure_plane(
        Policy.VALLEY, panels, [0.25, 0.28], [0.3, 0.3], title="Valley everywhere"
    )
    large = {trace.name for trace in figure.data if trace.marker.symbol == "circle"}
    assert large == {Policy.VALLEY}
    texts = [trace.text[1] for trace in figure.data if trace.mode == "lines+text"]
    assert texts == ["paper: up to 25.0 %", "paper: up to 28.0 %"]


def test_steps_and_balance_label_what_they_show() -> None:
    steps = pd.DataFrame(
        {"saving_fraction": [0.0, 0.2], "slowdown_fraction": [0.0, 0.1]}, index=["a", "b, c"]
    )
    bars = envpipe.figure_steps(steps, title="Steps").data
    assert [bar.text[1] for bar in bars] == ["20.0", "10.0"]
    lines = pd.DataFrame(
        {
            "last_stage": [1.0, 2.0] * 2,
            "saving_fraction": [0.1, 0.2, 0.2, 0.3],
            "GPUs": ["4 GPUs"] * 2 + ["16 GPUs"] * 2,
            "plan": Policy.ENVPIPE,
        }
    )
    published = {"4 GPUs": 0.25, "16 GPUs": 0.28}
    figure = envpipe.figure_balance(lines, published, title="Balance")
    assert [trace.name for trace in figure.data] == ["EnvPipe, 4 GPUs", "EnvPipe, 16 GPUs"]
    texts = [note.text for note in figure.layout.annotations]
    assert texts == ["paper, 4 GPUs: up to 25.0 %", "paper, 16 GPUs: up to 28.0 %"]
