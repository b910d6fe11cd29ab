"""Optimus's figures: what a task saves, speeds by division, forecasts, gains over even pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.optimus.experiment import MIXES, Experiment, Method
from labkit.papers.optimus.servers import ServerSpeed, Split

COLORS = {
    Method.GAINS: draw.PALETTE["ours"],
    Method.BEST: draw.CYCLE[2],
    Method.STOPS: draw.CYCLE[5],
    Method.PAIRS: draw.PALETTE["baseline"],
}
_PAPER = draw.PALETTE["paper"]


def figure_idea(laws: Mapping[str, ServerSpeed], most: int = 24) -> go.Figure:
    """Time of a training over the number of its tasks, divided best and in even pairs.

    Args:
        laws: by network; one colour each.
        most: tasks that are shown.

    Source: §2 and §4.1; our drawing.
    """
    figure = go.Figure()
    tasks = np.arange(2, most + 1)
    ways: dict[Split, tuple[str, str]] = {
        "best": ("solid", "divided best"),
        "even": ("dot", "in pairs"),
    }
    for color, (network, law) in zip(draw.CYCLE, laws.items(), strict=False):
        alone_s = float(law.step_s(1, 1))
        for split, (dash, words) in ways.items():
            share = law.by_tasks(most, split)[1:] / alone_s
            known = np.isfinite(share)
            figure.add_scatter(
                x=tasks[known],
                y=share[known],
                mode="lines+markers",
                marker={"size": 5},
                name=f"{network}, {words}",
                line={"color": color, "dash": dash},
            )
    figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    return draw.finish(
        figure,
        title="One more task saves what the line falls: it depends on job, number and division",
        x="workers and servers of the job",
        y="time left, over one of each",
        height=460,
    )


def figure_speeds(laws: Mapping[str, ServerSpeed], *, num_tasks: int, paper: int) -> go.Figure:
    """Speed of a number of tasks by how many of them are workers.

    Args:
        laws: by network.
        num_tasks: workers and servers together.
        paper: the fastest number of workers of ResNet-50 in the paper.
    """
    workers = np.arange(1, num_tasks)
    figure = go.Figure()
    for name, law in laws.items():
        speed = law.step_s(1, 1) / law.step_s(workers, num_tasks - workers)
        figure.add_scatter(x=workers, y=speed, mode="lines", name=name)
    figure.add_vline(
        x=paper,
        line={"dash": "dot", "color": _PAPER},
        annotation_text="paper: ResNet-50 fastest here",
        annotation_position="bottom right",
        annotation_font_color=_PAPER,
    )
    return draw.finish(
        figure,
        title=f"{num_tasks} tasks: each network has another best division",
        x=f"workers of {num_tasks} tasks",
        y="speed, over one of each",
        direct=True,
    )


def figure_forecasts(
    shares: Sequence[float], errors: Mapping[str, Sequence[float]], *, paper: float
) -> go.Figure:
    """Median error of the predicted end, by the share of training that is done."""
    figure = go.Figure()
    for color, (name, values) in zip(draw.CYCLE, errors.items(), strict=False):
        figure.add_scatter(
            x=shares, y=values, name=name, mode="lines+markers", line={"color": color}
        )
    figure.add_hline(
        y=paper,
        line={"dash": "dot", "color": _PAPER},
        annotation_text="paper: at most (unverified)",
        annotation_position="top right",
        annotation_font_color=_PAPER,
    )
    figure.update_xaxes(tickformat=".0%").update_yaxes(tickformat=".0%", rangemode="tozero")
    return draw.finish(
        figure,
        title="The 1/k law forecasts one learning rate well, and not one that drops",
        x="share of training done",
        y="median error of the end",
    )


def figure_gains(
    experiment: Experiment, methods: Sequence[Method], *, paper: float, title: str
) -> go.Figure:
    """Completion time of even pairs over each method's, by which networks train.

    Args:
        experiment: whose draws are averaged; whiskers show their range.
        methods: a bar each.
        paper: the paper's gain of Optimus.
        title: what the figure shows.
    """
    figure = go.Figure()
    mixes = [*MIXES]
    places = np.arange(len(mixes))
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        gains = np.array([experiment.gain(method, mix=mix)["completion"] for mix in mixes])
        by_draw = [experiment.gains_by_draw(method, mix) for mix in mixes]
        figure.add_bar(
            x=places + (number - (len(methods) - 1) / 2) * width,
            y=gains,
            width=0.9 * width,
            name=str(method),
            marker_color=COLORS[method],
            error_y={
                "type": "data",
                "array": np.maximum(np.max(by_draw, axis=1) - gains, 0),
                "arrayminus": np.maximum(gains - np.min(by_draw, axis=1), 0),
            },
        )
    figure.add_scatter(
        x=places,
        y=[experiment.best_gain(mix) for mix in mixes],
        name="bound: no division is faster",
        mode="markers",
        marker={
            "color": draw.PALETTE["bound"],
            "symbol": "line-ew-open",
            "size": 40,
            "line": {"width": 3},
        },
    )
    pairs = draw.PALETTE["baseline"]
    for height, words, color in (
        (paper, f"paper, Optimus: {paper:g}", _PAPER),
        (1.0, "pairs", pairs),
    ):
        figure.add_hline(
            y=height,
            line={"dash": "dot", "color": color},
            annotation_text=words,
            annotation_position="top right",
            annotation_font_color=color,
            annotation_bgcolor=draw.VEIL,
        )
    figure.update_xaxes(tickvals=places, ticktext=mixes)
    return draw.finish(
        figure,
        title=title,
        x="networks that the nine jobs train",
        y="times as fast as in pairs",
        height=460,
    )
