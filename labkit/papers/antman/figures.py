"""AntMan's figures: the idea, a timeline of kernels, memory, interference, and pairs of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.antman.sharing import gains

OWNER = draw.PALETTE["ours"]
GUEST = draw.CYCLE[1]
ON_HOST = draw.CYCLE[6]
WAYS = {
    "AntMan": draw.PALETTE["ours"],
    "packing": draw.PALETTE["highlight"],
    "killing": draw.CYCLE[2],
    "REEF": draw.CYCLE[4],
}
"""By way of sharing, the same in each figure."""
Spans = Sequence[tuple[float, float]]
"""Starts and ends."""


def figure_idea() -> go.Figure:
    """Three mini-batches of an owner, alone, packed with a guest, and with a guest in its waits.

    Source: §3; our drawing, with made-up times.
    """
    owner = [(0, 50), (80, 130), (160, 210)]
    slowed = [(0, 75), (105, 180), (210, 240)]
    waits = [(50, 84), (130, 164), (210, 240)]
    rows: list[tuple[str, str, Spans]] = [
        ("alone: owner", "owner", owner),
        ("packing: owner", "owner", slowed),
        ("packing: guest", "guest", [(0, 240)]),
        ("AntMan: owner", "owner", owner),
        ("AntMan: guest", "guest", waits),
    ]
    figure = go.Figure()
    for row, who, spans in rows:
        _add_bars(figure, row, who, spans)
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(range=[0, 240])
    title = "A guest that starts only in the owner's waits hardly delays the owner"
    return draw.finish(figure, title=title, x="time (ms)", y=" ", height=360)


def _add_bars(figure: go.Figure, row: str, who: str, spans: Spans, edge: float = 2) -> None:
    """Bars of one row, with one entry of the legend for whoever runs."""
    figure.add_bar(
        y=[row] * len(spans),
        base=[start for start, _ in spans],
        x=[end - start for start, end in spans],
        orientation="h",
        name=who,
        legendgroup=who,
        showlegend=who not in {trace.name for trace in figure.data},
        marker={
            "color": OWNER if who == "owner" else GUEST,
            "line": {"color": "white", "width": edge},
        },
    )


def figure_timeline(owner: Spans, guest: Spans, until_s: float) -> go.Figure:
    """When the owner's mini-batches and the guest's kernels ran.

    Args:
        owner: starts and ends of mini-batches (s).
        guest: starts and ends of stretches of its kernels (s).
        until_s: where the figure ends.
    """
    figure = go.Figure()
    for who, spans in {"owner": owner, "guest": guest}.items():
        in_ms = [(1e3 * start, 1e3 * end) for start, end in spans if start < until_s]
        _add_bars(figure, who, who, in_ms, edge=1)
    figure.update_layout(barmode="overlay", bargap=0.3, showlegend=False)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(range=[0, 1e3 * until_s])
    title = "Only the kernel in flight runs on beside the owner's next mini-batch"
    return draw.finish(figure, title=title, x="time (ms)", y=" ", height=280)


def figure_memory(traces: Mapping[str, pd.DataFrame], capacity_gb: float) -> go.Figure:
    """Who holds how much memory in each mini-batch, a panel a way of setting limits.

    Args:
        traces: by panel: columns in GB that are stacked, of which those whose names end in "host"
            lie outside the GPU; a row a mini-batch of the owner.
        capacity_gb: of the GPU.
    """
    colors = {"owner": OWNER, "guest": GUEST}
    figure = make_subplots(cols=len(traces), shared_yaxes=True, subplot_titles=[*traces])
    for column, trace in enumerate(traces.values(), start=1):
        for name in trace:
            who = str(name).partition(",")[0]
            on_host = str(name).endswith("host")
            figure.add_bar(
                row=1,
                col=column,
                x=[*range(1, len(trace) + 1)],
                y=[*trace[name]],
                name=str(name),
                legendgroup=str(name),
                showlegend=column == 1,
                marker={
                    "color": colors[who],
                    "opacity": 0.45 if on_host else 1,
                    "pattern": {"shape": "/" if on_host else ""},
                },
            )
    figure.update_layout(barmode="stack", bargap=0.1)
    figure.add_hline(
        capacity_gb,
        line_dash="dot",
        annotation_text=f"GPU memory: {capacity_gb:g} GB",
        annotation_position="top left",
    )
    figure.update_xaxes(dtick=2)
    title = "A guest that gives way gets the memory which the owner needs only now and then"
    return draw.finish(
        figure, title=title, x="mini-batch of the owner", y="memory (GB)", height=440
    )


def figure_interference(pairs: pd.DataFrame, ways: Sequence[str]) -> go.Figure:
    """By how much each guest slows each owner, a panel a way of sharing.

    Args:
        pairs: as :func:`labkit.papers.antman.pairs` returns them.
        ways: which of them.
    """
    figure = make_subplots(cols=len(ways), shared_yaxes=True, subplot_titles=[*ways])
    for column, way in enumerate(ways, start=1):
        rows = pairs[pairs["way"] == way]
        grid = rows.pivot(index="owner", columns="guest", values="slowdown_fraction")
        figure.add_heatmap(
            row=1,
            col=column,
            x=[*grid.columns],
            y=[*grid.index],
            z=(100 * grid).to_numpy(),
            coloraxis="coloraxis",
        )
    figure.update_layout(coloraxis={"colorbar": {"title": "slower by (%)"}})
    title = "Packing's harm depends on the pair; in idle slots hardly any guest harms"
    return draw.finish(figure, title=title, x="guest", y="owner", height=460)


def figure_pairs(
    pairs: pd.DataFrame,
    ways: Sequence[str],
    *,
    idle_share: float,
    paper_gain: float,
    title: str,
) -> go.Figure:
    """What each pair of jobs gains in units, over what it costs the owner.

    Args:
        pairs: as :func:`labkit.papers.antman.pairs` returns them.
        ways: which of them are drawn.
        idle_share: s of the owners; a guest in idle slots gains s/(1 − s), if alike.
        paper_gain: of compute utilization, in the abstract; a fraction.
        title: what the figure shows.
    """
    figure = go.Figure()
    figure.add_scatter(
        x=[0],
        y=[0],
        mode="markers",
        name="owner alone (baseline)",
        marker={"color": draw.PALETTE["baseline"], "size": 14, "symbol": "square"},
    )
    for way in ways:
        _add_way(figure, pairs, way)
    filled = idle_share / (1 - idle_share)
    lines = [
        (paper_gain, f"abstract: +{100 * paper_gain:.0f} % in a cluster", "paper", "bottom right"),
        (
            filled,
            f"all idle time filled by a guest alike: s/(1−s) = {100 * filled:.0f} %",
            "bound",
            "top right",
        ),
    ]
    for value, words, concept, place in lines:
        color = draw.PALETTE[concept]
        figure.add_hline(
            100 * value,
            line_dash="dot",
            line_color=color,
            annotation={"text": words, "font": {"color": color}, "bgcolor": draw.VEIL},
            annotation_position=place,
        )
    figure.update_xaxes(range=[-3, 70])
    figure.update_yaxes(range=[-15, 260])
    return draw.finish(
        figure,
        title=title,
        x="owner's mini-batch and wait longer by (%, simulated)",
        y="units in use gained (%)",
        height=520,
    )


def _add_way(figure: go.Figure, pairs: pd.DataFrame, way: str) -> None:
    """A dot a pair, and the mean of all."""
    rows = pairs[pairs["way"] == way]
    look = {"color": WAYS[way], "size": 9}
    figure.add_scatter(
        x=[*(100 * rows["slowdown_fraction"])],
        y=[*(100 * (rows["units_fraction"] / rows["alone_units_fraction"] - 1))],
        text=[
            f"{owner} beside {guest}"
            for owner, guest in zip(rows["owner"], rows["guest"], strict=True)
        ],
        mode="markers",
        name=f"{way}, a pair of jobs",
        marker=look | {"opacity": 0.6},
    )
    figure.add_scatter(
        x=[100 * rows["slowdown_fraction"].mean()],
        y=[100 * gains(pairs)[way]],
        mode="markers",
        name=f"{way}, mean",
        marker=look | {"size": 17, "symbol": "diamond", "line": {"width": 2, "color": "white"}},
    )
