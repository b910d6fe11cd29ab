"""explore: every state inside, each exactly what make_figure draws, all on one scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from labkit.errors import UsageError
from labkit.kit import draw as figures
from labkit.workbook.review.explore import explore

X = [0.0, 1.0, 2.0]


def lines(slope: float) -> go.Figure:
    fig = go.Figure()
    fig.add_scatter(x=X, y=[slope * x for x in X], name="ours")
    fig.add_scatter(x=X, y=X, name="baseline")
    return figures.finish(fig, title=f"slope {slope:g}", x="x", y="y")


def stacks(stages: int) -> go.Figure:
    fig = go.Figure()
    for name, height in (("a", stages), ("shared", 2), ("c", stages / 2)):
        fig.add_bar(x=["p", "q"], y=[height, height], name=name)
    fig.update_layout(barmode="stack")
    return figures.finish(fig)


def state(moving: go.Figure, args: Any) -> list[dict[str, Any]]:
    """The traces a browser shows after a step's ``args``."""
    visible = args[0]["visible"]
    traces = moving.to_plotly_json()["data"]
    return [
        {k: v for k, v in trace.items() if k != "visible"}
        for trace, on in zip(traces, visible, strict=True)
        if on
    ]


def data(fig: go.Figure) -> list[dict[str, Any]]:
    keep = ("x", "y", "name", "type")
    return [{k: t[k] for k in keep if k in t} for t in fig.to_plotly_json()["data"]]


def reduced(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: t[k] for k in ("x", "y", "name", "type") if k in t} for t in traces]


def test_each_position_shows_exactly_what_make_figure_draws() -> None:
    slopes = [0.5, 1 / 3, 3.0]
    moving = explore(lines, slope=slopes)
    steps = moving.layout.sliders[0].steps
    assert [step.method for step in steps] == ["update"] * 3
    for slope, step in zip(slopes, steps, strict=True):
        assert reduced(state(moving, step.args)) == data(lines(slope))
        assert step.args[1]["title"]["text"] == f"slope {slope:g}"


def test_a_trace_that_never_changes_is_stored_once() -> None:
    moving = explore(lines, slope=[1.0, 2.0, 3.0])
    assert [t.name for t in moving.data].count("baseline") == 1


def test_stacked_bars_keep_their_order_in_every_state() -> None:
    moving = explore(stacks, stages=[1, 2, 4])
    for step in moving.layout.sliders[0].steps:
        assert [t["name"] for t in state(moving, step.args)] == ["a", "shared", "c"]


def test_the_first_state_is_the_one_shown() -> None:
    moving = explore(lines, slope=[1.0, 2.0, 3.0], start=2.0)
    slider = moving.layout.sliders[0]
    assert slider.active == 1
    assert [t.visible for t in moving.data] == slider.steps[1].args[0]["visible"]
    assert moving.layout.title.text == "slope 2"


def test_the_scale_holds_every_state_and_stays() -> None:
    moving = explore(lines, slope=[1.0, 10.0])
    low, high = moving.layout.yaxis.range
    assert low <= 0 < 20 <= high
    assert all("yaxis" not in step.args[1] for step in moving.layout.sliders[0].steps)


def test_stacked_bars_reach_the_top_of_their_stack() -> None:
    moving = explore(stacks, stages=[1, 8])
    low, high = moving.layout.yaxis.range
    assert low == 0
    assert 8 + 2 + 4 <= high < 1.2 * 14


def test_a_range_of_the_authors_is_respected() -> None:
    def draw(k: int) -> go.Figure:
        return figures.finish(go.Figure(go.Scatter(y=[k])).update_yaxes(range=[0, 99]))

    assert explore(draw, k=[1, 2]).layout.yaxis.range == (0, 99)


def test_a_logarithmic_axis_gets_its_range_in_decades() -> None:
    def draw(k: int) -> go.Figure:
        fig = go.Figure(go.Scatter(x=[1, 2], y=[10, 10**k]))
        return figures.finish(fig.update_yaxes(type="log"))

    low, high = explore(draw, k=[2, 5]).layout.yaxis.range
    assert 0.5 < low <= 1
    assert 5 <= high < 5.5


def test_lines_across_the_figure_stay_in_sight() -> None:
    def draw(k: int) -> go.Figure:
        fig = go.Figure(go.Scatter(x=[1, 2], y=[10, 10**k])).update_yaxes(type="log")
        return figures.finish(fig.add_vline(x=3 * k).add_hline(y=1e6))

    layout = explore(draw, k=[2, 5]).layout
    assert layout.xaxis.range[0] <= 1 < 15 <= layout.xaxis.range[1]
    assert layout.yaxis.range[0] <= 1 < 6 <= layout.yaxis.range[1]


