"""What reacting to a straggler saves: against single plans, the bound, and a wrong guess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from labkit.errors import BadValue
from labkit.pipeline.planning import cuts, perseus

SLOWDOWNS = [1.0, 1.05, 1.2, 1.5, 3.0]


@pytest.fixture
def schedule() -> pipeline.Schedule:
    return pipeline.build("1f1b", 8, 4)


@pytest.fixture
def profile(measured: Callable[..., pipeline.EnergyProfile]) -> pipeline.EnergyProfile:
    return measured("gpt3-175b", "a100_sxm")


@pytest.fixture
def table(schedule: pipeline.Schedule, profile: pipeline.EnergyProfile) -> pd.DataFrame:
    return pipeline.straggler_savings(schedule, profile, SLOWDOWNS)


def test_nothing_saves_more_than_the_bound_and_reacting_never_loses(table: pd.DataFrame) -> None:
    assert (table["saving_fraction"] <= table["best_fraction"] + 1e-9).all()
    assert (table["saving_fraction"] >= table["unreacted_fraction"] - 1e-12).all()


def test_the_bound_is_that_of_a_plan_whose_waiting_is_free(
    schedule: pipeline.Schedule, profile: pipeline.EnergyProfile, table: pd.DataFrame
) -> None:
    top = pipeline.plan(schedule, profile, "max-clock")
    free = replace(profile, blocking_power_w=0.0, energy_j=profile.net_energy_j)
    for row in table.itertuples():
        straggler_s = row.slowdown * top.makespan_s
        base_j = top.energy_j + top.waiting_w * (straggler_s - top.makespan_s)
        bound_j = pipeline.plan(schedule, free, "optimal", straggler_s).bound_j
        bound_j += top.waiting_w * straggler_s
        assert 1 - bound_j / base_j == pytest.approx(row.best_fraction, abs=1e-6)


def test_the_joules_saved_grow_with_slack(
    schedule: pipeline.Schedule, profile: pipeline.EnergyProfile, table: pd.DataFrame
) -> None:
    top = pipeline.plan(schedule, profile, "max-clock")
    base_j = top.energy_j + top.waiting_w * (table["slowdown"] - 1) * top.makespan_s
    saved_j = base_j * table["saving_fraction"]
    assert (np.diff(saved_j) >= -1e-9).all()


def test_a_row_is_the_plan_at_its_own_energy(
    schedule: pipeline.Schedule, profile: pipeline.EnergyProfile, table: pd.DataFrame
) -> None:
    """At no slowdown the plan taken is the fastest of the frontier, late by its rounding."""
    fastest = perseus.perseus_frontier(schedule, profile).iloc[-1]
    top = pipeline.plan(schedule, profile, "max-clock")
    first = table.iloc[0]
    assert first["late_fraction"] == pytest.approx(fastest.makespan_s / top.makespan_s - 1)
    assert first["saving_fraction"] == pytest.approx(1 - fastest.energy_j / top.energy_j)


def test_a_plan_for_a_straggler_that_recovers_is_late(
    schedule: pipeline.Schedule, profile: pipeline.EnergyProfile
) -> None:
    guessed = pipeline.straggler_savings(schedule, profile, [1.0, 1.2], expected=[1.2, 1.2])
    assert guessed["late_fraction"].iloc[0] > 0.1
    assert guessed["late_fraction"].iloc[1] == 0


@pytest.mark.parametrize("slowdowns", [[], [0.9], [float("nan")], ["fast"]])
def test_wrong_slowdowns_are_refused(
    schedule: pipeline.Schedule, profile: pipeline.EnergyProfile, slowdowns: list
) -> None:
    with pytest.raises(BadValue, match="slowdowns"):
        pipeline.straggler_savings(schedule, profile, slowdowns)


def test_events_walked_by_another_library_cost_what_the_engine_says(
    schedule: pipeline.Schedule, profile: pipeline.EnergyProfile
) -> None:
    """Phillips and Dessouky's cuts on networkx; a lower bound of flow is two arcs to the ends."""
    menus = perseus.menus(schedule, profile, unit_s=0.005)
    at, order = cuts.events(schedule.graph, menus)
    *plans, last = cuts.hurried(schedule.graph, menus)
    assert len(plans) > 5
    for duration in [*plans, last]:
        walked = sum(menus.joules(i, at[i, "end"] - at[i, "start"]) for i in range(len(schedule)))
        assert walked == pytest.approx(menus.cost[menus.offset + duration].sum(), rel=1e-6)
        if duration is last:
            break
        graph = nx.DiGraph(pair for pair in order if at[pair[0]] == at[pair[1]])
        for i in range(len(schedule)):
            units = at[i, "end"] - at[i, "start"]
            cost = [menus.joules(i, units + more) for more in (-1, 0, 1)]
            hurry = cost[0] - cost[1]
            slow = cost[1] - cost[2]
            graph.add_edge((i, "start"), (i, "end"), capacity=hurry - slow)
            graph.add_edges_from([("S", (i, "end")), ((i, "start"), "T")], capacity=slow)
        behind = nx.minimum_cut(graph, "S", "T")[1][1]
        at = {node: time - (node in behind) for node, time in at.items()}
