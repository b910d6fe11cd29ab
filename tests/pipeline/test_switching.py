"""Plans whose clock changes take time: replayed, against brute force, and against naive plans."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Instruction, Schedule, build, plan, replay
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.studies.switching import plan_with_switches

SEED = st.integers(0, 10_000)


def every_plan(schedule, profile, switch_s):
    """(makespan, energy) of every combination of clocks, switches included, by the definition."""
    graph, n = schedule.graph, len(schedule)
    choices = [profile.rows(one.stage, one.kind) for device in schedule.order for one in device]
    rows = np.array(list(itertools.product(*choices)))
    clock = profile.clock_mhz[rows]
    took = profile.time_s[rows]
    end = np.zeros((len(rows), n + 1))
    for i in graph.topological:
        before = graph.before[i]
        switch = switch_s * (clock[:, i] != clock[:, before]) if before < n else 0.0
        ready = np.maximum(end[:, before], end[:, graph.needs[i]])
        end[:, i] = ready + switch + took[:, i]
    makespan = end.max(axis=1)
    waited = schedule.num_devices * makespan - took.sum(axis=1)
    return makespan, profile.energy_j[rows].sum(axis=1) + profile.blocking_power_w * waited


@pytest.mark.parametrize("seed", range(4))
def test_against_every_plan_there_is(make_profile, seed):
    """6,561 plans: never below the best, on average within 2 % of it."""
    rng = np.random.default_rng(seed)
    profile = make_profile(rng, 2, 3)
    schedule = build(["1f1b", "gpipe"][seed % 2], 2, 2)
    excess = []
    for switch_s in (0.0, 0.005, 0.03):
        makespan, energy = every_plan(schedule, profile, switch_s)
        fastest = plan(schedule, profile, "max-clock").makespan_s
        for stretch in (1.0, 1.2, 1.6):
            deadline = stretch * fastest
            best = energy[makespan <= deadline * (1 + 1e-12)].min()
            made = plan_with_switches(schedule, profile, deadline, switch_s=switch_s)
            assert made.makespan_s <= deadline * (1 + 1e-9)
            excess.append(made.energy_j / best - 1)
    assert min(excess) > -1e-9
    assert np.mean(excess) < 0.02


def test_one_device_is_solved_exactly(make_profile):
    """Without other devices there is nothing to share, and so few clocks fit all labels."""
    for seed in range(5):
        profile = make_profile(np.random.default_rng(seed), 1, 3, blocking_power_w=0.0)
        schedule = build("1f1b", 1, 3)
        for switch_s, stretch in itertools.product((0.003, 0.02), (1.1, 1.3)):
            makespan, energy = every_plan(schedule, profile, switch_s)
            deadline = stretch * plan(schedule, profile, "max-clock").makespan_s
            best = energy[makespan <= deadline * (1 + 1e-12)].min()
            made = plan_with_switches(schedule, profile, deadline, switch_s=switch_s)
            assert made.energy_j == pytest.approx(best, rel=1e-9)


@given(
    seed=SEED,
    name=st.sampled_from(["gpipe", "1f1b", "envpipe"]),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    clocks=st.integers(1, 6),
    switch_s=st.floats(0, 0.1),
    stretch=st.floats(1, 1.6),
)
@settings(max_examples=20)
def test_it_keeps_its_deadline_as_replayed_and_the_bound(
    make_profile, seed, name, stages, microbatches, clocks, switch_s, stretch
):
    profile = make_profile(np.random.default_rng(seed), stages, clocks)
    schedule = build(name, stages, microbatches)
    fastest = plan(schedule, profile, "max-clock")
    deadline = stretch * fastest.makespan_s
    made = plan_with_switches(schedule, profile, deadline, switch_s=switch_s, num_rounds=4)
    replayed = replay(made.plan, switch_s=switch_s)
    assert (made.makespan_s, made.energy_j) == pytest.approx(replayed)
    assert made.makespan_s <= deadline * (1 + 1e-9)
    assert made.energy_j <= fastest.energy_j * (1 + 1e-12)
    assert made.bound_j <= made.energy_j * (1 + 1e-9)
    table = made.plan.frame().groupby("device").clock_mhz
    assert made.num_switches == sum((np.diff(one) != 0).sum() for _, one in table)


@pytest.mark.parametrize("model", ["gpt3-175b", "bloom"])
@pytest.mark.parametrize("switch_s", [0.002, 0.025])
def test_it_beats_the_naive_plan_at_its_stretched_deadline(measured, model, switch_s):
    """A plan that ignores switches is late; ours, given as long as that one takes, saves more."""
    profile, schedule = measured(model), build("1f1b", 8, 6)
    naive = plan(schedule, profile, "optimal")
    late_s, spent_j = replay(naive, switch_s=switch_s)
    assert late_s > naive.deadline_s * (1 + 1e-3)
    ours = plan_with_switches(schedule, profile, late_s, switch_s=switch_s)
    assert ours.makespan_s <= late_s * (1 + 1e-9)
    assert ours.energy_j < spent_j
    in_time = plan_with_switches(schedule, profile, switch_s=switch_s, num_rounds=5)
    fastest = plan(schedule, profile, "max-clock")
    assert in_time.makespan_s <= fastest.makespan_s * (1 + 1e-9)
    assert in_time.energy_j < fastest.energy_j


@pytest.mark.parametrize("stretch", [1.0, 1.1, 1.3])
def test_switches_that_take_no_time_cost_nothing(measured, stretch):
    profile, schedule = measured("bloom"), build("1f1b", 8, 6)
    deadline = stretch * plan(schedule, profile, "max-clock").makespan_s
    naive = plan(schedule, profile, "optimal", deadline)
    ours = plan_with_switches(schedule, profile, deadline, switch_s=0.0, num_rounds=2)
    assert ours.energy_j <= naive.energy_j * (1 + 1e-12)
    assert ours.gap < 0.005


def test_switches_too_slow_to_pay_are_not_made(make_profile):
    """A switch longer than all slack: every device keeps one clock."""
    profile, schedule = make_profile(np.random.default_rng(3), 3, 5), build("1f1b", 3, 4)
    deadline = 1.2 * plan(schedule, profile, "max-clock").makespan_s
    made = plan_with_switches(schedule, profile, deadline, switch_s=deadline)
    assert made.num_switches == 0


def test_dearer_switches_never_help_by_much(measured):
    """Every plan is worse with slower switches; the search finds this to 1 %."""
    profile, schedule = measured("gpt3-175b"), build("1f1b", 8, 6)
    deadline = 1.1 * plan(schedule, profile, "max-clock").makespan_s
    made = [
        plan_with_switches(schedule, profile, deadline, switch_s=s, num_rounds=5)
        for s in (0.0, 0.002, 0.02)
    ]
    energies = [one.energy_j for one in made]
    assert all(later >= earlier * 0.99 for earlier, later in itertools.pairwise(energies))
    assert energies[-1] > energies[0]


def test_halves_and_chunks_switch_as_well(make_profile):
    """Split backward passes and two stages on a device; messages stay as they are."""
    kinds = {"F": "forward", "I": "input", "W": "weight"}
    rows = ["F00 F30 I30 W30 I00 W00", "F10 F20 I20 W20 I10 W10"]
    schedule = Schedule.from_order(
        [[Instruction(int(s), kinds[k], int(m)) for k, s, m in row.split()] for row in rows],
        name="v",
    )
    profile = make_profile(np.random.default_rng(1), 2, 5).for_schedule(schedule)
    fastest = plan(schedule, profile, "max-clock").makespan_s
    made = plan_with_switches(schedule, profile, 1.3 * fastest, switch_s=0.004)
    assert (made.makespan_s, made.energy_j) == pytest.approx(replay(made.plan, switch_s=0.004))
    assert made.makespan_s <= 1.3 * fastest * (1 + 1e-9)
    assert made.energy_j < plan(schedule, profile, "max-clock").energy_j


def test_messages_take_their_time(make_profile):
    from labkit.pipeline.simulation.network import Network

    profile, schedule = make_profile(np.random.default_rng(2), 3, 5), build("1f1b", 3, 5)
    network = Network(latency_s=0.02)
    lag = network.lag_s(schedule)
    top = plan(schedule, profile, "max-clock", network=network)
    deadline = 1.2 * top.makespan_s
    made = plan_with_switches(schedule, profile, deadline, switch_s=0.005, network=network)
    clock = profile.clock_mhz[made.plan.row]
    before = schedule.graph.before
    switched = (before < len(schedule)) & (clock != np.append(clock, 0)[before])
    took = profile.time_s[made.plan.row] + 0.005 * switched
    assert made.makespan_s == pytest.approx(longest_to(schedule.graph, took, lag).max())
    assert made.makespan_s <= deadline * (1 + 1e-9)
    assert made.energy_j < top.energy_j


def test_impossible_requests_are_refused(make_profile):
    profile, schedule = make_profile(np.random.default_rng(0), 2, 3), build("1f1b", 2, 2)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="switch_s must be finite and >= 0"):
            plan_with_switches(schedule, profile, switch_s=wrong)
    with pytest.raises(UsageError, match="cannot be met with 10 ms a switch; the highest clock"):
        plan_with_switches(schedule, profile, 1e-3, switch_s=0.01)
    with pytest.raises(UsageError, match="3 stages, the profile 2"):
        plan_with_switches(build("1f1b", 3, 2), profile, switch_s=0.01)
