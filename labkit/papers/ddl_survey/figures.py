"""The survey's figures: a sum's depth, layers, and all-reduce schemes against their bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.ddl_survey.networks import Layer

HUES: dict[str, str] = {
    "tree": draw.PALETTE["cost"],
    "butterfly": draw.PALETTE["energy"],
    "pipeline": draw.PALETTE["ours"],
    "reduce-scatter and gather": draw.PALETTE["weight"],
}
"""Colours of the schemes."""


def _sum_edges(count: int, *, pairs: bool) -> list[tuple[float, int, float, int]]:
    """Lines of a sum's graph: place and depth of an input, place and depth of the sum."""
    level = [(float(place), 0) for place in range(count)]
    edges = []
    while len(level) > 1:
        taken = len(level) // 2 if pairs else 1
        sums = []
        for number in range(taken):
            left = level[2 * number]
            right = level[2 * number + 1]
            depth = 1 + max(left[1], right[1])
            place = (left[0] + right[0]) / 2 if pairs else right[0]
            edges += [(*left, place, depth), (*right, place, depth)]
            sums.append((place, depth))
        level = sums + level[2 * taken :]
    return edges


def figure_idea(count: int = 8) -> go.Figure:
    """A sum of so many numbers one after another, and in pairs: work alike, depth not."""
    drawings = {"one after another": False, "in pairs": True}
    names = []
    for name, pairs in drawings.items():
        edges = _sum_edges(count, pairs=pairs)
        depth = max(edge[3] for edge in edges)
        names.append(f"{name}: work {len(edges) // 2}, depth {depth}")
    figure = make_subplots(cols=2, subplot_titles=names, shared_yaxes=True)
    hues = (draw.PALETTE["baseline"], draw.PALETTE["ours"])
    for column, (pairs, hue) in enumerate(zip(drawings.values(), hues, strict=True), start=1):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for left, depth, place, after in _sum_edges(count, pairs=pairs):
            xs += [left, place, None]
            ys += [depth, after, None]
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="lines+markers",
            line_color=hue,
            marker_size=9,
            showlegend=False,
            row=1,
            col=column,
        )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(dtick=1)
    title = "Depth is what no number of processors can shorten"
    return draw.finish(figure, title=title, y="additions done before (depth)", height=360)


def figure_layers(layers: Sequence[Layer], balance: float, label: str) -> go.Figure:
    """Layers by average parallelism and by operations for each number moved.

    Args:
        balance: operations that a processor does in the time of moving a number.
        label: what the processor is called.
    """
    figure = go.Figure()
    kinds = {
        "convolutions": draw.PALETTE["ours"],
        "dense layers": draw.PALETTE["energy"],
        "ReLU and pooling": draw.PALETTE["weight"],
    }
    for kind, hue in kinds.items():
        chosen = [layer for layer in layers if _kind(layer) == kind]
        figure.add_scatter(
            x=[layer.parallelism for layer in chosen],
            y=[layer.work / layer.moved for layer in chosen],
            mode="markers",
            marker={"size": 12, "color": hue},
            name=kind,
            hovertext=[layer.name for layer in chosen],
        )
    figure.add_hline(balance, line_dash="dot", line_color=draw.PALETTE["bound"])
    figure.add_annotation(
        x=0.0,
        xref="paper",
        xanchor="left",
        y=float(np.log10(balance)),
        yanchor="bottom",
        text=f"{label}: below this line memory is the limit",
        showarrow=False,
    )
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    return draw.finish(
        figure,
        title="Every layer has work for a whole GPU at once; memory cannot feed most of them",
        x="average parallelism, work over depth (operations)",
        y="operations for each number moved",
    )


def _kind(layer: Layer) -> str:
    if layer.name.startswith("fc"):
        return "dense layers"
    return "ReLU and pooling" if " " in layer.name else "convolutions"


def figure_schemes(
    num_bytes: np.ndarray,
    formulas: pd.DataFrame,
    measured: pd.DataFrame,
    *,
    crossings: Mapping[str, float],
    title: str,
    library: np.ndarray | None = None,
) -> go.Figure:
    """Schemes' times over the lower bound, by the size of the vector.

    Args:
        num_bytes: of each row of the tables.
        formulas: a column a scheme, times over the bound, by the formulas.
        measured: the same with each message's measured time; schemes may be missing.
        crossings: sizes to mark, by words.
        library: of NCCL's measured all-reduce, or None.
    """
    figure = go.Figure()
    for scheme in formulas:
        hue = HUES[str(scheme)]
        figure.add_scatter(
            x=num_bytes, y=formulas[scheme], mode="lines", name=f"{scheme}: formula", line_color=hue
        )
        if scheme not in measured:
            continue
        figure.add_scatter(
            x=num_bytes,
            y=measured[scheme],
            mode="markers",
            name=f"{scheme}: measured messages",
            marker={"color": hue, "size": 5},
        )
    if library is not None:
        figure.add_scatter(
            x=num_bytes,
            y=library,
            mode="lines",
            name="NCCL's all-reduce, measured",
            line={"color": draw.PALETTE["baseline"], "dash": "dash"},
        )
    figure.add_hline(
        1,
        line_dash="dot",
        line_color=draw.PALETTE["bound"],
        annotation_text="lower bound",
        annotation_position="bottom right",
    )
    tops = (7.6, 6.9)
    for (words, size), top in zip(crossings.items(), tops, strict=False):
        if not num_bytes[0] < size < np.inf:
            continue
        figure.add_vline(size, line_dash="dash", line_color=draw.PALETTE["paper"])
        figure.add_annotation(
            x=float(np.log10(size)), y=top, text=words, showarrow=False, xanchor="right", xshift=-4
        )
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(range=[0, 8])
    return draw.finish(
        figure, title=title, x="bytes of the vector", y="times the lower bound", height=520
    )


def figure_ratios(ratios: pd.DataFrame, *, tolerance: float, title: str) -> go.Figure:
    """Where schemes cross by measured messages, over where the formulas say; links as rows.

    Args:
        ratios: a row a link, a column a pair of schemes; infinite where the pair does not cross
            in the one way and does in the other.
        tolerance: of the claims, drawn as a band about 1.
    """
    figure = go.Figure()
    edge = 30.0
    marks = zip(ratios, ("ours", "energy", "weight"), ("circle", "diamond", "x"), strict=False)
    for pair, concept, symbol in marks:
        shown = ratios[pair].clip(1 / edge, edge)
        figure.add_scatter(
            x=shown,
            y=ratios.index,
            mode="markers",
            name=str(pair),
            marker={"color": draw.PALETTE[concept], "size": 13, "symbol": symbol},
        )
    figure.add_vrect(
        1 - tolerance, 1 + tolerance, fillcolor=draw.PALETTE["paper"], opacity=0.25, line_width=0
    )
    figure.add_vline(
        1,
        line_color=draw.PALETTE["paper"],
        line_dash="dash",
    )
    figure.add_annotation(
        x=0,  # of a logarithmic axis: 1
        y=0.0,
        yref="paper",
        yanchor="bottom",
        xanchor="right",
        xshift=-14,
        text=f"formulas, within {tolerance:.0%}",
        showarrow=False,
    )
    figure.update_xaxes(
        type="log",
        range=[-1.6, 1.6],
        tickvals=[1 / edge, 0.1, 0.3, 1, 3, 10, edge],
        ticktext=["1/30 or less", "0.1", "0.3", "1", "3", "10", "30 or more"],
    )
    figure.update_yaxes(autorange="reversed")
    return draw.finish(
        figure, title=title, x="crossover by measured messages over the formulas'", height=440
    )
