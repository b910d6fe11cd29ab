"""Schedules against theory: closed forms, memory, lower bounds, the papers' own numbers."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Costs, Schedule, build, closed_form_bubble_ratio, schedules, simulate
from labkit.pipeline.scheduling.families import FAMILIES
from labkit.pipeline.scheduling.schedule import FORWARD
from tests.oracles.overlapped_pairs import paired_span_s

UNIT = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
names = st.sampled_from(list(FAMILIES))
seconds = st.integers(1, 12).map(float)


def sized(name: str, chunks: int) -> dict[str, int]:
    """The option by which ``name`` takes several chunks, if it does."""
    option = next((x for x in ("num_chunks", "num_waves") if x in FAMILIES[name].options), None)
    return {option: chunks} if option else {}


def built(name: str, stages: int, microbatches: int, **options: object) -> Schedule:
    """The schedule; an example of sizes that it is not made for does not count."""
    assume(fits(name, stages, microbatches))
    return build(name, stages, microbatches, **options)


def fits(name: str, stages: int, microbatches: int) -> bool:
    """Whether the papers' constraints hold."""
    if name in ("interleaved-1f1b", "interleaved-zb"):
        return microbatches % max(1, microbatches // stages) == 0
    if name == "chimera":
        return stages % 2 == 0
    if name == "dualpipe":
        return stages % 2 == 0 and microbatches % 2 == 0 and microbatches >= 2 * stages
    return name != "dualpipe-v" or microbatches >= 2 * stages


def idle_s(schedule: Schedule, costs: Costs) -> float:
    """Seconds that a device idles, on average."""
    line = simulate(schedule, costs)
    return line.makespan_s - float(line.duration_s.sum()) / schedule.num_devices


@given(name=names, stages=st.integers(1, 7), microbatches=st.integers(1, 15), v=st.integers(1, 3))
def test_any_size_is_whole_and_runs(name, stages, microbatches, v):
    schedule = built(name, stages, microbatches, **sized(name, v))
    assert schedule.num_devices == stages
    assert schedule.num_microbatches == microbatches
    assert schedule.splits_backward == FAMILIES[name].splits_backward
    simulate(schedule, UNIT)  # never deadlocks


@given(
    name=names,
    stages=st.integers(1, 8),
    microbatches=st.integers(1, 20),
    v=st.integers(1, 3),
    durations=st.tuples(seconds, seconds, seconds),
)
def test_the_closed_form_is_what_the_simulation_finds(name, stages, microbatches, v, durations):
    schedule = built(name, stages, microbatches, **sized(name, v))
    forward, half, weight = durations
    kwargs = {"forward_s": forward, "backward_s": half, "weight_s": weight}
    formula = closed_form_bubble_ratio(schedule, **kwargs)
    assume(formula is not None)
    assert simulate(schedule, Costs(**kwargs)).bubble_ratio == pytest.approx(formula, abs=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_schedule_has_a_closed_form_somewhere(name):
    count = 4 if name == "hanayo" else 8
    kwargs = {"forward_s": 1.0, "backward_s": 1.0, "weight_s": 1.0}
    schedule = build(name, 4, count)
    ratio = simulate(schedule, UNIT).bubble_ratio
    assert closed_form_bubble_ratio(schedule, **kwargs) == pytest.approx(ratio)


@given(stages=st.integers(1, 8), rounds=st.integers(1, 4), v=st.integers(1, 4))
def test_bubble_ratios_are_those_of_the_papers(stages, rounds, v):
    count = stages * rounds
    for name in ("gpipe", "1f1b", "dapple", "pipedream-flush"):
        ratio = simulate(build(name, stages, count), UNIT).bubble_ratio
        assert ratio == pytest.approx((stages - 1) / (count + stages - 1))
    for name in ("interleaved-1f1b", "loop-bfs"):
        ratio = simulate(build(name, stages, count, num_chunks=v), UNIT).bubble_ratio
        assert ratio == pytest.approx((stages - 1) / (v * count + stages - 1))


@given(stages=st.integers(1, 8), more=st.integers(0, 12), durations=st.tuples(seconds, seconds))
def test_zb_h1_keeps_a_third_of_the_bubble_of_1f1b(stages, more, durations):
    """Source: Zero Bubble Pipeline Parallelism, Table 1: (p - 1)(T_F + T_B - T_W)."""
    forward, half = durations
    weight = min(durations)
    costs = Costs(forward_s=forward, backward_s=half, weight_s=weight)
    expected = (stages - 1) * (forward + half - weight)
    assert idle_s(build("zb-h1", stages, stages + more), costs) == pytest.approx(expected)


@given(stages=st.integers(1, 8), more=st.integers(0, 12))
def test_zb_h2_leaves_no_gap_between_a_device_s_first_and_last(stages, more):
    schedule = build("zb-h2", stages, 2 * stages - 1 + more)
    line = simulate(schedule, UNIT)
    for start, end in zip(
        schedule.by_device(line.start_s), schedule.by_device(line.end_s), strict=True
    ):
        assert end[-1] - start[0] == 3 * schedule.num_microbatches


@given(pairs=st.integers(1, 4), more=st.integers(0, 8))
def test_chimera_has_s_minus_2_bubbles(pairs, more):
    """Half of 1F1B's less one: D - 2 of them, each of a backward, where backwards take two."""
    size = 2 * pairs
    count = 2 * pairs + 2 * more
    assert idle_s(build("chimera", size, count), UNIT) == 2 * (size - 2)
    same = Costs(
        forward_s=1.0, backward_s=1.0
    )  # forwards and backwards alike, as many microbatches as stages
    assert idle_s(build("chimera", size, size), same) == size - 2


@given(pairs=st.integers(1, 4), more=st.integers(0, 6), durations=st.tuples(seconds, seconds))
def test_dualpipe_run_as_pairs_has_the_published_bubble(pairs, more, durations):
    """(PP/2 - 1)(F&B + B - 3W) with B a whole backward; F&B = F + B, nothing saved by overlap."""
    forward = min(durations)
    weight = min(durations)
    half = max(durations)
    size = 2 * pairs
    count = 4 * pairs + 2 * more
    whole = half + weight
    expected = (pairs - 1) * (forward + whole + whole - 3 * weight)
    costs = Costs(forward_s=forward, backward_s=half, weight_s=weight)
    work = count * (forward + whole)
    assert paired_span_s(build("dualpipe", size, count), costs) - work == pytest.approx(expected)
    folded = build("dualpipe-v", pairs, count // 2)
    assert paired_span_s(folded, costs) - work == pytest.approx(expected)


@given(stages=st.integers(1, 9), more=st.integers(0, 12))
def test_zb_v_reaches_the_bound(stages, more):
    """Nothing can end sooner: the last device starts S - 1 late and then never rests."""
    count = 2 * stages - 1 + more
    assert simulate(build("zb-v", stages, count), UNIT).makespan_s == 6 * count + stages - 1


def test_an_order_made_for_the_durations_does_not_lose_time_every_microbatch():
    """Twice as long input halves: the order for equal ones stalls at every microbatch."""
    durations = (1.0, 2.0, 1.0)
    costs = Costs(forward_s=1.0, backward_s=2.0, weight_s=1.0)

    def wasted_s(count: int, **options: object) -> float:
        return idle_s(build("zb-v", 4, count, **options), costs)

    assert wasted_s(64) > wasted_s(16) + 40
    assert wasted_s(64, durations_s=durations) == wasted_s(16, durations_s=durations)
    chunks_of_zb_h1 = 2 * idle_s(build("zb-h1", 4, 64), costs)
    assert wasted_s(64, durations_s=durations) < chunks_of_zb_h1


@given(stages=st.integers(1, 6), count=st.integers(1, 12), data=st.data(), split=st.booleans())
def test_orders_for_uneven_stages_run(stages, count, data, split):
    size = 2 * stages
    per_stage = st.lists(st.integers(0, 9).map(float), min_size=size, max_size=size)
    durations = tuple(data.draw(per_stage) for _ in range(3))
    forward, half, weight = durations
    costs = Costs(forward_s=forward, backward_s=half, weight_s=weight)
    schedule = build("zb-v" if split else "hanayo", stages, count, durations_s=durations)
    busiest_s = max(sum(each) for each in zip(*durations, strict=True))
    assert simulate(schedule, costs).makespan_s >= count * busiest_s


@given(stages=st.integers(1, 6), more=st.integers(0, 6))
def test_memory_is_that_of_the_theory(stages, more):
    count = 2 * stages + more

    def peak(name: str, size: int = stages, num: int = count, **options: object) -> list[int]:
        return list(build(name, size, num, **options).peak_in_flight)

    ahead = [stages - d for d in range(stages)]
    assert peak("gpipe") == [count] * stages
    assert peak("1f1b") == peak("pipedream") == peak("pipedream-2bw") == ahead
    assert peak("dapple", warmup="b") == [2 * x - 1 for x in ahead]
    assert peak("loop-bfs", num_chunks=3) == [3 * count] * stages
    even = stages * 3
    interleaved = peak("interleaved-1f1b", num=even, num_chunks=3)
    assert interleaved == [2 * stages + 2 * x - 1 for x in ahead]
    assert peak("interleaved-zb", num=even, num_chunks=3) == [3 * stages] * stages
    assert peak("zb-h1") == [stages] * stages
    assert peak("zb-h2", num=4 * stages) == [2 * stages - 1] * stages
    assert max(peak("zb-v")) <= 2 * stages
    assert peak("dualpipe-v") == [2 * stages + 1] * stages
    assert max(peak("chimera", 2 * stages, 2 * count)) <= 2 * stages
    assert peak("dualpipe", 2 * stages, 4 * stages) == [2 * stages + 1] * (2 * stages)


@given(
    name=names,
    stages=st.integers(1, 6),
    microbatches=st.integers(1, 14),
    v=st.integers(1, 3),
    limit=st.integers(1, 20),
)
def test_any_schedule_keeps_a_memory_limit_or_says_what_it_needs(
    name, stages, microbatches, v, limit
):
    free = built(name, stages, microbatches, **sized(name, v))
    options = sized(name, v)
    least = limit
    try:
        schedule = build(name, stages, microbatches, max_in_flight=limit, **options)
    except UsageError as error:
        least = int(str(error).split("must be >= ")[1].split(",")[0])
        schedule = build(name, stages, microbatches, max_in_flight=least, **options)
    assert least == limit or limit < least <= max(*free.peak_in_flight, 2 * v)
    assert max(schedule.peak_in_flight) <= least
    simulate(schedule, UNIT)


def test_a_memory_limit_may_differ_by_device():
    schedule = build("zb-v", 3, 9, max_in_flight=(6, 4, 2))
    assert all(np.array(schedule.peak_in_flight) <= (6, 4, 2))
    with pytest.raises(UsageError, match="max_in_flight of device 2 must be >= 2, found 1"):
        build("zb-v", 3, 9, max_in_flight=(6, 4, 1))


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_bidirectional_pipelines_mirror_each_other(name):
    schedule = build(name, 6, 16)
    runs = schedule.frame().query("kind == 'forward'")
    for stage, group in runs.groupby("stage"):
        halves = group.groupby("device")["microbatch"].agg(list).to_dict()
        down = list(range(8))
        up = list(range(8, 16))
        assert halves == {stage: down, 5 - stage: up}
    line = simulate(schedule, UNIT)
    starts = schedule.by_device(line.start_s)
    kinds = schedule.by_device(schedule.kind)
    for device in range(3):
        assert list(starts[device]) == list(starts[5 - device])
        assert list(kinds[device]) == list(kinds[5 - device])


@pytest.mark.parametrize(("name", "waves"), [("zb-v", 1), ("dualpipe-v", 1), ("hanayo", 2)])
def test_waves_go_there_and_back(name, waves):
    schedule = build(name, 3, 6, **sized(name, waves))
    forward = schedule.kind == FORWARD
    devices = dict(zip(schedule.stage[forward], schedule.device[forward], strict=True))
    assert [int(devices[k]) for k in range(6 * waves)] == [0, 1, 2, 2, 1, 0] * waves


def test_asynchronous_schedules_keep_weights():
    pipedream = build("pipedream", 4, 8)
    two = build("pipedream-2bw", 4, 8)
    assert pipedream.weight_versions == (4, 3, 2, 1)
    assert two.weight_versions == (2, 2, 2, 2)
    assert pipedream.asynchronous
    assert two.asynchronous
    flushed = build("pipedream-flush", 4, 8)
    assert not flushed.asynchronous
    assert flushed.weight_versions is None
    assert flushed.order == build("1f1b", 4, 8).order


def test_one_chunk_each_is_the_plain_schedule():
    assert build("interleaved-zb", 5, 10, num_chunks=1).order == build("zb-h1", 5, 10).order
    one = simulate(build("interleaved-1f1b", 5, 10, num_chunks=1), UNIT).makespan_s
    assert one == simulate(build("1f1b", 5, 10), UNIT).makespan_s


def test_the_list_names_every_schedule():
    table = schedules().set_index("name")
    assert list(table.index) == list(FAMILIES)
    assert (table[["summary", "source", "bubble", "peak_in_flight"]] != "").all(axis=None)
    for name, row in table.iterrows():
        assert build(str(name), 4, 8).splits_backward == row["splits_backward"]
        assert build(str(name), 4, 8).asynchronous == row["asynchronous"]


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        (("1f1", 4, 8), {}, "did you mean '1f1b'"),
        (("interleaved-1f1b", 4, 11), {}, "M to be a multiple .* 4 devices and 11 microbatches"),
        (
            ("interleaved-zb", 4, 8),
            {"num_chunks": 0},
            "num_chunks must be a whole number, at least 1; got 0",
        ),
        (("loop-bfs", 4, 8), {"max_in_flight": 15}, "must be >= 16, found 15"),
        (("hanayo", 4, 8), {"num_chunks": 2}, "has no option 'num_chunks'"),
        (
            ("hanayo", 4, 8),
            {"num_waves": 1.5},
            "num_waves must be a whole number, at least 1; got 1.5",
        ),
        (("chimera", 3, 8), {}, "needs an even S; got 3 devices and 8 microbatches"),
        (("dualpipe", 3, 8), {}, "needs even S and M, M >= 2S; got 3 devices"),
        (("dualpipe", 4, 9), {}, "needs even S and M, M >= 2S; got 4 devices and 9 microbatches"),
        (("dualpipe", 4, 6), {}, "M >= 2S; got 4 devices and 6 microbatches"),
        (("dualpipe-v", 4, 7), {}, "needs M >= 2S; got 4 devices and 7 microbatches"),
        (("dualpipe", 4, 8), {"max_in_flight": 4}, "must be >= 5, found 4"),
        (("dapple", 4, 8), {"warmup": "c"}, "warmup must be one of 'a', 'b'; got 'c'"),
        (("zb-v", 4, 8), {"durations_s": (1.0, 2.0)}, "one for each of 8 stages"),
        (
            ("zb-v", 4, 8),
            {"durations_s": 1.0},
            "durations_s must be a list of items, each a finite number",
        ),
        (
            ("zb-v", 4, 8),
            {"durations_s": (1.0, -2.0, 1.0)},
            "durations_s must be a list of items, each a finite number, at least 0",
        ),
        (
            ("1f1b", 4, 8),
            {"max_in_flight": True},
            "max_in_flight must be a whole number, at least 1",
        ),
    ],
)
def test_wrong_requests_say_what_would_be_right(arguments, options, problem):
    with pytest.raises(UsageError, match=problem):
        build(*arguments, **options)


def test_the_closed_form_checks_its_durations():
    with pytest.raises(UsageError, match="forward_s must be a finite number, at least 0; got -1"):
        closed_form_bubble_ratio(build("gpipe", 4, 8), forward_s=-1.0, backward_s=1.0)
