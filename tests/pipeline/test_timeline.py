import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Costs, Network, build, simulate
from labkit.pipeline.simulation.timeline import CAUSES
from tests.amounts import amounts
from tests.pipeline.strategies import cases, schedules

NAMES = st.sampled_from(("gpipe", "1f1b", "envpipe"))


@pytest.mark.parametrize(("stages", "microbatches", "span"), [(4, 8, 33), (8, 64, 213)])
def test_1f1b_spans_with_unit_costs(stages, microbatches, span):
    costs = Costs(forward_s=1, backward_s=1, weight_s=1)
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
    line = simulate(
        build(name, stages, microbatches), Costs(forward_s=forward, backward_s=backward)
    )
    assert line.makespan_s == (microbatches + stages - 1) * (forward + backward)
    assert line.bubble_ratio == pytest.approx((stages - 1) / (microbatches + stages - 1))


def naive_end_times(schedule, duration):
    """Start everything at once and push back whatever starts too early, until nothing moves."""
    table = schedule.frame()
    number = {tuple(row): i for i, row in enumerate(table[["stage", "kind", "microbatch"]].values)}
    sources = []
    follows = table["device"].duplicated()
    for i, (_device, stage, kind, mb) in enumerate(table.values):
        inputs = [i - 1] if follows[i] else []
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
    table = simulate(build("gpipe", 3, 2), Costs(forward_s=1.0, backward_s=2.0)).frame()
    assert list(table.columns) == [
        "device",
        "stage",
        "kind",
        "microbatch",
        "start_s",
        "end_s",
        "slack_s",
    ]
    assert len(table) == 3 * 2 * 2
    last = table[(table.stage == 0) & (table.kind == "backward")].iloc[-1]
    assert last.end_s == table.end_s.max()
    assert last.slack_s == 0


def test_work_that_takes_no_time_leaves_no_bubble():
    line = simulate(build("1f1b", 2, 2), Costs(forward_s=0.0, backward_s=0.0))
    assert (line.makespan_s, line.bubble_ratio) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), [[1.0]]])
def test_bad_costs_are_refused(bad):
    with pytest.raises(UsageError, match=r"Costs\.forward_s must be a finite number, at least 0"):
        Costs(forward_s=bad, backward_s=1.0)


def test_costs_and_durations_must_fit_the_schedule():
    schedule = build("1f1b", 3, 2)
    with pytest.raises(UsageError, match="2 values, the schedule 3 stages"):
        simulate(schedule, Costs(forward_s=(1.0, 2.0), backward_s=1.0))
    with pytest.raises(UsageError, match="each of the schedule's 12 instructions; got shape"):
        simulate(schedule, np.ones(5))
    with pytest.raises(UsageError, match="finite and >= 0"):
        simulate(schedule, -np.ones(12))


@pytest.mark.parametrize("name", ["weight_s", "activation_bytes"])
def test_every_cost_is_checked(name):
    with pytest.raises(UsageError, match=f"Costs.{name} must be a finite number, at least 0"):
        Costs(forward_s=1.0, backward_s=1.0, **{name: (1.0, -1.0)})


# ---------------------------------------------------------------- invariants under any network


