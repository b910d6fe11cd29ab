"""Figures of batch sizes and power limits, each from one tidy table of this engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.kit.draw import CYCLE, PALETTE, SEQUENTIAL, Part, finish
from labkit.tuning.configurations.outcomes import config_text

BRIGHTEST = 2.0
"""Cells of a map at this many times the default and above share one colour."""

MARK: dict[str, Any] = {
    "default": {"symbol": "x", "size": 15, "color": PALETTE["baseline"]},
    "best": {"symbol": "star", "size": 19, "color": PALETTE["highlight"]},
}


def points(x: Any, y: Any, marker: Mapping[str, Any], name: str, **more: Any) -> Part:
    """Make a trace of marks, silent under the pointer unless ``more`` says otherwise
    (``hoverinfo=None``).
    """
    look = {"mode": "markers", "marker": marker, "name": name, "hoverinfo": "skip"}
    return {"type": "scatter", "x": x, "y": y} | look | more


def stroke(x: Any, y: Any, line: Mapping[str, Any], **more: Any) -> Part:
    """Make a trace of a line without a text of its own."""
    look = {"mode": "lines", "line": line, "hoverinfo": "skip"}
    return {"type": "scatter", "x": x, "y": y} | look | more


def figure_map(
    table: pd.DataFrame, *, value: str = "energy_to_accuracy_j", title: str = ""
) -> go.Figure:
    """Draw every configuration of :func:`outcomes` as a cell, relative to the default's ``value``.

    Cells that never reach the target stay empty, and so do pairs that were not profiled, which
    small dots mark and the legend counts. A star marks the least value, a cross the default.

    Args:
        table: the configurations of one job.
        value: the column that is drawn.
        title: of the figure.
    """
    relative = table[value] / table.loc[table["is_default"], value].iloc[0]
    grid = table.assign(relative=relative.where(np.isfinite(relative)))
    pivot = grid.pivot(index="power_limit_w", columns="batch_size", values="relative")
    cells = pivot.to_numpy()
    heatmap = {
        "type": "heatmap",
        "z": cells,
        "texttemplate": "%{z:.2f}",
        "textfont": {"size": 12},
        "zmin": float(np.nanmin(cells)),
        "zmax": min(BRIGHTEST, float(np.nanmax(cells))),
        "colorbar": {"title": {"text": "× default", "side": "right"}, "thickness": 14},
        "customdata": [[config_text(b, p) for b in pivot.columns] for p in pivot.index],
        "hovertemplate": "%{customdata}: %{z:.3f} × default<extra></extra>",
    }
    data: list[Part] = [heatmap]
    default = table[table["is_default"]].iloc[0]
    least = table.iloc[int(table[value].argmin())]
    edge = {"size": 13, "line": {"width": 1.2, "color": PALETTE["bound"]}}
    for name, row, mark in (
        ("default (b0, highest limit)", default, {**MARK["default"], **edge, "color": "white"}),
        ("least", least, {**MARK["best"], **edge}),
    ):
        x = list(pivot.columns).index(row["batch_size"]) + 0.33
        y = list(pivot.index).index(row["power_limit_w"]) + 0.28
        data.append(points([x], [y], mark, name))
    rated = table.pivot(index="power_limit_w", columns="batch_size", values=value).to_numpy()
    limits, sizes = np.nonzero(np.isnan(rated))
    if len(limits):
        dot = {"symbol": "circle", "size": 6, "color": PALETTE["muted"]}
        data.append(points(sizes, limits, dot, f"not profiled ({len(limits)})"))
    x_axis = _named_ticks([f"{b:,}" for b in pivot.columns])
    fig = go.Figure(data, {"xaxis": x_axis, "yaxis": _named_ticks([f"{p:g}" for p in pivot.index])})
    return finish(fig, title=title, x="batch size", y="power limit (W)", height=430)


def figure_pareto(
    table: pd.DataFrame,
    *,
    chosen: Mapping[str, Any] | None = None,
    title: str = "",
    power_lines_w: tuple[float, ...] = (),
) -> go.Figure:
    """Draw time against energy to the target for every configuration, with the Pareto front.

    Both axes are relative to the default configuration and end at twice its values.

    Args:
        table: the rows of :func:`outcomes`.
        chosen: a row to mark with a star and its name.
        title: of the figure.
        power_lines_w: average powers in watts; a line of constant power is drawn for each.
    """
    base = table[table["is_default"]].iloc[0]
    time, energy = _relative(table, base)
    relative = table.assign(time=time, energy=energy)
    near = relative[np.maximum(time, energy) <= 2]
    end = float(near["time"].max())
    per_watt = base["time_to_accuracy_s"] / base["energy_to_accuracy_j"]
    rays = {f"{power_w:g} W drawn": power_w * per_watt for power_w in power_lines_w}
    line = {"dash": "dot", "color": PALETTE["muted"], "width": 1.5}
    data = [
        stroke([0.0, end], [0.0, slope * end], line, showlegend=False) for slope in rays.values()
    ]
    data.append(_cloud(near))
    front = near[near["is_pareto"]].sort_values("time")
    line = {"color": PALETTE["bound"], "width": 2}
    data.append(stroke(front["time"], front["energy"], line, name="Pareto front"))
    data.append(points([1], [1], MARK["default"], "default", hoverinfo=None))
    if chosen is not None:
        x, y = _relative(pd.DataFrame([dict(chosen)]), base)
        star = {**MARK["best"], "line": {"width": 1.5, "color": "white"}}
        name = f"chosen: {config_text(chosen['batch_size'], chosen['power_limit_w'])}"
        data.append(points(x, y, star, name, hoverinfo=None))
    font = {"color": PALETTE["muted"], "size": 14}
    at_end = {"x": end, "xanchor": "right", "yanchor": "bottom", "showarrow": False, "font": font}
    named = [{"y": slope * end, "text": text, **at_end} for text, slope in rays.items()]
    fig = go.Figure(data, {"annotations": named})
    x_title = "time to accuracy (default = 1)"
    y_title = "energy to accuracy (default = 1)"
    return finish(fig, title=title, x=x_title, y=y_title, height=480)


def _cloud(table: pd.DataFrame) -> Part:
    """Place configurations at (time, energy), coloured by the logarithm of their batch size."""
    pairs = zip(table["batch_size"], table["power_limit_w"], strict=True)
    shown = sorted(set(table["batch_size"]))
    shown = shown[:: max(1, len(shown) // 5)]
    return {
        "type": "scatter",
        "x": table["time"],
        "y": table["energy"],
        "mode": "markers",
        "marker": {
            "color": np.log2(table["batch_size"]),
            "colorscale": SEQUENTIAL,
            "size": 9,
            "line": {"width": 0.5, "color": "white"},
            "colorbar": {
                "title": {"text": "batch size", "side": "right"},
                "thickness": 14,
                "tickvals": [float(np.log2(b)) for b in shown],
                "ticktext": [f"{b:,}" for b in shown],
            },
        },
        "text": [config_text(*pair) for pair in pairs],
        "hovertemplate": "%{text}<br>time %{x:.3f}, energy %{y:.3f}<extra></extra>",
        "name": "configurations",
        "showlegend": False,
    }


def figure_lines(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str,
    x_title: str,
    y_title: str,
    title: str = "",
    powers_of_two: bool = False,
    y_range: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw one line for each value of column ``by``; points without a value break it.

    Args:
        table: one row a point; columns named ``…_fraction`` read in per cent.
        x, y, by: the columns of the axes, and of the lines.
        x_title, y_title, title: what the axes and the figure are called.
        powers_of_two: draw the x axis to that scale.
        y_range: the least and largest value that the y axis shows.
    """
    fig = go.Figure()
    for index, (name, rows) in enumerate(table.groupby(by, sort=False)):
        fig.add_scatter(
            x=rows[x],
            y=rows[y].where(np.isfinite(rows[y])),
            mode="lines+markers",
            name=str(name),
            line={"color": CYCLE[index % len(CYCLE)]},
        )
    if powers_of_two:
        drawn = table.loc[np.isfinite(table[y]), x]
        low = np.log2(drawn.min())
        high = np.log2(drawn.max())
        first = int(np.floor(low / 2))
        last = int(np.ceil(high / 2))
        ticks = [4.0**power for power in range(first, last + 1)]
        names = [f"{t:,.0f}" if t >= 1 else f"1/{1 / t:,.0f}" for t in ticks]
        margin = 0.03 * (high - low)
        edges = [(low - margin) * np.log10(2), (high + margin) * np.log10(2)]
        fig.update_xaxes(type="log", tickvals=ticks, ticktext=names, range=edges)
    if y_range is not None:
        fig.update_yaxes(range=y_range)
    if y.endswith("_fraction"):
        fig.update_yaxes(tickformat=".0%")
    return finish(fig, title=title, x=x_title, y=y_title, height=450)


def _named_ticks(names: list[str]) -> dict[str, Any]:
    """Describe an axis that has a place for each name, in order, and no grid."""
    places = list(range(len(names)))
    edges = [-0.5, len(names) - 0.5]
    return {"tickvals": places, "ticktext": names, "showgrid": False, "range": edges}


def _relative(table: pd.DataFrame, base: pd.Series) -> list[pd.Series]:
    """Divide time and energy to the target by those of ``base``."""
    return [table[name] / base[name] for name in ("time_to_accuracy_s", "energy_to_accuracy_j")]


def wrapped(names: pd.Series) -> list[str]:
    """Break names at their commas, so that they fit below an axis."""
    return [name.replace(", ", "<br>") for name in names]
