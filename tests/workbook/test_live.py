"""Live explorables: the mode, in-place updates, errors beside the controls, what a rerun keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
import plotly.graph_objects as go
import pytest

from labkit.errors import UsageError
from labkit.kit import draw
from labkit.workbook.review import stored
from labkit.workbook.review.axes import Axis, read
from labkit.workbook.review.explore import explore
from labkit.workbook.review.listening import is_live

live = pytest.importorskip("labkit.workbook.review.live", reason="ipywidgets is not installed")


@pytest.fixture(autouse=True)
def listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LIVE", "1")
    monkeypatch.setattr(live, "_last_values", {})


def powers(slope: float, power: int = 1, way: str = "line") -> go.Figure:
    """Other traces, annotations and shapes by value; slopes above 2.5 are refused."""
    if slope > 2.5:
        raise UsageError(f"slope must be <= 2.5, got {slope:g}")
    fig = go.Figure(go.Scatter(x=[0, 1, 2], y=[slope * x**power for x in (0, 1, 2)], name="ours"))
    fig.add_hline(slope, annotation_text="slope" if slope > 1 else None)
    if way == "bars":
        fig.add_bar(x=[0, 1], y=[1, slope])
    return draw.finish(fig, title=f"slope {slope:g}, {way}", x="x", y="y")


def moving(**more: Any) -> Any:
    return explore(powers, slope=(0.5, 3.0), power=[1, 2, 3], way=["line", "bars"], **more)


def shown(plot: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the widget shows, without the ranges of its axes."""
    layout = {k: v for k, v in plot.state["layout"].items() if k != "template"}
    return plot.state["data"], {k: _without_range(v) for k, v in layout.items()}


def height(plot: Any, at: int = 1) -> float:
    """The value of the first trace at one of its points."""
    return plot.state["data"][0]["y"][at]


def _without_range(value: Any) -> Any:
    return {k: v for k, v in value.items() if k != "range"} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, False),  # papermill, nbclient, nbval
        ({"JPY_SESSION_NAME": "paper.ipynb"}, True),
        ({"VOILA_BASE_URL": "/"}, True),
        ({"LABKIT_LIVE": "1"}, True),
        ({"LABKIT_LIVE": "0", "JPY_SESSION_NAME": "paper.ipynb"}, False),
    ],
)
def test_a_kernel_is_live_where_a_front_end_started_it(
    told: dict[str, str], expected: bool
) -> None:
    assert is_live(told) is expected


def test_without_widgets_the_states_are_stored_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labkit.workbook.review.listening.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"mlsys-labkit\[lab\]"):
        assert isinstance(explore(powers, slope=[1.0, 2.0]), go.Figure)


def test_stored_and_live_draw_the_same_at_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explore(powers, slope=(0.5, 2.5))
    monkeypatch.setenv("LABKIT_LIVE", "0")
    held = explore(powers, slope=(0.5, 2.5))
    for step in held.layout.sliders[0].steps:
        panel.controls["slope"].value = float(step.label)
        traces = [
            {k: v for k, v in trace.items() if k != "visible"}
            for trace, on in zip(
                held.to_plotly_json()["data"], step.args[0]["visible"], strict=True
            )
            if on
        ]
        assert shown(panel.figures[0])[0] == draw.plain(traces)
        assert panel.figures[0].state["layout"]["title"]["text"] == step.args[1]["title"]["text"]


def test_values_between_the_stored_ones_are_asked_for() -> None:
    panel = moving()
    panel.controls["slope"].value = 1.2345
    assert panel.figures[0].state["data"][0]["y"] == [0, 1.2345, 2.469]


@pytest.mark.parametrize("path", ["slope way power way slope", "way slope way slope way"])
def test_an_update_in_place_ends_at_what_is_drawn_anew(path: str) -> None:
    panel = moving()
    others = {"slope": [2.0, 0.6], "way": ["bars", "line", "bars"], "power": [3]}
    for name in path.split():
        panel.controls[name].value = others[name].pop(0)
        state = stored.draw(powers, panel.values)
        layout = {k: _without_range(v) for k, v in draw.plain(state["layout"]).items()}
        assert shown(panel.figures[0]) == (state["data"], layout)


