"""Figures of selective recomputation: what a rank keeps, who fits, and bytes against time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from labkit.kit import draw
from labkit.papers.reduce_act_recomp.steps import CAPACITY_BYTES

HUES: dict[str, str] = {
    "tensor parallel": draw.PALETTE["baseline"],
    "+ sequence parallel": draw.CYCLE[2],
    "every layer recomputed": draw.CYCLE[3],
    "+ selective": draw.CYCLE[4],
    "both": draw.PALETTE["ours"],
}
"""Colours of the paper's five ways to keep activations."""


def figure_idea(table2: pd.DataFrame, *, ranks: int, scores_over_hidden: float) -> go.Figure:
    """What one rank keeps of a layer, in bytes for each number of the layer's input.

    Args:
        table2: the paper's Table 2: a row a way (``configuration``), with the coefficients
            ``whole``, ``over_t`` and ``scores_over_t``.
        ranks: GPUs that share a layer.
        scores_over_hidden: a·s/h.
    """
    parts = {
        "the same on every rank": table2["whole"],
        "divided among ranks": table2["over_t"] / ranks,
        "attention's scores": table2["scores_over_t"] * scores_over_hidden / ranks,
    }
    hues = [draw.PALETTE["baseline"], draw.PALETTE["ours"], draw.PALETTE["paper"]]
    labels = ["<br>".join(textwrap.wrap(name, 28)) for name in table2["configuration"]]
    figure = go.Figure()
    for (name, values), hue in zip(parts.items(), hues, strict=True):
        figure.add_bar(
            x=values,
            y=labels,
            name=name,
            orientation="h",
            marker_color=hue,
            text=[f"{value:.3g}" if value > 0.5 else "" for value in values],
            insidetextanchor="middle",
        )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return draw.finish(
        figure,
        title="Each technique removes a part that the other one leaves",
        x="bytes that a rank keeps for each number of a layer's input",
        y="technique",
        height=360,
    )


def figure_shares(shares: pd.DataFrame, *, at_most: float) -> go.Figure:
    """Fig. 7: what each way keeps of a layer, per cent of tensor parallelism alone.

    Args:
        shares: a row a model, a column a way; fractions.
        at_most: what §6.1 says both techniques stay below, a fraction.
    """
    figure = go.Figure()
    for way in shares:
        figure.add_bar(
            x=shares.index, y=100 * shares[way], name=str(way), marker_color=HUES[str(way)]
        )
    figure.add_hline(
        100 * at_most,
        line_dash="dash",
        line_color=draw.PALETTE["paper"],
        annotation_text=f"paper, §6.1:<br>both keep less<br>than {at_most:.0%}",
        annotation_position="top right",
    )
    figure.update_layout(barmode="group")
    figure.update_xaxes(range=[-0.5, len(shares) + 0.2])  # room for the line's label
    return draw.finish(
        figure,
        title="With both techniques a fifth is left; each alone leaves half or more",
        x="model",
        y="kept of a layer (% of tensor parallel)",
        height=420,
    )


def figure_first_stage(held: pd.DataFrame) -> go.Figure:
    """Fig. 1: states and activations of a GPU of the first pipeline stage.

    Args:
        held: a row a model, a column a way; bytes.
    """
    figure = go.Figure()
    for way in held:
        figure.add_bar(x=held.index, y=held[way] / 1e9, name=str(way), marker_color=HUES[str(way)])
    figure.update_layout(barmode="group")
    figure.update_xaxes(range=[-0.5, len(held) + 0.2])  # room for the line's label
    _capacity_line(figure, "top right")
    return draw.finish(
        figure,
        title="With both techniques every model fits, without recomputing a layer",
        x="model",
        y="first stage, states included (GB)",
        height=420,
    )


def figure_stages(by_way: Mapping[str, NDArray]) -> go.Figure:
    """States and activations of a GPU in each pipeline stage.

    Args:
        by_way: bytes of each stage, by way.
    """
    figure = go.Figure()
    for way, held in by_way.items():
        figure.add_scatter(
            x=[*range(len(held))],
            y=held / 1e9,
            name=way,
            mode="lines",
            line={"color": HUES[way]},
        )
    _capacity_line(figure, "bottom left")
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title="530B: only the first stages need both techniques",
        x="pipeline stage",
        y="held by a GPU (GB)",
        height=440,
        direct=True,
    )


def figure_trade(
    trade: pd.DataFrame,
    paper: pd.DataFrame,
    some_layers: pd.DataFrame,
    *,
    abstract_share: float,
    title: str,
) -> go.Figure:
    """The headline: what each way keeps, over the time that it adds to a layer.

    Args:
        trade: ours; columns ``model``, ``way``, ``kept`` and ``added`` (fractions).
        paper: the paper's times at our bytes, with the same columns.
        some_layers: every k-th layer recomputed whole, ``kept`` and ``added``.
        abstract_share: what is left by the abstract, a fraction.
    """
    figure = go.Figure()
    figure.add_scatter(
        x=100 * some_layers["kept"],
        y=100 * some_layers["added"],
        mode="lines",
        name="some layers recomputed whole (22B)",
        line={"color": draw.PALETTE["baseline"], "dash": "dash"},
    )
    for place, (way, rows) in enumerate(trade.groupby("way", sort=False)):
        other = draw.PALETTE["highlight"] if place else draw.PALETTE["ours"]
        figure.add_scatter(
            x=100 * rows["kept"],
            y=100 * rows["added"],
            mode="markers",
            name=str(way),
            hovertext=rows["model"],
            marker={"size": 12, "color": HUES.get(str(way), other)},
        )
    figure.add_scatter(
        x=100 * paper["kept"],
        y=100 * paper["added"],
        mode="markers",
        name="paper, Table 4 and Fig. 8",
        hovertext=paper["model"] + ", " + paper["way"],
        marker={"symbol": "x", "size": 10, "color": draw.PALETTE["paper"]},
    )
    figure.add_hline(
        0,
        line_dash="dot",
        line_color=draw.PALETTE["bound"],
        annotation_text="bound for recomputation: no time added",
        annotation_position="bottom right",
    )
    figure.add_vline(
        100 * abstract_share,
        line_dash="dot",
        line_color=draw.PALETTE["paper"],
        annotation_text="abstract: 5 times smaller".replace("5", f"{1 / abstract_share:.3g}"),
        annotation_position="top right",
    )
    figure.update_xaxes(range=[0, 108])
    figure.update_yaxes(range=[-9, 46])
    return draw.finish(
        figure,
        title=title,
        x="activations kept (% of tensor parallel)",
        y="time added to a layer (%)",
        height=480,
    )


def _capacity_line(figure: go.Figure, position: str) -> None:
    figure.add_hline(
        CAPACITY_BYTES / 1e9,
        line_dash="dash",
        line_color=draw.PALETTE["bound"],
        annotation_text="an A100<br>has 80 GiB",
        annotation_position=position,
    )