@given(cases())
def test_work_on_a_device_never_overlaps_and_never_shrinks(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    np.testing.assert_array_equal(line.duration_s, work.durations_s(schedule))
    for start, end in zip(
        schedule.by_device(line.start_s), schedule.by_device(line.end_s), strict=True
    ):
        assert (start[1:] >= end[:-1]).all()
    assert line.makespan_s == line.frame().end_s.max()


@given(cases(), st.data())
def test_slack_is_exact_with_messages_too(case, data):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    duration = line.duration_s
    i = data.draw(st.integers(0, len(duration) - 1))

    def late_s(more_s):
        longer = duration.copy()
        longer[i] += more_s
        return simulate(schedule, longer, network=network).makespan_s - line.makespan_s

    assert late_s(line.slack_s[i]) == 0
    assert late_s(line.slack_s[i] + 1) == 1


@given(cases())
def test_the_critical_path_is_the_makespan(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    table = line.frame().iloc[line.critical_path]
    assert table.start_s.iloc[0] == 0
    assert table.end_s.iloc[-1] == line.makespan_s
    assert (table.slack_s == 0).all()
    gap = table.start_s.to_numpy()[1:] - table.end_s.to_numpy()[:-1]
    assert (gap >= 0).all()
    share = line.critical_share
    assert sum(share.values()) == pytest.approx(1)
    assert share.get("communication", 0) * line.makespan_s == pytest.approx(gap.sum())
    took = (table.end_s - table.start_s).groupby(table.kind).sum()
    for kind, seconds in took[took > 0].items():
        assert share[kind] * line.makespan_s == pytest.approx(seconds)


def test_without_a_network_the_critical_path_has_no_gap():
    line = simulate(build("1f1b", 4, 8), Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0))
    assert line.critical_share == {"forward": 11 / 33, "backward": 22 / 33}


# ---------------------------------------------------------------- idle time


def sampled_idle(line):
    """Each second of each device looked at in its middle, and the cause told from the tables."""
    schedule = line.schedule
    seconds = {cause: np.zeros(schedule.num_devices) for cause in (*CAUSES, "busy")}
    sending = line.lag_s[0]
    needs = schedule.graph.needs
    start = line.start_s.tolist()
    end = line.end_s.tolist()
    for device in range(schedule.num_devices):
        mine = np.flatnonzero(schedule.device == device)
        turns = [i for i in mine if schedule[i].kind in ("backward", "input")]
        forwards = [i for i in mine if schedule[i].kind == "forward"]
        for t in np.arange(0.5, line.makespan_s):
            later = int(np.searchsorted(line.start_s[mine], t))
            if later and end[mine[later - 1]] > t:
                cause = "busy"
            elif later == len(mine):
                cause = "drain"
            elif later == 0:
                cause = "warm-up"
            elif t < end[mine[later] - 1] + sending[mine[later]]:
                cause = "communication"  # it is still sending
            elif t < end[needs[mine[later]]]:
                cause = "steady" if turns[0] < mine[later] <= forwards[-1] else "dependency"
            else:
                cause = "communication"
            assert cause == "busy" or later == len(mine) or start[mine[later]] > t
            seconds[cause][device] += 1
    return seconds


@settings(max_examples=25)
@given(cases())
def test_idle_causes_are_what_a_second_by_second_look_finds(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    found = sampled_idle(line)
    np.testing.assert_array_equal(line.busy_s, found["busy"])
    for cause in CAUSES:
        np.testing.assert_array_equal(line.idle_s[cause], found[cause], err_msg=cause)


@given(schedules(), st.integers(0, 1000), amounts(0.5))
def test_work_and_idle_time_make_up_the_makespan(schedule, seed, jitter):
    rng = np.random.default_rng(seed)
    durations = rng.uniform(0, 2, len(schedule))
    network = Network(latency_s=0.3, overlap=seed % 2 == 0)
    line = simulate(schedule, durations, network=network, jitter=jitter, rng=rng)
    idle = np.stack([line.idle_s[cause] for cause in CAUSES])
    assert (idle >= -1e-9).all()
    np.testing.assert_allclose(idle.sum(axis=0) + line.busy_s, line.makespan_s, rtol=1e-12)
    whole = schedule.num_devices * line.makespan_s
    assert line.bubble_ratio == pytest.approx(idle.sum() / whole)
    table = line.idle_frame()
    parts = table.drop(columns=["device", "makespan_s"]).sum(axis=1)
    np.testing.assert_allclose(parts, table.makespan_s)


@given(stages=st.integers(1, 6), more=st.integers(0, 6), f=st.integers(1, 4), b=st.integers(1, 4))
def test_uniform_1f1b_waits_in_three_places(stages, more, f, b):
    """Stage s starts s forwards late, ends s backwards early, and turns round in between."""
    line = simulate(build("1f1b", stages, stages + more), Costs(forward_s=f, backward_s=b))
    s = np.arange(stages)
    np.testing.assert_array_equal(line.idle_s["warm-up"], s * f)
    np.testing.assert_array_equal(line.idle_s["drain"], s * b)
    turning = line.idle_s["dependency"] + line.idle_s["steady"]
    np.testing.assert_array_equal(turning, (stages - 1 - s) * (f + b))


@given(stages=st.integers(2, 5), f=st.integers(1, 4), b=st.integers(1, 4))
def test_an_even_pipeline_has_no_steady_bubble(stages, f, b):
    line = simulate(build("pipedream", stages, 6 * stages), Costs(forward_s=f, backward_s=b))
    assert line.steady_bubble_ratio == 0 < line.bubble_ratio


@given(slow=st.integers(0, 3), times=st.integers(2, 5))
def test_the_slowest_stage_sets_the_steady_bubble(slow, times):
    """Over many microbatches every other device idles for what the slowest takes longer."""
    work = [times if s == slow else 1 for s in range(4)]
    expected = 1 - sum(work) / (4 * times)
    found = []
    for microbatches in (40, 400):
        costs = Costs(forward_s=work, backward_s=work)
        found.append(simulate(build("pipedream", 4, microbatches), costs).steady_bubble_ratio)
    assert abs(found[1] - expected) < 0.02
    assert abs(found[1] - expected) <= abs(found[0] - expected)


def test_without_a_steady_phase_there_is_no_steady_bubble():
    assert np.isnan(
        simulate(build("gpipe", 3, 4), Costs(forward_s=1, backward_s=2)).steady_bubble_ratio
    )


# ---------------------------------------------------------------- memory


def swept_peaks(line, work):
    """Allocate and free event by event in order of time, frees first."""
    schedule = line.schedule
    whole = work.per_stage("activation_bytes", schedule)
    events = []
    for row in line.frame().itertuples():
        a = whole[row.stage]
        changes = {
            "forward": (row.start_s, a),
            "backward": (row.end_s, -a),
            "input": (row.end_s, 0.0),
            "weight": (row.end_s, -a),
        }
        events.append((*changes[row.kind], row.device))
    now = np.zeros(schedule.num_devices)
    peak = np.zeros(schedule.num_devices)
    for _, change, device in sorted(events):
        now[device] += change
        peak[device] = max(peak[device], now[device])
    assert not now.any()
    return peak


@given(cases())
def test_peak_memory_is_what_a_sweep_over_events_finds(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    np.testing.assert_array_equal(line.peak_activation_bytes, swept_peaks(line, work))
    table = line.memory_frame()
    assert table.groupby("device").activation_bytes.max().tolist() == list(
        line.peak_activation_bytes
    )
    assert (table.groupby("device").time_s.diff().dropna() >= 0).all()
    assert (table.groupby("device").activation_bytes.first() == 0).all()
    assert (table.groupby("device").activation_bytes.last() == 0).all()


@given(schedules())
def test_without_sizes_memory_counts_activations(schedule):
    line = simulate(schedule, np.ones(len(schedule)))
    assert line.peak_activation_bytes == tuple(map(float, schedule.peak_in_flight))


def test_an_activation_is_held_until_its_weight_half_ends():
    work = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0, activation_bytes=2.0)
    line = simulate(build("zb-h1", 1, 1), work)
    assert line.memory_frame().to_dict("list") == {
        "device": [0, 0, 0],
        "time_s": [0.0, 0.0, 3.0],
        "activation_bytes": [0.0, 2.0, 0.0],
    }


# ---------------------------------------------------------------- jitter


@given(schedules(("1f1b", "zb-v")), st.integers(0, 100))
def test_seeds_reproduce_and_no_jitter_is_plain(schedule, seed):
    work = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)

    def run(jitter):
        return simulate(schedule, work, jitter=jitter, rng=np.random.default_rng(seed)).end_s

    np.testing.assert_array_equal(run(0.1), run(0.1))
    np.testing.assert_array_equal(run(0.0), simulate(schedule, work).end_s)
    assert (run(0.1) != run(0.0)).any()


def test_jitter_keeps_the_mean_and_has_the_spread_asked_for():
    schedule = build("1f1b", 4, 5000)
    work = Costs(forward_s=2.0, backward_s=2.0)
    line = simulate(schedule, work, jitter=0.2, rng=np.random.default_rng(0))
    factor = line.duration_s / 2.0
    assert factor.mean() == pytest.approx(1, abs=0.005)
    assert np.log(factor).std() == pytest.approx(0.2, abs=0.005)


def test_jitter_is_checked():
    schedule = build("1f1b", 2, 2)
    with pytest.raises(UsageError, match="needs rng"):
        simulate(schedule, Costs(forward_s=1.0, backward_s=2.0), jitter=0.1)
    with pytest.raises(UsageError, match=r"jitter must be a finite number, at least 0, .*; got -0"):
        simulate(schedule, Costs(forward_s=1.0, backward_s=2.0), jitter=-0.1)
