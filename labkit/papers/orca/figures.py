"""Figures of Orca: the places of a batch over time, and latency over throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from labkit.kit import draw
from labkit.serving.figures import figure_latency as _figure_latency

if TYPE_CHECKING:
    import pandas as pd

    from labkit.serving.results import Run

HUES = [colour for colour in draw.CYCLE if colour != draw.PALETTE["highlight"]]


def figure_places(runs: Mapping[str, Run], *, names: Sequence[str], title: str) -> go.Figure:
    """Who has which place of the batch, and when; a block of rows a run.

    Args:
        runs: by the words that stand beside their rows. An iteration takes a second.
        names: of the requests, by arrival.
        title: what the figure shows.
    """
    bars: list[go.Bar] = []
    for label, run in runs.items():
        free_s: list[float] = []  # when each place is free again
        order = sorted(range(len(names)), key=lambda request: run.start_s[request])
        for request in order:
            start_s = float(run.start_s[request])
            held_s = float(run.wasted_steps[request])
            own_s = float(run.end_s[request]) - start_s - held_s
            place = next((k for k, free in enumerate(free_s) if free <= start_s), len(free_s))
            if place == len(free_s):
                free_s.append(0.0)
            free_s[place] = float(run.end_s[request])
            row = f"{label}, place {place + 1}"
            bars.append(_span(row, start_s, own_s, HUES[request % len(HUES)], names[request]))
            if held_s:
                bars.append(_span(row, start_s + own_s, held_s, draw.PALETTE["idle"], "held"))
    rows = sorted(
        {bar.y[0] for bar in bars}, key=lambda row: ([*runs].index(row.split(",")[0]), row)
    )
    figure = go.Figure(bars)
    figure.update_layout(barmode="overlay", bargap=0.15, showlegend=False)
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], title="")
    figure.update_xaxes(dtick=1)
    return draw.finish(figure, title=title, x="iterations", height=360)


def _span(row: str, start_s: float, length_s: float, colour: str, text: str) -> go.Bar:
    return go.Bar(
        y=[row],
        base=[start_s],
        x=[length_s],
        orientation="h",
        marker={"color": colour, "line": {"color": "white", "width": 1}},
        text=[text],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        name=text,
    )


def figure_latency(
    table: pd.DataFrame,
    *,
    limit_s: float,
    bound_per_s: float,
    paper: pd.DataFrame,
    title: str,
) -> go.Figure:
    """Median latency per output over throughput, one line a schedule, with its marks labelled.

    Args:
        table: rows of :func:`labkit.serving.sweep`.
        limit_s: the latency at which rates are compared.
        bound_per_s: no schedule is to the right of it.
        paper: the paper's points, with the columns ``system``, ``rate_per_s``, ``latency_s``.
        title: what the figure shows.

    Source: Fig. 10b.
    """
    # An annotation stands at the logarithm of its place on a logarithmic axis.
    figure = _figure_latency(table, limit_s=limit_s, bound_per_s=bound_per_s)
    figure.add_scatter(
        x=paper["rate_per_s"],
        y=1e3 * paper["latency_s"],
        mode="markers+text",
        marker={"color": draw.PALETTE["paper"], "symbol": "diamond", "size": 13},
        text=[f" paper,<br> {system} " for system in paper["system"]],
        textposition=[
            "middle right" if rate == max(paper["rate_per_s"]) else "middle left"
            for rate in paper["rate_per_s"]
        ],
        textfont={"color": draw.PALETTE["paper"], "size": 14},
        name="paper",
        showlegend=False,
    )
    figure.add_annotation(
        x=0,
        xref="x domain",
        y=log10(1e3 * limit_s),
        text=f"limit {1e3 * limit_s:.0f} ms",
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
    )
    figure.add_annotation(
        x=log10(bound_per_s),
        y=1,
        yref="y domain",
        text=f"bound {bound_per_s:.1f}/s",
        xanchor="right",
        yanchor="top",
        showarrow=False,
    )
    return draw.finish(figure, title=title, height=480)
