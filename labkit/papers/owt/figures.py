"""Figures of one weird trick: where compute and weights are, speed-up by GPUs, bytes by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.owt.schemes import Scheme
from labkit.planner.networks import Network

HUES: dict[str, str] = {
    Scheme.ROTATING: draw.PALETTE["ours"],
    Scheme.SHARED: draw.PALETTE["weight"],
    Scheme.ALL_AT_ONCE: draw.CYCLE[5],
    Scheme.DATA: draw.PALETTE["baseline"],
    Scheme.MODEL: draw.PALETTE["cost"],
}
"""Colour of each scheme."""


def figure_idea(network: Network) -> go.Figure:
    """Shares of a network's operations and weights, by convolutions and dense layers.

    Source: §2, in words.
    """
    table = network.frame()
    shares = {
        "compute": table["forward_flops"] / table["forward_flops"].sum(),
        "weights": table["weights"] / table["weights"].sum(),
    }
    figure = go.Figure()
    kinds = {
        "convolution": ("convolutions: data-parallel, weights' gradients travel", "ours"),
        "dense": ("dense layers: model-parallel, activations travel", "weight"),
    }
    for kind, (words, concept) in kinds.items():
        parts = [100 * float(share[table["kind"] == kind].sum()) for share in shares.values()]
        figure.add_bar(
            x=parts,
            y=[*shares],
            orientation="h",
            name=words,
            text=[f"{part:.0f} %" for part in parts],
            textposition="inside",
            insidetextanchor="middle",
            textfont={"color": "white"},
            marker={"color": draw.PALETTE[concept], "line": {"color": "white"}},
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(range=[0, 100])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    title = "AlexNet: what computes much weighs little, what weighs much computes little"
    return draw.finish(figure, title=title, x="share of the network (%)", y="", height=290)


def figure_speedup(table: pd.DataFrame, published: Mapping[int, float], *, title: str) -> go.Figure:
    """Speed-up over one GPU by the number of GPUs, a line a scheme.

    Args:
        table: a row a number of GPUs, a column a scheme.
        published: the paper's points, by GPUs.
        title: what the figure shows.
    """
    figure = go.Figure()
    sizes = [int(size) for size in table.index]
    places = {size: place for place, size in enumerate(sizes)}
    figure.add_scatter(
        x=[*places.values()],
        y=sizes,
        mode="lines",
        name="bound: nothing is sent",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    for scheme in table.columns:
        figure.add_scatter(
            x=[*places.values()],
            y=table[scheme],
            mode="lines+markers",
            name=str(scheme),
            line_color=HUES[str(scheme)],
        )
    figure.add_scatter(
        x=[places[size] for size in published],
        y=[*published.values()],
        mode="markers+text",
        name="paper (from memory)",
        text=[f"paper: {value:g}" for value in published.values()],
        textposition="bottom right",
        marker={"color": draw.PALETTE["paper"], "size": 12, "symbol": "diamond"},
    )
    figure.update_xaxes(
        tickvals=[*places.values()], ticktext=[*map(str, sizes)], range=[-0.1, len(sizes) - 0.6]
    )
    figure.update_yaxes(range=[0, 1.05 * sizes[-1]])
    return draw.finish(figure, title=title, x="GPUs", y="images/s, times one GPU's", height=480)


def figure_bytes(sent: Mapping[str, pd.DataFrame], *, title: str) -> go.Figure:
    """Bytes that all GPUs send in a step, by layer with weights.

    Args:
        sent: a scheme's table of operators, by its name.
        title: what the figure shows.
    """
    figure = go.Figure()
    most = 0.0
    for name, table in sent.items():
        layers = table[table["kind"].isin(["convolution", "dense"])]
        values_mb = (layers["transferred_bytes"] + layers["gradient_bytes"]) / 1e6
        most = max(most, float(values_mb.max()))
        figure.add_bar(
            x=layers["operator"],
            y=values_mb,
            name=name,
            marker_color=HUES[name],
            text=[f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in values_mb],
            textposition="outside",
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(type="log", dtick=1, range=[-0.5, np.log10(most) + 0.4])
    return draw.finish(figure, title=title, x="layer", y="MB sent in a step, all GPUs")
