"""Pictures of one iteration: who runs when, what memory is held, where time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from labkit.errors import UsageError
from labkit.kit import tables
from labkit.kit.describe import Positive, checked
from labkit.kit.draw import CYCLE, PALETTE, SEQUENTIAL, Part, finish
from labkit.pipeline.simulation.costs import amount

if TYPE_CHECKING:
    import pandas as pd

Colour = Literal["kind", "clock", "slack"]
_SCALES = {"clock": ("clock_mhz", "MHz"), "slack": ("slack_s", "slack (s)")}
_ROW_HEIGHT = {  # so that kinds differ also without colour
    "forward": 0.72,
    "backward": 0.9,
    "input": 0.9,
    "weight": 0.56,
}
_NUMBERED = ("device", "stage", "microbatch")
_PALEST = 0.62  # how much white the last lane's colour has
_MOST_LABELS_A_ROW = 56
_MOST_EDGES_A_ROW = 160
_IDLE_COLOURS = {
    "busy": PALETTE["static"],
    "warm-up": CYCLE[5],
    "dependency": CYCLE[1],
    "steady": CYCLE[3],
    "communication": PALETTE["communication"],
    "drain": CYCLE[0],
}


@checked
def figure_timeline(
    table: pd.DataFrame,
    *,
    colour: Colour = "kind",
    title: str = "",
    span_s: Positive | None = None,
    colour_range: tuple[float, float] | None = None,
    messages: pd.DataFrame | None = None,
) -> go.Figure:
    """Draw a Gantt chart, one row a device; idle time is grey.

    Full backwards and input halves are tall, forwards slim, weight halves slimmest (all equal where
    there are too many to tell, and kinds have colours). Later chunks of a device are lighter; so
    are the microbatches that enter a bidirectional pipeline at its other end.

    Args:
        table: ``Timeline.frame()`` or ``Plan.frame()``.
        colour: by kind of work, by clock (needs a plan's table), or by slack.
        title: of the figure.
        span_s: where the time axis ends (default: at the makespan), to compare timelines.
        colour_range: ends of the colour scale in the column's unit, to compare plans.
        messages: ``Timeline.messages_frame()``: a line from each sender to its receiver.

    Raises:
        UsageError: the table lacks the column that ``colour`` shows.
    """
    if colour != "kind" and _SCALES[colour][0] not in table.columns:
        raise UsageError(
            f"colour={colour!r} needs column {_SCALES[colour][0]!r} in the table: pass a plan's "
            "frame()"
        )
    numbers = [*_NUMBERED, "start_s", "end_s", "slack_s"]
    numbers += [name for name in ("clock_mhz",) if name in table.columns]
    tables.check("figure_timeline", table, texts=["kind"], numbers=numbers, filled=True)
    if messages is not None:
        numbers = ["source", "device", "sent_s", "arrived_s"]
        tables.check("figure_timeline: messages", messages, numbers=numbers)
    devices = sorted(table["device"].unique().tolist())
    makespan_s = float(table["end_s"].max())
    lane, lanes = _find_lanes(table)
    if colour == "kind":
        fills = _kind_fills(table["kind"], lane)
        legend = _lane_legend(lanes)
        layout = Part()
    else:
        fills, legend, layout = _scale_fills(table, colour, colour_range)
    crowd = len(table) / len(devices)  # bars a row
    edge_px = 1 if crowd <= _MOST_LABELS_A_ROW else 0.3 if crowd <= _MOST_EDGES_A_ROW else 0
    filled = table.assign(fill=fills, lane=lane)
    bars = _kinds_of_bars(filled, edge_px, named=colour == "kind")
    data = [_idle_bars(devices, makespan_s), *bars, *legend]
    if messages is not None:
        data.append(_message_lines(messages))
    word = "stage" if (table["stage"] == table["device"]).all() else "device"
    rows = {"tickvals": devices, "ticktext": [f"{word} {number}" for number in devices]}
    layout["yaxis"] = rows | {"showgrid": False, "range": [max(devices) + 0.6, -0.6]}
    layout["xaxis"] = {"range": [0, (span_s or makespan_s) * 1.005], "showgrid": False}
    layout |= {"uniformtext": {"minsize": 7, "mode": "hide"}, "barmode": "overlay"}
    fig = go.Figure(data, layout)
    how = "" if colour == "kind" else "; slim bars: forward, tall: backward"
    if colour != "kind" and (table["kind"] == "weight").any():
        how += ", slimmest: weight half"
    return finish(fig, title=title, x=f"time (s){how}", height=150 + 34 * len(devices))


def _idle_bars(devices: list[int], end_s: float) -> Part:
    """Draw the grey that instructions are drawn on; the legend names it last."""
    return {
        "type": "bar",
        "orientation": "h",
        "x": [end_s] * len(devices),
        "y": devices,
        "width": 0.9,
        "name": "idle",
        "hoverinfo": "skip",
        "legendrank": 2000,
        "marker": {"color": PALETTE["bubble"], "line": {"width": 0}},
    }


def _kind_fills(kinds: pd.Series[str], lane: np.ndarray) -> np.ndarray:
    """Colour each row by its kind of work, paler by its lane."""
    shades = {kind: _shades_of(kind, 1 + lane.max(initial=0)) for kind in set(kinds)}
    return np.array([shades[kind][number] for kind, number in zip(kinds, lane, strict=True)])


def _scale_fills(
    table: pd.DataFrame, colour: Colour, span: tuple[float, float] | None
) -> tuple[np.ndarray, list[Part], Part]:
    """Colour each row by a scale, grey where NaN; return colours, an empty trace and the layout of
    the colour bar.

    Numbers with a colour scale would do as well, but Plotly's bars take each number for a colour
    when they choose between black and white labels: they warn at each bar, and labels do not show.
    """
    column, name = _SCALES[colour]
    values = table[column]
    low, high = span or (float(values.min()), float(values.max()))
    high = high if high > low else low + 1
    share = (values.to_numpy(dtype=float) - low) / (high - low)
    level = np.round(255 * np.clip(np.nan_to_num(share), 0, 1)).astype(int)
    fills = np.where(np.isnan(share), PALETTE["muted"], _scale()[level])
    bar = {"title": {"text": name}, "thickness": 14, "len": 1, "y": 0.5, "lenmode": "fraction"}
    axis = {"colorscale": SEQUENTIAL, "cmin": low, "cmax": high, "colorbar": bar}
    marker = {"color": [low], "coloraxis": "coloraxis"}
    empty = {"type": "scatter", "x": [None], "y": [None], "mode": "markers", "hoverinfo": "skip"}
    return fills, [empty | {"marker": marker}], {"coloraxis": axis, "showlegend": False}


def _kinds_of_bars(table: pd.DataFrame, edge_px: float, *, named: bool) -> Iterator[Part]:
    """Draw each kind of work as bars of its height, in colours that the legend names or not."""
    for kind, kind_height in _ROW_HEIGHT.items():
        part = table[table["kind"] == kind]
        if part.empty:
            continue
        part = part.sort_values("lane", kind="stable")  # the legend shows the first bar's colour
        height = 0.9 if named and edge_px < 1 else kind_height
        yield _bars(part, kind, height, edge_px, legend=named)


def _bars(part: pd.DataFrame, kind: str, height: float, edge_px: float, *, legend: bool) -> Part:
    """Draw the instructions of one kind as bars."""
    several = bool((part["stage"] != part["device"]).any())
    shown = {"microbatch": "", "slack_s": "<br>slack %{{customdata[{}]:.3g}} s"}
    if several:
        shown["stage"] = ", stage %{{customdata[{}]}}"
    if "clock_mhz" in part.columns:
        shown["clock_mhz"] = "<br>%{{customdata[{}]:.0f}} MHz"
    places = {column: text.format(i) for i, (column, text) in enumerate(shown.items())}
    fills = part["fill"].unique()
    numbers = {"text": part["microbatch"]} if edge_px == 1 else {}
    middle = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    return (
        numbers
        | middle
        | {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "width": height,
            "showlegend": legend,
            "base": part["start_s"],
            "x": part["end_s"] - part["start_s"],
            "y": part["device"],
            "textfont": {"size": 11},
            "marker": {
                "color": fills[0] if len(fills) == 1 else part["fill"],
                "line": {"color": "white", "width": edge_px},
            },
            "customdata": [
                list(row) for row in zip(*(part[c].tolist() for c in shown), strict=True)
            ],
            "hovertemplate": (
                f"{'device' if several else 'stage'} %{{y}}{places.get('stage', '')}, {kind}"
                + " %{customdata[0]}<br>starts %{base:.4g} s, takes %{x:.4g} s"
                + places["slack_s"]
                + places.get("clock_mhz", "")
                + "<extra></extra>"
            ),
        }
    )


def _lane_legend(names: list[str]) -> list[Part]:
    """Explain what paler colours mean; where there is one lane nothing needs to be."""
    shades = _shades_of("forward", len(names))
    empty = {"type": "bar", "x": [None], "y": [None], "hoverinfo": "skip"}
    paler = zip(names[1:], shades[1:], strict=True)
    return [empty | {"name": name, "marker": {"color": shade}} for name, shade in paler]


def _message_lines(messages: pd.DataFrame) -> Part:
    """Draw a line from the sender's row, at its edge, to the receiver's."""
    source = messages["source"].to_numpy()
    device = messages["device"].to_numpy()
    toward = np.sign(device - source)
    gap = np.full(len(messages), np.nan)
    x = np.stack([messages["sent_s"], messages["arrived_s"], gap], axis=1).ravel()
    y = np.stack([source + 0.45 * toward, device - 0.3 * toward, gap], axis=1).ravel()
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "mode": "lines",
        "name": "message",
        "hoverinfo": "skip",
        "line": {"color": PALETTE["communication"], "width": 1.2},
    }


def _find_lanes(table: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Find each row's lane, and what lanes are called: the passes that microbatches make.

    A lane is a chunk (the device's first, second... stage) of the microbatches that enter the
    pipeline at the same device. A pipeline of one stage a device has one lane.
    """
    microbatch = table["microbatch"].to_numpy()
    device = table["device"].to_numpy()
    stage = table["stage"].to_numpy()
    first = stage == 0
    enters = np.zeros(1 + microbatch.max(), dtype=int)
    enters[microbatch[first]] = device[first]
    doors = np.unique(device[first])
    door = np.searchsorted(doors, enters[microbatch])
    chunk = np.zeros(len(table), dtype=int)
    for d in np.unique(device):
        for route in range(len(doors)):
            mine = (device == d) & (door == route)
            chunk[mine] = np.searchsorted(np.unique(stage[mine]), stage[mine])
    chunks = 1 + int(chunk.max())
    ways = [f"in at device {door}, " for door in doors] if len(doors) > 1 else [""]
    names = [f"{way}chunk {number}" for way in ways for number in range(chunks)]
    if chunks == 1 and len(doors) > 1:
        names = [way.removesuffix(", ") for way in ways]
    return door * chunks + chunk, names


def _shades_of(kind: str, count: int) -> list[str]:
    """List the colours of a kind's lanes; the first one's is the palette's own."""
    paler = [_PALEST * k / max(count - 1, 2) for k in range(count)]
    return [_mixed(PALETTE[kind], "#FFFFFF", part) for part in paler]


@cache
def _scale() -> np.ndarray:
    """List the colours of the sequential scale in 256 steps."""
    stops = [stop for stop, _ in SEQUENTIAL]
    table = []
    for level in np.linspace(0, 1, 256).tolist():
        k = min(int(np.searchsorted(stops, level, side="right")) - 1, len(stops) - 2)
        part = (level - stops[k]) / (stops[k + 1] - stops[k])
        table.append(_mixed(SEQUENTIAL[k][1], SEQUENTIAL[k + 1][1], part))
    return np.array(table)


def _mixed(colour: str, other: str, amount: float) -> str:
    """Mix ``colour`` with a share of ``other``, both written #RRGGBB."""
    near = np.array([*bytes.fromhex(colour[1:])])
    far = np.array([*bytes.fromhex(other[1:])])
    mixed = near + amount * (far - near)
    return "#" + "".join(f"{round(value):02X}" for value in mixed.tolist())


def part_bars(
    table: pd.DataFrame, parts: Mapping[str, str], *, inks: Mapping[str, str] | None = None
) -> list[go.Bar]:
    """Draw instructions coloured by the part that they have in an idea, with their names inside.

    Args:
        table: as ``Timeline.frame()`` gives it, and a column ``part``.
        parts: colours by part, in the order in which they are drawn.
        inks: colours of the names, by part; white where a part has none.

    Returns:
        A trace a part, whose names begin with F for forward and B for backward.
    """
    names = table["kind"].map({"forward": "F", "backward": "B"}) + table["microbatch"].astype(str)
    bars = []
    for part, colour in parts.items():
        shown = table[table["part"] == part]
        bars.append(
            go.Bar(
                base=shown["start_s"],
                x=shown["end_s"] - shown["start_s"],
                y=shown["device"],
                text=names[shown.index],
                textposition="inside",
                textangle=0,
                insidetextanchor="middle",
                textfont={"color": (inks or {}).get(part, "white")},
                orientation="h",
                name=part,
                marker={"color": colour, "line": {"color": "white", "width": 1}},
            )
        )
    return bars


def on_stages(bars: Sequence[go.Bar], num_stages: int) -> go.Figure:
    """Make a figure of bars of time whose rows are stages, the first one above."""
    stages = [*range(num_stages)]
    names = [f"stage {stage}" for stage in stages]
    figure = go.Figure([*bars])
    figure.update_layout(barmode="overlay", bargap=0.15, uniformtext={"minsize": 9, "mode": "show"})
    figure.update_yaxes(autorange="reversed", tickvals=stages, ticktext=names, showgrid=False)
    figure.update_xaxes(showgrid=False)
    return figure


@checked
def figure_memory(table: pd.DataFrame) -> go.Figure:
    """Draw what every device holds over time (``Timeline.memory_frame()``); its peak is at the
    right.
    """
    numbers = ["device", "time_s", "activation_bytes"]
    tables.check("figure_memory", table, numbers=numbers, filled=True)
    held = "activation_bytes"
    devices = table["device"].nunique()
    row = 0.9 / devices
    step = 1 / devices
    at = {"x": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "showarrow": False}
    line = {"shape": "hv", "color": PALETTE["activation"]}
    style = {"type": "scatter", "mode": "lines", "fill": "tozeroy", "line": line, "name": ""}
    data: list[Any] = []
    notes: list[Any] = []
    axes: dict[str, Any] = {}
    for place, (device, part) in enumerate(table.groupby("device")):
        number = str(place + 1) if place else ""
        top = 1 - place * step
        axes[f"yaxis{number}"] = {"domain": [top - row, top], "showticklabels": False, "ticks": ""}
        axes[f"yaxis{number}"] |= {"matches": "y"} if place else {}
        data.append(style | {"x": part["time_s"], "y": part[held], "yaxis": f"y{number}"})
        text = f"device {device}: {amount(part[held].max())}"
        notes.append(at | {"text": text, "y": top - row / 2})
    axes["xaxis"] = {"anchor": data[-1]["yaxis"]}
    fig = go.Figure(data, axes | {"annotations": notes, "margin": {"r": 150}, "showlegend": False})
    heading = "Activations held; at the right the most at once"
    return finish(fig, title=heading, x="time (s)", height=150 + 34 * devices)


@checked
def figure_idle(table: pd.DataFrame) -> go.Figure:
    """Draw where each device's time goes: work and waiting by cause, from
    ``Timeline.idle_frame()``.
    """
    causes = [f"{cause.replace('-', '_')}_s" for cause in _IDLE_COLOURS]
    tables.check("figure_idle", table, numbers=["device", *causes, "makespan_s"])
    whole_s = table["makespan_s"]
    names = [f"device {name}" for name in table["device"]]
    fig = go.Figure().update_layout(barmode="stack", bargap=0.25)
    for cause, colour in _IDLE_COLOURS.items():
        took_s = table[f"{cause.replace('-', '_')}_s"]
        if cause == "busy" or (took_s > 1e-9 * whole_s.sum()).any():
            hover = f"%{{y}}: {cause} %{{x:.4g}} s, %{{customdata:.1%}}<extra></extra>"
            style = {"marker_color": colour, "hovertemplate": hover, "orientation": "h"}
            fig.add_bar(x=took_s, y=names, name=cause, customdata=took_s / whole_s, **style)
    fig.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return finish(fig, title="", x="time (s)", height=150 + 34 * len(names))
