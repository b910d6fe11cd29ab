"""Figures of memory and traffic, drawn from tidy tables; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.figures import CYCLE, PALETTE, finish

_CONCEPT = {
    "parameters": "parameter",
    "gradients": "gradient",
    "optimizer": "optimizer",
    "activations": "activation",
    "gathered layer": "buffer",
    "communication buffer": "temporary",
    "second copy of the parameters": "highlight",
    "gathered layers": "buffer",
    "gradients to be reduced": "power",
    "cast parameters": "highlight",
    "temporaries": "temporary",
}


def figure_states(
    table: pd.DataFrame,
    *,
    category: str = "plan",
    capacity_gb: float | None = None,
    capacity_name: str = "",
    title: str = "",
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
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=order)
    figure.update_xaxes(range=[0, 1.14 * max(totals.max(), capacity_gb or 0)])
    if capacity_gb is not None:
        line = {"color": PALETTE["capacity"], "dash": "dash", "width": 2}
        figure.add_vline(x=capacity_gb, line=line)
        figure.add_annotation(
            x=capacity_gb,
            y=0.03,
            yref="paper",
            text=f" {capacity_name or f'{capacity_gb:g} GB'}",
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
        )
    for name, value in totals.items():
        figure.add_annotation(
            x=value,
            y=name,
            text=f" {value:.3g} GB",
            showarrow=False,
            xanchor="left",
            bgcolor="rgba(255,255,255,0.85)",
        )
    return finish(figure, title=title, x="on one GPU (GB)", height=height)


_SWEPT = {
    "total_bytes": ("on one GPU (GB)", 1e9),
    "states_bytes": ("model states on one GPU (GB)", 1e9),
    "sent_bytes": ("sent by one GPU in a step (GB)", 1e9),
    "communication_s": ("communication of a step (s)", 1.0),
}


def figure_sweep(
    table: pd.DataFrame,
    *,
    y: str,
    x: str = "dp",
    line: str = "plan",
    title: str = "",
    levels: Mapping[str, float] | None = None,
    height: int = 420,
) -> go.Figure:
    """A column of a sweep against the number of ranks, both logarithmic, one line a plan.

    ``levels`` are horizontal marks, in the unit of the axis: GB for bytes, seconds for times.
    """
    y_title, divide = _SWEPT[y]
    figure = go.Figure()
    for index, name in enumerate(dict.fromkeys(table[line])):
        rows = table[table[line] == name]
        colour = CYCLE[index % len(CYCLE)]
        figure.add_scatter(
            name=str(name), x=rows[x], y=rows[y] / divide, mode="lines", line_color=colour
        )
    for name, value in (levels or {}).items():
        figure.add_scatter(
            name=name,
            x=[table[x].min(), table[x].max()],
            y=[value, value],
            mode="lines",
            line={"color": PALETTE["capacity"], "dash": "dash", "width": 2},
        )
    figure.update_xaxes(type="log", dtick=1, exponentformat="power")
    figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    return finish(figure, title=title, x="data-parallel ranks", y=y_title, height=height)


def figure_slices(
    table: pd.DataFrame, *, schemes: Mapping[str, str], title: str = "", height: int = 420
) -> go.Figure:
    """Who updates which rows: a panel a scheme, a bar a tensor, filled by the ranks from the left.

    ``table`` has columns ``scheme``, ``tensor``, ``rank``, ``first_row``, ``end_row`` and ``rows``,
    the whole tensor's; ``schemes`` names the panels. Tensors are drawn equally long.
    """
    figure = make_subplots(
        rows=1,
        cols=len(schemes),
        shared_yaxes=True,
        subplot_titles=list(schemes.values()),
        horizontal_spacing=0.03,
    )
    named: set[str] = set()
    for column, scheme in enumerate(schemes, 1):
        for rank, rows in table[table["scheme"] == scheme].groupby("rank", sort=True):
            colour = CYCLE[int(str(rank)) % len(CYCLE)]
            figure.add_bar(
                name=f"rank {rank}",
                legendgroup=f"rank {rank}",
                legendrank=int(str(rank)),
                showlegend=f"rank {rank}" not in named,
                y=rows["tensor"],
                x=(rows["end_row"] - rows["first_row"]) / rows["rows"],
                base=rows["first_row"] / rows["rows"],
                orientation="h",
                marker={"color": colour, "line": {"color": "white", "width": 1.5}},
                row=1,
                col=column,
            )
            named.add(f"rank {rank}")
    order = list(dict.fromkeys(table["tensor"]))
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    figure.update_xaxes(tickformat=".0%", range=[0, 1.001], tickvals=[0, 0.5])
    return finish(figure, title=title, height=height)


def figure_moments(table: pd.DataFrame, *, title: str = "", height: int = 460) -> go.Figure:
    """What is on one device at each moment of a step: ``Plan.moments()`` as stacked bars."""
    tidy = table.drop(columns="total").rename_axis("plan").reset_index()
    tidy = tidy.melt(id_vars="plan", var_name="component", value_name="num_bytes")
    return figure_states(tidy.assign(size_gb=tidy["num_bytes"] / 1e9), title=title, height=height)


def figure_fits(
    bars: pd.DataFrame,
    frontier: pd.DataFrame,
    *,
    capacity_gb: float,
    capacity_name: str = "",
    title: str = "",
    height: int = 640,
) -> go.Figure:
    """What a device holds at the peak, model by model and stage by stage, and when it fits.

    ``bars`` has columns ``model``, ``plan``, ``component`` and ``size_gb``; bars longer than three
    times the capacity are cut, and their totals stand at the edge. ``frontier`` has ``model``,
    ``plan`` and ``dp``: the least data-parallel degree that fits, missing where none does.
    """
    figure = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.62, 0.38],
        horizontal_spacing=0.1,
        subplot_titles=["At the peak, on one GPU (GB)", "Least data-parallel ranks that fit"],
    )
    _stacked(figure, bars)
    _totals(figure, bars, 3 * capacity_gb)
    line = {"color": PALETTE["capacity"], "dash": "dash", "width": 2}
    figure.add_vline(x=capacity_gb, line=line, row=1, col=1)
    _least_ranks(figure, frontier)
    figure.update_layout(barmode="stack", bargap=0.25)
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_xaxes(range=[0, 3 * capacity_gb], row=1, col=1)
    figure.add_annotation(
        x=capacity_gb,
        y=1,
        yref="y domain",
        text=f" {capacity_name or f'{capacity_gb:g} GB'}",
        showarrow=False,
        xanchor="left",
        yanchor="top",
        bgcolor="rgba(255,255,255,0.85)",
        row=1,
        col=1,
    )
    figure.update_yaxes(type="log", dtick="D2", row=1, col=2)
    models = list(dict.fromkeys(frontier["model"]))
    figure.update_xaxes(categoryorder="array", categoryarray=models, row=1, col=2)
    found = finish(figure, title=title, height=height)
    found.update_layout(
        legend={"y": -0.12, "yanchor": "top"},
        legend2={"x": 0.66, "y": 0.98, "yanchor": "top", "orientation": "v"},
    )
    return found


def _stacked(figure: go.Figure, bars: pd.DataFrame) -> None:
    """The left panel: a bar a plan, a colour a component."""
    for component in dict.fromkeys(bars["component"]):
        rows = bars[bars["component"] == component]
        figure.add_bar(
            name=component,
            y=[rows["model"], rows["plan"]],
            x=rows["size_gb"],
            orientation="h",
            marker_color=PALETTE[_CONCEPT.get(component, "muted")],
            row=1,
            col=1,
        )


def _least_ranks(figure: go.Figure, frontier: pd.DataFrame) -> None:
    """The right panel: a line a stage."""
    for index, (name, rows) in enumerate(frontier.groupby("plan", sort=False)):
        figure.add_scatter(
            name=str(name),
            legend="legend2",
            x=rows["model"],
            y=rows["dp"],
            mode="lines+markers",
            line={"color": CYCLE[index % len(CYCLE)], "width": 9 - 2 * index},
            marker_size=16 - 3 * index,  # lines that fall together stay visible
            row=1,
            col=2,
        )


def _totals(figure: go.Figure, bars: pd.DataFrame, limit_gb: float) -> None:
    """Each bar's sum at its end, or at the edge where the bar is cut."""
    sums = bars.groupby(["model", "plan"], sort=False)["size_gb"].sum().reset_index()
    cut = sums["size_gb"] > 0.85 * limit_gb
    figure.add_scatter(
        x=sums["size_gb"].where(~cut, sums["size_gb"].clip(upper=0.99 * limit_gb)),
        y=[sums["model"], sums["plan"]],
        text=[
            f"<b>{value:,.0f}</b>" if value > 99 else f"{value:.3g}" for value in sums["size_gb"]
        ],
        textposition=["middle left" if one else "middle right" for one in cut],
        textfont_color=["white" if one else PALETTE["capacity"] for one in cut],
        mode="text",
        showlegend=False,
        row=1,
        col=1,
    )