def test_moves_that_come_together_are_drawn_once_and_the_last_wins() -> None:
    async def drag() -> int:
        panel = moving()
        for step in range(50):
            panel.controls["slope"].value = 0.6 + 0.01 * step
        assert panel.num_drawn == 0
        await asyncio.sleep(10 * live.DELAY_S)
        assert height(panel.figures[0]) == panel.values["slope"] == 1.09
        return int(panel.num_drawn)

    assert asyncio.run(drag()) == 1


def test_a_refusal_stands_beside_the_controls_and_the_figure_stays() -> None:
    panel = moving()
    panel.controls["slope"].value = 2.0
    before = shown(panel.figures[0])
    panel.controls["slope"].value = 2.8
    assert "slope must be &lt;= 2.5, got 2.8" in panel.error
    assert shown(panel.figures[0]) == before
    panel.controls["slope"].value = 1.0
    assert panel.error == ""
    assert height(panel.figures[0]) == 1


def test_running_the_cell_again_keeps_the_controls_and_a_new_range_does_not() -> None:
    panel = moving()
    for slope in (1.7, 2.8):  # the last is refused, and would fail the cell when it runs again
        panel.controls["slope"].value = slope
    assert moving().values["slope"] == 1.7
    again = explore(powers, slope=(2.0, 2.4), power=[1, 2, 3], way=["line", "bars"])
    assert again.values["slope"] == 2.0


def test_the_copied_call_draws_what_is_shown() -> None:
    panel = moving()
    panel.controls["slope"].value = 1.25
    panel.controls["way"].value = "bars"
    text = live._call("powers", **panel.values)
    assert text == "powers(slope=1.25, power=1, way='bars')"
    drawn = eval(text, {"powers": powers})
    assert [list(t.y) for t in drawn.data] == [t["y"] for t in panel.figures[0].state["data"]]


def test_one_set_of_controls_moves_several_figures() -> None:
    knobs = read({"slope": (0.5, 2.0)})
    panel = live.Live([powers, lambda slope: powers(2 * slope)], knobs)
    panel.controls["slope"].value = 1.1
    assert [height(plot) for plot in panel.figures] == [1.1, 2.2]


def test_the_scale_holds_the_ends_and_reaches_further_where_it_must() -> None:
    def peak(at: float) -> go.Figure:  # highest in the middle, which neither end shows
        return draw.finish(go.Figure(go.Scatter(x=[0, 1], y=[0, 1 + 9 * (at == 0.5)])))

    panel = explore(peak, at=(0.0, 1.0))
    assert panel.figures[0].state["layout"]["yaxis"]["range"][1] < 2
    panel.controls["at"].value = 0.5
    assert panel.figures[0].state["layout"]["yaxis"]["range"][1] > 10


TINY = """
import asyncio
from labkit import workbook
from labkit.kit import draw
def bar(stages):
    return draw.finish(draw.go.Figure(draw.go.Bar(x=["bubble"], y=[stages - 1])))
panel = workbook.explore(bar, stages=(2, 302))
for stages in range(3, 303):
    panel.controls["stages"].value = stages
    panel.refresh()
await asyncio.sleep(0.2)
assert panel.figures[0].state["data"][0]["y"] == [301] and panel.num_drawn >= 300
panel
"""


@pytest.mark.parametrize(("asked", "mime"), [("1", "widget-view"), ("", "plotly")])
def test_updates_through_a_real_kernel_do_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, mime: str
) -> None:
    """Three hundred updates where live widgets are asked for; stored states where nothing is."""
    import papermill

    monkeypatch.setenv("LABKIT_LIVE", asked) if asked else monkeypatch.delenv("LABKIT_LIVE")
    monkeypatch.setenv("JPY_SESSION_NAME", "/of/the/reader/who/started/the/run.ipynb")
    source = TINY if asked else TINY.split("for stages")[0] + "panel"
    cells = [nbformat.v4.new_code_cell(source)]
    spec = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=spec), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb",
        tmp_path / "out.ipynb",
        engine_name="labkit",
        progress_bar=False,
        execution_timeout=120,
    )
    assert any(mime in kind for kind in done.cells[-1].outputs[-1].data)


