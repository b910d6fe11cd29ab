"""OptCNN's figures: layouts as coloured outputs, speed-up by GPUs, bytes, and gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.optcnn.ways import NETWORKS, Way
from labkit.planner import layout_name
from labkit.planner.layouts import Layout

HUES: dict[Way, str] = {
    Way.LAYER_WISE: draw.PALETTE["ours"],
    Way.TWO_LAYOUTS: draw.PALETTE["highlight"],
    Way.NO_PLACES: draw.PALETTE["highlight"],
    Way.KRIZHEVSKY: draw.PALETTE["weight"],
    Way.DATA: draw.PALETTE["baseline"],
    Way.MODEL: draw.PALETTE["cost"],
}
"""Colour of each way to split a network."""
_SIDE = 4
"""Samples, and channels, of the output that the idea's picture shows."""


def _owners(layout: Layout) -> np.ndarray:
    """Which GPU computes each place of an output: samples and heights by channels and widths.

    A map has 2 × 2 places; there are four samples and four channels.
    """
    places = np.indices((_SIDE, _SIDE, 2, 2))
    sizes = (_SIDE, _SIDE, 2, 2)
    owner = np.zeros(sizes, dtype=int)
    for place, size, parts in zip(places, sizes, layout, strict=True):
        owner = owner * parts + place * parts // size
    return owner.transpose(0, 2, 1, 3).reshape(2 * _SIDE, 2 * _SIDE)


def figure_idea(layouts: Sequence[Layout]) -> go.Figure:
    """A layer's output on four GPUs under some layouts: one colour a GPU.

    Source: Fig. 1 (from memory).

    Args:
        layouts: of four parts each.
    """
    titles = [layout_name(layout) for layout in layouts]
    figure = make_subplots(cols=len(layouts), subplot_titles=titles, horizontal_spacing=0.04)
    ends = np.linspace(0, 1, 5)
    scale = []
    for gpu in range(4):
        scale += [[ends[gpu], draw.CYCLE[gpu]], [ends[gpu + 1], draw.CYCLE[gpu]]]
    for column, layout in enumerate(layouts, start=1):
        figure.add_heatmap(
            z=_owners(layout),
            zmin=0,
            zmax=3,
            colorscale=scale,
            showscale=False,
            xgap=1,
            ygap=1,
            row=1,
            col=column,
        )
        for cut in (1.5, 3.5, 5.5):
            figure.add_hline(cut, line={"color": "white", "width": 5}, row=1, col=column)
            figure.add_vline(cut, line={"color": "white", "width": 5}, row=1, col=column)
    middles = [0.5, 2.5, 4.5, 6.5]
    figure.update_xaxes(tickvals=middles, ticktext=["1", "2", "3", "4"], showgrid=False)
    figure.update_yaxes(
        tickvals=middles, ticktext=["1", "2", "3", "4"], autorange="reversed", showgrid=False
    )
    title = "Four samples of four channels, on four GPUs (colours): four of many ways to cut"
    return draw.finish(figure, title=title, x="channel", y="sample", height=340)


def figure_scaling(table: pd.DataFrame, *, claimed: Sequence[float], title: str) -> go.Figure:
    """The headline: speed-up over one GPU by the number of GPUs, a panel a network.

    Args:
        table: columns network, gpus, way, speedup.
        claimed: the paper's gain over the best rival on most GPUs, least and largest.
        title: what the figure shows.
    """
    names = [*NETWORKS.values()]
    figure = make_subplots(
        cols=len(names), shared_yaxes=True, subplot_titles=names, horizontal_spacing=0.04
    )
    sizes = sorted(table["gpus"].unique().tolist())
    places = [*range(len(sizes))]
    for column, name in enumerate(names, start=1):
        rows = table[table["network"] == name]
        bound = {"x": places, "y": sizes, "mode": "lines", "name": "bound: nothing is sent"}
        line = {"color": draw.PALETTE["bound"], "dash": "dot"}
        first = column == 1
        figure.add_scatter(
            **bound, line=line, legendgroup="bound", showlegend=first, row=1, col=column
        )
        for way, lines in rows.groupby("way", sort=False):
            figure.add_scatter(
                x=places,
                y=lines["speedup"],
                mode="lines+markers",
                name=str(way),
                line_color=HUES[Way(str(way))],
                legendgroup=str(way),
                showlegend=first,
                row=1,
                col=column,
            )
        others = rows[(rows["gpus"] == sizes[-1]) & rows["way"].isin([*RIVAL_NAMES])]
        best = others["speedup"].max()
        figure.add_scatter(
            x=[places[-1]] * 2,
            y=[best * times for times in claimed],
            mode="lines",
            name=f"paper: {claimed[0]:g} to {claimed[1]:g} × the best rival",
            line={"color": draw.PALETTE["paper"], "width": 8},
            opacity=0.6,
            legendgroup="paper",
            showlegend=first,
            row=1,
            col=column,
        )
    ticks = [str(size) for size in sizes]
    figure.update_xaxes(tickvals=places, ticktext=ticks, range=[-0.3, places[-1] + 0.3])
    figure.update_yaxes(range=[0, 1.06 * claimed[-1] * sizes[-1]])
    return draw.finish(figure, title=title, x="GPUs", y="throughput, times one GPU's", height=480)


RIVAL_NAMES = (Way.KRIZHEVSKY.value, Way.DATA.value, Way.MODEL.value)
"""Ways that the paper's gain is over."""


def figure_bytes(sent: Mapping[str, Mapping[Way, float]], *, title: str) -> go.Figure:
    """Bytes that all GPUs send in a step, by network and way.

    Args:
        sent: bytes, by a network's name and a way.
        title: what the figure shows.
    """
    figure = go.Figure()
    names = [*sent]
    for way in sent[names[0]]:
        values = [sent[name][way] / 1e9 for name in names]
        figure.add_bar(
            x=names,
            y=values,
            name=way.value,
            marker_color=HUES[way],
            text=[f"{value:.3g}" for value in values],
            textposition="outside",
        )
    figure.update_layout(barmode="group", bargap=0.25)
    most = max(max(by_way.values()) for by_way in sent.values()) / 1e9
    figure.update_yaxes(type="log", dtick=1, range=[-0.3, np.log10(most) + 0.4])
    return draw.finish(figure, title=title, x="network", y="GB sent in a step")


def figure_gain(table: pd.DataFrame, *, x: str, claimed: Sequence[float], title: str) -> go.Figure:
    """Throughput over the best rival's by something that is disputed, a line a network.

    Args:
        table: the first column is what is disputed, the others are networks.
        x: what the first column is.
        claimed: the paper's gain, least and largest.
        title: what the figure shows.
    """
    figure = go.Figure()
    positions = [*range(len(table))]
    for hue, name in zip(draw.CYCLE, table.columns[1:], strict=False):
        figure.add_scatter(
            x=positions, y=table[name], mode="lines+markers", name=str(name), line_color=hue
        )
    for words, value in zip(("at least", "at most"), claimed, strict=True):
        figure.add_hline(
            value,
            line_dash="dash",
            line_color=draw.PALETTE["paper"],
            annotation_text=f"paper, {words}: {value:g}",
            annotation_position="bottom left",
        )
    ticks = [f"{value:g}" for value in table.iloc[:, 0]]
    figure.update_xaxes(tickvals=positions, ticktext=ticks, range=[-0.1, positions[-1] + 0.1])
    most = max(float(table.iloc[:, 1:].max().max()), *claimed)
    figure.update_yaxes(range=[0.9, 1.08 * most])
    return draw.finish(figure, title=title, x=x, y="times the best rival's throughput", direct=True)
