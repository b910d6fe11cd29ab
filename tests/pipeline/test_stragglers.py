"""Slack from a slower replica: brute force, theory at both ends, and what can never happen."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import build, plan
from labkit.pipeline.planning.study import (
    plan_for_straggler,
    slowest_worthwhile_s,
)
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.simulation.costs import Network

SEED = st.integers(0, 10_000)


@pytest.mark.parametrize("seed", range(6))
def test_against_every_plan_there_is(make_profile, seed):
    """2 stages x 2 microbatches x 3 clocks: 6,561 plans, all waiting for the straggler."""
    profile = make_profile(np.random.default_rng(seed), 2, 3)
    schedule = build("1f1b", 2, 2)
    rows = np.array(
        list(
            itertools.product(
                *(profile.rows(one.stage, one.kind) for d in schedule.order for one in d)
            )
        )
    )
    spans = np.array([longest_to(schedule.graph, profile.time_s[row]).max() for row in rows])
    fastest = plan(schedule, profile, "max-clock").makespan_s
    for slowdown in (1.0, 1.1, 1.4, 3.0):
        straggler = slowdown * fastest
        energy = profile.net_energy_j[rows].sum(axis=1) + 2 * 80.0 * straggler
        best = energy[spans <= straggler * (1 + 1e-12)].min()
        made = plan_for_straggler(schedule, profile, slowdown)
        assert made.plan.makespan_s <= straggler * (1 + 1e-9)
        assert made.bound_j <= best * (1 + 1e-12)
        assert best <= made.energy_j * (1 + 1e-12)
        if slowdown == 3.0:  # no deadline at all: every clock is free
            assert made.energy_j == pytest.approx(best)


@given(seed=SEED, slowdown=st.floats(1, 2))
@settings(max_examples=25)
def test_the_deadline_is_the_earlier_of_two(make_profile, seed, slowdown):
    profile, schedule = make_profile(np.random.default_rng(seed), 3, 5), build("1f1b", 3, 4)
    fastest = plan(schedule, profile, "max-clock").makespan_s
    last = slowest_worthwhile_s(schedule, profile)
    made = plan_for_straggler(schedule, profile, slowdown)
    deadline = made.plan.deadline_s
    assert deadline == pytest.approx(min(slowdown * fastest, max(last, fastest)))
    assert made.plan.makespan_s <= deadline * (1 + 1e-9)
    waiting = 3 * 80.0 * (made.straggler_s - made.plan.makespan_s)
    assert made.energy_j == pytest.approx(made.plan.energy_j + waiting)


def test_without_a_straggler_it_is_the_plan_for_the_highest_clocks_time(measured):
    profile, schedule = measured("gpt3-175b"), build("1f1b", 8, 12)
    made = plan_for_straggler(schedule, profile, 1.0)
    fastest = plan(schedule, profile, "max-clock")
    assert made.straggler_s == pytest.approx(fastest.makespan_s)
    calm = plan(schedule, profile, "optimal")
    waited = calm.waiting_w * (fastest.makespan_s - calm.makespan_s)
    assert made.energy_j == pytest.approx(calm.energy_j + waited, rel=2e-3)  # two roundings
    assert made.bound_j <= made.energy_j < fastest.energy_j


@pytest.mark.parametrize("model", ["gpt3-175b", "bloom"])
def test_the_slower_the_straggler_the_less_is_spent_above_waiting(measured, model):
    """Up to T*; there every instruction runs at its slowest useful clock."""
    profile, schedule = measured(model), build("1f1b", 8, 12)
    plans = [plan_for_straggler(schedule, profile, x) for x in (1.0, 1.1, 1.25, 1.5, 1.6)]
    for made in plans:
        assert made.plan.deadline_s <= made.straggler_s * (1 + 1e-12)
        assert made.plan.makespan_s <= made.plan.deadline_s * (1 + 1e-9)
        assert -1e-12 <= made.energy_j / made.bound_j - 1 <= 0.005
    above = [made.energy_j - 8 * 83.64 * made.straggler_s for made in plans]
    assert (np.diff(above) <= 1e-9).all()
    assert plans[-1].plan.deadline_s == pytest.approx(slowest_worthwhile_s(schedule, profile))
    least = [
        profile.net_energy_j[profile.rows(one.stage, one.kind)].min()
        for device in schedule.order
        for one in device
    ]
    assert above[-1] == pytest.approx(sum(least))


def test_perseus_t_star_is_the_last_point_of_its_published_frontier(published, measured):
    """Under raw dominance; its durations are counted in whole milliseconds, rounded down."""
    for model in ("gpt3-175b", "bloom"):
        table = published(f"iteration_time_energy/a100_sxm/{model}_bf16_mb12.csv")
        ours = slowest_worthwhile_s(build("1f1b", 8, 12), measured(model, dominance="raw"))
        assert 0 <= ours - table.time.max() <= 1e-3 * (2 * 12 + 2 * 7)  # a path has 38 units
        assert slowest_worthwhile_s(build("1f1b", 8, 12), measured(model)) > ours


def test_messages_come_out_of_the_slack(make_profile):
    profile, schedule = make_profile(np.random.default_rng(2), 3, 5), build("1f1b", 3, 4)
    network = Network(latency_s=0.02)
    near, far = (plan_for_straggler(schedule, profile, 1.2, network=n) for n in (None, network))
    assert far.straggler_s > near.straggler_s
    assert far.plan.makespan_s <= far.plan.deadline_s * (1 + 1e-9)
    assert far.bound_j <= far.energy_j * (1 + 1e-12)


@pytest.mark.parametrize("slowdown", [0.9, float("nan"), float("inf")])
def test_impossible_slowdowns_are_refused(make_profile, slowdown):
    profile = make_profile(np.random.default_rng(0), 2, 3)
    with pytest.raises(UsageError, match="slowdown must be a finite number, at least 1"):
        plan_for_straggler(build("1f1b", 2, 2), profile, slowdown)


def test_planners_that_know_no_deadline_cannot_wait_for_a_straggler(make_profile):
    profile = make_profile(np.random.default_rng(0), 2, 3)
    with pytest.raises(UsageError, match="no planner that takes a deadline 'envpipe'"):
        plan_for_straggler(build("1f1b", 2, 2), profile, 1.2, method="envpipe")
