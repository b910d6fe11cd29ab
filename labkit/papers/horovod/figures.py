"""Horovod's figures: servers beside a ring, measured and modelled seconds, efficiency."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.collectives.fitting import Fit
from labkit.kit import draw

HUES: dict[str, str] = {
    "ring, fused": draw.PALETTE["ours"],
    "parameter servers": draw.PALETTE["baseline"],
}
"""Colours of what sums gradients; what is not here takes the highlight's."""
_RADIUS = 1.0


def _arrow(
    figure: go.Figure, begin: tuple[float, float], end: tuple[float, float], hue: str, width: float
) -> None:
    """An arrow that stops short of both circles."""
    length = math.dist(begin, end)
    short = 0.24 / length
    near = [a + short * (b - a) for a, b in zip(begin, end, strict=True)]
    far = [b - short * (b - a) for a, b in zip(begin, end, strict=True)]
    figure.add_annotation(
        x=far[0],
        y=far[1],
        ax=near[0],
        ay=near[1],
        xref="x",
        yref="y",
        axref="x",
        ayref="y",
        showarrow=True,
        arrowhead=2,
        arrowwidth=width,
        arrowcolor=hue,
        text="",
    )


def _circles(figure: go.Figure, places: list[tuple[float, float]], names: list[str]) -> None:
    """Ranks as circles with their names."""
    figure.add_scatter(
        x=[place[0] for place in places],
        y=[place[1] for place in places],
        mode="markers+text",
        text=names,
        textfont={"color": "white"},
        marker={"size": 40, "color": draw.PALETTE["ours"]},
        hoverinfo="skip",
        showlegend=False,
    )


def figure_idea(num_ranks: int = 6) -> go.Figure:
    """A parameter server beside a ring: what each link carries.

    Source: Figs. 3 and 4.
    """
    figure = go.Figure()
    turn = 2 * math.pi / num_ranks
    around = [(math.sin(turn * rank), math.cos(turn * rank)) for rank in range(num_ranks)]
    server = (-2.0, 0.0)
    workers = [(x - 2.0, y) for x, y in around]
    ring = [(x + 2.0, y) for x, y in around]
    for place in workers:
        _arrow(figure, place, server, draw.PALETTE["baseline"], 3)
        _arrow(figure, server, place, draw.PALETTE["baseline"], 3)
    for rank, place in enumerate(ring):
        _arrow(figure, place, ring[(rank + 1) % num_ranks], draw.PALETTE["all-reduce"], 3)
    names = [str(rank) for rank in range(num_ranks)]
    _circles(figure, workers + ring, names + names)
    figure.add_scatter(
        x=[server[0]],
        y=[server[1]],
        mode="markers+text",
        text=["server"],
        textfont={"color": "white", "size": 12},
        marker={"size": 56, "symbol": "square", "color": draw.PALETTE["baseline"]},
        hoverinfo="skip",
        showlegend=False,
    )
    steps = 2 * (num_ranks - 1)
    words = {
        -2.0: f"{num_ranks} gradients in, {num_ranks} sums out<br>over the server's one link",
        2.0: f"{steps} steps, each sends 1/{num_ranks} of<br>the gradient to the next rank",
    }
    for x, text in words.items():
        figure.add_annotation(x=x, y=-1.75, text=text, showarrow=False)
    figure.update_xaxes(visible=False, range=[-3.9, 3.9])
    figure.update_yaxes(visible=False, range=[-2.1, 1.35])
    draw.finish(
        figure, title="A server's link fills with workers, a ring's links do not", height=400
    )
    figure.layout.margin.b = 10
    return figure


def figure_line(measured: pd.DataFrame, line: Fit) -> go.Figure:
    """Measured seconds of an all-reduce by size, and the line through them.

    Args:
        measured: columns num_bytes and time_s.
        line: fitted to them.
    """
    figure = go.Figure()
    figure.add_scatter(
        x=measured["num_bytes"],
        y=1e3 * measured["time_s"],
        mode="markers",
        marker={"size": 11, "color": draw.PALETTE["paper"]},
        name="measured on gloo",
    )
    figure.add_scatter(
        x=measured["num_bytes"],
        y=[1e3 * line.time_s(size) for size in measured["num_bytes"]],
        mode="lines",
        line_color=draw.PALETTE["ours"],
        name="α + β · bytes",
    )
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    title = "Below some 100 KB an all-reduce costs its latency, whatever its size"
    return draw.finish(figure, title=title, x="message (bytes)", y="time (ms)")


def figure_fusion(shares: pd.DataFrame, *, title: str) -> go.Figure:
    """Efficiency over the size of the fusion buffer, a line a number of GPUs or way to fill it.

    Args:
        shares: a row a threshold (MiB), a column a line; fractions.
    """
    figure = go.Figure()
    places = [*range(len(shares))]
    for number, name in enumerate(shares):
        figure.add_scatter(
            x=places,
            y=100 * shares[name],
            mode="lines+markers",
            name=str(name),
            line_color=draw.CYCLE[number % len(draw.CYCLE)],
        )
    labels = ["none" if size == 0 else f"{size:g}" for size in shares.index]
    figure.update_xaxes(tickvals=places, ticktext=labels)
    figure.update_yaxes(range=[0, 104])
    return draw.finish(
        figure, title=title, x="fusion buffer (MiB)", y="efficiency (%)", direct=True
    )


def figure_efficiency(
    lines: Mapping[str, pd.DataFrame], published: Mapping[str, Mapping[int, float]], *, title: str
) -> go.Figure:
    """The headline: each GPU's share of a single GPU's rate, a panel a network.

    Args:
        lines: by network, a row a number of GPUs, a column a way to sum; fractions.
        published: by network, the authors' share by number of GPUs.
    """
    figure = make_subplots(
        cols=len(lines), shared_yaxes=True, subplot_titles=list(lines), horizontal_spacing=0.05
    )
    for column, (network, shares) in enumerate(lines.items(), start=1):
        places = {gpus: place for place, gpus in enumerate(shares.index)}
        for way in shares:
            figure.add_scatter(
                x=[*places.values()],
                y=100 * shares[way],
                mode="lines+markers",
                name=f"{way}, modelled",
                line_color=HUES.get(str(way), draw.PALETTE["highlight"]),
                legendgroup=str(way),
                showlegend=column == 1,
                row=1,
                col=column,
            )
        points = {gpus: share for gpus, share in published[network].items() if gpus in places}
        figure.add_scatter(
            x=[places[gpus] for gpus in points],
            y=[100 * share for share in points.values()],
            mode="markers+text",
            text=[f"{share:.0%}" for share in points.values()],
            textposition="bottom center",
            marker={"symbol": "diamond", "size": 13, "color": draw.PALETTE["paper"]},
            name="authors, measured",
            legendgroup="paper",
            showlegend=column == 1,
            row=1,
            col=column,
        )
        figure.add_hline(
            100,
            line_dash="dot",
            line_color=draw.PALETTE["bound"],
            annotation_text="no loss (bound)",
            annotation_position="top right",
            row=1,
            col=column,
        )
        figure.update_xaxes(
            tickvals=[*places.values()], ticktext=[str(gpus) for gpus in places], row=1, col=column
        )
    figure.update_yaxes(range=[0, 110])
    return draw.finish(figure, title=title, x="GPUs, four a server", y="efficiency (%)", height=460)
