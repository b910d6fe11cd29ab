"""Figures as they leave the kit: numbers on logarithmic axes that can be read alone."""

from __future__ import annotations

from typing import Any

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
