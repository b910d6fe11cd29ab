import numpy as np
import pytest

from labkit import pipeline
from labkit.errors import UsageError
from labkit.pipeline import build, plan
from labkit.pipeline.planning.study import _replayed


@pytest.fixture(scope="module")
def profile(make_profile):
    return make_profile(np.random.default_rng(1), num_stages=3, num_clocks=5)


def test_plans_are_compared_with_the_first_or_a_named_one(profile):
    schedule = build("1f1b", 3, 4)
    plans = {name: plan(schedule, profile, name) for name in ("max-clock", "envpipe", "optimal")}
    table = pipeline.compare(plans).set_index("plan")
    assert table.loc["max-clock", ["slowdown_fraction", "saving_fraction"]].tolist() == [0, 0]
    saved = 1 - plans["optimal"].energy_j / plans["max-clock"].energy_j
    assert table.loc["optimal", "saving_fraction"] == pytest.approx(saved)
    assert (table.saving_fraction <= table.best_saving_fraction + 1e-9).all()
    assert (table.peak_in_flight == 3).all()
    other = pipeline.compare(plans, baseline="optimal", bounds=False).set_index("plan")
    assert other.loc["optimal", "saving_fraction"] == 0
    assert "gap_fraction" not in other.columns


def test_a_sweep_holds_every_case_beside_the_highest_clock(profile):
    cases = {
        "planner": {"schedule": "1f1b", "method": "envpipe"},
        "early": {"schedule": "envpipe", "method": "envpipe", "max_in_flight": 4},
        "wild": {"schedule": "1f1b", "method": "envpipe", "reconfigure": "none"},
    }
    twice = profile.restage((0, 1, 2), scale=(2.0, 2.0, 2.0))
    table = pipeline.sweep({"a": profile, "b": twice}, [4, 6], cases)
    assert table.plan.tolist() == ["max clock", *cases] * 4
    assert table.profile.tolist() == ["a"] * 8 + ["b"] * 8
    base = table[table.plan == "max clock"]
    assert (base.slowdown_fraction == 0).all()
    assert (base.saving_fraction == 0).all()
    keys = ["profile", "num_microbatches", "plan"]
    rows = table.set_index(keys)
    made = plan(build("1f1b", 3, 6), profile, "envpipe", reconfigure="none")
    assert rows.loc[("a", 6, "wild"), "energy_j"] == pytest.approx(made.energy_j)
    assert rows.loc[("a", 6, "wild"), "gap_fraction"] == pytest.approx(made.gap)
    assert rows.loc[("a", 6, "early"), "peak_in_flight"] == 4
    # Twice the work at the same powers takes twice the time and energy.
    for column in ("makespan_s", "energy_j"):
        np.testing.assert_allclose(rows.loc["b"][column], 2 * rows.loc["a"][column])


def test_stress_compares_under_the_same_trouble(profile):
    schedule = build("1f1b", 3, 4)
    plans = {name: plan(schedule, profile, name) for name in ("max-clock", "envpipe")}
    table = pipeline.stress(plans, switch_s=[0.0, 0.1], jitter=[0.05], num_draws=5, rng=1)
    rows = table.set_index(["trouble", "plan"])
    assert (rows.xs("max-clock", level="plan").slowdown_fraction == 0).all()
    calm = rows.loc[("0 ms a clock switch", "envpipe")]
    assert calm.energy_j == pytest.approx(plans["envpipe"].energy_j)
    assert rows.loc[("100 ms a clock switch", "envpipe"), "slowdown_fraction"] > 0
    again = pipeline.stress(plans, switch_s=[0.0, 0.1], jitter=[0.05], num_draws=5, rng=1)
    assert table.equals(again)


def test_replicas_wait_for_the_slowest(make_profile):
    """On one device a span is a sum of many draws, so nearly normal: the largest of four lies
    1.0294 standard deviations above the mean (order statistics of the normal distribution)."""
    profile = make_profile(np.random.default_rng(1), num_stages=1, num_clocks=5)
    made = plan(build("1f1b", 1, 50), profile, "max-clock")
    table = pipeline.stress({"it": made}, jitter=[0.1], replicas=[1, 4], num_draws=400)
    alone, slowest = table.makespan_s
    rng = np.random.default_rng(5)
    spans = [_replayed(made, rng, jitter=0.1)[0] for _ in range(400)]
    assert (slowest - alone) / np.std(spans) == pytest.approx(1.0294, abs=0.25)  # 3 errors
    assert table.energy_j[1] - table.energy_j[0] == pytest.approx(
        made.waiting_w * (slowest - alone), rel=0.3
    )


def test_a_baseline_must_be_there(profile):
    plans = {"a": plan(build("1f1b", 3, 4), profile, "max-clock")}
    with pytest.raises(UsageError, match="no plan of the baseline's name 'b'; there are: a"):
        pipeline.compare(plans, baseline="b")
    with pytest.raises(UsageError, match="no plan"):
        pipeline.compare({})


def test_no_trouble_changes_nothing(profile):
    made = plan(build("1f1b", 3, 4), profile, "optimal")
    row = pipeline.stress({"it": made}, switch_s=[0.0]).iloc[0]
    assert (row.makespan_s, row.energy_j) == pytest.approx((made.makespan_s, made.energy_j))


def test_switching_clocks_costs_time_only_where_clocks_change(profile):
    schedule = build("1f1b", 3, 4)
    steady = plan(schedule, profile, "max-clock")
    row = pipeline.stress({"it": steady}, switch_s=[0.5]).iloc[0]
    assert (row.makespan_s, row.energy_j) == pytest.approx((steady.makespan_s, steady.energy_j))
    moving = plan(schedule, profile, "envpipe", reconfigure="none")
    spans = pipeline.stress({"it": moving}, switch_s=[0.0, 0.01, 0.1]).makespan_s.tolist()
    assert spans == sorted(spans)
    assert spans[2] > spans[0]


def test_jitter_keeps_the_mean_duration(make_profile):
    profile = make_profile(np.random.default_rng(1), num_stages=1, num_clocks=5)
    made = plan(build("1f1b", 1, 50), profile, "max-clock")
    rng = np.random.default_rng(0)
    spans = [_replayed(made, rng, jitter=0.1)[0] for _ in range(300)]
    assert np.mean(spans) == pytest.approx(made.makespan_s, rel=0.005)  # 5 standard errors
    assert np.std(spans) > 0
