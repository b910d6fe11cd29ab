"""GSPMD's figures: layouts before and after they spread, and lines with what the paper has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.gspmd.graphs import Graph, Layout

HUES = {"x": draw.PALETTE["ours"], "y": draw.PALETTE["paper"], "": "#E6E8EB"}
"""Of a dimension cut along an axis of the mesh, and of a whole one."""
LINES = ("ours", "weight", "cost", "baseline", "input")


def figure_spread(
    graph: Graph, before: Mapping[str, Layout], after: Mapping[str, Layout]
) -> go.Figure:
    """Every tensor's dimensions, coloured by the axis that cuts them: annotated, then all.

    Args:
        before: the annotations.
        after: the layouts of all tensors.
    """
    names = [*graph.shapes]
    titles = [f"{len(before)} annotations", f"layouts of all {len(names)} tensors"]
    figure = make_subplots(rows=2, subplot_titles=titles, shared_xaxes=True, vertical_spacing=0.12)
    for row, layouts in enumerate((before, after), start=1):
        for axis, words in (("x", "cut along x"), ("y", "cut along y"), ("", "whole")):
            tensors = []
            dimensions = []
            for name in names:
                for place, cut in enumerate(layouts.get(name, ())):
                    if cut == axis:
                        tensors.append(names.index(name))
                        dimensions.append(place + 1)
            figure.add_scatter(
                x=tensors,
                y=dimensions,
                mode="markers",
                name=words,
                legendgroup=words,
                showlegend=row == 2,
                marker={"symbol": "square", "size": 15, "color": HUES[axis]},
                row=row,
                col=1,
            )
    figure.update_yaxes(tickvals=[1, 2, 3, 4], range=[4.6, 0.4], showgrid=False)
    figure.update_xaxes(range=[-0.6, len(names) - 0.4], showgrid=False)
    figure.update_xaxes(
        tickvals=[*range(len(names))],
        ticktext=names,
        tickangle=-60,
        tickfont_size=12,
        row=2,
        col=1,
    )
    title = "Seven layouts are written, the rest follows from the operations"
    return draw.finish(figure, title=title, x="tensor", y="dimension", height=460)


def _lines(table: pd.DataFrame) -> go.Figure:
    """A line a column over the first one; the first line is wide, since another may lie on it."""
    figure = go.Figure()
    positions = [*range(len(table))]
    for number, (hue, name) in enumerate(zip(LINES, table.columns[1:], strict=False)):
        figure.add_scatter(
            x=positions,
            y=table[name],
            mode="lines+markers",
            name=str(name),
            line={"color": draw.PALETTE[hue], "width": 2 if number else 8},
            opacity=1 if number else 0.6,
        )
    ticks = [f"{value:,}" if isinstance(value, int) else str(value) for value in table.iloc[:, 0]]
    figure.update_xaxes(tickvals=positions, ticktext=ticks, range=[-0.2, positions[-1] + 0.2])
    return figure


def figure_lines(table: pd.DataFrame, *, title: str, y: str, x: str) -> go.Figure:
    """Lines over rows of a table: its first column is x, each other one a line."""
    figure = _lines(table)
    figure.update_yaxes(range=[0, 1.08 * float(table.iloc[:, 1:].max().max())])
    return draw.finish(figure, title=title, x=x, y=y, height=440)


def figure_utilisation(
    table: pd.DataFrame, *, claimed: Sequence[float], bound: float, title: str
) -> go.Figure:
    """The headline: utilisation by model and way, with the paper's range and the bound.

    Args:
        table: first column the model, then a column a way.
    """
    figure = _lines(table)
    last = len(table) - 0.8
    figure.add_scatter(
        x=[-0.2, last, last, -0.2],
        y=[claimed[0], claimed[0], claimed[1], claimed[1]],
        fill="toself",
        mode="lines",
        line={"width": 0, "color": draw.PALETTE["paper"]},
        opacity=0.35,
        name=f"paper: {100 * claimed[0]:.0f} to {100 * claimed[1]:.0f} %",
    )
    figure.add_scatter(
        x=[-0.2, last],
        y=[bound, bound],
        mode="lines",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
        name="bound: no collectives, nothing filled up",
    )
    figure.update_yaxes(range=[0, max(0.75, 1.05 * bound)])
    return draw.finish(
        figure, title=title, x="model and cores", y="share of peak operations", height=500
    )
