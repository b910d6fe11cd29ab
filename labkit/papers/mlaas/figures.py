"""Figures: the idea on one GPU, errors of estimates, parts of GPUs, the oracle's gain."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.kit.draw import CYCLE, PALETTE, finish

MINUTES = {"B trains": 80, "A trains": 58, "A tests": 6, "B anew": 10}
"""Four jobs in the order in which they come, and how long each runs."""
ORDERS = {
    "as they come": ["B trains", "A trains", "A tests", "B anew"],
    "by group": ["A tests", "A trains", "B trains", "B anew"],
    "durations known": ["A tests", "B anew", "A trains", "B trains"],
}


def figure_idea() -> go.Figure:
    """One GPU, four jobs, and the order in which they run (our example)."""
    figure = go.Figure()
    rows = {}
    for way, jobs in ORDERS.items():
        ends = pd.Series([MINUTES[job] for job in jobs]).cumsum()
        rows[way] = f"{way}<br>mean end {ends.mean():.0f} min"
    for number, job in enumerate(MINUTES):
        starts = []
        for jobs in ORDERS.values():
            starts.append(sum(MINUTES[each] for each in jobs[: jobs.index(job)]))
        figure.add_bar(
            y=[*rows.values()],
            x=[MINUTES[job]] * len(rows),
            base=starts,
            orientation="h",
            name=job,
            marker={"color": CYCLE[number], "line": {"color": "white", "width": 2}},
        )
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(autorange="reversed", type="category")
    title = "What ran before says who is short; a rough order is enough"
    return finish(figure, title=title, x="minutes", y=" ", height=360)


def figure_errors(errors: pd.DataFrame) -> go.Figure:
    """By which factor estimates are off, for each share of the jobs.

    Args:
        errors: a row a share of the jobs, a column a way to estimate: the factor at most.
    """
    figure = go.Figure()
    for number, name in enumerate(errors):
        figure.add_scatter(
            x=[*errors.index],
            y=[*errors[name]],
            mode="lines",
            name=f"by {name}",
            line={"color": CYCLE[number], "dash": "dot" if "GPUs" in str(name) else "solid"},
        )
    figure.update_xaxes(tickformat=".0%")
    figure.update_yaxes(type="log", dtick=1)
    return finish(
        figure,
        title="For most jobs a group's past is a much better estimate than a user's",
        x="share of jobs",
        y="estimate is off by a factor of, at most",
        height=440,
    )


def figure_sharing(mean_h: pd.DataFrame) -> go.Figure:
    """Mean completion over GPUs, a column a kind of request (hours)."""
    figure = go.Figure()
    colors = [PALETTE["ours"], PALETTE["baseline"]]
    for name, color in zip(mean_h, colors, strict=True):
        figure.add_scatter(
            x=[*mean_h.index],
            y=[*mean_h[name]],
            mode="lines+markers",
            name=str(name),
            line={"color": color},
        )
    figure.update_yaxes(rangemode="tozero")
    title = "Parts of GPUs save GPUs where jobs wait"
    return finish(figure, title=title, x="GPUs", y="mean completion (h, simulated)", direct=True)


def figure_gains(gains: pd.DataFrame, readme: pd.Series, *, title: str) -> go.Figure:
    """The share of what known durations gain over FIFO that estimates get.

    Args:
        gains: a row a draw of the jobs, a column a way to estimate.
        readme: the same in the README of the released simulator, by way.
        title: what the figure shows.
    """
    ways = [*gains]
    middle = gains.mean()
    figure = go.Figure()
    figure.add_bar(
        x=ways,
        y=[*middle],
        name="ours: mean, and range, of the draws",
        marker_color=PALETTE["ours"],
        error_y={
            "type": "data",
            "array": [*(gains.max() - middle)],
            "arrayminus": [*(middle - gains.min())],
        },
    )
    figure.add_scatter(
        x=[way for way in ways if way in readme],
        y=[readme[way] for way in ways if way in readme],
        mode="markers",
        name="README, other jobs",
        marker={"symbol": "x", "size": 13, "color": PALETTE["paper"]},
    )
    lines = [
        ("durations known (bound)", 1.0, "bound"),
        ("first in, first out (baseline)", 0.0, "baseline"),
    ]
    for words, height, concept in lines:
        figure.add_scatter(
            x=ways,
            y=[height] * len(ways),
            mode="lines",
            line={"color": PALETTE[concept], "dash": "dot"},
            name=words,
            showlegend=False,
        )
        figure.add_annotation(
            x=0.5,
            xref="x domain",
            y=height,
            text=words,
            font={"color": PALETTE[concept]},
            yanchor="bottom" if height else "top",
            yshift=2 if height else -2,
            showarrow=False,
        )
    figure.update_xaxes(type="category")
    lowest = min(0.0, float(gains.min().min()))
    figure.update_yaxes(tickformat=".0%", range=[lowest - 0.12, 1.15])
    return finish(
        figure,
        title=title,
        x="durations estimated by",
        y="share of the gain of known durations",
        height=460,
    )
