"""Gandiva's figures: the idea, and how much sooner a search finds its good trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from labkit.kit import draw

COLORS = {
    "one after the other": draw.PALETTE["baseline"],
    "Gandiva": draw.PALETTE["ours"],
    "early stopping, no slices": draw.CYCLE[2],
    "slices, nobody looks": draw.CYCLE[3],
}
"""By way of searching, the same in each figure."""


def figure_idea() -> go.Figure:
    """Four trials on one GPU, the third of them good: in turn, and in slices with a look.

    Source: §2 and §3 (place unverified); our drawing, with made-up times.
    """
    in_turn = [(0, 0, 10), (1, 10, 10), (2, 20, 10)]
    in_slices = [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1), (2, 4, 9)]
    rows = {"one after the other": in_turn, "slices, and a look at each": in_slices}
    figure = go.Figure()
    for trial, name in enumerate(["bad", "bad too", "good", "bad as well"]):
        color = draw.CYCLE[2] if name == "good" else draw.PALETTE["idle"]
        for row, spans in rows.items():
            own = [(start, length) for who, start, length in spans if who == trial]
            figure.add_bar(
                y=[row] * len(own),
                base=[start for start, _ in own],
                x=[length for _, length in own],
                orientation="h",
                name="good trial" if name == "good" else "bad trial",
                legendgroup=name,
                showlegend=name in ("good", "bad") and row == "one after the other",
                text=[str(trial + 1)] * len(own),
                textposition="inside",
                textangle=0,
                insidetextanchor="middle",
                marker={"color": color, "line": {"color": "white", "width": 2}},
            )
    figure.update_layout(barmode="overlay", bargap=0.4)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(range=[0, 30])
    title = "A first result of each trial costs little, and says where to spend the rest"
    return draw.finish(figure, title=title, x="time (h)", y=" ", height=300)


def figure_search(
    hours: Mapping[str, Sequence[float]],
    sizes: Sequence[int],
    *,
    trial_h: float,
    paper_gain: float,
    title: str,
) -> go.Figure:
    """How many times sooner a search has its good trial than one trial after the other.

    Args:
        hours: by way, as :data:`COLORS` names them, hours for each size; the baseline among them.
        sizes: numbers of trials.
        trial_h: hours of one trial: nobody is sooner.
        paper_gain: the abstract's.
        title: what the figure shows.
    """
    base = hours["one after the other"]
    lines = {
        way: ([start / end for start, end in zip(base, ends, strict=True)], COLORS[way], "solid")
        for way, ends in hours.items()
    }
    bound = [start / trial_h for start in base]
    lines["bound: starts at once"] = (bound, draw.PALETTE["bound"], "dot")
    paper = [paper_gain] * len(sizes)
    lines[f"paper: up to {paper_gain:g}"] = (paper, draw.PALETTE["paper"], "dash")
    figure = go.Figure()
    for name, (gains, color, dash) in lines.items():
        figure.add_scatter(
            x=[*sizes],
            y=gains,
            name=name,
            mode="lines+markers" if dash == "solid" else "lines",
            line={"color": color, "dash": dash},
        )
    ends = [min(sizes) / 1.1, max(sizes) * 1.1]  # else the axis makes room for the lines' names
    figure.update_xaxes(type="log", tickvals=[*sizes], range=[math.log10(end) for end in ends])
    figure.update_yaxes(type="log", tickvals=[1, 2, 5, 10, 20])
    return draw.finish(
        figure,
        title=title,
        x="trials of the search",
        y="times sooner at the good trial (simulated)",
        height=480,
        direct=True,
    )


def figure_early(gains: Mapping[str, float], *, paper_gain: float, title: str) -> go.Figure:
    """How many times sooner the good trial ends, a bar a way of searching.

    Args:
        gains: by way, as :data:`COLORS` names them.
        paper_gain: the abstract's.
        title: what the figure shows.
    """
    figure = go.Figure(
        go.Bar(x=[*gains], y=[*gains.values()], marker_color=[COLORS[way] for way in gains])
    )
    figure.add_hline(
        y=paper_gain,
        line_color=draw.PALETTE["paper"],
        annotation_text=f"paper: up to {paper_gain:g} (abstract)",
        annotation_position="top left",
    )
    figure.update_yaxes(range=[0, 1.5 * paper_gain])
    return draw.finish(figure, title=title, x="search", y="times sooner (simulated)")
