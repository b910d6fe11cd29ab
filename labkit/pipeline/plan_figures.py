"""Pictures of choices among plans: side by side, and what memory and deadlines are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from labkit.figures import CYCLE, PALETTE, finish
from labkit.units import format_bytes, significant

if TYPE_CHECKING:
    import pandas as pd

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "pentagon")


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


def figure_tradeoff(table: pd.DataFrame, *, unit: str = "bytes", title: str = "") -> go.Figure:
    """Least energy against the memory of a device, a line for each deadline.

    With one memory limit the deadlines are on the axis instead. Every mark says which schedule
    it took.

    Args:
        table: :func:`labkit.pipeline.joint.tradeoff`'s; limits that nothing fits stay empty.
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
        words = [_amount(t, unit) if t < room else "no limit" for t in ticks]
        fig.update_xaxes(tickvals=ticks, ticktext=words)
    x = f"memory of a device ({unit})" if by_memory else "deadline (s)"
    return finish(fig, title=title, x=x, y="energy of an iteration (J)", height=460)


def _amount(value: float, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else significant(value, 4)
