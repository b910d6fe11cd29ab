"""Figures of simulated servers: latency over rate, requests over time, rates as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from annotated_types import MinLen
from plotly.subplots import make_subplots

from labkit.errors import BadValue
from labkit.kit import tables
from labkit.kit.describe import NonNegative, Whole, checked
from labkit.kit.draw import CYCLE, PALETTE, finish

if TYPE_CHECKING:
    from labkit.serving.results import Run

PARTS = {  # what a request's time goes to, in order, and its colour
    "waits for its first iteration": PALETTE["idle"],
    "is computed": PALETTE["forward"],
    "is done, and held until the batch ends": PALETTE["highlight"],
}
RATES = ("forward", "weight", "communication", "all-reduce")  # not the paper's orange


@checked
def figure_latency(
    table: pd.DataFrame,
    *,
    limit_s: NonNegative = 0.0,
    bound_per_s: NonNegative = 0.0,
    paper: Sequence[tuple[float, float]] = (),
    title: str = "",
) -> go.Figure:
    """Median latency per output over throughput, one line a batcher.

    Args:
        table: rows of :func:`labkit.serving.sweep`.
        limit_s: a latency to compare them at; 0: none.
        bound_per_s: no batcher is to the right of it; 0: none.
        paper: rates and latencies that a paper prints.

    Raises:
        BadValue: the table lacks a column.
    """
    numbers = ("throughput_per_s", "median_token_s")
    tables.check("figure_latency", table, texts=["batcher"], numbers=numbers)
    fig = go.Figure()
    colours = cycle(colour for colour in CYCLE if colour != PALETTE["paper"])
    for name, rows in table.groupby("batcher", sort=False):
        fig.add_scatter(
            x=rows["throughput_per_s"],
            y=1e3 * rows["median_token_s"],
            mode="lines+markers",
            name=str(name),
            line={"color": next(colours)},
        )
    if limit_s:
        fig.add_hline(y=1e3 * limit_s, line={"dash": "dash", "color": PALETTE["muted"]})
    if bound_per_s:
        fig.add_vline(x=bound_per_s, line={"dash": "dot", "color": PALETTE["bound"]})
    if paper:
        x, y = np.array(paper, dtype=float).T * np.array([[1.0], [1e3]])
        pen = {"color": PALETTE["paper"], "symbol": "diamond", "size": 13}
        fig.add_scatter(x=x, y=y, mode="markers", marker=pen, name="paper")
    for axis in (fig.update_xaxes, fig.update_yaxes):
        axis(type="log", dtick="D2", tickformat=",~g")  # else "2", "5" stand without decade
    y = "median latency per output token (ms)"
    return finish(fig, title=title, x="throughput (requests/s, simulated)", y=y, height=460)


@checked
def figure_requests(
    runs: Annotated[Mapping[str, Run], MinLen(1)], *, first: Whole = 0, title: str = ""
) -> go.Figure:
    """What the time of 16 requests goes to, one bar each, in order of arrival; a row a run.

    A request of a batch that stays together is computed on after its last output; its client
    waits for the whole batch.

    Args:
        runs: by the name above their row.
        first: the place of the first request that is shown.

    Raises:
        BadValue: there are no such requests.
    """
    names = [name for name in runs if name]
    fig = make_subplots(
        rows=len(runs), shared_xaxes=True, subplot_titles=names or None, vertical_spacing=0.14
    )
    for row, run in enumerate(runs.values(), start=1):
        if first >= len(run.requests):
            most = len(run.requests) - 1
            raise BadValue(f"figure_requests: first must be from 0 to {most}; got {first}")
        chosen = slice(first, first + 16)
        arrival = run.requests.column("arrival_s")[chosen]
        start = run.start_s[chosen]
        end = run.end_s[chosen]
        wasted = run.wasted_steps[chosen]
        own = run.requests.column("output_tokens")[chosen]
        held = (end - start) * wasted / (own + wasted)
        spans = [(arrival, start - arrival), (start, end - start - held), (end - held, held)]
        for (name, colour), (begin, length) in zip(PARTS.items(), spans, strict=True):
            fig.add_bar(
                y=np.arange(first, first + len(arrival)),
                base=begin,
                x=length,
                orientation="h",
                name=name,
                marker={"color": colour},
                showlegend=row == 1,
                row=row,
                col=1,
            )
    fig.update_layout(barmode="overlay", bargap=0.25)
    fig.update_yaxes(autorange="reversed")
    return finish(
        fig, title=title, x="time (s, simulated)", y="request", height=220 + 200 * len(runs)
    )


@checked
def figure_lines(
    table: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str = "requests/s, 99 % in time",
    log_x: bool = False,
) -> go.Figure:
    """The columns of a table over its index, a line each.

    ``bound`` is dashed and black, names that begin with ``paper`` are dotted and orange,
    ``baseline`` is grey, and the others have a colour each.

    Args:
        table: numbers, a column a line.
        x, y: titles of the axes.
        log_x: whether the index is drawn on a logarithmic axis.
    """
    import plotly.express as px

    if table.empty:
        raise BadValue("figure_lines: the table must have a row and a column or more")
    tables.check("figure_lines", table, numbers=list(table.columns))
    few = len(table) <= 20
    chart = px.line(table, markers=few, log_x=log_x)
    colours = cycle(RATES)
    for trace in chart.data:
        if trace.name.startswith("paper") or trace.name == "bound":
            colour = PALETTE["bound" if trace.name == "bound" else "paper"]
            dash = "dash" if trace.name == "bound" else "dot"
            trace.update(line={"color": colour, "dash": dash}, mode="lines")
        else:
            name = "baseline" if trace.name == "baseline" else next(colours)
            trace.update(line_color=PALETTE[name])
    if log_x and few:
        chart.update_xaxes(
            tickvals=list(table.index), ticktext=[str(value) for value in table.index]
        )
    chart.update_layout(legend_title_text="")
    return finish(chart, title=title, x=x, y=y)