def test_a_line_at_a_date_leaves_the_axis_to_plotly() -> None:
    def months(k: int) -> go.Figure:
        fig = go.Figure(go.Scatter(x=["2026-01-01", "2026-02-01"], y=[0, k]))
        return figures.finish(fig.add_vline(x="2026-01-15"))

    moving = explore(months, k=[1, 2])
    assert moving.layout.xaxis.range is None
    assert moving.layout.yaxis.range is not None


def test_categories_are_the_union_in_order() -> None:
    def draw(k: int) -> go.Figure:
        return figures.finish(go.Figure(go.Bar(x=["a", f"b{k}"], y=[1, 2])))

    axis = explore(draw, k=[1, 2]).layout.xaxis
    assert axis.categoryarray == ("a", "b1", "b2")
    assert axis.range == (-0.5, 2.5)


def test_heatmaps_share_their_colour_scale() -> None:
    def draw(k: int) -> go.Figure:
        return figures.finish(go.Figure(go.Heatmap(z=np.full((2, 2), float(k)))))

    moving = explore(draw, k=[1, 5])
    assert [(t.zmin, t.zmax) for t in moving.data] == [(1, 5), (1, 5)]


def test_bars_with_a_base_and_a_reversed_axis() -> None:
    def draw(end: float) -> go.Figure:
        bar = go.Bar(x=[end, 1], base=[1, 2], y=[0, 1], orientation="h")
        return figures.finish(go.Figure(bar).update_yaxes(autorange="reversed"))

    moving = explore(draw, end=[3.0, 7.0])
    assert moving.layout.xaxis.range[1] >= 8
    high, low = moving.layout.yaxis.range
    assert high > 1 > 0 > low


def ways(way: str) -> go.Figure:
    return figures.finish(go.Figure(go.Bar(x=["bar"], y=[len(way)])), title=way)


def test_long_names_stand_below_the_slider_whole() -> None:
    """The labels are centred below their places, so that the outer ones reach beyond the slider."""
    names = ["both ends of it are long names", "short", "one copy, then run"]
    moving = explore(ways, way=names)
    (slider,) = moving.layout.sliders
    labels = [step.label for step in slider.steps]
    assert [label.replace("<br>", " ") for label in labels] == names
    assert labels[2] == "one copy, then run"
    half_px = 7 * len(labels[2]) / 2  # a letter of 14 px is some 7 px wide
    handle_px = 10
    assert moving.layout.margin.r + slider.pad.r + handle_px >= half_px
    lines = 1 + labels[0].count("<br>")
    assert lines == 2
    assert moving.layout.height > explore(ways, way=["one", "two"]).layout.height


def test_short_names_leave_the_slider_its_width() -> None:
    pad = explore(ways, way=["one", "two"]).layout.sliders[0].pad
    assert (pad.l, pad.r) == (None, None)


def test_two_axes_make_a_menu_that_hands_over_the_sliders_steps() -> None:
    def draw(slope: float, power: int) -> go.Figure:
        y = [slope * x**power for x in X]
        return figures.finish(go.Figure(go.Scatter(x=X, y=y)), title=f"{slope:g} {power}")

    moving = explore(draw, slope=[1.0, 2.0], power=[1, 2, 3], label={"power": "exponent"})
    buttons = moving.layout.updatemenus[0].buttons
    assert [b.label for b in buttons] == ["exponent: 1", "exponent: 2", "exponent: 3"]
    for power, button in zip((1, 2, 3), buttons, strict=True):
        assert reduced(state(moving, button.args)) == reduced_of(draw(1.0, power))
        steps = button.args[1]["sliders[0].steps"]
        assert reduced(state(moving, steps[1]["args"])) == reduced_of(draw(2.0, power))
        assert button.args[1]["sliders[0].active"] == 0


def reduced_of(fig: go.Figure) -> list[dict[str, Any]]:
    return reduced(fig.to_plotly_json()["data"])


def test_a_colour_left_to_plotly_is_the_same_in_every_state() -> None:
    moving = explore(lines, slope=[1.0, 2.0, 3.0])
    assert {t.line.color for t in moving.data if t.name == "ours"} == {figures.CYCLE[0]}
    assert {t.line.color for t in moving.data if t.name == "baseline"} == {figures.CYCLE[1]}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "needs an axis"),
        ({"slope": [1.0]}, "two values or more"),
        ({"slope": [1.0, 2.0], "start": 9.0}, "start=9.0"),
    ],
)
def test_what_cannot_be_explored_is_refused(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        explore(lines, **axes)


def test_a_function_that_returns_no_figure_is_named() -> None:
    with pytest.raises(UsageError, match="returned NoneType"):
        explore(lambda k: None, k=[1, 2])


def test_too_much_data_is_refused_with_its_size() -> None:
    def draw(k: int) -> go.Figure:
        return figures.finish(go.Figure(go.Scatter(y=np.random.default_rng(k).random(20_000))))

    with pytest.raises(UsageError, match="MB"):
        explore(draw, k=list(range(10)))
