"""ZeRO++'s figures: the idea as blocks of traffic, steps as straight lines, and the headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.zeropp.steps import straight_line

NETWORKS = (100, 200, 400, 800)
"""Gbit/s of a server, in the post's Figs. 6 to 8."""
COLLECTIVES = {
    "weights, forward pass": draw.PALETTE["forward"],
    "weights, backward pass": draw.CYCLE[5],
    "gradients": draw.PALETTE["gradient"],
}
"""What is sent in a step, with its colour."""
_METHODS = {
    "zero3": ("ZeRO-3", draw.PALETTE["baseline"]),
    "zeropp": ("ZeRO++", draw.PALETTE["ours"]),
}


def figure_idea(volumes: pd.DataFrame) -> go.Figure:
    """What leaves a server in a step, as blocks as wide as the bytes, and what makes them small.

    Args:
        volumes: a row a collective, in the order of the step: ``zero3`` and ``zeropp``, in sizes
            of the model.

    Source: abstract; DeepSpeed's post, table of volumes.
    """
    notes = {
        "weights, forward pass": "8 bits,<br>a scale a block",
        "weights, backward pass": "nothing: a second<br>copy in each server",
        "gradients": "4 bits, summed<br>in the server first",
    }
    traces = []
    places = [0.0, 1.0, 2.0]
    for (name, color), place, (_, row) in zip(
        COLLECTIVES.items(), places, volumes.iterrows(), strict=True
    ):
        traces.append(
            go.Bar(
                x=[row["zero3"], row["zeropp"]],
                y=["ZeRO-3", "ZeRO++"],
                base=[place, place],
                orientation="h",
                name=name,
                text=[f"{row['zero3']:g} M", f"{row['zeropp']:g} M" if row["zeropp"] else ""],
                textposition="inside",
                insidetextanchor="middle",
                marker={"color": color, "line": {"color": "white", "width": 3}},
            )
        )
    figure = go.Figure(traces)
    for place, (name, words) in zip(places, notes.items(), strict=True):
        width = float(volumes["zeropp"].iloc[int(place)])
        figure.add_annotation(
            x=place + width + 0.02,
            y="ZeRO++",
            text=words,
            name=name,
            showarrow=False,
            xanchor="left",
            align="left",
        )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_xaxes(range=[0, 3.02], tickvals=[0, 1, 2, 3])
    figure.update_yaxes(autorange="reversed")
    return draw.finish(
        figure,
        title="Each of the three collectives of a step shrinks by a means of its own",
        x="leaves a server in a step (M, sizes of the model in 16 bits)",
        y="method",
        height=330,
    )


def figure_lines(bars: pd.DataFrame) -> go.Figure:
    """Step time against the time of a bit: the paper's bars, and lines through those of Fig. 8.

    Args:
        bars: ``billion``, ``gbit_per_s``, ``zero3`` and ``zeropp`` (TFLOP/s a GPU), ``figure``.

    Source: DeepSpeed's post, Figs. 6 to 8.
    """
    sizes = [*dict.fromkeys(bars["billion"])]
    titles = [f"{size} billion parameters" for size in sizes]
    figure = make_subplots(1, len(sizes), subplot_titles=titles, shared_yaxes=True)
    for place, size in enumerate(sizes):
        points = bars[bars["billion"] == size]
        fig8 = points[points["figure"] == 8]
        for column, (name, color) in _METHODS.items():
            slope, start = straight_line(fig8["gbit_per_s"], fig8[column])
            line = go.Scatter(
                x=[0, 10],
                y=[start, start + slope / 100],
                name=f"{name}, line through Fig. 8",
                line={"color": color, "dash": "dot"},
                mode="lines",
            )
            dots = go.Scatter(
                x=1000 / points["gbit_per_s"],
                y=1000 / points[column],
                name=f"{name}, the post's bars",
                mode="markers",
                marker={"color": color, "size": 11},
            )
            for trace in (line, dots):
                trace.update(legendgroup=trace.name, showlegend=place == 0)
                figure.add_trace(trace, row=1, col=place + 1)
    ticks = [1000 / gbit for gbit in NETWORKS]
    figure.update_xaxes(range=[0, 10.6], tickvals=[0, *ticks], ticktext=["∞", *NETWORKS])
    figure.update_yaxes(range=[0, 55])
    return draw.finish(
        figure,
        title="By the post's own bars ZeRO++ waits about a quarter as long for the network",
        x="Gbit/s of a server (as time of a bit)",
        y="s for 1,000 TFLOP of a GPU",
        height=460,
    )


