import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Costs, DeadlockError, Instruction, Schedule, build, simulate

NAMES = ("gpipe", "1f1b", "envpipe")


@given(name=st.sampled_from(NAMES), stages=st.integers(1, 7), microbatches=st.integers(1, 12))
def test_every_stage_runs_every_microbatch_in_turn(name, stages, microbatches):
    schedule = build(name, stages, microbatches)
    for stage, order in enumerate(schedule.order):
        for kind in ("forward", "backward"):
            ran = [one.microbatch for one in order if one.kind == kind]
            assert ran == list(range(microbatches))
        assert {one.stage for one in order} == {stage}
    simulate(schedule, Costs(forward_s=1.0, backward_s=2.0))  # never deadlocks


@given(stages=st.integers(1, 7), microbatches=st.integers(1, 12))
def test_in_flight_microbatches_are_those_of_the_theory(stages, microbatches):
    assert build("gpipe", stages, microbatches).peak_in_flight == (microbatches,) * stages
    expected = tuple(min(stages - stage, microbatches) for stage in range(stages))
    assert build("1f1b", stages, microbatches).peak_in_flight == expected


@given(
    name=st.sampled_from(NAMES),
    stages=st.integers(1, 6),
    microbatches=st.integers(1, 10),
    limit=st.integers(1, 6),
)
def test_a_memory_limit_is_kept_and_never_deadlocks(name, stages, microbatches, limit):
    schedule = build(name, stages, microbatches, max_in_flight=limit)
    assert max(schedule.peak_in_flight) <= limit
    simulate(schedule, Costs(forward_s=1.0, backward_s=1.0))


@given(
    name=st.sampled_from(NAMES),
    stages=st.integers(2, 6),
    microbatches=st.integers(1, 12),
    limit=st.integers(1, 6),
)
def test_memory_that_suffices_costs_no_time_and_less_never_helps(name, stages, microbatches, limit):
    costs = Costs(forward_s=1.0, backward_s=2.0)
    free = simulate(build(name, stages, microbatches), costs).makespan_s
    kept = simulate(build(name, stages, microbatches, max_in_flight=limit), costs).makespan_s
    if limit >= min(stages, microbatches):
        assert kept == free
    else:
        assert kept > free


def test_gpipe_runs_all_forwards_first():
    kinds = [one.kind for one in build("gpipe", 3, 4).order[1]]
    assert kinds == ["forward"] * 4 + ["backward"] * 4


def test_envpipe_without_early_forwards_is_1f1b():
    assert build("envpipe", 5, 9, early_forwards=0).order == build("1f1b", 5, 9).order


def test_early_forwards_come_before_the_first_backward():
    schedule = build("envpipe", 4, 12, early_forwards=(3, 2, 1, 0))
    warm_up = [[one.kind for one in order].index("backward") for order in schedule.order]
    assert warm_up == [4 + 3, 3 + 2, 2 + 1, 1]


def test_a_deadlock_is_named():
    first = (Instruction(0, "forward", 0), Instruction(0, "backward", 0))
    first += (Instruction(0, "forward", 1), Instruction(0, "backward", 1))
    second = (Instruction(1, "forward", 1), Instruction(1, "forward", 0))
    second += (Instruction(1, "backward", 0), Instruction(1, "backward", 1))
    schedule = Schedule.from_order((first, second), name="mine")
    with pytest.raises(DeadlockError) as error:
        simulate(schedule, Costs(forward_s=1.0, backward_s=1.0))
    text = str(error.value)
    assert "backward 0 on stage 0 waits for backward 0 on stage 1" in text
    assert "stands behind forward 1 on stage 1 on device 1" in text
    assert "forward 1 on stage 1 waits for forward 1 on stage 0" in text


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ([("forward", 0), ("backward", 0), ("forward", 1)], "lacks 1 of the instructions"),
        ([("backward", 0), ("forward", 0), ("forward", 1), ("backward", 1)], "before its forward"),
        ([("forward", 0), ("forward", 0)], "twice"),
        ([("forward", 0), ("backward", 0), ("forward", -1)], "microbatches 0 to 0"),
        ([("sideways", 0)], "valid kinds: forward, backward"),
    ],
)
def test_an_order_that_is_none_is_refused(order, problem):
    row = tuple(Instruction(0, kind, microbatch) for kind, microbatch in order)
    with pytest.raises(UsageError, match=problem):
        Schedule.from_order((row,), name="mine")


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        (("zigzag", 4, 8), {}, "there are: gpipe, 1f1b"),
        (("1f1b", 0, 8), {}, "num_stages must be a whole number, at least 1; got 0"),
        (("1f1b", 4, 0), {}, "num_microbatches"),
        (("1f1b", 4, 8.0), {}, "num_microbatches must be a whole number"),
        (("1f1b", 4, 8), {"early_forwards": 1}, "has no option 'early_forwards'"),
        (("envpipe", 4, 8), {"early_forwards": (1, 2)}, "2 values for 4 stages"),
        (
            ("envpipe", 4, 8),
            {"early_forwards": -1},
            "early_forwards must be a whole number, at least 0",
        ),
        (("gpipe", 4, 8), {"max_in_flight": 0}, "max_in_flight must be a whole number, at least 1"),
    ],
)
def test_wrong_requests_say_what_would_be_right(arguments, options, problem):
    with pytest.raises(UsageError, match=problem):
        build(*arguments, **options)
