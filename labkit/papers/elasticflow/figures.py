"""ElasticFlow's figures: the idea, how jobs scale, what each part brings, deadlines met."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.cluster.inputs.rates import Rates
from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, finish

IDEA_DEADLINE_H = 4
IDEA = {
    "earliest deadline first, each on all GPUs": {
        "A": (0, 2, 0, 4),
        "B": (2, 4, 0, 4),
        "C": (4, 7, 0, 4),
    },
    "each on the fewest that will do": {
        "A": (0, 4, 0, 1),
        "B": (0, 4, 1, 2),
        "C": (0, 4, 2, 4),
    },
}
"""By way and job: from and to in hours, from and to in GPUs. A and B are four hours of work on one
GPU each, C is six; two GPUs are 1.5 times as fast as one, four GPUs twice."""


def figure_idea() -> go.Figure:
    """Three jobs on four GPUs, by earliest deadline on all of them and each on the fewest."""
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=[*IDEA])
    for column, jobs in enumerate(IDEA.values(), start=1):
        for number, (job, (start, end, lowest, highest)) in enumerate(jobs.items()):
            figure.add_scatter(
                x=[start, end, end, start, start],
                y=[lowest, lowest, highest, highest, lowest],
                fill="toself",
                mode="lines",
                line={"color": "white", "width": 3},
                fillcolor=CYCLE[number],
                showlegend=False,
                name=f"job {job}",
                row=1,
                col=column,
            )
            late = " (late)" if end > IDEA_DEADLINE_H else ""
            figure.add_annotation(
                x=(start + end) / 2,
                y=(lowest + highest) / 2,
                text=f"{job}{late}",
                showarrow=False,
                font={"color": "white", "size": 18},
                row=1,
                col=column,
            )
        figure.add_scatter(
            x=[IDEA_DEADLINE_H, IDEA_DEADLINE_H],
            y=[0, 4.4],
            mode="lines+text",
            text=["", "everybody's deadline"],
            textposition="middle right" if column == 1 else "middle left",
            line={"color": PALETTE["bound"], "dash": "dot"},
            name="everybody's deadline",
            showlegend=False,
            row=1,
            col=column,
        )
    figure.update_xaxes(range=[0, 7.2], dtick=1)
    figure.update_yaxes(range=[0, 4.7], dtick=1)
    title = "The same three jobs: 28 GPU-hours and one late, or 16 and all in time"
    return finish(figure, title=title, x="hours", y="GPUs", height=380)


@checked
def figure_scaling(rates: Rates, *, title: str = "") -> go.Figure:
    """Work of a GPU-second over that on the fewest GPUs, by GPUs of a job, a line a kind.

    Of kinds that differ in the last part of ``a/b/c`` alone, the first is drawn.
    """
    figure = go.Figure()
    gpus = np.array(rates.gpus)
    drawn = set[str]()
    for kind, row in zip(rates.kinds, rates.work_per_s, strict=True):
        name = kind.rsplit("/", 1)[0]
        runs = row > 0
        if name in drawn or not runs.any():
            continue
        work_per_gpu_s = row[runs] / gpus[runs]
        dash = "dash" if len(drawn) >= len(CYCLE) else "solid"
        figure.add_scatter(
            x=gpus[runs],
            y=np.round(work_per_gpu_s / work_per_gpu_s[0], 4),
            name=name.replace("/", ", batch "),
            line={"color": CYCLE[len(drawn) % len(CYCLE)], "dash": dash},
        )
        drawn.add(name)
    figure.update_xaxes(type="log", tickvals=gpus)
    figure.update_yaxes(rangemode="tozero")
    return finish(
        figure, title=title, x="GPUs of a job", y="work of a GPU-second, over one GPU's", height=460
    )


def figure_sizes(counts: pd.DataFrame) -> go.Figure:
    """How many jobs have each number of GPUs; a row a number, a column a way to choose it."""
    figure = go.Figure()
    concepts = ["bound", "ours", "baseline"]
    for name, concept in zip(counts, concepts, strict=True):
        figure.add_bar(
            x=[str(size) for size in counts.index],
            y=[*counts[name]],
            name=str(name),
            marker_color=PALETTE[concept],
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    title = "Deadlines need few GPUs; the largest sizes take many"
    return finish(figure, title=title, x="GPUs of a job", y="jobs")


def figure_in_time(shares: pd.DataFrame, *, bound: float, jobs: int, title: str) -> go.Figure:
    """Shares of jobs that end by their deadlines, bars side by side.

    Args:
        shares: a row a policy; columns ``paper``, ``in time`` and ``or a slot late``, NaN where
            there is none.
        bound: the share that no policy can beat.
        jobs: how many there are.
        title: what the figure shows.
    """
    looks = {
        "paper": ("paper", PALETTE["paper"]),
        "in time": ("simulated, in time", PALETTE["ours"]),
        "or a slot late": ("simulated, in time or at most a slot late", PALETTE["explore"]),
    }
    figure = go.Figure()
    names = [name.replace(", ", ",<br>") for name in shares.index]
    for column, (name, color) in looks.items():
        values = shares[column]
        figure.add_bar(
            x=names,
            y=[*values],
            name=name,
            marker_color=color,
            text=["" if np.isnan(value) else f"{100 * value:.0f}" for value in values],
            textposition="outside",
        )
    _dotted_line(figure, names, bound, f"bound, no policy has more: {100 * bound:.0f} %")
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    return finish(figure, title=title, x=" ", y=f"jobs in time, of {jobs}", height=480)


def _dotted_line(figure: go.Figure, names: list[str], height: float, words: str) -> None:
    figure.add_scatter(
        x=names,
        y=[height] * len(names),
        mode="lines+text",
        text=["", words, *[""] * (len(names) - 2)],
        textposition="top center",
        name=words,
        showlegend=False,
        line={"color": PALETTE["bound"], "dash": "dot"},
    )


def figure_parts(
    parts: pd.DataFrame, paper: pd.DataFrame, same: Mapping[str, str], *, title: str
) -> go.Figure:
    """Jobs in time by GPUs, a line a policy, beside the paper's points for other jobs.

    Args:
        parts: a row a number of GPUs, a column a policy; ``bound``, where it is one, is dotted.
        paper: the same for the paper's points.
        same: by column of ``paper``, that of ``parts`` which does the same.
        title: what the figure shows.
    """
    figure = go.Figure()
    colors = dict(zip(parts, CYCLE, strict=False)) | {"bound": PALETTE["bound"]}
    for name in parts:
        figure.add_scatter(
            x=[*parts.index],
            y=[*parts[name]],
            mode="lines+markers",
            name=str(name),
            line={"color": colors[name], "dash": "dot" if name == "bound" else "solid"},
        )
    for column, name in same.items():
        figure.add_scatter(
            x=[*paper.index],
            y=[*paper[column]],
            mode="markers",
            name=f"paper: {column}",
            showlegend=False,
            marker={"color": colors[name], "symbol": "x", "size": 11},
        )
    grey = {"color": PALETTE["baseline"], "symbol": "x", "size": 11}
    figure.add_scatter(
        x=[None], y=[None], mode="markers", name="paper, in the colour of its line", marker=grey
    )
    ticks = [*parts.index]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[*map(str, ticks)])
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    return finish(figure, title=title, x="GPUs", y="jobs in time", height=520)