def figure_parity(
    ours: Mapping[int, pd.DataFrame],
    bars: pd.DataFrame,
    *,
    method: str,
    limits: Mapping[int, float],
) -> go.Figure:
    """Throughput by bandwidth over ZeRO-3's at 800 Gbit/s: ours, and the paper's bars.

    Args:
        ours: by billions of parameters, a table whose index is Gbit/s of a server and whose
            columns are ``ZeRO-3`` and the method that is compared with it.
        bars: as :func:`figure_lines` takes them.
        method: the name of the method, ZeRO++ or what stands in its place.
        limits: by billions of parameters, what no network at all would give.

    Source: DeepSpeed's post, Fig. 8.
    """
    sizes = [*ours]
    titles = [f"{size} billion parameters" for size in sizes]
    figure = make_subplots(1, len(sizes), subplot_titles=titles, shared_yaxes=True)
    for place, size in enumerate(sizes):
        for trace in _parity_traces(ours[size], bars[bars["billion"] == size], method):
            trace.update(legendgroup=trace.name, showlegend=place == 0)
            figure.add_trace(trace, row=1, col=place + 1)
        where = {"row": 1, "col": place + 1}
        _level(figure, 100, "ZeRO-3 at 800", **where)
        _level(figure, 100 * limits[size], "bound: ours without a network", **where)
    figure.update_xaxes(type="log", tickvals=[*NETWORKS], range=[1.94, 2.97])
    figure.update_yaxes(range=[0, 130])
    return draw.finish(
        figure,
        title="On 200 Gbit/s ZeRO++ trains about as fast as ZeRO-3 on 800",
        x="Gbit/s of a server",
        y="rate (% of ZeRO-3's at 800 Gbit/s)",
        height=480,
    )


def _parity_traces(ours: pd.DataFrame, points: pd.DataFrame, method: str) -> list[go.Scatter]:
    """Ours as lines and the paper's bars as markers, in per cent of ZeRO-3 at 800 Gbit/s."""
    published = points.set_index("gbit_per_s").sort_index()
    published = 100 * published / float(published["zero3"].loc[800])
    modelled = 100 * ours / float(ours["ZeRO-3"].loc[800])
    traces = []
    columns = {"ZeRO-3": draw.PALETTE["baseline"], method: draw.PALETTE["ours"]}
    for name, color in columns.items():
        traces.append(
            go.Scatter(
                x=ours.index,
                y=modelled[name],
                name=f"{name}, ours (modelled)",
                mode="lines",
                line={"color": color},
            )
        )
    for column, symbol in (("zero3", "circle-open"), ("zeropp", "circle")):
        traces.append(
            go.Scatter(
                x=published.index,
                y=published[column],
                name=f"{_METHODS[column][0]}, the post's bars",
                mode="markers",
                marker={"color": draw.PALETTE["paper"], "symbol": symbol, "size": 11},
            )
        )
    return traces


def _level(figure: go.Figure, height: float, words: str, **where: Any) -> None:
    """A dotted line across a panel, with its words above its left end."""
    figure.add_hline(
        y=height,
        line={"color": draw.PALETTE["bound"], "dash": "dot", "width": 1.5},
        annotation_text=words,
        annotation_position="top left",
        **where,
    )


def figure_largest(largest: pd.DataFrame, gpus: Sequence[int]) -> go.Figure:
    """The largest model that fits, over GPUs; both axes logarithmic.

    Args:
        largest: a column a method, billions of parameters, a row for each number of ``gpus``.
        gpus: of the whole job.
    """
    colors = {"ZeRO-3": draw.PALETTE["baseline"], "with the second copy": draw.PALETTE["ours"]}
    traces = []
    for name in largest:
        line = {"color": colors[str(name)]}
        traces.append(go.Scatter(x=[*gpus], y=largest[name], name=str(name), line=line))
    figure = go.Figure(traces)
    figure.update_xaxes(type="log", tickvals=[*gpus], range=[1.15, 3.75])
    sizes = [10, 100, 1000, 10000]
    ticks = [f"{size:,}" for size in sizes]
    figure.update_yaxes(type="log", tickvals=sizes, ticktext=ticks, range=[1, 4])
    return draw.finish(
        figure,
        title="With a second copy the largest model stops growing with the cluster",
        x="GPUs",
        y="largest model (10⁹ parameters)",
        direct=True,
    )
