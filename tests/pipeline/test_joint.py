"""Schedule, in-flight cap and clocks chosen together: against brute force, theory and limits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import pipeline
from labkit.errors import UsageError
from labkit.pipeline.choice.candidates import Candidate, Grid, quick_bound_j
from labkit.pipeline.choice.joint import OutOfReach, Search, choose
from labkit.pipeline.planning.fitted import fitted
from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE, Task
from labkit.pipeline.scheduling.families import FAMILIES
from labkit.pipeline.scheduling.schedule import KINDS
from tests.pipeline.strategies import lower_bound_j

Make = Callable[..., pipeline.EnergyProfile]
SOME = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b")


@pytest.fixture
def profile(make_profile: Make) -> pipeline.EnergyProfile:
    return make_profile(np.random.default_rng(7), 3, 4)


def held_bytes(schedule: pipeline.Schedule, each: list[float]) -> list[float]:
    """Most activation bytes of each device, counted instruction by instruction."""
    most = []
    for order in schedule.order:
        held = peak = 0.0
        for one in order:
            if one.kind == "forward":
                held += each[one.stage]
                peak = max(peak, held)
            elif one.kind in ("backward", "weight"):
                held -= each[one.stage]
        most.append(peak)
    return most


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize("limit", [None, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("slack", [1.0, 1.3])
def test_search_equals_planning_every_candidate(
    profile: pipeline.EnergyProfile, limit: float | None, slack: float
) -> None:
    grid = Grid(profile=profile, num_microbatches=4, schedules=SOME)
    fast = pipeline.plan(pipeline.build("1f1b", 3, 4), profile, "max-clock")
    deadline_s = 2.0 * slack * fast.makespan_s  # room for tight caps too
    plans = []
    for one in grid.candidates()[0]:
        small = limit is None or one.peak_bytes <= limit
        if small and one.fastest_s <= deadline_s:
            plans.append(pipeline.plan(one.schedule, one.task.profile, "optimal", deadline_s))
    choice = choose(profile, 4, memory_limit_bytes=limit, deadline_s=deadline_s, schedules=SOME)
    assert len(plans) > 1
    assert choice.best.energy_j == min(one.energy_j for one in plans)
    assert choice.bound_j == pytest.approx(min(one.bound_j for one in plans), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_bound_and_plan_enclose_the_optimum_over_every_clock(make_profile: Make, seed: int) -> None:
    """All clocks of all candidates tried: 3 clocks, 2 stages, 2 microbatches."""
    profile = make_profile(np.random.default_rng(seed), 2, 3)
    search = Search(profile, 2, schedules=("1f1b", "gpipe"))
    deadline_s = 1.4 * search.reference.makespan_s
    least = np.inf
    for one in search.candidates:
        works = zip(one.schedule.stage.tolist(), one.schedule.kind.tolist(), strict=True)
        rows = [profile.rows(s, KINDS[k]).tolist() for s, k in works]
        for row in itertools.product(*rows):
            makespan_s, energy_j = Task(one.schedule, profile).cost(np.array(row))
            if makespan_s <= deadline_s:
                least = min(least, energy_j)
    choice = search.choose(deadline_s=deadline_s)
    assert choice.bound_j <= least * (1 + 1e-9)
    assert choice.best.energy_j >= least * (1 - 1e-9)
    assert choice.best.makespan_s <= deadline_s * (1 + DEADLINE_TOLERANCE)
    assert choice.gap == pytest.approx(choice.best.energy_j / choice.bound_j - 1)


def test_default_deadline_is_where_1f1b_ends_at_the_highest_clock(
    profile: pipeline.EnergyProfile,
) -> None:
    fast = pipeline.plan(pipeline.build("1f1b", 3, 5), profile, "max-clock")
    choice = choose(profile, 5, schedules=SOME)
    assert choice.deadline_s == fast.makespan_s
    assert choice.reference.energy_j == pytest.approx(fast.energy_j)


def test_frame_tells_what_became_of_every_candidate(profile: pipeline.EnergyProfile) -> None:
    choice = choose(profile, 4, memory_limit_bytes=3, schedules=SOME)
    table = choice.frame()
    assert len(table) == len(
        Grid(profile=profile, num_microbatches=4, schedules=SOME).candidates()[0]
    )
    assert list(table["dropped"] == "") == [True] + [False] * (len(table) - 1)
    assert table["energy_j"].iloc[0] == choice.best.energy_j
    assert not table.loc[~table["fits"], "energy_j"].notna().any()
    assert (table.loc[~table["fits"], "peak_activation_bytes"] > 3).all()
    late = table["dropped"].str.startswith("its fastest")
    assert (table.loc[late, "fastest_s"] > choice.deadline_s).all()
    lost = table[table["dropped"].str.startswith("its lower bound")]
    assert (lost["bound_j"] >= choice.best.energy_j).all()


def test_tolerance_stops_within_its_share(profile: pipeline.EnergyProfile) -> None:
    exact = choose(profile, 6, schedules=SOME, num_caps=4)
    loose = choose(profile, 6, schedules=SOME, num_caps=4, tolerance=0.02)
    assert exact.best.energy_j <= loose.best.energy_j <= exact.best.energy_j / (1 - 0.02)
    assert loose.bound_j <= exact.best.energy_j


def test_messages_count_toward_every_candidates_time(profile: pipeline.EnergyProfile) -> None:
    network = pipeline.Network(latency_s=0.05)
    search = Search(profile, 4, schedules=SOME, network=network, num_caps=3)
    assert search.reference.makespan_s == pytest.approx(
        pipeline.plan(
            pipeline.build("1f1b", 3, 4), profile, "max-clock", network=network
        ).makespan_s
    )
    deadline_s = 1.2 * search.reference.makespan_s
    plans = [
        pipeline.plan(one.schedule, one.task.profile, "optimal", deadline_s, network=network)
        for one in search.candidates
        if one.fastest_s <= deadline_s
    ]
    choice = search.choose(deadline_s=deadline_s)
    assert choice.best.energy_j == min(one.energy_j for one in plans)
    assert choice.best.makespan_s <= deadline_s * (1 + DEADLINE_TOLERANCE)
    for one in search.candidates:
        line = pipeline.simulate(one.schedule, one.planner.choices.fastest_s(), network=network)
        assert one.fastest_s == pytest.approx(line.makespan_s)
        sharp_j = lower_bound_j(
            one.schedule, one.task.profile, 1.1 * one.fastest_s, network=network
        )
        assert quick_bound_j(one, 1.1 * one.fastest_s) <= sharp_j * (1 + 1e-9)


# ---------------------------------------------------------------- limits


@given(seed=st.integers(0, 1000), size=st.integers(1, 6))
@settings(max_examples=6, deadline=None)
def test_less_memory_or_time_never_lowers_energy(make_profile: Make, seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    profile = make_profile(rng, 3, 3)
    bytes_each = rng.uniform(1, 3, 3).tolist()
    search = Search(profile, size, schedules=SOME, activation_bytes=bytes_each, num_caps=6)
    base_s = search.reference.makespan_s
    limits = [2.0, 4.0, 6.0, 9.0, None]
    deadlines = [base_s, 1.2 * base_s, 2 * base_s]
    table = search.tradeoff(memory_limits_bytes=limits, deadlines_s=deadlines)
    energy = table.pivot(index="memory_limit_bytes", columns="deadline_s", values="energy_j")
    for axis in (0, 1):
        table_j = np.moveaxis(energy.fillna(np.inf).to_numpy(), axis, 0)
        assert (table_j[1:] <= table_j[:-1]).all()
    assert (table["energy_j"].isna() == (table["problem"] != "")).all()
    held = table.dropna(subset="energy_j")
    assert (held["peak_activation_bytes"] <= held["memory_limit_bytes"] * (1 + 1e-9)).all()
    assert (held["makespan_s"] <= held["deadline_s"] * (1 + 1e-9)).all()
    assert (held["bound_j"] <= held["energy_j"] * (1 + 1e-12)).all()


def test_single_choices_agree_with_the_tradeoff(profile: pipeline.EnergyProfile) -> None:
    table = Search(profile, 4, schedules=SOME).tradeoff(memory_limits_bytes=[3, None])
    for limit, energy_j in zip([3, None], table["energy_j"], strict=True):
        choice = choose(profile, 4, memory_limit_bytes=limit, schedules=SOME)
        assert choice.best.energy_j == pytest.approx(energy_j, rel=1e-12)


def test_what_does_not_fit_says_the_least_memory_that_does(
    profile: pipeline.EnergyProfile,
) -> None:
    given = {"schedules": ("1f1b",), "activation_bytes": [3.0, 2.0, 7.0], "parameter_bytes": 10.0}
    with pytest.raises(OutOfReach, match=r"memory_limit_bytes = 12.*no schedule fits") as caught:
        choose(profile, 4, memory_limit_bytes=12, deadline_s=100.0, **given)
    least = float(re.search(r"is ([\d.]+) bytes", str(caught.value))[1])  # type: ignore[index]
    assert least == 17.0  # one activation of the largest stage, and its parameters
    assert choose(profile, 4, memory_limit_bytes=least, deadline_s=100.0, **given).best
    with pytest.raises(OutOfReach):
        choose(profile, 4, memory_limit_bytes=least * 0.999, deadline_s=100.0, **given)


def test_what_ends_too_late_says_the_earliest_possible(profile: pipeline.EnergyProfile) -> None:
    with pytest.raises(OutOfReach, match=r"cannot be met within memory_limit_bytes = 1") as caught:
        choose(profile, 4, memory_limit_bytes=1, schedules=("1f1b",))
    earliest = float(re.search(r"possible is ([\d.]+) s", str(caught.value))[1])  # type: ignore[index]
    made = choose(
        profile, 4, memory_limit_bytes=1, schedules=("1f1b",), deadline_s=earliest * (1 + 1e-8)
    )
    assert made.best.makespan_s == pytest.approx(earliest)
    # One microbatch at a time: all of every microbatch's work in a row.
    one_by_one = pipeline.simulate(
        pipeline.build("1f1b", 3, 4, max_in_flight=1), np.ones(24)
    ).makespan_s
    assert one_by_one == 24


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"memory_limit_bytes": 0},
            "memory_limit_bytes must be a finite number, above 0",
        ),
        ({"memory_limit_bytes": np.nan}, "memory_limit_bytes must be a finite number"),
        ({"deadline_s": -1.0}, "deadline_s must be a finite number, above 0, or None; got -1.0"),
        ({"activation_bytes": [1.0, 2.0]}, "activation_bytes has 2 values"),
        ({"activation_bytes": -1.0}, "activation_bytes must be a finite number, at least 0"),
        ({"parameter_bytes": np.inf}, "parameter_bytes must be a finite number, at least 0"),
        ({"schedules": ["1f1"]}, "no schedule '1f1'; did you mean '1f1b'"),
        ({"schedules": []}, "no schedules to choose from"),
        ({"schedules": ["dualpipe-v"]}, "M >= 2S"),
        (
            {"num_chunks": [0]},
            "num_chunks must be a list of items, each a whole number",
        ),
        ({"num_caps": 0}, "num_caps must be a whole number, at least 1"),
        ({"tolerance": 1.0}, "tolerance must be a finite number, at least 0, below 1"),
    ],
)
def test_wrong_requests_are_refused(
    profile: pipeline.EnergyProfile, wrong: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        choose(profile, 4, **wrong)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("name", [n for n in FAMILIES if not n.startswith("dualpipe")])
def test_memory_is_counted_as_a_device_would(make_profile: Make, name: str) -> None:
    profile = make_profile(np.random.default_rng(1), 4, 2)
    each = [5.0, 2.0, 3.0, 1.0]
    weights = [10.0, 20.0, 30.0, 40.0]
    grid = Grid(profile=profile, num_microbatches=4, activation_bytes=each, parameter_bytes=weights)
    schedule, _ = fitted(profile, name, 4)
    held, kept = grid.peak_bytes(schedule)
    chunks = schedule.num_stages // 4
    placed = [
        sorted({(one.stage, device) for one in order})
        for device, order in enumerate(schedule.order)
    ]
    if chunks > 1:  # every chunk carries an equal part of its device's stage
        size = {stage: each[device] / chunks for row in placed for stage, device in row}
        assert kept.tolist() == pytest.approx(weights)
    else:
        size = dict(enumerate(each))
        versions = schedule.weight_versions or (1,) * 4
        expected = [
            versions[d] * sum(weights[stage] for stage, _ in row) for d, row in enumerate(placed)
        ]
        assert kept.tolist() == expected
    assert held.tolist() == pytest.approx(held_bytes(schedule, [size[s] for s in sorted(size)]))


def test_a_bidirectional_pipeline_keeps_every_stage_twice(make_profile: Make) -> None:
    profile = make_profile(np.random.default_rng(1), 4, 2)
    grid = Grid(profile=profile, num_microbatches=4, parameter_bytes=[1.0, 2.0, 4.0, 8.0])
    kept = grid.peak_bytes(pipeline.build("chimera", 4, 4))[1]
    assert kept.tolist() == [9.0, 6.0, 6.0, 9.0]
    search = Search(profile, 4, schedules=("chimera",), parameter_bytes=1.0)
    assert any("two devices of a stage" in one for one in search.choose().assumptions)


def test_caps_are_every_count_where_activations_are_alike(make_profile: Make) -> None:
    plain = pipeline.build("1f1b", 5, 9)
    grid = Grid(profile=make_profile(np.random.default_rng(1), 5, 2), num_microbatches=9)
    assert grid.ladder(plain) == [(n,) * 5 for n in range(1, 6)]


def test_caps_fill_each_device_with_what_fits(profile: pipeline.EnergyProfile) -> None:
    plain = pipeline.build("gpipe", 3, 8)
    each = np.array([3.0, 2.0, 1.0])
    rooms = sorted({n * x for n in range(1, 9) for x in each.tolist()})
    expected = [tuple(int(min(8, max(1, room // x))) for x in each) for room in rooms]
    grid = Grid(profile=profile, num_microbatches=8, activation_bytes=each.tolist())
    assert grid.ladder(plain) == expected


@pytest.mark.parametrize("limit", [4.0, 7.0, 12.0])
def test_the_chosen_schedule_holds_no_more_than_the_limit(make_profile: Make, limit: float) -> None:
    profile = make_profile(np.random.default_rng(3), 4, 3)
    each = [2.0, 1.5, 1.0, 0.5]
    choice = choose(
        profile,
        8,
        memory_limit_bytes=limit,
        activation_bytes=each,
        deadline_s=100.0,
        schedules=("1f1b", "gpipe", "zb-h2"),
    )
    assert max(held_bytes(choice.best.schedule, each)) <= limit


# ---------------------------------------------------------------- bounds


@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b", "chimera"]),
    slack=st.floats(1.0, 2.0),
)
@settings(max_examples=25, deadline=None)
def test_the_quick_bound_is_below_the_linear_program(
    make_profile: Make, seed: int, name: str, slack: float
) -> None:
    one = candidate(make_profile(np.random.default_rng(seed), 4, 4), name, 8)
    deadline_s = slack * one.fastest_s
    sharp_j = lower_bound_j(one.schedule, one.task.profile, deadline_s)
    assert quick_bound_j(one, deadline_s) <= sharp_j * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slack", [1.0, 1.1, 3.0])
def test_on_one_device_the_quick_bound_is_the_linear_program(
    make_profile: Make, seed: int, slack: float
) -> None:
    one = candidate(make_profile(np.random.default_rng(seed), 1, 5), "1f1b", 4)
    deadline_s = slack * one.fastest_s
    sharp_j = lower_bound_j(one.schedule, one.task.profile, deadline_s)
    assert quick_bound_j(one, deadline_s) == pytest.approx(sharp_j, rel=1e-6)


def candidate(profile: pipeline.EnergyProfile, name: str, size: int) -> Candidate:
    return Grid(profile=profile, num_microbatches=size, schedules=(name,)).candidates()[0][0]


# ---------------------------------------------------------------- what there is to choose from


def test_asynchronous_schedules_must_be_asked_for(make_profile: Make) -> None:
    profile = make_profile(np.random.default_rng(0), 2, 2)
    search = Search(profile, 4)
    assert not any(one.schedule.asynchronous for one in search.candidates)
    assert any("pipedream-2bw" in told for told in search.assumptions())
    asked = Search(profile, 4, schedules=("pipedream",))
    assert all(one.schedule.asynchronous for one in asked.candidates)
    assert not any("Asynchronous" in told for told in asked.assumptions())


def test_every_synchronous_schedule_is_a_candidate_or_said_to_be_left_out(
    make_profile: Make,
) -> None:
    profile = make_profile(np.random.default_rng(0), 3, 2)
    search = Search(profile, 4)
    seen = {one.name for one in search.candidates} | set(search.left_out)
    twins = {"pipedream-flush"}  # the same order as 1f1b
    synchronous = {name for name, family in FAMILIES.items() if not family.asynchronous}
    assert seen >= synchronous - twins
    assert "3 devices" in search.left_out["chimera"]


def test_no_two_candidates_are_the_same_schedule(make_profile: Make) -> None:
    profile = make_profile(np.random.default_rng(0), 4, 2)
    found = Grid(profile=profile, num_microbatches=6).candidates()[0]
    assert len({one.schedule.order for one in found}) == len(found)


def test_a_schedule_fits_its_profile_and_says_what_was_assumed(make_profile: Make) -> None:
    profile = make_profile(np.random.default_rng(0), 4, 2)
    choice = choose(profile, 8, schedules=("zb-v",), weight_fraction=0.4)
    assert choice.best.profile.num_stages == 8
    assert any("0.4 of a full backward" in told for told in choice.assumptions)
    assert any("shared equally" in told for told in choice.assumptions)


def test_published_profile_halves_the_memory_and_still_saves(
    measured: Callable[..., pipeline.EnergyProfile],
) -> None:
    """Half of 1F1B's memory and no later: what no planner of clocks alone can find."""
    profile = measured("gpt3-175b")
    choice = choose(profile, 12, memory_limit_bytes=4, schedules=("1f1b", "zb-h1", "zb-v"))
    assert max(choice.best.schedule.peak_in_flight) / choice.chosen.num_chunks <= 4
    assert choice.best.makespan_s <= choice.reference.makespan_s * (1 + 1e-9)
    assert choice.best.energy_j < 0.85 * choice.reference.energy_j
    assert choice.gap < 0.005
