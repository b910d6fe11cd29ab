"""DAPPLE's published planner beside the engine's exact search, its rivals, and the figures."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import pipeline, planner
from labkit.errors import UsageError
from labkit.papers import dapple
from labkit.papers.dapple import Way
from tests.oracles import dapple_planner
from tests.planner.conftest import chains, fabrics, published

TEN_GBIT = 10 * 1e9 / 8


@settings(max_examples=60)
@given(chain=chains(5), fabric=fabrics(4), count=st.integers(1, 12))
def test_the_published_plan_is_never_better_than_the_exact_one(
    chain: Any, fabric: Any, count: int
) -> None:
    exact = planner.plan(chain, fabric, objective="latency", num_microbatches=count, tolerance=1e-9)
    own = dapple.published_plan(chain, fabric, num_microbatches=count)
    assert own.cost_s >= exact.cost_s * (1 - 1e-9)
    assert math.isnan(own.gap)
    assert own.evaluations >= 1


def answers() -> list[tuple[dapple_planner.Job, dict[str, Any]]]:
    """Each random job, with what the authors' program found for it."""
    stored = json.loads(dapple_planner.STORED.read_text(encoding="utf-8"))
    return list(zip(dapple_planner.random_jobs(), stored["answers"], strict=True))


def test_the_authors_program_costs_its_plans_by_the_formula() -> None:
    for job, answer in answers():
        printed_s = sum(job.compute_s) / answer["speedup"]
        assert dapple_planner.priced(job, answer) == pytest.approx(printed_s, rel=1e-12)


@pytest.mark.parametrize("number", range(0, dapple_planner.NUM_JOBS, 5))
def test_the_exact_search_is_never_worse_than_the_authors_program(number: int) -> None:
    (job, answer) = answers()[number]
    printed_s = sum(job.compute_s) / answer["speedup"]
    assert dapple_planner.best_s(job) <= printed_s * (1 + 1e-9)


def test_its_cost_is_that_of_its_stages() -> None:
    fabric = planner.Fabric.flat(16, bandwidth_bytes_per_s=TEN_GBIT)
    own = dapple.published_plan(published("alexnet"), fabric, num_microbatches=16)
    assert own.cost_s == pytest.approx(own.priced().cost_s, rel=1e-12)


def test_machines_of_several_devices_are_refused() -> None:
    chain = planner.Chain.even(4, forward_s=0.1, backward_s=0.2)
    two = planner.Fabric.machines(2, 2, inside_bytes_per_s=1e10, between_bytes_per_s=1e9)
    with pytest.raises(UsageError, match="published_plan takes a flat fabric"):
        dapple.published_plan(chain, two, num_microbatches=4)


def test_ratios_are_iterations_of_pipedreams_plan_over_a_ways() -> None:
    fabric = planner.Fabric.flat(16, bandwidth_bytes_per_s=TEN_GBIT)
    chain = published("alexnet")
    theirs = dapple.pipedreams_plan(chain, fabric, 16)
    for way in Way:
        table = dapple.ratios(way, {"alexnet": chain}, fabric, [16])
        ours = dapple.plan_of(way, chain, fabric, 16)
        assert table["plan"].tolist() == [ours.name]
        assert table["ratio"].iloc[0] == pytest.approx(theirs.cost_s / ours.cost_s)
        assert ours.objective == "latency"
    assert dapple.plan_of(Way.DATA, chain, fabric, 16).name == "16"
    assert set(dapple.plan_of(Way.GPIPE, chain, fabric, 16).replicas) == {1}


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("room", [1, 3])
def test_in_equal_memory_the_gain_is_that_of_two_fillings(stages: int, room: int) -> None:
    full = room * stages
    gpipe_blocks = (full + stages - 1) / full
    early_blocks = (64 + stages - 1) / 64
    gain = dapple.equal_memory_gain(stages, room)
    assert gain == pytest.approx(gpipe_blocks / early_blocks)


def test_figures_say_what_they_show() -> None:
    unit = pipeline.Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
    idea = dapple.figure_idea(2, 3, unit)
    assert idea.layout.yaxis.ticktext[0] == "GPipe, stage 0"
    assert idea.layout.yaxis.ticktext[-1] == "DAPPLE, stage 1"
    schedules = {
        name: {m: pipeline.build(order, 2, m) for m in (2, 8)}
        for name, order in (("GPipe", "gpipe"), ("DAPPLE", "dapple"))
    }
    held = dapple.figure_held(schedules, title="Held")
    assert [trace.y for trace in held.data] == [(2, 8), (2, 2)]
    steps = dapple.figure_steps({"a": 0.4, "b, c": 0.3}, 0.2, title="Steps")
    assert steps.data[0].text == ("0.400", "0.300")
    table = pd.DataFrame(
        {"network": "gnmt", "num_microbatches": [8, 16], "plan": "16", "ratio": [0.9, 1.2]}
    )
    ratios = dapple.figure_ratios(table, table, table, published=3.23, title="Ratios")
    names = [trace.name for trace in ratios.data]
    assert names[0] == "GNMT"
    assert names[-1] == "paper: up to 3.23"
    gains = dapple.figure_gains({2: 1.5, 4: 1.7}, 1.6, title="Gains")
    assert gains.data[0].text == ("1.50", "1.70")
