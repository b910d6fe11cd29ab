"""Tutel's figures: chunks on their way in two levels, and lines with what the paper has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

HUES: dict[str, str] = {
    "Tutel": draw.PALETTE["ours"],
    "einsum dispatch": draw.PALETTE["cost"],
    "direct all-to-all": draw.PALETTE["input"],
    "no pipelining": draw.PALETTE["weight"],
    "experts alone (bound)": draw.PALETTE["bound"],
}
"""Colours of the parts; other lines take theirs in turn."""

NEXT_HUES = [draw.PALETTE[name] for name in ("ours", "cost", "weight", "input", "baseline")]


def stages() -> dict[str, list[list[tuple[int, int]]]]:
    """What each of four GPUs holds while an all-to-all goes on in two levels; two are a node.

    Returns:
        By stage, for each GPU the (source, destination) of its chunks, in their order.

    Source: §3.4 (unverified).
    """
    gpus = range(4)
    held: dict[str, list[list[tuple[int, int]]]] = {
        "at first": [[(gpu, to) for to in gpus] for gpu in gpus],
        "sorted by place": [[(gpu, to) for to in (0, 2, 1, 3)] for gpu in gpus],
    }
    inside = []
    for gpu in gpus:
        node = (0, 1) if gpu < 2 else (2, 3)
        inside.append([(source, to) for source in node for to in (gpu % 2, gpu % 2 + 2)])
    held["exchanged inside nodes"] = inside
    held["sorted by node"] = [sorted(chunks, key=lambda chunk: chunk[1]) for chunks in inside]
    held["exchanged between nodes"] = [[(source, gpu) for source in gpus] for gpu in gpus]
    return held


def figure_idea() -> go.Figure:
    """Draw which chunks each GPU holds, stage by stage."""
    figure = go.Figure()
    for row, (name, held) in enumerate(stages().items()):
        y = -1.5 * row
        figure.add_annotation(x=-0.3, y=y + 0.5, text=name, showarrow=False, xanchor="right")
        for gpu, chunks in enumerate(held):
            for place, (source, destination) in enumerate(chunks):
                x = 5 * gpu + gpu // 2 + place
                figure.add_shape(
                    type="rect",
                    x0=x,
                    x1=x + 0.95,
                    y0=y,
                    y1=y + 1,
                    fillcolor=draw.CYCLE[destination % len(draw.CYCLE)],
                    opacity=0.55,
                    line_width=0,
                )
                figure.add_annotation(
                    x=x + 0.48, y=y + 0.5, text=f"{source}→{destination}", showarrow=False
                )
                figure.layout.annotations[-1].font.size = 12
    for gpu in range(4):
        words = f"node {gpu // 2}, GPU {gpu}"
        figure.add_annotation(x=5 * gpu + gpu // 2 + 2, y=1.4, text=words, showarrow=False)
    figure.update_xaxes(visible=False, range=[-6.5, 21])
    figure.update_yaxes(visible=False, range=[-1.5 * len(stages()) + 1.2, 1.8])
    title = "Sort, exchange inside the node, sort, exchange between nodes: fewer, larger messages"
    draw.finish(figure, title=title, height=340)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def figure_lines(
    lines: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, tuple[float, str]] | None = None,
    points: Mapping[float, float] | None = None,
    log: bool = True,
    ticks: Sequence[str] | None = None,
) -> go.Figure:
    """Draw a line a column, labelled at its end, with levels and the paper's points.

    Args:
        lines: the index is the x axis.
        title: what the figure shows.
        x, y: titles of the axes, with units.
        levels: by name, a height and its concept among ``draw.PALETTE``.
        points: the paper's, by x.
        log: whether the x axis has a logarithmic scale.
        ticks: words of the x axis, one a row of ``lines``.
    """
    figure = go.Figure()
    first = lines.index[0]
    draw.lines(figure, lines, hues=HUES, others=NEXT_HUES)
    if log:
        draw.decades(figure, lines.index, ticks or ())
    else:
        figure.update_yaxes(rangemode="tozero")
    draw.levels(figure, [first, lines.index[-1]], levels or {})
    for gpus, value in (points or {}).items():
        draw.stars(figure, [gpus], [value], "paper: %{y}")
        # clear of a line that starts above it
        at_left = {"yshift": 38, "xanchor": "left"}
        place = at_left if gpus == first else {"yshift": 16, "xanchor": "center"}
        draw.note(figure, gpus, value, f"paper: {value:g}", "paper", **place)
    return draw.finish(figure, title=title, x=x, y=y, height=460, direct=True)
