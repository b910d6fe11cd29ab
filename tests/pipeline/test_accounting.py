"""Where an iteration's joules go: sums by hand, and what each assumption does to a saving."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Plan, build, plan
from labkit.pipeline.studies.accounting import Accounting, account, compare_assumptions

SEED = st.integers(0, 10_000)


def any_plan(make_profile, seed: int, num_stages: int = 3, num_microbatches: int = 4) -> Plan:
    """Random clocks on a random profile."""
    rng = np.random.default_rng(seed)
    profile = make_profile(rng, num_stages, 4)
    schedule = build("1f1b", num_stages, num_microbatches)
    row = [rng.choice(profile.rows(one.stage, one.kind)) for d in schedule.order for one in d]
    return Plan(schedule=schedule, profile=profile, method="random", row=np.array(row))


@given(seed=SEED, stages=st.integers(1, 4), microbatches=st.integers(1, 6))
@settings(max_examples=40)
def test_without_assumptions_it_is_the_plans_energy(make_profile, seed, stages, microbatches):
    made = any_plan(make_profile, seed, stages, microbatches)
    table = account(made)
    assert table.device.tolist() == [*range(stages), "all"]
    assert table.energy_j.iloc[-1] == pytest.approx(made.energy_j)
    np.testing.assert_allclose(
        table.iloc[:-1, 1:].sum().to_numpy(float), table.iloc[-1, 1:].to_numpy(float)
    )
    spent = table.iloc[:-1]
    np.testing.assert_allclose(spent.computing_s + spent.waiting_s, made.makespan_s)
    frame = made.frame()
    for device in range(stages):
        mine = frame[frame.device == device]
        assert spent.computing_j[device] == pytest.approx(mine.energy_j.sum())
        idle = made.makespan_s - (mine.end_s - mine.start_s).sum()
        assert spent.waiting_j[device] == pytest.approx(80.0 * idle, abs=1e-9)


def test_every_assumption_by_hand(make_profile):
    """Two pipelines of three devices on hosts of four: two hosts, one of them half used."""
    made = any_plan(make_profile, 5)
    how = Accounting(
        waiting_power_w=50.0,
        static_power_w=30.0,
        host_power_w=600.0,
        devices_per_host=4,
        other_s=0.25,
        other_power_w=200.0,
        dp_degree=2,
    )
    total = account(made, how).iloc[-1]
    whole = made.makespan_s + 0.25
    computing = 2 * made.frame().energy_j.sum()
    waiting_s = 2 * (3 * made.makespan_s - (made.frame().end_s - made.frame().start_s).sum())
    assert total.computing_j == pytest.approx(computing)
    assert total.waiting_j == pytest.approx(50.0 * waiting_s)
    assert total.other_j == pytest.approx(2 * 3 * 200.0 * 0.25)
    assert total.static_j == pytest.approx(2 * 3 * 30.0 * whole)
    assert total.host_j == pytest.approx(2 * 600.0 * whole)
    parts = ["computing_j", "waiting_j", "other_j", "static_j", "host_j"]
    assert total.energy_j == pytest.approx(total[parts].sum())


def test_after_the_pipeline_a_gpu_draws_what_it_draws_waiting(make_profile):
    made = any_plan(make_profile, 1)
    assert account(made, Accounting(other_s=1.0)).other_j.iloc[-1] == pytest.approx(3 * 80.0)
    low = Accounting(other_s=1.0, waiting_power_w=10.0)
    assert account(made, low).other_j.iloc[-1] == pytest.approx(3 * 10.0)


@given(seed=SEED)
@settings(max_examples=20)
def test_the_exempt_last_stage_computes_but_never_waits(make_profile, seed):
    made = any_plan(make_profile, seed)
    every, exempt = account(made), account(made, Accounting(exempt_last_stage=True))
    assert exempt.waiting_j[2] == 0
    assert (exempt.waiting_j[:2] == every.waiting_j[:2]).all()
    assert (exempt.computing_j == every.computing_j).all()
    assert every.energy_j[3] - exempt.energy_j[3] == pytest.approx(every.waiting_j[2])


@pytest.mark.parametrize("microbatches", [12, 96])
def test_the_artifact_counts_the_waiting_of_every_stage(published, measured, microbatches):
    """Its EnvPipe energies, printed to 1 mJ over 80, are ours; with the exemption they are not."""
    table = published("envpipe_result.csv").set_index(["model", "device", "num_microbatches"])
    theirs = table.loc[("gpt3-175b", "a100_sxm", microbatches)].energy
    made = plan(build("1f1b", 8, microbatches), measured("gpt3-175b"), "envpipe")
    ours, exempt = (
        80 * account(made, Accounting(exempt_last_stage=one)).energy_j.iloc[-1]
        for one in (False, True)
    )
    assert ours == pytest.approx(theirs, abs=0.00051)
    assert abs(exempt / theirs - 1) > 0.001


def test_what_every_plan_pays_makes_savings_smaller(measured):
    """Constant power and time after the pipeline cost all plans alike, the exemption costs none."""
    profile, schedule = measured("gpt3-175b"), build("1f1b", 8, 12)
    plans = {name: plan(schedule, profile, name) for name in ("max-clock", "envpipe", "optimal")}
    table = compare_assumptions(
        plans,
        {
            "pipeline": Accounting(),
            "static": Accounting(static_power_w=40.0),
            "host": Accounting(host_power_w=800.0),
            "all-reduce": Accounting(other_s=0.3),
            "replicas": Accounting(dp_degree=16),
            "exempt": Accounting(exempt_last_stage=True),
        },
    ).set_index(["assumption", "plan"])
    saving = table.saving_fraction.unstack().optimal
    base = 1 - plans["optimal"].energy_j / plans["max-clock"].energy_j
    assert saving["pipeline"] == pytest.approx(base)
    assert saving["replicas"] == pytest.approx(base)
    for smaller in ("static", "host", "all-reduce"):
        assert 0 < saving[smaller] < base
    assert saving["exempt"] > base
    assert table.loc[("replicas", "optimal"), "energy_j"] == pytest.approx(
        16 * plans["optimal"].energy_j
    )
    assert (table.xs("max-clock", level="plan").saving_fraction == 0).all()
    assert (table.slowdown_fraction.abs() < 1e-9).all()


def test_savings_are_counted_from_the_named_plan(make_profile):
    profile, schedule = make_profile(np.random.default_rng(1), 3, 5), build("1f1b", 3, 4)
    plans = {name: plan(schedule, profile, name) for name in ("max-clock", "uniform")}
    table = compare_assumptions(plans, {"a": Accounting(other_s=1.0)}, baseline="uniform")
    assert table.set_index("plan").saving_fraction["uniform"] == 0
    slow = (plans["max-clock"].makespan_s + 1) / (plans["uniform"].makespan_s + 1) - 1
    assert table.set_index("plan").slowdown_fraction["max-clock"] == pytest.approx(slow)
    with pytest.raises(UsageError, match="no plan 'b' to compare with; there are: max-clock"):
        compare_assumptions(plans, {"a": Accounting()}, baseline="b")
    with pytest.raises(UsageError, match="no assumptions"):
        compare_assumptions(plans, {})
    with pytest.raises(UsageError, match="no plan"):
        compare_assumptions({}, {"a": Accounting()})


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"static_power_w": -1.0}, "static_power_w must be finite and >= 0, found -1.0"),
        ({"waiting_power_w": float("nan")}, "waiting_power_w must be finite"),
        ({"other_s": float("inf")}, "other_s must be finite"),
        ({"dp_degree": 0}, "dp_degree must be an integer >= 1, found 0"),
        ({"devices_per_host": 2.5}, "devices_per_host must be an integer >= 1"),
    ],
)
def test_impossible_assumptions_are_refused(wrong, problem):
    with pytest.raises(UsageError, match=problem):
        Accounting(**wrong)
