import re

import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from labkit.errors import UsageError
from labkit.kit.draw import PALETTE
from labkit.pipeline.figures.timeline_figures import _scale_fills


@pytest.fixture(scope="module")
def made(make_profile):
    profile = make_profile(np.random.default_rng(0), num_stages=4, num_clocks=5)
    return pipeline.plan(pipeline.build("1f1b", 4, 6), profile, "optimal")


KINDS = ("forward", "backward", "input", "weight")
UNIT = pipeline.Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)


def bars(figure):
    return [trace for trace in figure.data if trace.name in KINDS and len(trace.x) > 0]


@pytest.mark.parametrize("colour", ["kind", "clock", "slack"])
def test_a_timeline_draws_every_instruction_where_it_runs(made, colour):
    table = made.frame()
    for trace in bars(pipeline.figure_timeline(table, colour=colour)):
        part = table[table.kind == trace.name]
        np.testing.assert_allclose(trace.base, part.start_s, rtol=1e-5)
        np.testing.assert_allclose(trace.x, part.end_s - part.start_s, rtol=1e-5)
        assert list(trace.y) == part.stage.tolist()
        assert [str(text) for text in trace.text] == part.microbatch.astype(str).tolist()


@pytest.mark.parametrize("name", ["zb-v", "interleaved-1f1b", "chimera", "dualpipe"])
def test_every_kind_of_row_is_drawn_once_and_told_apart(name):
    table = pipeline.simulate(pipeline.build(name, 4, 8), UNIT).frame()
    figure = pipeline.figure_timeline(table)
    assert {trace.name for trace in bars(figure)} == set(table.kind)
    for trace in bars(figure):
        part = table[table.kind == trace.name]
        drawn = sorted(zip(trace.y, trace.base, trace.x, strict=True))
        times = zip(part.device, part.start_s, part.end_s - part.start_s, strict=True)
        np.testing.assert_allclose(drawn, sorted(times), rtol=1e-5)
        if trace.name in ("forward", "backward", "input"):  # two chunks, or two directions
            assert len(set(trace.marker.color)) == 2
            assert trace.marker.color[0] == PALETTE[trace.name]  # what the legend shows


def test_colours_are_text_since_plotly_takes_a_bars_number_for_a_colour(made):
    figure = pipeline.figure_timeline(made.frame(), colour="clock")
    table = made.frame()
    for trace in bars(figure):
        part = table[table.kind == trace.name]
        fills = [trace.marker.color] * len(part)
        if not isinstance(trace.marker.color, str):
            fills = list(trace.marker.color)
        assert all(re.fullmatch("#[0-9A-F]{6}", fill) for fill in fills)
        pairs = set(zip(part.clock_mhz, fills, strict=True))
        assert len(pairs) == part.clock_mhz.nunique()
    ends = dict(zip(table.clock_mhz, _scale_fills(table, "clock", None)[0], strict=True))
    assert (ends[table.clock_mhz.min()], ends[table.clock_mhz.max()]) == ("#00224E", "#FEE838")


@pytest.mark.parametrize("colour", ["kind", "slack"])
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "interleaved-1f1b"])
def test_large_timelines_are_few_traces_and_small(name, colour):
    line = pipeline.simulate(pipeline.build(name, 16, 64), UNIT)
    figure = pipeline.figure_timeline(line.frame(), colour=colour)
    assert len(figure.data) <= 6
    assert len(figure.layout.shapes) == 0
    assert len(figure.to_json()) < 500_000


def test_messages_are_lines_from_sender_to_receiver():
    network = pipeline.Network(latency_s=0.5)
    line = pipeline.simulate(pipeline.build("1f1b", 3, 4), UNIT, network=network)
    messages = line.messages_frame()
    figure = pipeline.figure_timeline(line.frame(), messages=messages)
    (lines,) = [trace for trace in figure.data if trace.name == "message"]
    x, y = (np.array(values, dtype=float).reshape(-1, 3) for values in (lines.x, lines.y))
    np.testing.assert_allclose(x[:, :2], messages[["sent_s", "arrived_s"]])
    np.testing.assert_array_equal(np.round(y[:, :2]), messages[["source", "device"]])


def test_memory_is_drawn_to_scale_with_its_peaks():
    work = pipeline.Costs(forward_s=1.0, backward_s=2.0, activation_bytes=(3e9, 2e9, 1e9))
    line = pipeline.simulate(pipeline.build("1f1b", 3, 6), work)
    figure = pipeline.figure_memory(line.memory_frame())
    notes = {note.text for note in figure.layout.annotations}
    assert notes == {"device 0: 9 GB", "device 1: 4 GB", "device 2: 1 GB"}
    assert sorted(max(trace.y) for trace in figure.data) == [1e9, 4e9, 9e9]
    assert len({axis.matches or "y" for axis in figure.select_yaxes()}) == 1  # one scale
    times = [t for trace in figure.data for t in trace.x]
    assert (min(times), max(times)) == (0, line.memory_frame().time_s.max())
    with_counts = pipeline.figure_memory(pipeline.simulate(line.schedule, UNIT).memory_frame())
    assert "device 0: 3" in {note.text for note in with_counts.layout.annotations}


def test_idle_bars_add_up_to_the_makespan():
    line = pipeline.simulate(pipeline.build("gpipe", 4, 8), UNIT)
    figure = pipeline.figure_idle(line.idle_frame())
    assert list(figure.data[0].y) == [f"device {d}" for d in range(4)]
    np.testing.assert_allclose(sum(np.array(t.x) for t in figure.data), 33)


def test_hover_tells_the_clock_of_a_plan(made):
    with_clock, without = (
        bars(pipeline.figure_timeline(table))[0].hovertemplate
        for table in (made.frame(), made.timeline.frame())
    )
    assert "MHz" in with_clock
    assert "MHz" not in without


def test_many_microbatches_are_drawn_without_numbers():
    line = pipeline.simulate(
        pipeline.build("1f1b", 16, 64), pipeline.Costs(forward_s=1.0, backward_s=2.0)
    )
    figure = pipeline.figure_timeline(line.frame())
    assert all(trace.text is None for trace in bars(figure))
    assert sum(len(trace.x) for trace in bars(figure)) == 2 * 16 * 64


def test_timelines_can_share_an_axis_and_a_colour_scale(made):
    figure = pipeline.figure_timeline(
        made.frame(), colour="clock", span_s=10.0, colour_range=(900, 1500)
    )
    assert figure.layout.xaxis.range[1] == pytest.approx(10.05)
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (900, 1500)


def test_a_timeline_without_clocks_cannot_be_coloured_by_clock(made):
    with pytest.raises(UsageError, match="needs column 'clock_mhz'"):
        pipeline.figure_timeline(made.timeline.frame(), colour="clock")


def test_a_frontier_shows_plans_bound_and_marked_points(made):
    front = pipeline.frontier(made.schedule, made.profile, num_points=3)
    plans = pd.DataFrame(
        [{"plan": "optimal", "makespan_s": made.makespan_s, "energy_j": made.energy_j}]
    )
    theirs = pd.DataFrame({"makespan_s": [1.0, 2.0], "energy_j": [5.0, 4.0]})
    figure = pipeline.figure_frontier(front, plans=plans, lines={"published": theirs})
    shown = {trace.name or "marks": trace for trace in figure.data}
    assert set(shown) == {"published", "optimal plans", "lower bound", "marks"}
    np.testing.assert_allclose(shown["lower bound"].y, front.bound_j, rtol=1e-5)
    assert list(shown["marks"].text) == ["optimal"]
