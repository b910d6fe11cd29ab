"""EnvPipe's planner against the plain statement of its rule: everything anew at every step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import EnergyProfile, build, early_forwards, outer_envelope, plan
from labkit.pipeline.planning.envpipe import choose_envpipe
from labkit.pipeline.profiles.clocks import Task, max_clock_rows, valley_rows
from labkit.pipeline.scheduling.graph import longest_to
from tests.amounts import amounts

SEED = st.integers(0, 10_000)
NAMES = st.sampled_from(["gpipe", "1f1b", "envpipe"])


def critical_path(schedule, duration_s, lag_s):
    """Walked back from the last end; where both waits are equal, along the device."""
    graph = schedule.graph
    n = len(schedule)
    end = np.append(longest_to(graph, duration_s, lag_s), 0.0)
    lag_before, lag_needs = (np.zeros(n), np.zeros(n)) if lag_s is None else lag_s
    path = [int(np.argmax(end))]
    while True:
        i = path[-1]
        before = int(graph.before[i])
        needs = int(graph.needs[i])
        along = end[before] + lag_before[i] >= end[needs] + lag_needs[i]
        previous = before if along else needs
        if previous == n:
            return np.array(path)
        path.append(previous)


def plainly(schedule, profile, reconfigure, lag_s=None):
    """The rule as it reads, the whole timeline computed at every step."""
    envelope = outer_envelope(schedule)
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    valley = valley_rows(profile)
    row = np.where(envelope, top, valley[schedule.kind, schedule.stage])
    while True:
        path = critical_path(schedule, profile.time_s[row], lag_s)
        slow = path[(row[path] > top[path]) & ~envelope[path]]
        if not len(slow):
            return row
        if reconfigure == "balanced":
            clock = profile.clock_mhz[row[slow]]
            row[slow[clock == clock.min()]] -= 1
        else:
            row[slow[0]] = max(row[slow[0]] - 3, top[slow[0]])


@given(
    seed=SEED,
    name=NAMES,
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    clocks=st.integers(1, 9),
    reconfigure=st.sampled_from(["balanced", "greedy"]),
    lagging=st.booleans(),
)
@settings(max_examples=150)
def test_each_step_is_the_plain_rules(
    make_profile, seed, name, stages, microbatches, clocks, reconfigure, lagging
):
    rng = np.random.default_rng(seed)
    profile = make_profile(rng, stages, clocks)
    schedule = build(name, stages, microbatches)
    lag = tuple(rng.uniform(0, 0.05, (2, len(schedule)))) if lagging else None
    ours = choose_envpipe(Task(schedule, profile, lag_s=lag), reconfigure=reconfigure).row
    assert ours.tolist() == plainly(schedule, profile, reconfigure, lag).tolist()


@given(seed=SEED, reconfigure=st.sampled_from(["balanced", "greedy"]))
@settings(max_examples=20)
def test_ties_are_broken_as_the_plain_rule_breaks_them(make_profile, seed, reconfigure):
    """Equal stages, times in whole units: longest paths are many."""
    raw = make_profile(np.random.default_rng(seed), 1, 6).frame()
    raw["time_s"] = np.ceil(raw.time_s / 0.05) * 0.05
    profile = EnergyProfile.from_frame(raw, blocking_power_w=80.0).restage([0] * 4)
    schedule = build("1f1b", 4, 6)
    ours = choose_envpipe(Task(schedule, profile), reconfigure=reconfigure).row
    assert ours.tolist() == plainly(schedule, profile, reconfigure).tolist()


@pytest.mark.parametrize("model", ["gpt3-175b", "bloom"])
@pytest.mark.parametrize("reconfigure", ["balanced", "greedy"])
def test_on_the_published_profiles_too(measured, model, reconfigure):
    profile = measured(model)
    schedule = build("1f1b", 8, 12)
    ours = choose_envpipe(Task(schedule, profile), reconfigure=reconfigure).row
    assert ours.tolist() == plainly(schedule, profile, reconfigure).tolist()


@given(seed=SEED, reconfigure=st.sampled_from(["balanced", "greedy"]), most=amounts(0.2))
@settings(max_examples=40)
def test_with_communication_it_is_never_slower_than_the_maximum_clock(
    make_profile, seed, reconfigure, most
):
    rng = np.random.default_rng(seed)
    profile = make_profile(rng, 4, 6)
    schedule = build("1f1b", 4, 6)
    lag = tuple(rng.uniform(0, most, (2, len(schedule))))
    row = choose_envpipe(Task(schedule, profile, lag_s=lag), reconfigure=reconfigure).row
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    fastest_s = Task(schedule, profile, lag_s=lag).cost(top)[0]
    assert Task(schedule, profile, lag_s=lag).cost(row)[0] <= fastest_s * (1 + 1e-12)


def test_a_lag_lengthens_the_makespan_by_what_the_path_crosses(make_profile):
    """One microbatch: every instruction lies on the one path; 2 S - 1 waits for an input."""
    profile = make_profile(np.random.default_rng(0), 3, 4)
    schedule = build("1f1b", 3, 1)
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    lag = (np.zeros(6), np.where(schedule.graph.needs < 6, 0.25, 0.0))
    plain, lagged = (Task(schedule, profile, lag_s=one).cost(top) for one in (None, lag))
    assert lagged[0] == pytest.approx(plain[0] + 5 * 0.25)
    assert lagged[1] == pytest.approx(plain[1] + 5 * 0.25 * 3 * 80.0)  # all three GPUs wait


@pytest.mark.parametrize("reconfigure", ["balanced", "greedy"])
def test_a_light_last_stage_does_not_keep_it_going(make_profile, reconfigure):
    """The published loop never ends here; the plan is as fast as the maximum clock."""
    profile = make_profile(np.random.default_rng(2), 1, 8).restage([0] * 4, scale=(2, 2, 2, 1))
    schedule = build("1f1b", 4, 8)
    made = plan(schedule, profile, "envpipe", reconfigure=reconfigure)
    fastest = plan(schedule, profile, "max-clock")
    assert made.makespan_s == pytest.approx(fastest.makespan_s, rel=1e-12)
    assert made.energy_j <= fastest.energy_j * (1 + 1e-12)


def test_halves_of_the_last_backward_lie_on_the_envelope():
    from labkit.pipeline import Instruction, Schedule

    rows = [
        [("forward", 0, 0), ("input", 0, 0), ("weight", 0, 0)],
        [("forward", 1, 0), ("input", 1, 0), ("weight", 1, 0)],
    ]
    order = [[Instruction(s, k, m) for k, s, m in device] for device in rows]
    assert outer_envelope(Schedule.from_order(order, name="halves")).all()


def test_early_forwards_need_the_full_backward(make_profile):
    table = make_profile(np.random.default_rng(0), 2, 3).split_backward().frame()
    halves = EnergyProfile.from_frame(table[table.kind != "backward"], blocking_power_w=80.0)
    with pytest.raises(UsageError, match="full backward passes: not measured"):
        early_forwards(halves, 4)
