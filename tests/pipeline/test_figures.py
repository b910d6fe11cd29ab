import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from labkit.errors import UsageError


@pytest.fixture(scope="module")
def made(make_profile):
    profile = make_profile(np.random.default_rng(0), num_stages=4, num_clocks=5)
    return pipeline.plan(pipeline.build("1f1b", 4, 6), profile, "optimal")


def bars(figure):
    return [trace for trace in figure.data if trace.name in ("forward", "backward")]


@pytest.mark.parametrize("colour", ["kind", "clock", "slack"])
def test_a_timeline_draws_every_instruction_where_it_runs(made, colour):
    table = made.frame()
    for trace in bars(pipeline.figure_timeline(table, colour=colour)):
        part = table[table.kind == trace.name]
        np.testing.assert_allclose(trace.base, part.start_s, rtol=1e-5)
        np.testing.assert_allclose(trace.x, part.end_s - part.start_s, rtol=1e-5)
        assert list(trace.y) == part.stage.tolist()
        assert [str(text) for text in trace.text] == part.microbatch.astype(str).tolist()


def test_hover_tells_the_clock_of_a_plan(made):
    with_clock, without = (
        bars(pipeline.figure_timeline(table))[0].hovertemplate
        for table in (made.frame(), made.timeline.frame())
    )
    assert "MHz" in with_clock
    assert "MHz" not in without


def test_many_microbatches_are_drawn_without_numbers():
    line = pipeline.simulate(pipeline.build("1f1b", 16, 64), pipeline.Costs.uniform(1.0, 2.0))
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


def test_the_valley_is_marked_where_it_is(made):
    table = made.profile.stage_table(0)
    figure = pipeline.figure_valley(table)
    lowest = [table.clock_mhz[table[c].idxmin()] for c in ("energy_j", "above_waiting_j")]
    assert [note.x for note in figure.layout.annotations] == lowest


def test_savings_are_drawn_with_their_bounds_a_panel_a_profile(made):
    cases = {"planner": {"schedule": "1f1b", "method": "envpipe"}}
    table = pipeline.sweep({"a": made.profile, "b": made.profile}, [2, 4], cases)
    rings = pd.DataFrame({"profile": ["a"], "num_microbatches": [2], "saving_fraction": [0.1]})
    figure = pipeline.figure_savings(
        table, x="num_microbatches", x_title="microbatches", published=rings
    )
    names = [trace.name for trace in figure.data]
    assert names == ["planner", "bound, planner", "published"] * 2
    planner = table[(table.plan == "planner") & (table.profile == "a")]
    np.testing.assert_allclose(figure.data[0].y, planner.saving_fraction, rtol=1e-5)
    np.testing.assert_allclose(figure.data[1].y, planner.best_saving_fraction, rtol=1e-5)
    assert list(figure.data[2].x) == [2]
    assert list(figure.data[5].x) == []
    weights = pipeline.sweep({1.0: made.profile, 2.0: made.profile}, [2], cases, bounds=False)
    one = pipeline.figure_savings(weights, x="profile", x_title="work")
    assert [list(trace.x) for trace in one.data] == [[1.0, 2.0]]
