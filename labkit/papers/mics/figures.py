"""MiCS's figures: who holds which shard, the traffic of a step, and the gain over ZeRO-3."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw

HUES: dict[str, str] = {
    "ZeRO-3": draw.PALETTE["baseline"],
    "groups of one server": draw.PALETTE["ours"],
    "groups of two, in stages": draw.PALETTE["weight"],
    "groups of two, in a ring": draw.PALETTE["cost"],
    "no traffic (bound)": draw.PALETTE["bound"],
}
"""Colours of the ways to shard; those that are not here take the highlight's."""


def figure_idea(num_servers: int = 2, gpus_per_server: int = 4) -> go.Figure:
    """Which part of the states each GPU holds: sharded over all, or in groups of a server.

    Source: §3.2.
    """
    num_gpus = num_servers * gpus_per_server
    figure = go.Figure()
    rows = {"ZeRO-3": num_gpus, "MiCS": gpus_per_server}
    for row, (name, parts) in enumerate(rows.items()):
        for gpu in range(num_gpus):
            server = gpu // gpus_per_server
            x = gpu + 0.6 * server
            y = -1.3 * row
            hue = draw.CYCLE[gpu % parts % len(draw.CYCLE)]
            height = 0.9
            figure.add_shape(
                type="rect",
                x0=x,
                x1=x + 0.9,
                y0=y,
                y1=y + height,
                line={"color": "#C9CDD2", "width": 1},
            )
            bottom = height * (gpu % parts) / parts
            figure.add_shape(
                type="rect",
                x0=x,
                x1=x + 0.9,
                y0=y + bottom,
                y1=y + bottom + height / parts,
                fillcolor=hue,
                line_width=0,
            )
        words = f"{name}: a GPU holds 1/{parts}"
        figure.add_annotation(x=-0.2, y=-1.3 * row + 0.45, text=words, showarrow=False)
        figure.layout.annotations[-1].xanchor = "right"
    for server in range(num_servers):
        middle = server * (gpus_per_server + 0.6) + gpus_per_server / 2
        figure.add_annotation(
            x=middle, y=1.1, text=f"server {server + 1}", showarrow=False, yanchor="bottom"
        )
    figure.update_xaxes(visible=False, range=[-4.2, num_gpus + 0.6 * num_servers])
    figure.update_yaxes(visible=False, range=[-1.5, 1.5])
    title = "A gather collects all parts: from every server, or inside one"
    draw.finish(figure, title=title, height=300)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def figure_traffic(seconds: pd.DataFrame) -> go.Figure:
    """Seconds of traffic in a step over the number of GPUs, a line a way to shard.

    Args:
        seconds: a row a number of GPUs, a column a way of :data:`HUES`.
    """
    figure = go.Figure()
    draw.lines(figure, seconds, hues=HUES)
    figure.update_xaxes(type="log", tickvals=[*seconds.index])
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title="Inside a server gathers are cheap; over all servers they grow with the cluster",
        x="GPUs",
        y="modelled traffic of a step (s)",
        direct=True,
    )


def figure_gain(gains: Mapping[float, pd.DataFrame], *, paper: float, title: str) -> go.Figure:
    """The headline: throughput over ZeRO-3's, a panel a network.

    Args:
        gains: by Gbit/s of a server, a row a number of GPUs and a column a way to shard.
        paper: the abstract's largest gain.
    """
    names = [f"{gbit:g} Gbit/s a server" for gbit in gains]
    figure = make_subplots(
        cols=len(gains), shared_yaxes=True, subplot_titles=names, horizontal_spacing=0.06
    )
    for column, gain in enumerate(gains.values(), start=1):
        places = [*range(len(gain))]
        for way in gain:
            is_bound = "bound" in str(way)
            figure.add_scatter(
                x=places,
                y=gain[way],
                mode="lines" if is_bound else "lines+markers",
                name=str(way),
                line={
                    "color": HUES.get(str(way), draw.PALETTE["highlight"]),
                    "dash": "dot" if is_bound else "solid",
                },
                legendgroup=str(way),
                showlegend=column == 1,
                row=1,
                col=column,
            )
        for value, words, concept in (
            (paper, f"paper, up to: {paper:g}", "paper"),
            (1.0, "ZeRO-3", "baseline"),
        ):
            figure.add_hline(
                value,
                line_dash="dash",
                line_color=draw.PALETTE[concept],
                annotation_text=words,
                annotation_position="bottom right",
                row=1,
                col=column,
            )
        figure.update_xaxes(
            tickvals=places, ticktext=[str(gpus) for gpus in gain.index], row=1, col=column
        )
    top = max(float(gain.max().max()) for gain in gains.values())
    figure.update_yaxes(range=[0.6, max(3.2, 1.08 * top)])
    return draw.finish(figure, title=title, x="GPUs", y="times ZeRO-3's throughput", height=460)
