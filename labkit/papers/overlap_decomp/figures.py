"""Figures of decomposed products: lanes of time, and lines over a ratio or a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.overlap_decomp.timeline import COMPUTE, SENDING, Product, Timeline

HUES = {
    "whole": draw.PALETTE["baseline"],
    "one ring": draw.PALETTE["cost"],
    "one ring, not unrolled": draw.PALETTE["input"],
    "two rings": draw.PALETTE["ours"],
    "bound": draw.PALETTE["bound"],
}
"""Colours of ways to compute a product; other lines take theirs in turn."""

NEXT_HUES = [draw.PALETTE[name] for name in ("ours", "weight", "cost", "input", "baseline")]
KINDS = {
    "gather": draw.PALETTE["communication"],
    "hop": draw.PALETTE["communication"],
    "slice": draw.PALETTE["forward"],
    "product": draw.PALETTE["forward"],
    "add": draw.PALETTE["weight"],
    "copy": draw.PALETTE["recompute"],
}
"""Colours of events."""


def whole_timeline(product: Product) -> Timeline:
    """The undecomposed product: its collective on both directions, then all of it at once."""
    timeline = Timeline()
    for lane in SENDING:
        arrived_s = timeline.add(lane, "gather", product.collective_s)
    timeline.add(COMPUTE, "product", product.slice_s + product.compute_s, after_s=arrived_s)
    return timeline


def figure_timelines(timelines: Mapping[str, Timeline], *, title: str, unit_s: float) -> go.Figure:
    """Draw lanes of several timelines, one below the other, on one axis.

    Args:
        timelines: by name, the first at the top.
        unit_s: seconds of the axis' unit.
    """
    figure = go.Figure()
    shown: set[str] = set()
    labels = []
    for row, (name, timeline) in enumerate(timelines.items()):
        for place, lane in enumerate((COMPUTE, *SENDING)):
            y = -4 * row - place
            labels.append((y, f"{name}: {lane}" if lane == COMPUTE else lane))
            for event in timeline.events:
                if event.lane != lane or event.end_s == event.start_s:
                    continue
                figure.add_bar(
                    x=[(event.end_s - event.start_s) / unit_s],
                    base=[event.start_s / unit_s],
                    y=[y],
                    orientation="h",
                    width=0.8,
                    name=event.what,
                    legendgroup=event.what,
                    showlegend=event.what not in shown,
                    marker={"color": KINDS[event.what], "line": {"width": 1, "color": "white"}},
                )
                shown.add(event.what)
    figure.update_yaxes(
        tickvals=[y for y, _ in labels], ticktext=[text for _, text in labels], showgrid=False
    )
    figure.update_layout(barmode="overlay")
    height = 150 + 90 * len(timelines)
    return draw.finish(figure, title=title, x="time (hops of one part)", y="", height=height)


def figure_lines(
    lines: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str,
    ticks: Mapping[float, str],
    levels: Mapping[str, tuple[float, str]] | None = None,
) -> go.Figure:
    """Draw a line a column on a logarithmic x axis, labelled at its end.

    Args:
        lines: the index is the x axis.
        ticks: words by x.
        levels: by name, a height and its concept among ``draw.PALETTE``.
    """
    figure = go.Figure()
    draw.lines(figure, lines, hues=HUES, others=NEXT_HUES)
    draw.levels(figure, [lines.index[0], lines.index[-1]], levels or {})
    figure.update_xaxes(type="log", tickvals=list(ticks), ticktext=list(ticks.values()))
    return draw.finish(figure, title=title, x=x, y=y, height=440, direct=True)


def figure_models(
    lines: pd.DataFrame, *, title: str, x: str, y: str, paper: Sequence[float] = ()
) -> go.Figure:
    """Draw a line a column over models, with the paper's range where there is one.

    Args:
        lines: a row a model, whose names are the axis' words.
        paper: the ends of its range, or nothing.
    """
    figure = go.Figure()
    places = list(range(len(lines)))
    if paper:
        figure.add_shape(
            type="rect",
            x0=places[0],
            x1=places[-1],
            y0=min(paper),
            y1=max(paper),
            fillcolor=draw.PALETTE["paper"],
            opacity=0.15,
            line_width=0,
            layer="below",
        )
    draw.lines(figure, lines.set_axis(places), hues=HUES, others=NEXT_HUES)
    levels = {f"paper: {value:g}": (value, "paper") for value in paper}
    draw.levels(figure, [places[0], places[-1]], levels)
    figure.update_xaxes(tickvals=places, ticktext=[str(name) for name in lines.index])
    return draw.finish(figure, title=title, x=x, y=y, height=440, direct=True)
