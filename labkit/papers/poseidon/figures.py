"""Poseidon's figures: what a dense layer sends, bytes by layer, and speed-up over machines."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

HUES: dict[str, str] = {
    "Poseidon: wait-free, hybrid": draw.PALETTE["ours"],
    "wait-free, servers": draw.PALETTE["weight"],
    "servers, after the backward pass": draw.PALETTE["baseline"],
}
"""Colours of the systems; others take the highlight's."""


def figure_idea(inputs: int = 25_088, outputs: int = 4_096, batch: int = 32) -> go.Figure:
    """A dense layer's gradient beside the two factors whose product it is, drawn too thick.

    Source: §3.2.
    """
    figure = go.Figure()
    width = outputs / inputs
    thin = max(0.012, batch / inputs)
    boxes = [
        (0.0, 0.0, width, 1.0, "gradient"),
        (0.75, 0.0, thin, 1.0, "ours"),
        (0.8, 1 - thin, width, thin, "ours"),
    ]
    for left, bottom, wide, high, concept in boxes:
        figure.add_shape(
            type="rect",
            x0=left,
            x1=left + wide,
            y0=bottom,
            y1=bottom + high,
            fillcolor=draw.PALETTE[concept],
            line_width=0,
        )
    words = [
        (width + 0.02, 0.5, f"a server gets the product:<br>{inputs * outputs:,} numbers"),
        (0.78, 0.5, f"other machines get the factors:<br>{batch * (inputs + outputs):,} numbers"),
        (0.56, 0.5, "="),
    ]
    for x, y, text in words:
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor="left", align="left")
    figure.update_xaxes(visible=False, range=[-0.02, 1.3])
    figure.update_yaxes(visible=False, range=[-0.05, 1.05])
    title = f"The gradient of fc6 is a product of two factors, {batch} images wide"
    draw.finish(figure, title=title, height=340)
    figure.layout.margin.b = 10
    return figure


def figure_schemes(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Megabytes that a machine sends for each layer, a bar a way to send.

    Args:
        table: a row a layer, a column a way; bytes, infinite where a way does not work.
    """
    figure = go.Figure()
    hues = (draw.PALETTE["baseline"], draw.PALETTE["ours"], draw.PALETTE["paper"])
    for way, hue in zip(table, hues, strict=False):
        sizes = table[way] / 1e6
        figure.add_bar(
            x=[*table.index],
            y=[size if size < float("inf") else None for size in sizes],
            name=str(way),
            marker_color=hue,
        )
    figure.update_yaxes(type="log", dtick=1, range=[0, 3.2])
    figure.update_layout(barmode="group")
    return draw.finish(figure, title=title, x="layer", y="sent by a machine (MB)")


def figure_speedup(
    speedups: pd.DataFrame, published: Mapping[int, float], *, title: str
) -> go.Figure:
    """The headline: speed-up over the number of machines.

    Args:
        speedups: a row a number of machines, a column a system.
        published: the paper's speed-ups by number of machines.
    """
    figure = go.Figure()
    places = {machines: place for place, machines in enumerate(speedups.index)}
    for system in speedups:
        figure.add_scatter(
            x=[*places.values()],
            y=speedups[system],
            mode="lines+markers",
            name=str(system),
            line_color=HUES.get(str(system), draw.PALETTE["highlight"]),
        )
    figure.add_scatter(
        x=[*places.values()],
        y=[*places],
        mode="lines",
        name="no loss (bound)",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    points = {machines: value for machines, value in published.items() if machines in places}
    figure.add_scatter(
        x=[places[machines] for machines in points],
        y=[*points.values()],
        mode="markers+text",
        text=[f"paper: {value:g}" for value in points.values()],
        textposition="top left",
        marker={"symbol": "diamond", "size": 13, "color": draw.PALETTE["paper"]},
        name="paper, measured",
    )
    figure.update_xaxes(
        tickvals=[*places.values()], ticktext=[str(machines) for machines in places]
    )
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure, title=title, x="machines with one GPU", y="speed-up (times one machine)", height=460
    )
