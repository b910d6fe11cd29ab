import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Costs, build, simulate

NAMES = st.sampled_from(("gpipe", "1f1b", "envpipe"))


@pytest.mark.parametrize(("stages", "microbatches", "span"), [(4, 8, 33), (8, 64, 213)])
def test_1f1b_spans_with_unit_costs(stages, microbatches, span):
    costs = Costs.uniform(forward_s=1, backward_s=1, weight_s=1)
    assert simulate(build("1f1b", stages, microbatches), costs).makespan_s == span


@given(
    name=NAMES,
    stages=st.integers(1, 7),
    microbatches=st.integers(1, 14),
    forward=st.integers(1, 5),
    backward=st.integers(1, 9),
)
def test_uniform_stages_have_the_closed_form_bubble(name, stages, microbatches, forward, backward):
    """(S - 1) / (M + S - 1), GPipe 2019 §2.3, for schedules that never starve the last stage."""
    line = simulate(build(name, stages, microbatches), Costs.uniform(forward, backward))
    assert line.makespan_s == (microbatches + stages - 1) * (forward + backward)
    assert line.bubble_ratio == pytest.approx((stages - 1) / (microbatches + stages - 1))


def naive_end_times(schedule, duration):
    """Start everything at once and push back whatever starts too early, until nothing moves."""
    table = schedule.frame()
    number = {tuple(row): i for i, row in enumerate(table[["stage", "kind", "microbatch"]].values)}
    sources = []
    for i, (_device, position, stage, kind, mb) in enumerate(table.values):
        inputs = [i - 1] if position else []
        if kind == "forward" and stage:
            inputs.append(number[stage - 1, "forward", mb])
        if kind == "backward":
            inputs.append(number[stage, "forward", mb])
            if stage < schedule.num_stages - 1:
                inputs.append(number[stage + 1, "backward", mb])
        sources.append(inputs)
    end = np.array(duration, dtype=float)
    while True:
        start = [max((end[j] for j in inputs), default=0.0) for inputs in sources]
        if np.array_equal(new := np.array(start) + duration, end):
            return end
        end = new


@given(
    name=NAMES,
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_simulation_agrees_with_a_naive_one(name, stages, microbatches, seed):
    schedule = build(name, stages, microbatches)
    duration = np.random.default_rng(seed).integers(0, 5, len(schedule.graph)).astype(float)
    line = simulate(schedule, duration)
    np.testing.assert_array_equal(line.end_s, naive_end_times(schedule, duration))
    np.testing.assert_array_equal(line.end_s - line.start_s, duration)


@given(
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_slack_is_exactly_what_an_instruction_can_lose(stages, microbatches, seed, data):
    schedule = build("1f1b", stages, microbatches)
    duration = np.random.default_rng(seed).integers(1, 6, len(schedule.graph)).astype(float)
    line = simulate(schedule, duration)
    i = data.draw(st.integers(0, len(duration) - 1))
    for more, late in ((line.slack_s[i], 0.0), (line.slack_s[i] + 1, 1.0)):
        longer = duration.copy()
        longer[i] += more
        assert simulate(schedule, longer).makespan_s == line.makespan_s + late


def test_uneven_costs_are_taken_stage_by_stage():
    costs = Costs(forward_s=(1.0, 3.0), backward_s=(1.0, 4.0), weight_s=(1.0, 2.0))
    table = simulate(build("1f1b", 2, 2), costs).frame()
    took = (table.end_s - table.start_s).groupby([table.stage, table.kind]).unique()
    assert {key: value.tolist() for key, value in took.items()} == {
        (0, "backward"): [2.0],
        (0, "forward"): [1.0],
        (1, "backward"): [6.0],
        (1, "forward"): [3.0],
    }


def test_frame_is_tidy():
    table = simulate(build("gpipe", 3, 2), Costs.uniform(1.0, 2.0)).frame()
    assert list(table.columns) == [
        *("device", "stage", "kind", "microbatch", "start_s", "end_s", "slack_s")
    ]
    assert len(table) == 3 * 2 * 2
    last = table[(table.stage == 0) & (table.kind == "backward")].iloc[-1]
    assert last.end_s == table.end_s.max()
    assert last.slack_s == 0


def test_work_that_takes_no_time_leaves_no_bubble():
    line = simulate(build("1f1b", 2, 2), Costs.uniform(0.0, 0.0))
    assert (line.makespan_s, line.bubble_ratio) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), [[1.0]]])
def test_bad_costs_are_refused(bad):
    with pytest.raises(UsageError, match="forward_s must be finite and >= 0"):
        Costs(forward_s=bad, backward_s=1.0)


def test_costs_and_durations_must_fit_the_schedule():
    schedule = build("1f1b", 3, 2)
    with pytest.raises(UsageError, match="2 values, the schedule 3 stages"):
        simulate(schedule, Costs(forward_s=(1.0, 2.0), backward_s=1.0))
    with pytest.raises(UsageError, match="for the schedule's 12 instructions"):
        simulate(schedule, np.ones(5))
    with pytest.raises(UsageError, match="finite and >= 0"):
        simulate(schedule, -np.ones(12))
