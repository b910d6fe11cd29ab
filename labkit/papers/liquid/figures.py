"""Liquid's figures: one job on two racks, errors of estimates, gains of ways to place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import ArrayLike
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.liquid.experiment import Experiment
from labkit.papers.liquid.placing import Way, place
from labkit.papers.liquid.racks import Racks

COLORS = {
    Way.RANDOM: draw.CYCLE[4],
    Way.SPREAD: draw.CYCLE[3],
    Way.PACK: draw.PALETTE["baseline"],
    Way.FEWEST_NODES: draw.CYCLE[5],
    Way.BEST_FIT: draw.PALETTE["ours"],
}
_PAPER = draw.PALETTE["paper"]


def figure_idea(racks: Racks, free: ArrayLike, gpus: int, ways: Sequence[Way]) -> go.Figure:
    """Which GPUs one job gets, and how often its model crosses the busiest link in a step.

    Args:
        racks: the nodes.
        free: GPUs that are free, by node.
        gpus: of the job.
        ways: of placing, a panel each.

    Source: §4; our drawing.
    """
    left = np.asarray(free)
    nodes = np.arange(left.size)
    placed = {way: place(racks, left, gpus, way) for way in ways}
    titles = []
    for way, held in placed.items():
        links = racks.traffic(held) * racks.node_bytes_per_s / racks.rate
        titles.append(f"{way}: the busiest link carries {links.max():g} models each way")
    figure = make_subplots(rows=len(ways), cols=1, subplot_titles=titles, shared_xaxes=True)
    for row, held in enumerate(placed.values(), start=1):
        parts = {
            "others' GPUs": (racks.gpus - left, draw.PALETTE["idle"]),
            "this job's workers": (held, draw.PALETTE["ours"]),
            "free": (left - held, "white"),
        }
        for name, (counts, color) in parts.items():
            figure.add_bar(
                x=nodes,
                y=counts,
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                marker={"color": color, "line": {"color": draw.PALETTE["muted"], "width": 1}},
                row=row,
                col=1,
            )
        for rack in range(1, racks.racks):
            border = {"color": draw.PALETTE["bound"], "dash": "dash"}
            figure.add_vline(x=rack * racks.nodes - 0.5, line=border, row=row, col=1)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(tickvals=nodes).update_yaxes(tickvals=[0, 2, 4])
    title = f"A job of {gpus} GPUs: fewer nodes, one rack, less traffic (dashed: two racks)"
    figure = draw.finish(figure, title=title, x="node", y="GPUs", height=200 + 160 * len(ways))
    for row in range(1, len(ways)):
        figure.update_xaxes(title="", row=row, col=1)
    return figure


def figure_errors(errors: pd.DataFrame) -> go.Figure:
    """Mean relative error of each regressor, a bar for what it has not learnt from."""
    figure = go.Figure()
    for name in errors:
        figure.add_bar(x=[*errors.index], y=[*errors[name]], name=f"new {name}")
    figure.update_layout(barmode="group").update_yaxes(tickformat=".0%")
    return draw.finish(
        figure,
        title="The error depends on what is new more than on the regressor",
        x="regressor",
        y="mean relative error",
    )


def figure_gains(
    experiment: Experiment,
    ways: Sequence[Way],
    *,
    paper: Mapping[str, float],
    title: str,
) -> go.Figure:
    """What ways of placing gain over the better of spreading and packing; whiskers: all draws.

    Args:
        experiment: whose draws are taken; bars are their medians.
        ways: a bar each.
        paper: the gains in the abstract, ``execution`` and ``completion``.
        title: what the figure shows.
    """
    words = {"execution": "execution speed gained", "completion": "completion time saved"}
    figure = go.Figure()
    places = np.arange(len(words))
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        gains = experiment.gains(way)[[*words]]
        median = gains.median()
        figure.add_bar(
            x=places + (number - (len(ways) - 1) / 2) * width,
            y=median,
            width=0.9 * width,
            name=str(way),
            marker_color=COLORS[way],
            error_y={
                "type": "data",
                "array": gains.max() - median,
                "arrayminus": median - gains.min(),
            },
        )
    bound = experiment.gains("computing").median()
    bound_gain = {measure: float(bound[measure]) for measure in words}
    limits: dict[str, tuple[Mapping[str, float], str]] = {
        "paper": (paper, _PAPER),
        "no network (bound)": (bound_gain, draw.PALETTE["bound"]),
    }
    for name, (gain_of, color) in limits.items():
        heights = [float(gain_of[measure]) for measure in words]
        marker = {"symbol": "line-ew-open", "size": 120, "color": color, "line": {"width": 3}}
        figure.add_scatter(x=places, y=heights, name=name, mode="markers", marker=marker)
    figure.add_hline(
        y=0,
        line={"color": draw.PALETTE["baseline"]},
        annotation_text="better of spreading and packing",
        annotation_position="bottom right",
        annotation_font_color=draw.PALETTE["baseline"],
    )
    figure.update_xaxes(tickvals=places, ticktext=[*words.values()])
    figure.update_yaxes(tickformat=".0%")
    return draw.finish(figure, title=title, x=" ", y="over spreading or packing", height=460)
