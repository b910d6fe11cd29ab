"""ZeRO's figures: the idea as a matrix of parts, what fills a GPU, and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw

STATES = {"parameters": 2, "gradients": 2, "optimizer": 12}
"""Bytes of a parameter in mixed-precision Adam (§3.1)."""
_HUES = {
    "parameters": draw.PALETTE["parameter"],
    "gradients": draw.PALETTE["gradient"],
    "optimizer": draw.PALETTE["optimizer"],
}
_WHO = {"paper": draw.PALETTE["paper"], "ours": draw.PALETTE["ours"]}


def figure_idea(num_ranks: int = 4) -> go.Figure:
    """Which part of the model states each rank holds: all of them, or one of each.

    Source: §5, Fig. 1.
    """
    titles = ["data parallelism: all ranks hold all", "Pos+g+p: each rank holds its part"]
    figure = make_subplots(1, 2, subplot_titles=titles, shared_yaxes=True)
    ranks = [f"rank {rank}" for rank in range(num_ranks)]
    for place, divided in enumerate((False, True)):
        left = 0.0
        for name, width in STATES.items():
            for part in range(num_ranks):
                holders = [ranks[part]] if divided else ranks
                block = go.Bar(
                    x=[width / num_ranks] * len(holders),
                    y=holders,
                    base=[left] * len(holders),
                    orientation="h",
                    name=name,
                    legendgroup=name,
                    showlegend=not divided and part == 0,
                    marker={"color": _HUES[name], "line": {"color": "white", "width": 2}},
                )
                figure.add_trace(block, row=1, col=place + 1)
                left += width / num_ranks
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_xaxes(range=[0, 16.2], tickvals=[0, 2, 4, 16])
    figure.update_yaxes(autorange="reversed", categoryarray=ranks)
    return draw.finish(
        figure,
        title="Nobody needs all states all the time: 16 bytes a parameter become 4 on four ranks",
        x="bytes of a parameter",
        height=340,
    )


def figure_rest(parts: pd.DataFrame, *, rest_gb: float, title: str) -> go.Figure:
    """Fig. 7's memory of a GPU, cut into what we can count and the rest.

    Args:
        parts: a row a run, its index the runs' names; columns are drawn one above the other.
        rest_gb: the median of what is left, drawn as a line.
    """
    colors = [draw.PALETTE["muted"], draw.PALETTE["parameter"], draw.PALETTE["activation"]]
    bars = []
    for name, color in zip(parts, colors, strict=True):
        bars.append(go.Bar(x=parts.index, y=parts[name], name=str(name), marker_color=color))
    figure = go.Figure(bars)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category")
    figure.add_hline(
        y=rest_gb,
        line={"color": draw.PALETTE["bound"], "dash": "dash"},
        annotation_text="the rest, median",
        annotation_position="top left",
        annotation_bgcolor=draw.VEIL,
    )
    return draw.finish(figure, title=title, x="run of Fig. 7", y="memory of a GPU (GB)")


def figure_scaling(runs: pd.DataFrame, *, bound_tflops: float) -> go.Figure:
    """Throughput of a GPU in several figures of the paper, a panel each.

    Args:
        runs: ``panel``, ``x``, ``method`` (ZeRO or baseline), ``tflops`` and ``ours``.
        bound_tflops: the rate of operations alone.
    """
    panels = [*dict.fromkeys(runs["panel"])]
    figure = make_subplots(
        1,
        len(panels),
        subplot_titles=panels,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        column_widths=[2 + runs.loc[runs["panel"] == panel, "x"].nunique() for panel in panels],
    )
    seen: set[str] = set()
    for place, panel in enumerate(panels):
        shown = runs[runs["panel"] == panel]
        shown = shown.assign(x=shown["x"].str.replace(", ", ",<br>"))
        for trace in _points(shown, [*dict.fromkeys(shown["x"])]):
            trace.update(legendgroup=trace.name, showlegend=trace.name not in seen)
            if len(trace.x):
                seen.add(str(trace.name))
            figure.add_trace(trace, row=1, col=place + 1)
        _bound(figure, bound_tflops, "" if place else "operations alone", row=1, col=place + 1)
    figure.update_xaxes(type="category", tickangle=0, dtick=1)
    figure.update_yaxes(range=[0, 58])
    return draw.finish(
        figure,
        title="Throughput ends where batches are small and where rings share a network",
        y="TFLOP/s per GPU",
        height=480,
    )


def figure_headline(
    runs: pd.DataFrame, *, method: str, bound_tflops: float, abstract_tflops: float
) -> go.Figure:
    """Fig. 2: throughput of a GPU by size of the model, ours and the paper's.

    Args:
        runs: ``x`` (billions of parameters), ``method``, ``tflops`` and ``ours``.
        method: what stands in ZeRO's place in ours.
        bound_tflops: the rate of operations alone.
        abstract_tflops: what the abstract's throughput is for each GPU.
    """
    sizes = [*dict.fromkeys(runs["x"])]
    figure = go.Figure(_points(runs, sizes, method=method))
    star = {"color": draw.PALETTE["paper"], "symbol": "star", "size": 16}
    figure.add_scatter(
        x=["100"], y=[abstract_tflops], name="paper, abstract", mode="markers", marker=star
    )
    _bound(figure, bound_tflops, "bound: operations alone, as fitted to Fig. 4")
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=sizes)
    figure.update_yaxes(range=[0, 58])
    return draw.finish(
        figure,
        title="ZeRO keeps its rate to 100B; Megatron-LM alone collapses beyond one server",
        x="parameters (10⁹)",
        y="TFLOP/s per GPU",
        height=480,
    )


def _points(runs: pd.DataFrame, order: Sequence[str], method: str = "ZeRO") -> list[go.Scatter]:
    """The paper's markers and ours, filled for ZeRO and open for the baseline."""
    traces = []
    for kind, symbol in (("ZeRO", "circle"), ("baseline", "circle-open")):
        shown = (
            runs[runs["method"] == kind].set_index("x").reindex([*order]).dropna(subset="tflops")
        )
        for who, column in (("paper", "tflops"), ("ours", "ours")):
            name = kind if who == "paper" or kind == "baseline" else method
            if kind == "baseline" and method != "ZeRO":
                name = "Megatron-LM alone"
            marker = {"color": _WHO[who], "symbol": symbol, "size": 11}
            traces.append(
                go.Scatter(
                    x=shown.index,
                    y=shown[column],
                    name=f"{who}: {name}",
                    mode="lines+markers" if method != "ZeRO" else "markers",
                    marker=marker,
                    line={"dash": "dot" if kind == "baseline" else "solid"},
                )
            )
    return traces


def _bound(figure: go.Figure, height: float, words: str, **where: Any) -> None:
    """A dotted line at the rate of operations alone, with its words above the left end."""
    figure.add_hline(
        y=height,
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
        annotation_text=words,
        annotation_position="top left",
        **where,
    )
