"""Neo's figures: four ways to cut a table, loads of GPUs, and lines with what the authors print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw

NEXT_HUES = [draw.PALETTE[name] for name in ("ours", "cost", "weight", "input", "baseline")]
WAYS = ("whole tables", "cut by columns", "cut by rows", "copied")


def _square(x: float, y: float, width: float, height: float, gpu: int) -> dict:
    """A piece of a table, in the colour of its GPU."""
    return {
        "type": "rect",
        "x0": x,
        "x1": x + width,
        "y0": y,
        "y1": y + height,
        "fillcolor": draw.CYCLE[gpu],
        "opacity": 0.6,
        "line": {"color": "white", "width": 2},
    }


def figure_idea() -> go.Figure:
    """Draw a large, a wide and a small table on four GPUs, each cut its own way."""
    shapes = []
    words = []
    for place, way in enumerate(WAYS):
        left = 5.0 * place
        if way == "whole tables":
            shapes += [_square(left, 0, 2, 4, 0), _square(left + 2.2, 2, 2, 2, 1)]
            notes = "GPU 0 has one table,<br>GPU 1 another"
        elif way == "cut by columns":
            shapes += [_square(left + gpu, 0, 1, 4, gpu) for gpu in range(4)]
            notes = "every GPU is sent all ids,<br>returns a part of each sum"
        elif way == "cut by rows":
            shapes += [_square(left, 3 - gpu, 4, 1, gpu) for gpu in range(4)]
            notes = "a GPU is sent its rows' ids,<br>returns partial sums"
        else:
            shapes += [_square(left + 1.05 * gpu, 2, 0.9, 0.9, gpu) for gpu in range(4)]
            notes = "no ids are sent,<br>gradients are summed"
        words.append((left + 2, 4.6, f"<b>{way}</b>"))
        words.append((left + 2, -0.9, notes))
    figure = go.Figure()
    figure.update_layout(shapes=shapes)
    for x, y, text in words:
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"size": 14})
    for gpu in range(4):
        figure.add_annotation(
            x=7.5 + 1.8 * gpu,
            y=-2.2,
            text=f"<b>GPU {gpu}</b>",
            font={"color": draw.CYCLE[gpu], "size": 15},
            showarrow=False,
        )
    figure.update_xaxes(visible=False, range=[-0.6, 20])
    figure.update_yaxes(visible=False, range=[-2.7, 5.2])
    title = "Each table is cut in the way that suits its rows, its columns and its lookups"
    draw.finish(figure, title=title, height=360)
    figure.layout.margin.b = 10
    return figure


def figure_loads(loads: Mapping[str, np.ndarray], *, title: str, y: str) -> go.Figure:
    """Draw each GPU's load over the mean, fullest first, a panel a plan.

    Args:
        loads: by plan, of each GPU.
        title: what the figure shows.
        y: title of the upright axis.
    """
    figure = make_subplots(
        cols=len(loads), shared_yaxes=True, subplot_titles=[*loads], horizontal_spacing=0.03
    )
    for column, (name, load) in enumerate(loads.items(), start=1):
        over_mean = np.sort(load)[::-1] / load.mean()
        figure.add_bar(
            x=[*range(1, len(load) + 1)],
            y=over_mean,
            name=name,
            marker_color=draw.PALETTE["ours"],
            showlegend=False,
            row=1,
            col=column,
        )
        figure.add_annotation(
            x=len(load),
            y=over_mean[0],
            text=f"largest: {over_mean[0]:.3g}",
            xanchor="right",
            yanchor="bottom",
            showarrow=False,
            row=1,
            col=column,
        )
        figure.add_hline(1, line_dash="dot", line_color=draw.PALETTE["bound"], row=1, col=column)
    figure.add_annotation(
        x=len(over_mean), y=1, text="even", showarrow=False, yshift=10, xanchor="right"
    )
    return draw.finish(figure, title=title, x="GPU, fullest first", y=y, height=380)


def _add_points(figure: go.Figure, words: str, values: Mapping[float, float]) -> None:
    """Draw what others print, by x, with its words and the last value beside the last point."""
    draw.stars(figure, [*values], [*values.values()], f"{words}: %{{y}}")
    last = max(values)
    text = f"{words}: {values[last]:g}"
    # lower than the lines' own names, which stand at the height of their ends
    place = {"xshift": 6, "yshift": -18, "xanchor": "left"}
    draw.note(figure, last, values[last], text, "paper", **place)


def figure_lines(
    lines: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str,
    points: Mapping[str, Mapping[float, float]] | None = None,
    levels: Mapping[str, tuple[float, str]] | None = None,
    log_y: bool = False,
    ticks: Sequence[str] | None = None,
) -> go.Figure:
    """Draw a line a column over a logarithmic axis, labelled at its end, with printed points.

    Args:
        lines: the index is the x axis; a column whose name has "bound" is dotted.
        title: what the figure shows.
        x, y: titles of the axes, with units.
        points: by their words, what others print, by x.
        levels: by name, a height and its concept among ``draw.PALETTE``.
        log_y: whether the y axis is logarithmic as well.
        ticks: words of the x axis, one a row of ``lines``.
    """
    figure = go.Figure()
    ends = [lines.index[0], lines.index[-1]]
    draw.lines(figure, lines, others=NEXT_HUES)
    draw.decades(figure, lines.index, ticks or (), y=log_y)
    draw.levels(figure, ends, levels or {})
    for words, values in (points or {}).items():
        _add_points(figure, words, values)
    draw.finish(figure, title=title, x=x, y=y, height=440, direct=True)
    beyond = [len(words) + 4 for words, values in (points or {}).items() if max(values) == ends[1]]
    figure.layout.margin.r = max([figure.layout.margin.r, *(30 + 9 * size for size in beyond)])
    return figure
