"""Figures of memory and traffic, drawn from tidy tables; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.figures import CYCLE, PALETTE, finish

_CONCEPT = {
    "parameters": "parameter",
    "gradients": "gradient",
    "optimizer": "optimizer",
    "activations": "activation",
    "gathered layer": "buffer",
    "communication buffer": "temporary",
    "second copy of the parameters": "highlight",
}


def figure_states(
    table: pd.DataFrame,
    *,
    category: str,
    capacity_gb: float | None = None,
    capacity_name: str = "",
    title: str = "",
    log: bool = False,
    height: int = 420,
) -> go.Figure:
    """Stacked bars of what a rank holds, one bar a category, a line at what the device has.

    ``table`` has columns ``category``, ``component`` and ``size_gb``, one row each. Totals stand
    at the bars' ends. Horizontal, because the categories have names.
    """
    order = list(dict.fromkeys(table[category].astype(str)))
    figure = go.Figure()
    for component in dict.fromkeys(table["component"]):
        rows = table[table["component"] == component]
        figure.add_bar(
            name=component,
            y=rows[category].astype(str),
            x=rows["size_gb"],
            orientation="h",
            marker_color=PALETTE[_CONCEPT.get(component, "muted")],
        )
    totals = table.groupby(table[category].astype(str), sort=False)["size_gb"].sum()
    figure.add_scatter(
        y=list(totals.index),
        x=totals,
        mode="text",
        text=[f" {value:.3g} GB" for value in totals],
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=order)
    if log:
        figure.update_xaxes(type="log")
    else:
        figure.update_xaxes(range=[0, 1.14 * max(totals.max(), capacity_gb or 0)])
    if capacity_gb is not None:
        figure.add_vline(
            x=capacity_gb,
            line={"color": PALETTE["capacity"], "dash": "dash", "width": 2},
            annotation={"text": capacity_name or "capacity", "yref": "paper", "y": -0.02}
            | {"yanchor": "bottom", "xanchor": "left", "showarrow": False},
        )
    return finish(figure, title=title, x="on one GPU (GB)", height=height)


def figure_lines(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    line: str,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    log_x: bool = True,
    log_y: bool = True,
    levels: Mapping[str, float] | None = None,
    colours: Sequence[str] | None = None,
    height: int = 420,
) -> go.Figure:
    """One line for each value of ``line``, named at its end; ``levels`` are horizontal marks."""
    figure = go.Figure()
    palette = list(colours or CYCLE)
    for index, name in enumerate(dict.fromkeys(table[line])):
        rows = table[table[line] == name]
        figure.add_scatter(
            name=str(name),
            x=rows[x],
            y=rows[y],
            mode="lines",
            line_color=palette[index % len(palette)],
        )
    for name, value in (levels or {}).items():
        figure.add_hline(
            y=value,
            line={"color": PALETTE["capacity"], "dash": "dash", "width": 2},
            annotation={"text": name, "xanchor": "left", "x": 0, "showarrow": False},
        )
    if log_x:
        figure.update_xaxes(type="log", dtick=1, exponentformat="power")
    if log_y:
        figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    return finish(figure, title=title, x=x_title, y=y_title, height=height)


def figure_slices(table: pd.DataFrame, *, title: str = "", height: int = 420) -> go.Figure:
    """Who holds which rows: a bar a tensor, filled from left to right by the ranks that hold it.

    ``table`` has columns ``tensor``, ``rank``, ``first_row``, ``end_row`` and ``rows``, the whole
    tensor's. Tensors of one row count are as long as those of many: shares are drawn.
    """
    figure = go.Figure()
    for rank, rows in table.groupby("rank", sort=True):
        colour = CYCLE[int(str(rank)) % len(CYCLE)]
        figure.add_bar(
            name=f"rank {rank}",
            y=rows["tensor"],
            x=(rows["end_row"] - rows["first_row"]) / rows["rows"],
            base=rows["first_row"] / rows["rows"],
            orientation="h",
            marker={"color": colour, "line": {"color": "white", "width": 1.5}},
        )
    order = list(dict.fromkeys(table["tensor"]))
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=order)
    figure.update_xaxes(tickformat=".0%", range=[0, 1.001])
    return finish(figure, title=title, x="rows of the tensor", height=height)
