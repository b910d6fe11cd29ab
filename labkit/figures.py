"""One look for every figure: a colour per concept, large type, numbers that compare exactly.

Engines and notebooks build a Plotly figure and end with :func:`finish`. Importing this module
makes the small template and the ``plotly_mimetype`` renderer Plotly's defaults, so a stored
output holds the figure's own numbers and a few hundred bytes of style, and no script.

The palette is Okabe and Ito's, made for readers of every colour vision.
Source: M. Okabe and K. Ito, "Color Universal Design", 2008, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import base64
import datetime
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio

SIGNIFICANT_DIGITS = 6
TITLE_WIDTH_CHARACTERS = 82

_BLUE, _ORANGE, _GREEN, _VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_PURPLE, _SKY, _WINE = "#CC79A7", "#56B4E9", "#882255"
_INK, _GREY, _PALE = "#222222", "#7A7A7A", "#D5D8DC"

PALETTE: dict[str, str] = {
    # a pipeline's work
    "forward": _BLUE,
    "backward": _ORANGE,
    "weight": _GREEN,
    "recompute": _SKY,
    "bubble": _PALE,
    "idle": _PALE,
    "communication": _PURPLE,
    "static": _GREY,
    # what is measured
    "energy": _VERMILION,
    "power": _WINE,
    "time": _BLUE,
    "cost": _PURPLE,
    "frequency": _GREEN,
    # who says so
    "bound": _INK,
    "baseline": _GREY,
    "ours": _BLUE,
    "paper": _ORANGE,
    # what memory holds
    "parameter": _BLUE,
    "gradient": _ORANGE,
    "optimizer": _GREEN,
    "activation": _VERMILION,
    "temporary": _PURPLE,
    "buffer": _SKY,
    "capacity": _INK,
    # how a search goes
    "explore": _SKY,
    "exploit": _BLUE,
    "stopped": _VERMILION,
    # annotation
    "highlight": _VERMILION,
    "muted": _GREY,
}

CYCLE: list[str] = [_BLUE, _ORANGE, _GREEN, _VERMILION, _PURPLE, _SKY, _WINE, _INK]

# Cividis, five stops: monotone in lightness, so it survives a greyscale print.
SEQUENTIAL: list[list[Any]] = [
    [0, "#00224E"],
    [0.25, "#434E6C"],
    [0.5, "#7D7C78"],
    [0.75, "#BCAE6C"],
    [1, "#FEE838"],
]

_AXIS = {
    "automargin": True,
    "gridcolor": "#E6E8EB",
    "linecolor": "#8A8F98",
    "showline": True,
    "ticks": "outside",
    "tickcolor": "#8A8F98",
    "title": {"standoff": 10},
    "zeroline": False,
}

TEMPLATE = go.layout.Template(
    layout={
        "colorway": CYCLE,
        "colorscale": {"sequential": SEQUENTIAL},
        "font": {"family": "Helvetica Neue, Arial, sans-serif", "size": 16, "color": _INK},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "font": {"size": 20}},
        "hoverlabel": {"font": {"size": 15}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)

pio.templates["labkit"] = TEMPLATE
pio.templates.default = "labkit"
pio.renderers.default = "plotly_mimetype"


def finish(
    fig: go.Figure,
    *,
    title: str = "",
    x: str = "",
    y: str = "",
    height: int = 420,
    direct: bool = False,
) -> go.Figure:
    """Give ``fig`` the workbook's look and plain, rounded numbers, and return it; call it last.

    Args:
        title: what the figure shows, wrapped where it is long; empty keeps the figure's own.
        x, y: axis titles with units, for every outer axis; empty keeps the figure's own.
        height: pixels. Slides stretch the figure to the room they have.
        direct: write each line's name at its last point instead of in a legend.

    Arrays become lists and floats keep 6 significant digits, so that two runs store the same
    figure and its stored form can be read by people and compared by programs.

    >>> fig = finish(go.Figure(go.Scatter(x=np.arange(2), y=[1 / 3, np.nan])), y="energy (J)")
    >>> fig.to_plotly_json()["data"][0]["y"]
    [0.333333, None]
    """
    fig.update_layout(template=TEMPLATE, height=height)
    if title:
        fig.update_layout(title_text="<br>".join(textwrap.wrap(title, TITLE_WIDTH_CHARACTERS)))
    if x:
        _title_axes(fig, "x", x)
    if y:
        _title_axes(fig, "y", y)
    if direct:
        _label_ends(fig)
    _fit_margins(fig)
    return _store_plainly(fig)


def plain(value: Any) -> Any:
    """``value`` as JSON would hold it, floats at 6 significant digits; containers recursively.

    Arrays (also Plotly's base64 ones) become lists, NaN and infinities become None, and a float
    without fraction becomes an int, the one spelling that Python and a browser share.

    >>> plain({"a": np.array([1.23456789, 2.0]), "b": float("nan"), "c": (True, "text", 1234567)})
    {'a': [1.23457, 2], 'b': None, 'c': [True, 'text', 1234567]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.floating):
        return _rounded(float(value))
    if isinstance(value, Mapping):
        if "bdata" in value and "dtype" in value:
            return plain(_decoded(value))
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.datetime64 | datetime.date):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    raise TypeError(f"a figure cannot hold {type(value).__name__}: {value!r}")


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _decoded(spec: Mapping[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), dtype=np.dtype(spec["dtype"]))
    shape = spec.get("shape")
    return flat if shape is None else flat.reshape([int(n) for n in str(shape).split(",")])


