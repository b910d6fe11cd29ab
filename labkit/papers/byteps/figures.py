"""BytePS's figures: busy links, passes over spare machines, training speed, a shared uplink."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw

HUES: dict[str, str] = {
    "ring all-reduce": draw.PALETTE["baseline"],
    "parameter servers": draw.PALETTE["cost"],
    "BytePS": draw.PALETTE["ours"],
}
"""Colours of the ways to sum; others take the next of the cycle."""


def figure_idea(loads: pd.DataFrame) -> go.Figure:
    """How long each kind of link is busy, by way to sum.

    Args:
        loads: a row a way, the columns ``GPU machine`` and ``spare machine``, in passes.
    """
    figure = go.Figure()
    colours = {"GPU machine": draw.PALETTE["ours"], "spare machine": draw.PALETTE["weight"]}
    for column, colour in colours.items():
        figure.add_bar(
            y=[str(way) for way in loads.index],
            x=loads[column],
            name=f"link of a {column}",
            orientation="h",
            marker_color=colour,
            text=[f"{value:.2f}" if value else "idle" for value in loads[column]],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title="BytePS keeps both kinds of links busy, so all end sooner",
        x="the gradient's passes through the link",
        height=330,
    )


def figure_passes(passes: pd.DataFrame, *, title: str) -> go.Figure:
    """Passes until all have the sum, over spare machines.

    Args:
        passes: a row a number of spare machines, a column a way to sum.
    """
    figure = go.Figure()
    draw.lines(figure, passes, hues=HUES)
    figure.add_hline(
        1.0,
        line_dash="dot",
        line_color=draw.PALETTE["bound"],
        annotation_text="bound: each machine sends and receives the gradient once",
        annotation_position="bottom left",
    )
    figure.update_yaxes(range=[0, 4])
    return draw.finish(
        figure,
        title=title,
        x="spare machines",
        y="passes of the gradient",
    )


def figure_gain(
    gains: Mapping[float, pd.DataFrame],
    *,
    paper: Mapping[float, tuple[float, str]],
    bound: float,
    title: str,
) -> go.Figure:
    """Training speed over ring all-reduce's, over spare machines, a panel a network rate.

    Args:
        gains: by Gbit/s, a row a number of spare machines and a column a line.
        paper: by Gbit/s, the published gain and its words.
        bound: the most that fewer passes can give.
    """
    names = [f"{gbit:g} Gbit/s a machine" for gbit in gains]
    figure = make_subplots(
        cols=len(gains), shared_yaxes=True, subplot_titles=names, horizontal_spacing=0.06
    )
    for column, (gbit, gain) in enumerate(gains.items(), start=1):
        for number, line in enumerate(gain):
            figure.add_scatter(
                x=gain.index,
                y=gain[line],
                mode="lines+markers",
                name=str(line),
                line_color=draw.CYCLE[number % len(draw.CYCLE)],
                legendgroup=str(line),
                showlegend=column == 1,
                row=1,
                col=column,
            )
        value, words = paper[gbit]
        above = value >= bound
        levels = (
            (value, f"{words}: {value:g}", "paper", "dash", above),
            (bound, f"bound of the traffic: {bound:.2f}", "bound", "dot", not above),
            (1.0, "ring all-reduce", "baseline", "dash", False),
        )
        for height, text, concept, dash, on_top in levels:
            side = "left" if concept == "paper" else "right"
            figure.add_hline(
                height,
                line_dash=dash,
                line_color=draw.PALETTE[concept],
                annotation_text=text,
                annotation_position=f"{'top' if on_top else 'bottom'} {side}",
                row=1,
                col=column,
            )
    top = max(float(gain.max().max()) for gain in gains.values())
    figure.update_yaxes(range=[0, max(2.3, 1.08 * top)])
    return draw.finish(
        figure, title=title, x="spare machines", y="times ring all-reduce's speed", height=460
    )


def figure_uplink(passes: pd.DataFrame, *, title: str) -> go.Figure:
    """Passes where the uplink to the spare machines is narrow.

    Args:
        passes: a row a width of the uplink, a column a split.
    """
    figure = go.Figure()
    draw.lines(figure, passes, hues=HUES)
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title=title,
        x="bandwidth of the uplink, over that of all GPU machines' links",
        y="passes of the gradient",
    )
