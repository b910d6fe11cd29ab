"""Perseus: published frontiers, the ways to choose clocks beside it, and what its figures draw."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import pipeline
from labkit.papers.perseus import (
    JOBS,
    Way,
    figure_idea,
    figure_walks,
    open_frontier,
    open_jobs,
    plans_of,
    savings,
)
from labkit.papers.perseus.figures import PARTS
from labkit.pipeline.planning.perseus import UNIT_S
from labkit.pipeline.profiles.published import PUBLISHED
from labkit.workbook import open_paper
from tests.published import Need

NUM_STAGES = 8
SLOWDOWNS = (1.0, 1.05, 1.5)


def test_a_published_frontier_trades_time_for_energy(published_data: Need) -> None:
    """A unit later costs less, until a slower plan costs more; never more than all GPUs waiting."""
    published_data("perseus-sosp24")
    front = open_frontier("a100/gpt3-175b", 12)
    assert np.diff(front["makespan_s"]) == pytest.approx(UNIT_S)
    more_j = np.diff(front["energy_j"])
    least = int(front["energy_j"].argmin())
    assert (more_j[:least] < 0).all()
    assert (more_j[least:] <= NUM_STAGES * PUBLISHED["a100"][1] * UNIT_S).all()


@pytest.mark.parametrize(("name", "size"), [("a100/gpt3-175b", 13), ("h100/gpt3-175b", 12)])
def test_what_was_not_published_has_no_rows(name: str, size: int) -> None:
    assert open_frontier(name, size).empty


def test_the_claim_at_full_speed_is_what_the_files_say(published_data: Need) -> None:
    published_data("perseus-sosp24")
    jobs = open_jobs()
    shares = []
    for name in ("a100/gpt3-175b", "a100/bloom"):
        for size in (12, 24, 48):
            schedule = pipeline.build("1f1b", NUM_STAGES, size)
            top = pipeline.plan(schedule, jobs[name], "max-clock")
            shares.append(1 - open_frontier(name, size)["energy_j"].iloc[0] / top.energy_j)
    claim = open_paper("perseus").claim("full-speed")
    assert shares == pytest.approx(claim.paper, abs=1e-5)


def test_perseus_saves_what_the_engine_says() -> None:
    schedule = pipeline.build("1f1b", NUM_STAGES, 4)
    profile = open_jobs()["a100/bloom"]
    ours = savings(Way.PERSEUS, schedule, profile, SLOWDOWNS)
    engine = pipeline.straggler_savings(schedule, profile, SLOWDOWNS)
    for column in ("saving_fraction", "late_fraction"):
        assert ours[column].to_numpy() == pytest.approx(engine[column].to_numpy(), abs=1e-8)


@pytest.mark.parametrize("way", Way)
def test_no_way_beats_the_bound_unless_it_is_late(way: Way) -> None:
    schedule = pipeline.build("1f1b", NUM_STAGES, 4)
    for profile in open_jobs().values():
        table = savings(way, schedule, profile, SLOWDOWNS)
        best = pipeline.straggler_savings(schedule, profile, SLOWDOWNS)["best_fraction"]
        in_time = table["late_fraction"] < 1e-6
        assert in_time.iloc[-1]
        assert (table["saving_fraction"] <= best + 1e-9)[in_time].all()


def test_envpipe_has_one_plan_and_one_clock_has_a_plan_a_clock() -> None:
    schedule = pipeline.build("1f1b", NUM_STAGES, 4)
    profile = open_jobs()["a100/bloom"]
    top = pipeline.plan(schedule, profile, "max-clock")
    assert len(plans_of(Way.ENVPIPE, schedule, profile)) == 1
    clocks = plans_of(Way.ONE_CLOCK, schedule, profile)
    assert clocks["makespan_s"].iloc[0] == pytest.approx(top.makespan_s)
    assert clocks["energy_j"].iloc[0] == pytest.approx(top.energy_j)


def test_the_idea_shows_each_instruction_once_and_a_cut_through_all_of_them() -> None:
    figure = figure_idea(open_jobs()["a100/gpt3-175b"])
    bars = {bar.name: len(bar.y) for bar in figure.data}
    assert list(bars) == list(PARTS)
    assert sum(bars.values()) == 2 * NUM_STAGES * 4
    assert bars["one unit faster"] > 1


def test_walks_are_drawn_above_the_last_of_them() -> None:
    figure = figure_walks({"naive": [2.0, 3.3], "cuts": [2.0, 3.0]}, [1.0, 0.9])
    naive, cuts = figure.data
    assert naive.y == pytest.approx([0, 10])
    assert cuts.y == pytest.approx([0, 0])


def test_every_job_has_a_name_for_figures() -> None:
    assert set(open_jobs()) == set(JOBS)
