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
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio

from labkit.quantities import heading

if TYPE_CHECKING:
    import pandas as pd

Part = dict[str, Any]
"""A trace, shape or axis of a figure. Hand a ``go.Figure`` all of them at once: Plotly checks the
whole figure anew with each part that is added."""

SIGNIFICANT_DIGITS = 6
TITLE_WIDTH_CHARACTERS = 82
MOST_MARKED = 20
"""Points of a line that have markers; of more there are none."""
_TEXTS = ("text", "hovertext")
"""Properties in which Plotly makes texts of a list of numbers."""
_OF_EXPRESS = {"variable", "value", "index", "color"}  # titles where a table gives none

_BLUE = "#0072B2"
_ORANGE = "#E69F00"
_GREEN = "#009E73"
_VERMILION = "#D55E00"
_PURPLE = "#CC79A7"
_SKY = "#56B4E9"
_WINE = "#882255"
_INK = "#222222"
_GREY = "#7A7A7A"
_PALE = "#D5D8DC"

PALETTE: dict[str, str] = {
    # a pipeline's work
    "forward": _BLUE,
    "backward": _ORANGE,
    "input": _VERMILION,
    "weight": _GREEN,
    "recompute": _SKY,
    "bubble": _PALE,
    "idle": _PALE,
    "communication": _PURPLE,
    "all-reduce": _WINE,
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
    "stopped": _VERMILION,
    # annotation
    "highlight": _VERMILION,
    "muted": _GREY,
}

