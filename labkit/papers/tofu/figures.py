"""Tofu's figures: a tensor that is halved, bytes by method, and throughput beside alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.tofu.cuts import Dimensions

_SIDE = 8
"""Rows and columns of the tensor that the idea's picture shows."""


def owners(stored: Dimensions) -> np.ndarray:
    """Which worker stores each place of a tensor of 8 × 8."""
    owner = np.zeros((_SIDE, _SIDE), dtype=int)
    places = list(np.indices((_SIDE, _SIDE)))
    sizes = [_SIDE, _SIDE]
    for dimension in stored:
        sizes[dimension] //= 2
        owner = 2 * owner + places[dimension] // sizes[dimension] % 2
    return owner


def figure_idea(cuts: Dimensions) -> go.Figure:
    """A tensor after one halving, two, and so on: one colour a worker.

    Args:
        cuts: dimension of each halving; 0 halves rows.
    """
    titles = [f"{2**number} workers" for number in range(1, len(cuts) + 1)]
    figure = make_subplots(cols=len(cuts), subplot_titles=titles, horizontal_spacing=0.06)
    for number in range(1, len(cuts) + 1):
        workers = 2**number
        ends = np.linspace(0, 1, workers + 1)
        scale = []
        for worker in range(workers):
            hue = draw.CYCLE[worker % len(draw.CYCLE)]
            scale += [[ends[worker], hue], [ends[worker + 1], hue]]
        figure.add_heatmap(
            z=owners(cuts[:number]),
            zmin=0,
            zmax=workers - 1,
            colorscale=scale,
            showscale=False,
            xgap=1,
            ygap=1,
            row=1,
            col=number,
        )
    figure.update_xaxes(showticklabels=False, showgrid=False)
    figure.update_yaxes(showticklabels=False, showgrid=False, autorange="reversed")
    title = "Each halving asks the same small question again: rows or columns?"
    return draw.finish(figure, title=title, x="second dimension", y="first dimension", height=330)


def figure_bytes(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Gigabytes that all GPUs receive in a step, a bar a method and model.

    Args:
        table: columns method, model, gigabytes.
    """
    figure = go.Figure()
    hues = (draw.PALETTE["ours"], draw.PALETTE["weight"])
    for hue, (model, rows) in zip(hues, table.groupby("model", sort=False), strict=False):
        figure.add_bar(
            y=rows["method"],
            x=rows["gigabytes"],
            orientation="h",
            name=str(model),
            marker_color=hue,
            text=[f"{value:.3g}" for value in rows["gigabytes"]],
            textposition="outside",
        )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(range=[0, 1.12 * float(table["gigabytes"].max())])
    return draw.finish(figure, title=title, x="GB received in a step", y="cuts by", height=480)


def figure_throughput(
    shares: Mapping[str, Mapping[str, float]],
    *,
    method: str,
    claimed: Sequence[float],
    title: str,
) -> go.Figure:
    """The headline: throughput by approach, over that of GPUs which send nothing.

    Args:
        shares: by model, then by approach.
        method: the approach that the paper's range of speed-ups is of.
        claimed: that range; it says where alternatives would lie.
        title: what the figure shows.
    """
    models = [*shares]
    figure = make_subplots(
        cols=len(models), subplot_titles=models, shared_yaxes=True, horizontal_spacing=0.06
    )
    for column, model in enumerate(models, start=1):
        names = [*shares[model]]
        values = [shares[model][name] for name in names]
        positions = [*range(len(names))]
        figure.add_bar(
            x=positions,
            y=values,
            name="ours",
            marker_color=draw.PALETTE["ours"],
            text=[f"{value:.2f}" for value in values],
            textposition="inside",
            insidetextanchor="start",
            showlegend=column == 1,
            row=1,
            col=column,
        )
        low, high = (shares[model][method] / gain for gain in reversed(claimed))
        for number, place in enumerate(positions):
            if names[place] == method:
                continue
            figure.add_scatter(
                x=[place, place],
                y=[low, high],
                mode="lines",
                name=f"paper: {method} is {claimed[0]:g} to {claimed[1]:g} × as fast",
                line={"color": draw.PALETTE["paper"], "width": 8},
                opacity=0.7,
                showlegend=column == 1 and number == 1,
                row=1,
                col=column,
            )
        figure.add_scatter(
            x=[-0.5, positions[-1] + 0.5],
            y=[1, 1],
            mode="lines",
            name="bound: nothing is sent",
            line={"color": draw.PALETTE["bound"], "dash": "dot"},
            showlegend=column == 1,
            row=1,
            col=column,
        )
        figure.update_xaxes(tickvals=positions, ticktext=names, row=1, col=column)
    figure.update_yaxes(range=[0, 1.15])
    return draw.finish(figure, title=title, x="approach", y="share of the ideal", height=460)
