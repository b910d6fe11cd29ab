"""Figures: the three layouts of a layer, bytes by tokens, and a token's time over its cost."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

_HUES = [hue for hue in draw.CYCLE if hue != draw.PALETTE["paper"]]
_LAYOUTS = {"1D": draw.PALETTE["baseline"], "2D": draw.PALETTE["ours"]}
_GREY = "#C9CDD2"


def figure_idea() -> go.Figure:
    """Which part of a layer's first matrix one chip of 16 multiplies, in each layout.

    Source: §3.2, Fig. 2.
    """
    panels = [
        ("1D: columns", [(0, 16, 6, 1)], "all of the tokens' width arrives"),
        (
            "2D: a block",
            [(0, 8, 6, 2)],
            "part of the width arrives,<br>part of the columns is summed",
        ),
        (
            "gathered: tokens divided",
            [(0, 16, 4, 4)],
            "weights arrive,<br>a quarter of the tokens stays",
        ),
    ]
    figure = go.Figure()
    for place, (name, blocks, text) in enumerate(panels):
        left = 24 * place
        figure.add_scatter(
            x=[left, left + 16, left + 16, left, left],
            y=[0, 0, 16, 16, 0],
            fill="toself",
            fillcolor=_GREY,
            line={"color": "white", "width": 2},
            mode="lines",
            name="on other chips",
            showlegend=place == 0,
        )
        for bottom, height, start, width in blocks:
            figure.add_scatter(
                x=[
                    left + start,
                    left + start + width,
                    left + start + width,
                    left + start,
                    left + start,
                ],
                y=[bottom, bottom, bottom + height, bottom + height, bottom],
                fill="toself",
                fillcolor=draw.PALETTE["ours"],
                line={"color": "white", "width": 2},
                mode="lines",
                name="multiplied by one chip",
                showlegend=place == 0,
            )
        figure.add_annotation(x=left + 8, y=18, text=name, showarrow=False)
        figure.add_annotation(x=left + 8, y=-3.5, text=text, showarrow=False)
    figure.update_xaxes(visible=False, range=[-5, 69])
    figure.update_yaxes(visible=False, range=[-6.5, 20.5])
    title = "A chip's part of the first matrix decides what must travel"
    draw.finish(figure, title=title, height=380)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def figure_layouts(moved: pd.DataFrame) -> go.Figure:
    """Bytes that a chip receives in a layer, by the tokens of a batch (``layouts``)."""
    figure = go.Figure()
    spare = iter([hue for hue in _HUES if hue not in _LAYOUTS.values()])
    for name, rows in moved.groupby("layout", sort=False):
        hue = _LAYOUTS.get(str(name)) or next(spare)
        figure.add_scatter(
            x=rows["tokens"], y=rows["layer_bytes"] / 1e9, name=str(name), line={"color": hue}
        )
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    return draw.finish(
        figure,
        title="Few tokens: two dimensions. Many tokens: let the weights travel",
        x="tokens in the batch",
        y="a chip receives (GB a layer)",
        height=460,
    )


def figure_frontier(
    lines: pd.DataFrame, *, bound: str, paper: Mapping[str, float], title: str
) -> go.Figure:
    """The time of a token over its cost, a line a partition (``frontier``).

    Args:
        bound: the partition whose ``least_s`` is drawn as the bound.
        paper: ``batch``, ``chips`` and ``token_ms`` of the paper's own point.
    """
    figure = go.Figure()
    spare = iter(_HUES[1:])
    for name, rows in lines.groupby("partition", sort=False):
        is_baseline = str(name).startswith(("1D", "baseline"))
        first = str(name) == bound
        hue = draw.PALETTE["ours"] if first else next(spare)
        figure.add_scatter(
            x=1e3 * rows["chip_s"],
            y=1e3 * rows["token_s"],
            mode="lines+markers",
            name=str(name),
            line={"color": draw.PALETTE["baseline"] if is_baseline else hue},
        )
    least = lines[lines["partition"] == bound]
    figure.add_scatter(
        x=1e3 * least["chip_s"],
        y=1e3 * least["least_s"],
        mode="lines",
        name=f"bound of {bound}: all parts overlap",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    token_ms = paper["token_ms"]
    figure.add_scatter(
        x=[paper["chips"] * token_ms / paper["batch"]],
        y=[token_ms],
        mode="markers+text",
        text=[f"paper: {token_ms:g} ms"],
        textposition="top center",
        name="paper, batch 64 on 64 chips",
        marker={"symbol": "diamond", "size": 13, "color": draw.PALETTE["paper"]},
    )
    figure.update_xaxes(type="log", dtick="D2", tickformat=",~g")
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure, title=title, x="cost (chip-ms a token)", y="time of a token (ms)", height=480
    )


def figure_sizes(best: pd.DataFrame) -> go.Figure:
    """Each model's best times of a token over their costs (``pareto``), with the chips it takes."""
    figure = go.Figure()
    for place, (name, rows) in enumerate(best.groupby("partition", sort=False)):
        figure.add_scatter(
            x=1e3 * rows["chip_s"],
            y=1e3 * rows["token_s"],
            mode="lines+markers",
            name=str(name),
            customdata=rows[["chips", "batch"]],
            hovertemplate="%{customdata[0]} chips, batch %{customdata[1]}",
            line={"color": _HUES[place]},
        )
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    return draw.finish(
        figure,
        title="Online pays many chip-seconds for few milliseconds, offline the reverse",
        x="cost (chip-ms a token)",
        y="time of a token (ms)",
        height=440,
    )