def _store_plainly(fig: go.Figure) -> go.Figure:
    """Rewrite every property of ``fig`` in place through :func:`plain`, but for the template."""
    content = fig.to_dict()
    for trace, stored in zip(fig.data, content["data"], strict=True):
        _replace(trace, {key: value for key, value in stored.items() if key != "type"})
    _replace(fig.layout, {k: v for k, v in content["layout"].items() if k != "template"})
    if content.get("frames"):
        fig.frames = plain(content["frames"])
    return fig


def _replace(target: Any, properties: Mapping[str, Any]) -> None:
    for key, value in properties.items():
        target[key] = None  # Plotly keeps an array when the list assigned over it is equal
        target[key] = plain(value)


def _title_axes(fig: go.Figure, letter: Literal["x", "y"], text: str) -> None:
    """Title the axes at the figure's bottom (x) or left (y) edge; inner and overlaid ones not."""
    axes = list(fig.select_xaxes() if letter == "x" else fig.select_yaxes())
    crossing = {a.plotly_name: a for a in (*fig.select_xaxes(), *fig.select_yaxes())}

    def offset(axis: Any) -> float:
        anchor = axis.anchor or ("y" if letter == "x" else "x")
        other = crossing.get(f"{anchor[0]}axis{anchor[1:]}")
        return other.domain[0] if other is not None and other.domain else 0.0

    edge = min(offset(axis) for axis in axes) if axes else 0.0
    for axis in axes:
        if axis.overlaying is None and offset(axis) <= edge + 1e-9:
            axis.title.text = text
    if not axes:
        fig.update_layout({f"{letter}axis": {"title": {"text": text}}})


def _fit_margins(fig: go.Figure) -> None:
    """Leave room above the plot for what stands there: the title's lines and the legend."""
    text = fig.layout.title.text or ""
    lines = text.count("<br>") + 1 if text else 0
    named = [t for t in fig.data if t.showlegend is not False and t.visible is not False]
    legend = fig.layout.showlegend is not False and (len(named) > 1 or fig.layout.showlegend)
    top = 16 + 26 * lines + (34 if legend else 0) + (10 if lines else 0)
    fig.update_layout(margin={"t": top, "r": fig.layout.margin.r or 20, "b": 60, "l": 60})
    if lines:
        fig.update_layout(title={"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 12}})


def _label_ends(fig: go.Figure) -> None:
    """Name each line at its last point, in its colour, and drop the legend."""
    lines = [t for t in fig.data if t.type == "scatter" and t.name and t.x is not None and len(t.x)]
    for position, trace in enumerate(lines):
        colour = trace.line.color or CYCLE[position % len(CYCLE)]
        fig.add_annotation(
            x=trace.x[-1],
            y=trace.y[-1],
            xref=trace.xaxis or "x",
            yref=trace.yaxis or "y",
            text=trace.name,
            font={"color": colour},
            showarrow=False,
            xanchor="left",
            xshift=8,
        )
    longest = max((len(t.name) for t in lines), default=0)
    fig.update_layout(showlegend=False, margin_r=30 + 9 * longest)
