"""Hare's figures: the idea, speeds of kinds of jobs, who runs where, gains over the best gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.hare.rounds import Rounds
from labkit.papers.hare.schedules import Tasks, schedule

COLORS = {
    "relaxed": draw.PALETTE["ours"],
    "relaxed, by area": draw.CYCLE[5],
    "gangs by round": draw.CYCLE[4],
    "gangs by round, Hare's order": draw.CYCLE[3],
}
"""By way, the same in each figure; gangs that keep their GPUs are the baselines, in grey."""


def figure_idea() -> go.Figure:
    """Two jobs on a fast and a slow GPU, as gangs and relaxed.

    Source: our drawing, with made-up times: job A has two tasks a round, which the slow GPU runs
    at a third of the speed; job B has one, and hardly cares.
    """
    jobs = Rounds(
        arrival_s=[0, 0],
        weight=[1, 1],
        rounds=[3, 3],
        tasks=[2, 1],
        task_s=[[1.0, 3.0], [1.5, 2.0]],
        sync_s=[0, 0],
    )
    runs = {
        "gangs: A waits for its slow half": schedule(jobs, "gang", order="arrival"),
        "relaxed: A runs in turn on the fast GPU": schedule(jobs, order="arrival"),
    }
    title = "One fast GPU may run a round's tasks in turn while the slow one serves others"
    return figure_schedule(runs, ["fast", "slow"], jobs=["job A", "job B"], title=title)


def figure_schedule(
    runs: Mapping[str, Tasks], gpus: Sequence[str], *, jobs: Sequence[str], title: str
) -> go.Figure:
    """Who runs where, a panel a schedule.

    Args:
        runs: by what the panel is called.
        gpus, jobs: their names.
        title: what the figure shows.
    """
    figure = make_subplots(
        rows=len(runs), shared_xaxes=True, subplot_titles=[*runs], vertical_spacing=0.18
    )
    for row, run in enumerate(runs.values(), start=1):
        for number, name in enumerate(jobs):
            own = run.log[run.log[:, 0] == number]
            figure.add_bar(
                row=row,
                col=1,
                y=[gpus[int(gpu)] for gpu in own[:, 1]],
                base=own[:, 2].round(2).tolist(),
                x=(own[:, 3] - own[:, 2]).round(2).tolist(),
                orientation="h",
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                marker={"color": draw.CYCLE[number], "line": {"color": "white", "width": 1.5}},
            )
    figure.update_layout(barmode="overlay", bargap=0.3)
    order = {"categoryorder": "array", "categoryarray": [*gpus], "autorange": "reversed"}
    figure.update_yaxes(type="category", **order)
    return draw.finish(figure, title=title, x="time (s)", y="GPU", height=460)


def figure_speeds(steps_per_s: ArrayLike, gpus: Sequence[str]) -> go.Figure:
    """Steps a second of kinds of jobs over those on the first type, in order of the second.

    Args:
        steps_per_s: a row a kind, a column a type.
        gpus: names of the types.
    """
    rates = np.asarray(steps_per_s)
    relative = rates[:, 1:] / rates[:, :1]
    relative = relative[np.argsort(relative[:, 0], kind="stable")]
    figure = go.Figure()
    for number, name in enumerate(gpus[1:]):
        figure.add_scatter(
            x=[*range(1, len(rates) + 1)],
            y=relative[:, number].tolist(),
            mode="markers",
            name=name,
            marker={"color": draw.CYCLE[2 + number], "size": 10},
        )
    figure.add_hline(1, line_dash="dot")
    figure.add_annotation(  # a logarithmic axis wants the exponent
        x=1, y=0, xanchor="left", yanchor="bottom", showarrow=False, text=f"as fast as a {gpus[0]}"
    )
    figure.update_yaxes(type="log", tickvals=[0.1, 0.2, 0.5, 1, 2])
    return draw.finish(
        figure,
        title="For some kinds an older GPU is as good, for others ten are not",
        x="kind of job, from the one that needs a V100 most",
        y=f"speed over a {gpus[0]}'s",
    )


def figure_gains(
    gains: Mapping[str, pd.DataFrame], ways: Sequence[str], *, paper_gain: float, title: str
) -> go.Figure:
    """How many times sooner jobs end than with the best gang, by way and cluster.

    Args:
        gains: by cluster, as :meth:`labkit.papers.hare.Draws.gains` returns them.
        ways: columns of them, in order.
        paper_gain: the abstract's.
        title: what the figure shows.
    """
    figure = go.Figure()
    shown = [*ways, "bound"]
    symbols = ["circle", "diamond"]
    for number, (cluster, by_seed) in enumerate(gains.items()):
        middle = by_seed[shown].median()
        colors = [
            draw.PALETTE["bound"] if way == "bound" else COLORS.get(way, draw.PALETTE["baseline"])
            for way in shown
        ]
        shift = 0.2 * (number - (len(gains) - 1) / 2)
        figure.add_scatter(
            x=[place + shift for place in range(len(shown))],
            y=[*middle],
            mode="markers",
            name=cluster,
            marker={"color": colors, "size": 13, "symbol": symbols[number]},
            error_y={
                "array": [*(by_seed[shown].max() - middle)],
                "arrayminus": [*(middle - by_seed[shown].min())],
                "color": draw.PALETTE["muted"],
            },
        )
    color = draw.PALETTE["paper"]
    figure.add_hline(
        paper_gain,
        line_dash="dash",
        line_color=color,
        annotation={"text": f"paper: about {paper_gain:g}", "font": {"color": color}},
        annotation_position="top left",
    )
    figure.add_hline(
        1,
        line_dash="dot",
        line_color=draw.PALETTE["baseline"],
        annotation_text="best gang",
        annotation_position="bottom left",
    )
    names = ["Hare: relaxed" if way == "relaxed" else way for way in shown]
    words = [name.replace(", ", ",<br>") for name in names]
    figure.update_xaxes(tickvals=[*range(len(shown))], ticktext=words)
    figure.update_xaxes(range=[-0.6, len(shown) - 0.4])
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title=title,
        x="way of running rounds (bar: range over seeds)",
        y="times sooner than the best gang (simulated)",
        height=500,
    )
