"""OmniReduce's figures: blocks of workers, and times or speeds over what was changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

HUES: dict[str, str] = {
    "ring all-reduce": draw.PALETTE["baseline"],
    "all-gather of pairs": draw.PALETTE["cost"],
    "all-gather of blocks": draw.PALETTE["weight"],
    "OmniReduce": draw.PALETTE["ours"],
}
"""Colours of the ways to sum; others take the next of the cycle."""


def figure_idea(nonzero: np.ndarray) -> go.Figure:
    """Blocks of each worker, and the union that comes back.

    Args:
        nonzero: which blocks hold anything, shape (workers, blocks).
    """
    figure = go.Figure()
    rows = {f"worker {worker} sends": held for worker, held in enumerate(nonzero)}
    rows["all receive"] = nonzero.any(axis=0)
    for y, (name, held) in enumerate(rows.items()):
        hue = draw.PALETTE["highlight"] if name == "all receive" else draw.PALETTE["ours"]
        for x, full in enumerate(held):
            figure.add_shape(
                type="rect",
                x0=x,
                x1=x + 0.9,
                y0=-y,
                y1=0.8 - y,
                line={"color": "#C9CDD2", "width": 1},
                fillcolor=hue if full else "rgba(0,0,0,0)",
            )
        figure.add_annotation(x=-0.2, y=0.4 - y, text=name, showarrow=False, xanchor="right")
    figure.update_xaxes(visible=False, range=[-0.3 * nonzero.shape[1], nonzero.shape[1]])
    figure.update_yaxes(visible=False, range=[-len(nonzero) - 0.1, 1])
    title = "Only blocks that hold anything travel"
    draw.finish(figure, title=title, height=240)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def figure_lines(
    table: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, tuple[float, str]] | None = None,
    log_y: bool = False,
) -> go.Figure:
    """A line a column over the table's index, and levels across.

    Args:
        table: a row a value of x.
        x, y: titles of the axes.
        levels: by their words, a height and a concept of ``draw.PALETTE``.
        log_y: whether the y-axis has decades.
    """
    figure = go.Figure()
    for number, line in enumerate(table):
        figure.add_scatter(
            x=[str(value) for value in table.index],
            y=table[line],
            mode="lines+markers",
            name=str(line),
            line_color=HUES.get(str(line), draw.CYCLE[number % len(draw.CYCLE)]),
        )
    ends = [str(table.index[0]), str(table.index[-1])]
    for words, (height, concept) in (levels or {}).items():
        # A trace, since a line across a logarithmic axis has its label at another height.
        figure.add_scatter(
            x=ends,
            y=[height, height],
            mode="lines+text",
            line={"color": draw.PALETTE[concept], "dash": "dash"},
            text=["", words],
            textposition="top left" if concept == "bound" else "bottom left",
            showlegend=False,
            cliponaxis=False,
            hoverinfo="skip",
        )
    figure.update_xaxes(type="category")
    if log_y:
        drawn = np.concatenate([np.asarray(trace.y, dtype=float) for trace in figure.data])
        ends_of_y = np.log10([0.6 * drawn.min(), 1.7 * drawn.max()])
        figure.update_yaxes(type="log", dtick=1, range=[*ends_of_y])
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(showlegend=len(table.columns) > 1)
    return draw.finish(figure, title=title, x=x, y=y)
