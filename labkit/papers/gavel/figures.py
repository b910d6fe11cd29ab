"""Gavel's figures: the idea, speeds by GPU type, sizes of programs, completion times, makespan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.cluster.inputs.throughputs import Throughputs
from labkit.kit import draw
from labkit.kit.describe import checked
from labkit.papers.gavel.policies import MaxMin

COLORS = {
    "LAS": draw.PALETTE["baseline"],
    "Gavel": draw.PALETTE["ours"],
    "Gavel, sharing": draw.CYCLE[2],
    "AlloX": draw.CYCLE[3],
    "Gandiva": draw.CYCLE[4],
}
"""By policy, the same in each figure."""


def figure_idea(table: Throughputs, jobs: Sequence[str]) -> go.Figure:
    """An hour of one GPU of each type, split evenly among jobs, and as Gavel's program has it.

    Args:
        table: speeds of kinds of jobs.
        jobs: kinds, one job of each.

    Source: §4.1; our drawing.
    """
    speed = table.of(jobs)[0]
    equal = np.full(speed.shape, 1 / len(jobs))
    relative = speed / (speed * equal).sum(axis=1, keepdims=True)
    ones = np.ones(len(jobs), int)
    room = np.ones(len(table.gpu_types), int)
    slowest, best, _ = MaxMin(relative, ones, room).solve(ones.astype(float))
    panels = {
        "the same time: each job at speed 1.00": equal,
        f"Gavel's program: each at {slowest:.2f} or more": best,
    }
    gpus = [gpu.upper() for gpu in table.gpu_types]
    figure = make_subplots(cols=2, shared_yaxes=True, subplot_titles=[*panels])
    for column, share in enumerate(panels.values(), start=1):
        start = np.zeros(len(gpus))
        for number, job in enumerate(jobs):
            minutes = 60 * share[number]
            figure.add_bar(
                row=1,
                col=column,
                y=gpus,
                base=start.tolist(),
                x=minutes.tolist(),
                orientation="h",
                name=job,
                legendgroup=job,
                showlegend=column == 1,
                marker={"color": draw.CYCLE[number], "line": {"color": "white", "width": 2}},
            )
            start = start + minutes
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(range=[0, 60], dtick=20)
    title = "Who gains most from a fast GPU gets it, and everybody is faster"
    return draw.finish(figure, title=title, x="minutes of an hour", y="GPU", height=360)


@checked
def figure_speeds(table: Throughputs) -> go.Figure:
    """Speed of each kind of job on each GPU type over that on the last one, a row a model.

    Args:
        table: speeds; names of kinds begin with the model, larger batches come later.

    Source: Fig. 1, for all kinds that the authors measured.
    """
    over = table.alone / table.alone[:, -1:]
    models = [kind.partition(" (")[0] for kind in table.kinds]
    sizes = [9 + 4 * models[:number].count(model) for number, model in enumerate(models)]
    base = table.gpu_types[-1].upper()
    figure = go.Figure(layout_scattermode="group")
    figure.add_vline(1, line_dash="dot", annotation_text=f"as on a {base}")
    for gpu, speeds in zip(table.gpu_types[:-1], over.T, strict=False):
        figure.add_scatter(
            x=speeds.tolist(),
            y=models,
            text=[*table.kinds],
            name=gpu.upper(),
            mode="markers",
            marker={"size": sizes},
            orientation="h",
        )
    figure.update_xaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title="A V100 is ten K80s to some models, one to others (larger dots: larger batches)",
        x=f"speed over that on a {base}",
        y="model",
    )


def figure_programs(sizes: pd.DataFrame) -> go.Figure:
    """Variables of a program over the number of jobs.

    Args:
        sizes: a row a number of jobs (the index), a column a way of writing the program.
    """
    figure = go.Figure()
    for number, way in enumerate(sizes):
        figure.add_scatter(
            x=[*sizes.index],
            y=[*sizes[way]],
            name=str(way),
            line={"color": draw.CYCLE[number // 2], "dash": ["solid", "dash"][number % 2]},
        )
    figure.update_xaxes(type="log", tickvals=[*sizes.index])
    figure.update_yaxes(type="log", dtick=1)
    return draw.finish(
        figure,
        title="With a variable for each kind the program does not grow with the jobs",
        x="jobs",
        y="variables of the program",
        direct=True,
    )


def figure_makespan(
    ours_h: Mapping[str, float], authors_h: Mapping[str, float], *, gain: float
) -> go.Figure:
    """Hours until a crowd is done, by policy: the authors' simulation and ours.

    Args:
        ours_h: by policy.
        authors_h: by policy; one that they do not print has no bar.
        gain: the abstract's factor of Gandiva's over that of the last policy.
    """
    names = [*ours_h]
    figure = go.Figure()
    figure.add_bar(
        x=names,
        y=[authors_h.get(name) for name in names],
        name="authors, simulated",
        marker_color=draw.PALETTE["paper"],
    )
    figure.add_bar(
        x=names, y=[*ours_h.values()], name="ours, simulated", marker_color=draw.PALETTE["ours"]
    )
    figure.update_layout(barmode="group")
    figure.add_annotation(
        x=names[-1],
        y=max(ours_h[names[-1]], authors_h[names[-1]]),
        yshift=26,
        text=f"abstract: {gain:g} times<br>sooner than Gandiva",
        font={"color": draw.PALETTE["paper"]},
        showarrow=False,
    )
    return draw.finish(
        figure,
        title="All jobs end soonest if the program asks for just that",
        x="policy",
        y="makespan (h)",
    )


def figure_completion(
    printed: pd.DataFrame,
    ours: pd.DataFrame,
    policies: Sequence[str],
    *,
    bound_h: float,
    gain: float,
    title: str,
) -> go.Figure:
    """Mean completion time over load: the authors' lines and our markers.

    Args:
        printed: the authors' ``policy``, ``jobs_per_hour`` and ``mean_jct_h``.
        ours: ``policy``, ``jobs_per_hour``, ``seed`` and ``mean_h``; the marker is seed 0, its bar
            the range over seeds.
        policies: to draw.
        bound_h: what no policy beats.
        gain: the abstract's factor of LAS over Gavel, drawn at the largest load.
        title: what the figure shows.
    """
    figure = go.Figure()
    for policy in policies:
        color = COLORS[policy]
        line = printed[(printed["policy"] == policy) & printed["jobs_per_hour"].between(2, 5.6)]
        figure.add_scatter(
            x=[*line["jobs_per_hour"]],
            y=[*line["mean_jct_h"]],
            name=policy,
            mode="lines",
            line={"color": color},
        )
        _add_markers(figure, ours[ours["policy"] == policy], color)
    figure.add_scatter(
        x=[2, 5.6],
        y=[bound_h, bound_h],
        name="bound: alone, fastest GPU",
        mode="lines",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    _add_gain(figure, printed, gain)
    ticks = [10, 20, 30, 50, 100]
    figure.update_yaxes(type="log", tickvals=ticks, range=[np.log10(9), np.log10(140)])
    figure.update_xaxes(range=[1.9, 5.8])
    figure.add_annotation(
        text="lines: paper, Fig. 8 (authors' simulation)<br>diamonds: ours; bars: range over seeds",
        x=2,
        y=np.log10(110),
        xanchor="left",
        align="left",
        showarrow=False,
    )
    done = draw.finish(
        figure,
        title=title,
        x="jobs an hour",
        y="mean completion time (h, simulated)",
        height=520,
    )
    return _label_lines(done)


def _add_markers(figure: go.Figure, rows: pd.DataFrame, color: str) -> None:
    """Our mean of seed 0 at each load, with the range over seeds."""
    by_load = rows.pivot_table(index="jobs_per_hour", columns="seed", values="mean_h")
    if by_load.empty:
        return
    first = by_load[0]
    figure.add_scatter(
        x=[*by_load.index],
        y=[*first],
        mode="markers",
        showlegend=False,
        marker={"color": color, "size": 12, "symbol": "diamond"},
        error_y={
            "array": [*(by_load.max(axis=1) - first)],
            "arrayminus": [*(first - by_load.min(axis=1))],
        },
    )


def _add_gain(figure: go.Figure, printed: pd.DataFrame, gain: float) -> None:
    """The abstract's factor, as an arrow down from the LAS line at the largest load."""
    las = printed[(printed["policy"] == "LAS") & (printed["jobs_per_hour"] <= 5.6)]
    top_h = float(las["mean_jct_h"].iloc[-1])
    x = float(las["jobs_per_hour"].iloc[-1])
    color = draw.PALETTE["paper"]
    figure.add_annotation(
        x=x,
        y=np.log10(top_h / gain),
        ax=x,
        ay=np.log10(top_h),
        axref="x",
        ayref="y",
        xshift=-12,
        text="",
        arrowcolor=color,
        arrowwidth=2,
        arrowhead=2,
    )
    figure.add_annotation(
        x=x,
        y=np.log10(top_h / np.sqrt(gain)),
        xshift=-18,
        xanchor="right",
        text=f"abstract: {gain:g} times",
        font={"color": color},
        bgcolor=draw.VEIL,
        showarrow=False,
    )