VEIL = "rgba(255,255,255,0.85)"  # behind words, so that they can be read on what is drawn
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
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.01,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
    data={
        "scatter": [{"line": {"width": 2.5}, "marker": {"size": 8}}],
        "heatmap": [{"colorscale": SEQUENTIAL}],
        "contour": [{"colorscale": SEQUENTIAL}],
    },
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

    Arrays become lists and floats keep 6 significant digits, so that two runs store the same figure
    and its stored form can be read by people and compared by programs.

    Args:
        fig: the figure, changed in place.
        title: what the figure shows, wrapped where it is long; empty keeps the figure's own.
        x, y: axis titles with units, for every outer axis; empty keeps the figure's own.
        height: pixels. Slides stretch the figure to the room they have.
        direct: write each line's name at its last point instead of in a legend.

    >>> fig = finish(go.Figure(go.Scatter(x=np.arange(2), y=[1 / 3, np.nan])), y="energy (J)")
    >>> fig.to_plotly_json()["data"][0]["y"]
    [0.333333, None]
    """
    fig.layout.height = height
    if fig.layout.template != TEMPLATE:  # setting it checks and copies it
        fig.layout.template = TEMPLATE
    if title:
        fig.layout.title.text = "<br>".join(textwrap.wrap(title, TITLE_WIDTH_CHARACTERS))
    if x:
        _title_axes(fig, "x", x)
    if y:
        _title_axes(fig, "y", y)
    for words in (fig.layout.legend.title, fig.layout.xaxis.title, fig.layout.yaxis.title):
        if (words.text or "").isidentifier():  # a column's name; prose and formulas stay
            words.text = None if words.text in _OF_EXPRESS else heading(words.text)
    for note in fig.select_annotations({"xref": "paper", "yref": "paper"}):  # way=packing
        note.text = re.sub(r"^\w+=(?!\d)", "", note.text or "")
    for axis in (*fig.select_xaxes({"type": "log"}), *fig.select_yaxes({"type": "log"})):
        _label_wholly(axis)
    if direct:
        _label_ends(fig)
    if len(fig.data) == 1 and fig.data[0].name is None:
        fig.data[0].name = ""  # else hovering says "trace 0"
    _fit_margins(fig)
    return _store_plainly(fig)


def level(fig: go.Figure, span: Sequence[float], value: float, words: str, concept: str) -> None:
    """Draw a dotted level across a figure, with its name right of its end.

    Args:
        fig: to draw on; its margin must have room for the name.
        span: where the level begins and ends.
        value: its height.
        words: its name.
        concept: whose colour of :data:`PALETTE` it has.
    """
    color = PALETTE[concept]
    fig.add_scatter(
        x=[*span],
        y=[value, value],
        mode="lines",
        name=words,
        showlegend=False,
        line={"color": color, "dash": "dot"},
    )
    fig.add_annotation(
        x=span[1],
        y=value,
        xshift=6,
        xanchor="left",
        text=words,
        font={"color": color},
        showarrow=False,
    )


def levels(fig: go.Figure, span: Sequence[float], heights: Mapping[str, tuple[float, str]]) -> None:
    """Draw dotted levels across a figure, which its legend names or `finish` labels at their ends.

    Args:
        fig: to draw on.
        span: where the levels begin and end.
        heights: by name, a height and whose colour of :data:`PALETTE` it has.
    """
    for name, (value, concept) in heights.items():
        fig.add_scatter(
            x=[*span],
            y=[value, value],
            mode="lines",
            name=name,
            line={"color": PALETTE[concept], "dash": "dot"},
        )


def stars(fig: go.Figure, x: Sequence[float], y: Sequence[float], hover: str) -> None:
    """Draw points of the paper, without a row in the legend.

    Args:
        fig: to draw on.
        x, y: where they are.
        hover: what stands beside the pointer; Plotly puts values for ``%{x}`` and ``%{y}``.
    """
    fig.add_scatter(
        x=[*x],
        y=[*y],
        mode="markers",
        showlegend=False,
        hovertemplate=f"{hover}<extra></extra>",
        marker={"color": PALETTE["paper"], "size": 13, "symbol": "star"},
    )


def lines(
    fig: go.Figure,
    table: pd.DataFrame,
    *,
    hues: Mapping[str, str] | None = None,
    others: Sequence[str] = CYCLE,
) -> None:
    """Draw a line a column, which the figure's legend names or `finish` labels at its end.

    A column in whose name "bound" stands is dotted and has no markers, since nobody measured it.

    Args:
        fig: to draw on.
        table: its index is the x axis.
        hues: colours by the columns' names.
        others: colours of the columns that have none there, by their places.

    >>> import pandas as pd
    >>> fig = go.Figure()
    >>> lines(fig, pd.DataFrame({"ours": [1, 2], "bound": [2, 3]}))
    >>> [(trace.mode, trace.line.dash) for trace in fig.data]
    [('lines+markers', None), ('lines', 'dot')]
    """
    known = {} if hues is None else hues
    for place, name in enumerate(table):
        is_bound = "bound" in str(name)
        hue = PALETTE["bound"] if is_bound else others[place % len(others)]
        fig.add_scatter(
            x=table.index,
            y=table[name],
            mode="lines" if is_bound or len(table) > MOST_MARKED else "lines+markers",
            name=str(name),
            line={"color": known.get(str(name), hue)},
        )
        if is_bound:
            fig.data[-1].line.dash = "dot"


def decades(
    fig: go.Figure, places: Iterable[float], words: Sequence[str] = (), *, y: bool = False
) -> None:
    """Make the x axis logarithmic, with a tick at each place and nowhere else.

    Args:
        fig: whose axes change.
        places: of the ticks.
        words: beneath them, one a place; where left out, the places' numbers.
        y: whether the y axis is logarithmic too, with a tick a decade; else it begins at zero.
    """
    ticks = [*places]
    texts = [*words] or [f"{tick:,}" for tick in ticks]
    fig.update_xaxes(type="log", tickvals=ticks, ticktext=texts)
    if y:
        fig.update_yaxes(type="log", dtick=1)
    else:
        fig.update_yaxes(rangemode="tozero")


def note(fig: go.Figure, x: float, y: float, words: str, concept: str, **place: Any) -> None:
    """Write words at a point, which logarithmic axes have at its exponent.

    Args:
        fig: to write on; its axes are logarithmic or not by now.
        x, y: the point.
        words: what is written.
        concept: whose colour of :data:`PALETTE` they have.
        place: how they lie about the point: ``xanchor``, ``yshift`` and so on, as Plotly has them.
    """
    fig.add_annotation(
        x=_on_axis(fig, "x", [x])[0],
        y=_on_axis(fig, "y", [y])[0],
        text=words,
        showarrow=False,
        font={"color": PALETTE[concept]},
        **place,
    )


def plain(value: Any) -> Any:
    """Turn ``value`` into what JSON would hold, floats at 6 significant digits, containers
    recursively.

    Arrays (also Plotly's base64 ones) become lists, NaN and infinities become None, and a float
    without fraction becomes an int, the one spelling that Python and a browser share.

    >>> plain({"a": np.array([1.23456789, 2.0]), "b": float("nan"), "c": (True, "text", 1234567)})
    {'a': [1.23457, 2], 'b': None, 'c': [True, 'text', 1234567]}
    """
    if type(value).__name__ == "NAType":  # what pandas has where a value is missing
        return None
    if value is None or isinstance(value, (str, int)):  # a tuple: a union takes ten times as long
        return value
    if isinstance(value, (float, np.floating)):
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


def contents(fig: go.Figure) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the figure's own traces and layout as :func:`plain` data, without the template."""
    layout = {key: value for key, value in fig.layout._props.items() if key != "template"}
    return [plain(trace._props) for trace in fig.data], plain(layout)


def _rounded(value: float) -> float | int | None:
    """Round to 6 significant digits, as JSON spells the number."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _decoded(spec: Mapping[str, Any]) -> np.ndarray:
    """Decode an array that Plotly wrote in base64."""
    flat = np.frombuffer(base64.b64decode(spec["bdata"]), dtype=np.dtype(spec["dtype"]))
    shape = spec.get("shape")
    return flat if shape is None else flat.reshape([int(n) for n in str(shape).split(",")])


def _store_plainly(fig: go.Figure) -> go.Figure:
    """Rewrite every property of ``fig`` in place through :func:`plain`, but for the template."""
    data, layout = contents(fig)
    for target, properties in zip([*fig.data, fig.layout], [*data, layout], strict=True):
        _replace(target, {key: value for key, value in properties.items() if key != "type"})
    return fig


def _replace(target: Any, properties: Mapping[str, Any]) -> None:
    """Set ``properties``, which were ``target``'s own, without Plotly's checks.

    It need not check all of them again, which costs as much as drawing, on every move of a live
    figure's control.
    """
    try:
        for key, value in properties.items():
            target._validate = key in _TEXTS
            if target._validate:
                target[key] = None  # Plotly keeps an array when the list assigned over it is equal
            target[key] = _without_empty(value)
    finally:
        target._validate = True


def _without_empty(value: Any) -> Any:
    """Drop properties that are empty dictionaries, since Plotly keeps none."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: item for key, part in value.items() if (item := _without_empty(part)) != {}}


def _title_axes(fig: go.Figure, letter: Literal["x", "y"], text: str) -> None:
    """Title the axes at the figure's bottom (x) or left (y) edge, and no inner or overlaid ones."""
    of = {"x": list(fig.select_xaxes()), "y": list(fig.select_yaxes())}
    axes = of[letter]
    crossing = {axis.plotly_name: axis for axis in of["x"] + of["y"]}

    def offset(axis: Any) -> float:
        """Where the axis stands on the one that it crosses."""
        anchor = axis.anchor or ("y" if letter == "x" else "x")
        other = crossing.get(f"{anchor[0]}axis{anchor[1:]}")
        return other.domain[0] if other is not None and other.domain else 0.0

    edge = min(offset(axis) for axis in axes) if axes else 0.0
    for axis in axes:
        if axis.overlaying is None and offset(axis) <= edge + 1e-9:
            axis.title.text = text
    if not axes:
        fig.layout[f"{letter}axis"].title.text = text


def _label_wholly(axis: Any) -> None:
    """Let a logarithmic axis print whole numbers between its decades: 20, not "2"."""
    if axis.tickvals is None and axis.tickformat is None and axis.dtick in (None, "D1", "D2"):
        axis.minorloglabels = "complete"


def _fit_margins(fig: go.Figure) -> None:
    """Stack above the plot, in pixels: subplot titles, then the legend, then the title's lines."""
    text = fig.layout.title.text or ""
    subtitles = any(n.yref == "paper" and (n.y or 0) >= 1 for n in fig.layout.annotations)
    rows = _legend_rows(fig)
    subtitle_px = 30 * subtitles
    legend_px = 25 * rows + 7 * bool(rows)
    later_lines_px = 26 * text.count("<br>")
    title_px = 34 + later_lines_px if text else 0
    above = subtitle_px + legend_px
    below = 60
    # Assigned whole: Plotly's update_layout takes ten times as long.
    fits = {"t": above + title_px + 16, "b": below, "l": 60}
    fig.layout.margin = {"r": 24} | fig.layout.margin.to_plotly_json() | fits
    if subtitles and legend_px:
        plot_px = max(fig.layout.height - above - title_px - below, 1)
        fig.layout.legend.y = 1 + subtitle_px / plot_px
    if text:  # Plotly anchors a title by its first line
        title = fig.layout.title.to_plotly_json()
        pad = title.get("pad", {}) | {"b": above + 8 + later_lines_px}
        fig.layout.title = title | {"y": 1, "yref": "paper", "yanchor": "bottom", "pad": pad}


def _legend_rows(fig: go.Figure, width_px: int = 800) -> int:
    """How many rows a legend about ``width_px`` wide takes, 0 for none; several are a grid."""
    shown = [t for t in fig.data if t.showlegend is not False and t.visible in (None, True)]
    has_one = len(shown) > 1 or any(t.showlegend for t in shown)
    if fig.layout.showlegend is False or not (has_one or fig.layout.showlegend):
        return 0
    lengths = [len(t.name or "trace 0") for t in shown]
    fits = sum(50 + 9 * length for length in lengths) <= width_px
    return 1 if fits else math.ceil(len(shown) / max(1, width_px // (50 + 7.5 * max(lengths))))


def _label_ends(fig: go.Figure) -> None:
    """Name each line at its last point, in its colour, and drop the legend."""
    lines = [t for t in fig.data if t.type == "scatter" and t.name and t.x is not None and len(t.x)]
    heights = [_on_axis(fig, trace.yaxis or "y", trace.y) for trace in lines]
    ends = [values[-1] for values in heights]
    span = _fixed_span(fig, {trace.yaxis or "y" for trace in lines}) or _span(heights)
    shifts = _apart(ends, span, 0.7 * fig.layout.height)
    fig.layout.annotations += tuple(  # at once: Plotly checks all of them at each change
        {
            "x": _on_axis(fig, trace.xaxis or "x", trace.x[-1:])[-1],
            "y": end,
            "xref": trace.xaxis or "x",
            "yref": trace.yaxis or "y",
            "text": trace.name,
            "font": {"color": trace.line.color or CYCLE[position % len(CYCLE)]},
            "showarrow": False,
            "xanchor": "left",
            "xshift": 8,
            "yshift": shift_px,
        }
        for position, (trace, end, shift_px) in enumerate(zip(lines, ends, shifts, strict=True))
    )
    longest = max((len(t.name) for t in lines), default=0)
    fig.update_layout(showlegend=False, margin_r=30 + 9 * longest)


def _on_axis(fig: go.Figure, axis: str, values: Iterable[Any]) -> list[Any]:
    """Put ``values`` where an annotation must have them: a logarithmic axis wants exponents."""
    is_log = fig.layout[f"{axis[0]}axis{axis[1:]}"].type == "log"
    return [math.log10(value) if is_log and value else value for value in values]


def _fixed_span(fig: go.Figure, axes: Iterable[str]) -> float:
    """The length of the one axis that the lines share, where the figure fixes its range; else 0."""
    names = [*axes]
    ends = fig.layout[f"yaxis{names[0][1:]}"].range if len(names) == 1 else None
    if ends is None or None in ends:
        return 0.0
    return float(abs(ends[1] - ends[0]))


def _span(heights: Iterable[Iterable[Any]]) -> float:
    """How far apart the highest and the lowest value are."""
    values = [float(v) for line in heights for v in line if v is not None and math.isfinite(v)]
    return (max(values) - min(values)) if values else 0.0


def _apart(heights: Sequence[float], span: float, plot_px: float, gap_px: float = 21) -> list[int]:
    """Shift labels at ``heights`` (data units) by pixels that keep them ``gap_px`` apart."""
    scale = plot_px / span if span else 0.0
    placed = -math.inf
    shifts = [0] * len(heights)
    for index in sorted(range(len(heights)), key=heights.__getitem__):
        wanted = heights[index] * scale
        placed = max(wanted, placed + gap_px)
        shifts[index] = round(placed - wanted)
    return shifts
