"""Figures as they leave the kit: numbers on logarithmic axes that can be read alone."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from labkit.files import project_root
from labkit.kit import draw
from labkit.workbook import notebooks

NOTEBOOKS = notebooks.paths(project_root())


def finished(**axis: Any) -> Any:
    figure = go.Figure(go.Scatter(x=[1, 2, 3], y=[0.03, 0.2, 9]))
    return draw.finish(figure.update_yaxes(**axis)).layout.yaxis


@pytest.mark.parametrize("dtick", [None, "D1", "D2"])
def test_a_logarithmic_axis_prints_no_digit_without_its_decade(dtick: str | None) -> None:
    assert finished(type="log", dtick=dtick).minorloglabels == "complete"


@pytest.mark.parametrize(
    "axis",
    [
        {"type": "linear"},
        {"type": "log", "tickvals": [1, 2, 5]},
        {"type": "log", "dtick": 1},
        {"type": "log", "dtick": "D2", "tickformat": ",~g"},
    ],
)
def test_an_axis_that_says_its_labels_is_left_as_it_is(axis: dict[str, Any]) -> None:
    assert finished(**axis).minorloglabels is None


@pytest.mark.parametrize("key", NOTEBOOKS)
def test_no_stored_figure_has_a_digit_without_its_decade(key: str) -> None:
    cells = notebooks.read(NOTEBOOKS[key]).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    for output in outputs:
        layout = output.get("data", {}).get(notebooks.PLOTLY_MIME, {}).get("layout", {})
        for name, axis in layout.items():
            if name[1:5] == "axis" and axis.get("type") == "log":
                says = {"tickvals", "tickformat", "minorloglabels"} & axis.keys()
                assert says or axis.get("dtick") == 1, f"{name}: {axis}"


def test_lines_have_their_own_colours_and_bounds_no_markers() -> None:
    table = pd.DataFrame(
        {"ours": [1.0, 2.0], "other": [2.0, 3.0], "bound": [3.0, 4.0]}, index=[8, 16]
    )
    figure = go.Figure()
    draw.lines(figure, table, hues={"ours": "#123456"}, others=["#000001", "#000002"])
    assert [line.line.color for line in figure.data] == [
        "#123456",
        "#000002",
        draw.PALETTE["bound"],
    ]
    assert [line.mode for line in figure.data] == ["lines+markers", "lines+markers", "lines"]
    assert [line.line.dash for line in figure.data] == [None, None, "dot"]
    assert [*figure.data[0].x] == [8, 16]


def test_a_long_line_has_no_markers() -> None:
    figure = go.Figure()
    draw.lines(figure, pd.DataFrame({"ours": [0.0] * (draw.MOST_MARKED + 1)}))
    assert figure.data[0].mode == "lines"


@pytest.mark.parametrize("y", [True, False])
def test_a_note_lies_at_its_point_on_either_axis(y: bool) -> None:
    figure = go.Figure()
    draw.decades(figure, [10, 1000], ["ten", "a thousand"], y=y)
    draw.note(figure, 100, 1000, "here", "paper", yshift=4)
    [written] = figure.layout.annotations
    assert (written.x, written.y) == (2, 3 if y else 1000)
    assert (written.text, written.yshift) == ("here", 4)
    assert [*figure.layout.xaxis.ticktext] == ["ten", "a thousand"]
    assert figure.layout.yaxis.rangemode == (None if y else "tozero")


def test_ticks_without_words_are_their_places() -> None:
    figure = go.Figure()
    draw.decades(figure, [8, 4096])
    assert [*figure.layout.xaxis.ticktext] == ["8", "4,096"]