def _label_lines(figure: go.Figure) -> go.Figure:
    """Write the lines' names at their ends, a little apart."""
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    lines.sort(key=lambda trace: trace.y[-1])
    below = 0.0
    for trace in lines:
        place = max(np.log10(trace.y[-1]), below + 0.055)
        below = place
        figure.add_annotation(
            x=trace.x[-1],
            y=round(float(place), 4),
            xshift=12,
            xanchor="left",
            text=trace.name,
            font={"color": trace.line.color},
            showarrow=False,
        )
    figure.update_layout(showlegend=False, margin_r=230)
    return figure


def figure_gains(gains: Mapping[str, float], *, paper_gain: float, title: str) -> go.Figure:
    """How many times longer LAS takes than Gavel, a bar a draw of the jobs.

    Args:
        gains: by draw.
        paper_gain: the abstract's.
        title: what the figure shows.
    """
    figure = go.Figure(
        go.Bar(x=[*gains], y=[*gains.values()], marker_color=draw.PALETTE["ours"], width=0.5)
    )
    figure.add_hline(
        y=paper_gain,
        line_color=draw.PALETTE["paper"],
        annotation_text=f"paper: {paper_gain:g} times (abstract)",
        annotation_position="top left",
    )
    figure.update_yaxes(range=[0, 5])
    return draw.finish(
        figure, title=title, x="draw of the jobs", y="mean of LAS over Gavel's (simulated)"
    )
