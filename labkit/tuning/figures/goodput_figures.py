"""Figures of goodput, each from one tidy table of ``goodput``, ``step_fit`` or a joint choice."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.kit.draw import CYCLE, PALETTE, finish
from labkit.tuning.figures.configuration_figures import figure_lines

_STAR = {
    "symbol": "star",
    "size": 17,
    "color": PALETTE["highlight"],
    "line": {"width": 1.2, "color": "white"},
}
_MOST_POINTS = 1500


def figure_goodput(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Goodput over total batch size (``goodput.surface``), a line each number of GPUs.

    Of allocations with as many GPUs, the best counts.
    """
    best = table.groupby(["num_gpus", "batch_size"], as_index=False)["goodput"].max()
    return figure_lines(
        best.assign(num_gpus=[_count(gpus, "GPU") for gpus in best["num_gpus"]]),
        x="batch_size",
        y="goodput",
        by="num_gpus",
        x_title="batch size (examples)",
        y_title="goodput (useful examples/s)",
        title=title,
        powers_of_two=True,
    )


def figure_fit(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Predicted against measured step times (``cross_validate``), coloured by number of nodes.

    The line is exact agreement, the band 10 % to both sides.
    """
    measured, predicted = table["step_time_s"], table["predicted_s"]
    low = min(measured.min(), predicted.min()) / 1.1
    high = max(measured.max(), predicted.max()) * 1.1
    fig = go.Figure()
    fig.add_scatter(
        x=[low, high, high, low],
        y=[0.9 * low, 0.9 * high, 1.1 * high, 1.1 * low],
        fill="toself",
        mode="lines",
        line={"width": 0},
        fillcolor="rgba(122,122,122,0.18)",
        name="within 10 %",
        hoverinfo="skip",
    )
    fig.add_scatter(
        x=[low, high], y=[low, high], mode="lines", name="exact",
        line={"color": PALETTE["bound"], "width": 1.5}, hoverinfo="skip",
    )  # fmt: skip
    for index, (name, rows) in enumerate(table.groupby("num_nodes")):
        fig.add_scatter(
            x=rows["step_time_s"],
            y=rows["predicted_s"],
            mode="markers",
            marker={"size": 5, "color": CYCLE[index % len(CYCLE)], "opacity": 0.65},
            name=f"nodes: {name}",
            text=[f"{a}, {m}" for a, m in zip(rows["allocation"], rows["atomic_bsz"], strict=True)],
            hovertemplate="%{text} a GPU: %{x:.3g} s measured, %{y:.3g} s predicted<extra></extra>",
        )
    edges = [math.log10(low), math.log10(high)]
    ticks = _decades(low, high)
    axis = {"type": "log", "range": edges, "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    fig.update_xaxes(**axis)
    fig.update_yaxes(**axis)
    return finish(fig, title=title, x="measured step (s)", y="predicted step (s)", height=560)


def figure_choice(
    frontier: pd.DataFrame,
    *,
    points: pd.DataFrame | None = None,
    deadline_s: float | None = None,
    title: str = "",
) -> go.Figure:
    """Time and energy to the target of a joint choice: the front, coloured by GPUs, and the star.

    ``frontier``: ``JointChoice.frontier``. ``points``: other points to show in grey, such as
    ``JointChoice.frame()``; those slower than twice the front's slowest or costlier than thrice
    its costliest are left out, and of many every n-th is drawn. Everything is predicted.
    """
    hours = 3600 if frontier["time_s"].max() > 7200 else 60
    unit = "h" if hours == 3600 else "min"
    joules, energy = (1e6, "MJ") if frontier["energy_j"].max() > 3e6 else (1e3, "kJ")
    fig = go.Figure()
    if points is not None:
        near = _near(points, frontier)
        fig.add_scatter(
            x=near["time_s"] / hours, y=near["energy_j"] / joules, mode="markers",
            marker={"size": 3, "color": PALETTE["muted"], "opacity": 0.45},
            name="other points", hoverinfo="skip",
        )  # fmt: skip
    fig.add_scatter(
        x=frontier["time_s"] / hours, y=frontier["energy_j"] / joules, mode="lines",
        line={"color": PALETTE["muted"], "width": 1.5}, showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    for index, (gpus, rows) in enumerate(frontier.groupby("num_gpus")):
        fig.add_scatter(
            x=rows["time_s"] / hours,
            y=rows["energy_j"] / joules,
            mode="markers",
            marker={"size": 10, "color": CYCLE[index % len(CYCLE)]},
            name=_count(gpus, "GPU"),
            text=[_point_text(row) for row in rows.itertuples()],
            hovertemplate="%{text}<br>%{x:.3g} " + f"{unit}, %{{y:.4g}} {energy}<extra></extra>",
        )
    _mark_choice(fig, frontier[frontier["is_chosen"]].iloc[0], hours, joules)
    if deadline_s is not None:
        shown = frontier if points is None else _near(points, frontier)
        top = [shown["energy_j"].min() / joules, shown["energy_j"].max() / joules]
        fig.add_scatter(
            x=[deadline_s / hours] * 2, y=top, mode="lines", hoverinfo="skip",
            line={"dash": "dash", "color": PALETTE["bound"], "width": 1.5}, name="deadline",
        )  # fmt: skip
    times, energies = frontier["time_s"] / hours, frontier["energy_j"] / joules
    for axis, values in ((fig.layout.xaxis, times), (fig.layout.yaxis, energies)):
        ticks = _decades(values.min() / 2, 4 * values.max())
        axis.update(type="log", tickvals=ticks, ticktext=[f"{t:,g}" for t in ticks])
    finish(
        fig,
        title=title,
        x=f"predicted time to the target ({unit})",
        y=f"predicted energy ({energy})",
        height=520,
    )
    legend = {"orientation": "v", "x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top"}
    return fig.update_layout(legend=legend)


def _near(points: pd.DataFrame, frontier: pd.DataFrame) -> pd.DataFrame:
    """Points that share a picture with the front, every n-th of many."""
    near = points[
        (points["time_s"] <= 2 * frontier["time_s"].max())
        & (points["energy_j"] <= 3 * frontier["energy_j"].max())
    ]
    return near.iloc[:: max(1, -(-len(near) // _MOST_POINTS))]


def _mark_choice(fig: go.Figure, star: pd.Series, hours: float, joules: float) -> None:
    """A star where the chosen point lies on two logarithmic axes, and what it is."""
    fig.add_scatter(
        x=[star["time_s"] / hours], y=[star["energy_j"] / joules], mode="markers", marker=_STAR,
        name="chosen",
    )  # fmt: skip
    fig.add_annotation(
        x=math.log10(star["time_s"] / hours), y=math.log10(star["energy_j"] / joules),
        text=_point_text(star).replace(", ", "<br>", 1), align="left", showarrow=False,
        xanchor="left", yanchor="bottom", xshift=10, yshift=10, bgcolor="rgba(255,255,255,0.85)",
    )  # fmt: skip


def figure_knobs(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Energy with some knobs free and the others as given (``JointChoice.one_by_one``), as bars.

    Rows that nothing in time satisfies are written as such.
    """
    rows = table.iloc[::-1]
    known = rows["energy_j"].astype(float)
    joules, energy = (1e6, "MJ") if known.max() > 3e6 else (1e3, "kJ")
    colors = [PALETTE["ours" if k == "all together" else "baseline"] for k in rows["knobs"]]
    fig = go.Figure(
        go.Bar(
            x=known.fillna(0.0) / joules,
            y=rows["knobs"],
            orientation="h",
            marker={"color": colors},
            text=["not in time" if math.isnan(e) else f"{e / joules:.4g}" for e in known],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    return finish(fig, title=title, x=f"predicted energy in time ({energy})", y="", height=420)


def _point_text(row: Any) -> str:
    return (
        f"batch {row.batch_size:,} ({row.rule}), {_count(row.num_gpus, 'GPU')} on "
        f"{_count(row.num_nodes, 'node')}, {row.power_limit_w:g} W"
    )


def _count(number: Any, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _decades(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**e for e in exponents for digit in (1, 2, 5)]
    return [t for t in ticks if low <= t <= high]
