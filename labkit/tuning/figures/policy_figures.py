"""Figures of policies on a recurring job: what they save, where they go, what learning wastes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from labkit.kit.draw import CYCLE, PALETTE, Part, finish
from labkit.tuning.figures.configuration_figures import points, stroke, wrapped

POLICY_COLOUR: dict[str, str] = {
    "default": PALETTE["baseline"],
    "tuned-power": PALETTE["power"],
    "grid": PALETTE["gradient"],
    "grid-early-stop": PALETTE["temporary"],
    "halving": PALETTE["weight"],
    "random": PALETTE["explore"],
    "thompson": PALETTE["power"],
    "zeus": PALETTE["ours"],
    "cost-curve": PALETTE["highlight"],
    "oracle": PALETTE["bound"],
}


def figure_regret(curves: Mapping[str, NDArray[np.float64]], *, title: str = "") -> go.Figure:
    """Draw mean cumulative regret over recurrences, one line for each policy.

    Args:
        curves: ``Runs.regret_j()`` by the policy's name.
        title: of the figure.
    """
    tables = {}
    for name, curve in curves.items():
        mean = pd.DataFrame({"regret": curve.mean(axis=0) / 1e6})
        tables[name] = mean.assign(recurrence=mean.index + 1)
    return regret_lines(tables, title=title, y_title="cumulative regret (MJ of cost)")


def regret_lines(
    tables: Mapping[str, pd.DataFrame],
    *,
    title: str,
    y_title: str,
    colours: Mapping[str, str] | None = None,
    **axis: Any,
) -> go.Figure:
    """Draw a line of ``regret`` over ``recurrence`` for each policy.

    Args:
        tables: by policy; a band is drawn where there are columns regret_low and regret_high.
        title, y_title: what the figure and its y axis are called.
        colours: by name, where names are words and not those of policies.
        axis: further properties of the y axis.
    """
    known = {**POLICY_COLOUR, **(colours or {})}
    fig = go.Figure(layout={"yaxis": axis})
    for index, (name, rows) in enumerate(tables.items()):
        colour = known.get(name, CYCLE[index % len(CYCLE)])
        if "regret_low" in rows:
            x = [*rows["recurrence"], *rows["recurrence"][::-1]]
            y = [*rows["regret_high"], *rows["regret_low"][::-1]]
            fill = {"fill": "toself", "fillcolor": colour, "opacity": 0.2}
            fig.add_trace(stroke(x, y, {"width": 0}, showlegend=False, **fill))
        fig.add_scatter(
            x=rows["recurrence"], y=rows["regret"], mode="lines", name=name, line={"color": colour}
        )
    return finish(fig, title=title, x="recurrence", y=y_title, direct=True, height=430)


def figure_savings(
    table: pd.DataFrame, paper: tuple[float, float], *, title: str = ""
) -> go.Figure:
    """Draw steady-state energy and time savings per workload (:func:`sweep` rows of several
    policies).

    Energy and time have a panel each; bars are means over seeds, whiskers 95 % intervals.

    Args:
        table: one row a workload and policy.
        paper: the range of energy savings that the paper reports, drawn as a band.
        title: of the figure.
    """
    from plotly.subplots import make_subplots

    fig = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.09,
        subplot_titles=("energy saved", "time saved"),
    )
    for row, kind in enumerate(("energy_reduction", "time_reduction"), 1):
        for policy, rows in table.groupby("policy", sort=False):
            half = rows[f"{kind}_high"] - rows[kind]
            fig.add_bar(
                x=wrapped(rows["workload"]),
                y=rows[kind],
                error_y={"array": half, "thickness": 1.2, "width": 3},
                name=str(policy),
                marker_color=POLICY_COLOUR.get(str(policy), PALETTE["muted"]),
                showlegend=row == 1,
                row=row,
                col=1,
            )
    for edge in paper:
        fig.add_hline(
            y=edge, row=1, col=1, line={"dash": "dot", "color": PALETTE["paper"], "width": 2}
        )
    fig.add_annotation(
        text="paper's range",
        x=1,
        xref="paper",
        xanchor="right",
        y=paper[1],
        yref="y",
        yanchor="bottom",
        showarrow=False,
        font={"color": PALETTE["paper"], "size": 14},
    )
    fig.update_layout(barmode="group", bargap=0.3)
    fig.update_yaxes(tickformat=".0%")
    return finish(fig, title=title, height=620)


def figure_search_path(path: pd.DataFrame, best: pd.Series, *, title: str = "") -> go.Figure:
    """Draw the order in which one seed tries configurations: points that change colour on their
    line.

    A return to a configuration is drawn a little higher, so that a second round does not hide the
    first. A ring marks a run that failed (it was stopped early, or missed the target).

    Args:
        path: ``Runs.path`` of the seed.
        best: the optimum, which a star marks.
        title: of the figure.
    """
    limits = sorted({*path["power_limit_w"], best.power_limit_w})
    lift_w = 0.02 * max(limits[-1] - limits[0], 1.0)
    path = path.assign(height=path["power_limit_w"] + path["visit"].clip(upper=4) * lift_w)
    data = [_walk(path)]
    rings = {
        "failed or stopped early": (path[~path["reached"]], "circle-open", PALETTE["stopped"]),
        "last run": (path.tail(1), "square-open", PALETTE["bound"]),
    }
    for name, (rows, symbol, colour) in rings.items():
        ring = {"symbol": symbol, "size": 20, "color": colour, "line": {"width": 2.5}}
        data.append(points(rows["batch_size"], rows["height"], ring, name))
    edge = {"width": 1.2, "color": "white"}
    star = {"symbol": "star", "size": 16, "color": PALETTE["weight"], "line": edge}
    data.append(points([best.batch_size], [best.power_limit_w], star, "best in expectation"))
    sizes = sorted({*path["batch_size"], best.batch_size})
    shown = sizes[:: max(1, -(-len(sizes) // 10))]
    x_axis = {"type": "log", "tickvals": shown, "ticktext": [f"{b:,}" for b in shown]}
    fig = go.Figure(data, {"xaxis": x_axis, "yaxis": {"tickvals": limits}})
    return finish(fig, title=title, x="batch size", y="power limit (W)", height=470)


def _walk(path: pd.DataFrame) -> Part:
    """Draw the moves in order; the colour bar is labelled with the recurrences they happened in."""
    places = sorted({int(p) for p in np.linspace(0, len(path) - 1, 6)})
    return {
        "type": "scatter",
        "x": path["batch_size"],
        "y": path["height"],
        "mode": "lines+markers",
        "line": {"color": PALETTE["muted"], "width": 1.5},
        "marker": {
            "color": list(range(len(path))),
            "colorscale": "Plasma",
            "cmax": 1.1 * max(len(path) - 1, 1),  # the end of the scale is too pale on white
            "cmin": 0,
            "size": 13,
            "colorbar": {
                "title": {"text": "recurrence", "side": "right"},
                "thickness": 14,
                "tickvals": places,
                "ticktext": [str(path["recurrence"].iloc[p]) for p in places],
            },
        },
        "text": [f"recurrence {r}" for r in path["recurrence"]],
        "customdata": path["power_limit_w"],
        "hovertemplate": "%{text}: batch %{x}, %{customdata} W<extra></extra>",
        "name": "moves to",
    }
