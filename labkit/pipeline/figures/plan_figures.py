"""Pictures of plans: energy against time, side by side, and what memory and deadlines buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, finish
from labkit.quantities import format_bytes, significant

if TYPE_CHECKING:
    import pandas as pd

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "pentagon")


@checked
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


@checked
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
    return finish(fig, title=title, x="SM clock (MHz)", y="energy (J)")


@checked
def figure_plans(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Energy against iteration time, a mark for each plan, a colour for each schedule.

    Args:
        table: columns schedule, method, makespan_s, energy_j and, for a dash at the least energy
            of any plan as late as this one, bound_j.
    """
    fig = go.Figure()
    symbol = {m: _SYMBOLS[i % len(_SYMBOLS)] for i, m in enumerate(table["method"].unique())}
    for i, (schedule, part) in enumerate(table.groupby("schedule", sort=False)):
        colour = CYCLE[i % len(CYCLE)]
        fig.add_scatter(
            x=part["makespan_s"], y=part["energy_j"], mode="markers", name=str(schedule),
            text=part["method"], hovertemplate="%{text}, " + str(schedule)
            + "<br>%{x:.4g} s, %{y:.5g} J<extra></extra>",
            marker={"color": colour, "size": 13, "symbol": [symbol[m] for m in part["method"]],
                    "line": {"color": "white", "width": 1}},
            legendgroup="schedules", showlegend=table["schedule"].nunique() > 1,
        )  # fmt: skip
        if "bound_j" in part.columns:
            fig.add_scatter(
                x=part["makespan_s"], y=part["bound_j"], mode="markers", showlegend=False,
                marker={"symbol": "line-ew", "size": 22, "line": {"color": colour, "width": 2}},
                hovertemplate=f"lower bound, {schedule}<br>%{{y:.5g}} J<extra></extra>",
            )  # fmt: skip
    for method, shape in symbol.items():
        fig.add_scatter(
            x=[None], y=[None], mode="markers", name=str(method), legendgroup="methods",
            marker={"symbol": shape, "size": 11, "color": PALETTE["muted"]},
        )  # fmt: skip
    return finish(
        fig, title=title, x="iteration time (s)", y="energy of an iteration (J)", height=480
    )


@checked
def figure_tradeoff(table: pd.DataFrame, *, unit: str = "bytes", title: str = "") -> go.Figure:
    """Least energy against the memory of a device, a line for each deadline.

    With one memory limit the deadlines are on the axis instead. Every mark says which schedule
    it took.

    Args:
        table: :func:`.joint.tradeoff`'s; limits that nothing fits stay empty.
        unit: of ``memory_limit_bytes``: ``"bytes"``, or ``"activations"`` where these count 1.
    """
    limits = table["memory_limit_bytes"]
    by_memory = limits.nunique() > 1
    finite = limits[np.isfinite(limits)]
    room = float(finite.max() * 1.15) if len(finite) else 1.0
    place = limits.where(np.isfinite(limits), room)
    table = table.assign(place=place if by_memory else table["deadline_s"])
    by = "deadline_s" if by_memory else "memory_limit_bytes"
    fig = go.Figure()
    values = sorted(table[by].unique())
    named: set[tuple[Any, ...]] = set()
    for i, (value, colour) in enumerate(zip(values, CYCLE * len(table), strict=False)):
        part = table[table[by] == value]
        width = 2 + 3 * (len(values) - 1 - i)  # so that lines that coincide are all seen
        name = f"by {significant(float(value), 4)} s" if by_memory else "least energy"
        taken = []
        for mark in part[["place", "energy_j", "schedule"]].itertuples(index=False):
            taken.append("" if mark in named or not isinstance(mark[2], str) else mark[2])
            named.add(mark)
        fig.add_scatter(
            x=part["place"], y=part["energy_j"], mode="lines+markers+text", name=name, text=taken,
            textposition="top right", textfont={"size": 12, "color": colour}, line_shape="hv",
            line={"color": colour, "width": width}, marker_size=width + 7,
            customdata=part["schedule"],
            hovertemplate="%{customdata}<br>%{x:.4g}, %{y:.5g} J<extra></extra>",
        )  # fmt: skip
    fig.update_traces(line_shape="hv" if by_memory else "linear")
    if by_memory:
        ticks = sorted(place.unique())
        words = [amount(t, unit) if t < room else "no limit" for t in ticks]
        fig.update_xaxes(tickvals=ticks, ticktext=words)
    x = f"memory of a device ({unit})" if by_memory else "deadline (s)"
    return finish(fig, title=title, x=x, y="energy of an iteration (J)", height=460)


def amount(value: float, unit: str) -> str:
    """A number of bytes, or of activations, for a label."""
    return format_bytes(value) if unit == "bytes" else significant(value, 4)
