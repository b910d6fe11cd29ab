"""Figures of sublinear memory: the idea, peaks over depth, and plans beside the optimum."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from labkit import swap
from labkit.kit import draw
from labkit.papers.sublinear.depths import WORDS

HUES: dict[str, str] = {
    "nothing recomputed": draw.PALETTE["baseline"],
    "equal segments": draw.PALETTE["recompute"],
    "equal, number searched": draw.PALETTE["all-reduce"],
    "searched segments": draw.PALETTE["ours"],
    "recursion": draw.PALETTE["weight"],
    "each block by itself": draw.PALETTE["cost"],
    "exact optimum": draw.PALETTE["bound"],
}
_STATES = {"let go": "#E3E6EA", "kept": draw.PALETTE["ours"], "rebuilt now": draw.PALETTE["paper"]}


def figure_idea(num_blocks: int = 16, num_segments: int = 4) -> go.Figure:
    """What is in memory at the end of the forward pass, and while a segment goes back.

    Args:
        num_blocks: blocks of the network, a multiple of the segments.
        num_segments: segments of equal length.

    Source: §4.1, Algorithm 1.
    """
    length = num_blocks // num_segments
    starts = set(range(0, num_blocks, length))
    moments = {"nothing recomputed": ["kept"] * num_blocks}
    ends = ["kept" if block in starts else "let go" for block in range(num_blocks)]
    last = num_blocks - length
    moments["segments: end of the forward pass"] = [*ends[:last], *["kept"] * length]
    for segment in reversed(range(num_segments - 1)):
        first = segment * length
        states = [*ends[:first], *["rebuilt now"] * length]
        states += ["let go"] * (num_blocks - first - length)
        moments[f"segment {segment + 1} goes back"] = states
    figure = go.Figure()
    for state, hue in _STATES.items():
        places = []
        for name, states in moments.items():
            places += [(block, name) for block, found in enumerate(states) if found == state]
        figure.add_scatter(
            x=[block for block, _ in places],
            y=[name for _, name in places],
            mode="markers",
            name=state,
            marker={"symbol": "square", "size": 20, "color": hue},
        )
    figure.update_xaxes(dtick=length, showgrid=False)
    order = [*moments][::-1]
    figure.update_yaxes(categoryorder="array", categoryarray=order, showgrid=False)
    return draw.finish(
        figure,
        title="Only the ends of segments are kept, and one segment at a time",
        x="block whose input and inner results are held",
        y="moment",
        height=360,
    )


def figure_peaks(peaks: pd.DataFrame) -> go.Figure:
    """Fig. 5 on equal blocks: the peak of a step over the number of blocks.

    Args:
        peaks: as :func:`labkit.papers.sublinear.tracked_peaks` gives them.
    """
    figure = go.Figure()
    draw.lines(figure, peaks.rename(columns=WORDS), hues=HUES)
    figure.update_xaxes(type="log", tickvals=[*peaks.index])
    figure.update_yaxes(type="log", dtick="D2")
    return draw.finish(
        figure,
        title="Twice the depth takes twice the peak, two fifths more, or one output more",
        x="blocks",
        y="measured peak (outputs of a block)",
        direct=True,
    )


def figure_depths(
    peaks: pd.DataFrame,
    paper: pd.DataFrame,
    *,
    bytes_per_param: float,
    gpu_bytes: float,
    methods: tuple[str, ...] = ("all-kept", "searched"),
    title: str = "Segments take a deep ResNet back into one GPU",
) -> go.Figure:
    """The headline: total memory over depth, the paper's points, the GPU, and the bound.

    Args:
        peaks: as :func:`labkit.papers.sublinear.plan_bytes` gives them.
        paper: the paper's points: ``layers``, ``gb``.
        bytes_per_param: weights, gradients and the optimizer's states.
        gpu_bytes: memory of the paper's GPU.
        methods: the ways to recompute that are drawn.
    """
    total_bytes = peaks["maps_bytes"] + bytes_per_param * peaks["parameters"]
    table = peaks.assign(gb=total_bytes / 1e9).sort_values("layers")
    figure = go.Figure()
    for method in methods:
        name = WORDS[method]
        rows = table[table["method"] == method]
        figure.add_scatter(
            x=rows["layers"],
            y=rows["gb"],
            name=f"{name}, ours",
            mode="lines+markers",
            line_color=HUES[name],
        )
    bound = table[table["method"] == "bound"]
    figure.add_scatter(
        x=bound["layers"],
        y=bound["gb"],
        name="bound: the largest block",
        mode="lines",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    figure.add_scatter(
        x=paper["layers"],
        y=paper["gb"],
        name="paper, abstract",
        mode="markers+text",
        text=[f"paper: {gb:g} GB" for gb in paper["gb"]],
        textposition="middle right",
        marker={"size": 14, "symbol": "diamond", "color": draw.PALETTE["paper"]},
    )
    figure.add_hline(
        gpu_bytes / 1e9,
        line_dash="dash",
        line_color=draw.PALETTE["highlight"],
    )
    figure.add_annotation(
        x=0,
        xref="paper",
        xanchor="left",
        y=math.log10(gpu_bytes / 1e9),
        yanchor="bottom",
        text=f"the paper's GPU: {gpu_bytes / 1e9:g} GB",
        showarrow=False,
    )
    layers = sorted(table["layers"].unique())
    room = [math.log10(layers[0] / 1.1), math.log10(layers[-1] * 1.6)]  # for the points' labels
    figure.update_xaxes(type="log", tickvals=layers, range=room)
    figure.update_yaxes(type="log", tickvals=[0.5, 1, 2, 5, 10, 20, 50, 100])
    return draw.finish(
        figure, title=title, x="layers of the ResNet", y="feature maps and states (GB)", height=480
    )


def figure_optimum(chain: swap.Chain, *, title: str) -> go.Figure:
    """The paper's plans and the exact optimum: time added over memory."""
    figure = swap.figures.figure_tradeoff(chain)
    for trace in figure.data:
        every = trace.name == "equal segments"
        trace.name = WORDS.get(trace.name, trace.name)
        hue = draw.PALETTE["all-reduce"] if every else HUES[trace.name]
        if every:
            trace.name = "any number of equal segments"
        elif trace.name == WORDS["square-root"]:
            trace.name = "as many as the square root"
        trace.marker.color = hue
        trace.line.color = hue
    return draw.finish(figure, title=title)