def test_a_range_is_stored_at_round_values_with_its_start() -> None:
    axis: Axis
    (axis,) = read({"rate": (0.0, 6.0)}, start=2.5)
    assert axis.values == (0, 1, 2, 2.5, 3, 4, 5, 6)
    (axis,) = read({"stages": (2, 16)})
    assert axis.values == tuple(range(2, 17, 2))
    (axis,) = read({"rate": (0.5, 1.0, 4.0)}, start=1.0)
    assert axis.values == (0.5, 1.0, 4.0)
    assert axis.holds(3.3)


def test_a_stored_menu_starts_where_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LIVE", "0")
    held = explore(powers, slope=(0.5, 2.5), power=[1, 2], start={"power": 2})
    assert held.layout.updatemenus[0].active == 1
    assert [list(trace.y) for trace in held.data if trace.visible] == [[0, 0.5, 2]]
    with pytest.raises(UsageError, match="got 3 axes"):
        moving()


@pytest.mark.parametrize(
    ("axes", "more", "message"),
    [
        ({}, {}, "needs an axis"),
        ({"slope": [1.0]}, {}, "two values or more"),
        ({"slope": (1.0, 3.0, 2.0)}, {}, "write a list"),
        ({"slope": (2.0, 1.0)}, {}, "write a list"),
        ({"slope": ([1.0], [2.0])}, {}, "write a list"),
        ({"slope": (1.0, 2.0)}, {"start": 9.0}, "from 1.0 to 2.0"),
        ({"slope": (1.0, 2.0)}, {"start": [1.5]}, "from 1.0 to 2.0"),
        ({"slope": [1.0, 2.0]}, {"start": {"stages": 2}}, "'stages' is no axis"),
        ({"slope": [1.0, 2.0]}, {"label": {"stages": "x"}}, "'stages' is no axis"),
        ({"slope": [1.0, 2.0], "stages": [1, 2]}, {}, "no parameter 'stages'"),
    ],
)
def test_axes_that_cannot_be_moved_are_refused(
    axes: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        explore(powers, **axes, **more)


def test_a_move_after_a_pause_is_drawn_at_once_and_one_soon_after_a_drawing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "DELAY_S", 0.3)  # longer than any stall of the machine

    async def moves() -> list[int]:
        panel = moving()
        counts = []
        for slope, wait_s in ((0.7, 0.0), (0.8, 0.0), (0.9, 4 * live.DELAY_S)):
            panel.controls["slope"].value = slope
            await asyncio.sleep(wait_s)
            await asyncio.sleep(0)
            counts.append(panel.num_drawn)
        return counts

    assert asyncio.run(moves()) == [1, 1, 2]


def test_a_figure_is_drawn_again_only_when_a_control_of_its_own_moves() -> None:
    drawn: list[str] = []

    def square(slope: float) -> go.Figure:
        drawn.append("square")
        return powers(slope, 2)

    def any_power(slope: float, power: int) -> go.Figure:
        drawn.append("any power")
        return powers(slope, power)

    panel = live.Live(
        [square, any_power], read({"slope": (0.5, 2.0), "power": [1, 2, 3]}, "", None)
    )
    drawn.clear()
    panel.controls["power"].value = 3
    assert drawn == ["any power"]
    assert height(panel.figures[1], 2) == 8 * panel.values["slope"]
    panel.controls["slope"].value = 1.5
    assert drawn == ["any power", "square", "any power"]
    assert (height(panel.figures[0], 2), height(panel.figures[1], 2)) == (6, 12)
