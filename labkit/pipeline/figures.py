"""Pictures of a pipeline: who runs when, and what an iteration costs in time and energy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.errors import UsageError
from labkit.figures import CYCLE, PALETTE, SEQUENTIAL, finish

if TYPE_CHECKING:
    import pandas as pd

Colour = Literal["kind", "clock", "slack"]
_SCALES = {"clock": ("clock_mhz", "MHz"), "slack": ("slack_s", "slack (s)")}
_ROW_HEIGHT = {"forward": 0.62, "backward": 0.9}  # so that kinds differ also without colour
_MOST_LABELS_A_ROW = 40


def figure_timeline(
    table: pd.DataFrame,
    *,
    colour: Colour = "kind",
    title: str = "",
    span_s: float | None = None,
    colour_range: tuple[float, float] | None = None,
) -> go.Figure:
    """A Gantt chart, one row a device: forwards slim, backwards tall, idle time grey.

    Args:
        table: ``Timeline.frame()`` or ``Plan.frame()``.
        colour: by kind of work, by clock (needs a plan's table), or by slack.
        span_s: where the time axis ends (default: at the makespan), to compare timelines.
        colour_range: ends of the colour scale in the column's unit, to compare plans.

    Raises:
        UsageError: the table lacks the column that ``colour`` shows.
    """
    if colour != "kind" and _SCALES[colour][0] not in table.columns:
        raise UsageError(
            f"colour={colour!r} needs column {_SCALES[colour][0]!r}: pass a plan's frame()"
        )
    devices = sorted(table["device"].unique())
    makespan_s = float(table["end_s"].max())
    fig = go.Figure()
    for device in devices:
        fig.add_shape(
            type="rect", x0=0, x1=makespan_s, y0=device - 0.45, y1=device + 0.45,
            fillcolor=PALETTE["bubble"], line_width=0, layer="below",
        )  # fmt: skip
    labelled = len(table) <= _MOST_LABELS_A_ROW * len(devices)
    for kind in ("forward", "backward"):
        fig.add_trace(_bars(table[table["kind"] == kind], kind, colour, labelled))
    fig.add_trace(
        go.Bar(x=[None], y=[None], name="idle", marker_color=PALETTE["bubble"], hoverinfo="skip")
    )
    if colour != "kind":
        _add_scale(fig, table, colour, colour_range)
    end = span_s or makespan_s
    fig.update_layout(barmode="overlay", uniformtext={"minsize": 7, "mode": "hide"})
    fig.update_yaxes(
        tickvals=devices, ticktext=[f"stage {d}" for d in devices],
        range=[max(devices) + 0.6, -0.6], showgrid=False,
    )  # fmt: skip
    fig.update_xaxes(range=[0, end * 1.005], showgrid=False)
    return finish(fig, title=title, x="time (s)", height=150 + 34 * len(devices))


def _bars(part: pd.DataFrame, kind: str, colour: Colour, labelled: bool) -> go.Bar:
    clock = part["clock_mhz"] if "clock_mhz" in part.columns else None
    hover = [part["microbatch"], part["slack_s"], *([] if clock is None else [clock])]
    by_value = colour != "kind"
    return go.Bar(
        orientation="h",
        base=part["start_s"],
        x=part["end_s"] - part["start_s"],
        y=part["device"],
        width=_ROW_HEIGHT[kind],
        name=kind,
        text=part["microbatch"] if labelled else None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont_size=11,
        marker={
            "color": part[_SCALES[colour][0]] if by_value else PALETTE[kind],
            "line": {"color": "white", "width": 1 if labelled else 0.3},
            **({"coloraxis": "coloraxis"} if by_value else {}),
        },
        customdata=np.stack(hover, axis=-1),
        hovertemplate=(
            f"stage %{{y}}, {kind} %{{customdata[0]}}<br>starts %{{base:.4g}} s, takes %{{x:.4g}} s"
            "<br>slack %{customdata[1]:.3g} s"
            + ("" if clock is None else "<br>%{customdata[2]:.0f} MHz")
            + "<extra></extra>"
        ),
        showlegend=not by_value,
    )


def _add_scale(
    fig: go.Figure, table: pd.DataFrame, colour: Colour, span: tuple[float, float] | None
) -> None:
    column, heading = _SCALES[colour]
    low, high = span or (float(table[column].min()), float(table[column].max()))
    fig.update_layout(
        coloraxis={
            "colorscale": SEQUENTIAL,
            "cmin": low,
            "cmax": high if high > low else low + 1,
            "colorbar": {"title": {"text": heading}, "thickness": 14, "len": 0.9},
        },
        showlegend=False,
    )


def figure_frontier(
    front: pd.DataFrame,
    *,
    plans: pd.DataFrame | None = None,
    lines: Mapping[str, pd.DataFrame] | None = None,
    title: str = "",
) -> go.Figure:
    """Energy of an iteration against its duration.

    Args:
        front: :func:`labkit.pipeline.frontier`'s table: its plans as a line, its bound dotted.
        plans: single plans to mark: :func:`labkit.pipeline.compare`'s table, or any other with
            columns plan, makespan_s, energy_j.
        lines: other frontiers by name: columns makespan_s, energy_j.
    """
    fig = go.Figure()
    colours = (PALETTE["paper"], PALETTE["baseline"], *CYCLE[4:])
    for (name, line), colour in zip((lines or {}).items(), colours, strict=False):
        fig.add_scatter(
            x=line["makespan_s"], y=line["energy_j"], mode="lines", name=name,
            line={"color": colour, "width": 2},
        )  # fmt: skip
    fig.add_scatter(
        x=front["makespan_s"], y=front["energy_j"], mode="lines+markers", name="optimal plans",
        line={"color": PALETTE["ours"], "width": 2}, marker_size=5,
    )  # fmt: skip
    fig.add_scatter(
        x=front["deadline_s"], y=front["bound_j"], mode="lines", name="lower bound",
        line={"color": PALETTE["bound"], "width": 2, "dash": "dot"},
    )  # fmt: skip
    if plans is not None:
        fig.add_scatter(
            x=plans["makespan_s"], y=plans["energy_j"], mode="markers+text", text=plans["plan"],
            textposition="middle left", showlegend=False,
            marker={"color": PALETTE["highlight"], "size": 11, "symbol": "diamond"},
            hovertemplate="%{text}<br>%{x:.4g} s, %{y:.5g} J<extra></extra>",
        )  # fmt: skip
        first, last = plans["makespan_s"].min(), front["deadline_s"].max()
        fig.update_xaxes(range=[first - 0.2 * (last - first), last + 0.05 * (last - first)])
    return finish(fig, title=title, x="iteration time (s)", y="energy of an iteration (J)")


def figure_valley(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """A stage's energy by clock: all of it, and what lies above a waiting GPU's.

    Args:
        table: ``EnergyProfile.stage_table(stage)``.
    """
    fig = go.Figure()
    lines = {"energy_j": ("energy", "energy"), "above_waiting_j": ("above waiting", "bound")}
    for column, (name, colour) in lines.items():
        fig.add_scatter(
            x=table["clock_mhz"], y=table[column], mode="lines+markers", name=name,
            line={"color": PALETTE[colour], "width": 2}, marker_size=6,
        )  # fmt: skip
        lowest = table.iloc[int(table[column].argmin())]
        fig.add_annotation(
            x=lowest["clock_mhz"], y=lowest[column], ay=-36, ax=0, arrowhead=2,
            text=f"least at {lowest['clock_mhz']:.0f} MHz",
        )  # fmt: skip
    fig.update_yaxes(rangemode="tozero")
    return finish(fig, title=title, x="SM clock (MHz)", y="energy of a microbatch (J)")


def figure_savings(
    table: pd.DataFrame,
    *,
    x: str,
    x_title: str,
    published: pd.DataFrame | None = None,
    title: str = "",
) -> go.Figure:
    """Energy saved by each plan (solid) and the most its schedule allows (dotted), against ``x``.

    Args:
        table: :func:`labkit.pipeline.sweep`'s; one panel per profile unless ``x`` is the profile.
        x: the column on the horizontal axis.
        published: others' results as rings: columns profile, ``x``, saving_fraction.
    """
    panels = [""] if x == "profile" else list(table["profile"].unique())
    fig = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=panels)
    for column, panel in enumerate(panels, 1):
        here = table if x == "profile" else table[table["profile"] == panel]
        for trace in _saving_lines(here, x):
            fig.add_trace(trace.update(showlegend=column == 1), row=1, col=column)
        if published is not None:
            rings = published[published["profile"] == panel]
            ring = {"symbol": "circle-open", "size": 16, "line_width": 3, "color": PALETTE["paper"]}
            fig.add_scatter(
                x=rings[x], y=rings["saving_fraction"], mode="markers", name="published",
                legendgroup="published", showlegend=column == 1, marker=ring, row=1, col=column,
            )  # fmt: skip
    fig.update_xaxes(tickvals=sorted(table[x].unique()), type="log" if x != "profile" else None)
    fig.update_yaxes(tickformat=".0%", rangemode="tozero")
    return finish(fig, title=title, x=x_title, y="energy saved", height=460)


def _saving_lines(table: pd.DataFrame, x: str) -> Iterator[go.Scatter]:
    shown = [("saving_fraction", "{}", "solid", 7), ("best_saving_fraction", "bound, {}", "dot", 1)]
    plans = [name for name in table["plan"].unique() if name != "max clock"]
    colours = [colour for colour in CYCLE if colour != PALETTE["paper"]]
    for (name, colour), (value, label, dash, size) in itertools.product(
        zip(plans, colours, strict=False), shown
    ):
        if value in table.columns:
            part = table[table["plan"] == name]
            yield go.Scatter(
                x=part[x], y=part[value], mode="lines+markers", name=label.format(name),
                legendgroup=label.format(name), marker_size=size,
                line={"color": colour, "width": 2, "dash": dash},
            )  # fmt: skip
