"""Zeus's figures: the idea on a map of one job, what could be saved, what is saved, regret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from labkit.kit.draw import PALETTE, finish, go
from labkit.papers.zeus.tables import SAVED
from labkit.tuning import Job, best_power_limits, outcomes
from labkit.tuning.figures import figure_lines, figure_map
from labkit.tuning.figures.configuration_figures import wrapped
from labkit.tuning.figures.policy_figures import POLICY_COLOUR, regret_lines

LEAST_REGRET = 0.1  # runs of the optimum; less is drawn as this on a logarithmic axis
POLICY_WORDS = {
    "zeus": "Zeus",
    "grid": "grid search with pruning",
    "tuned-power": "the power limit alone",
    "halving": "successive halving",
    "random": "a random order",
    "default": "never tuning",
    "oracle": "oracle: least cost, known beforehand",
}
"""Policies of ``labkit.tuning`` by what the figures call them."""
_LABEL_PLACES = {
    "BERT, Sentiment140": "top right",
    "ResNet-50, ImageNet": "middle left",
    "ShuffleNet-v2, CIFAR-100": "bottom left",
}
"""Where names stand that would cover each other, or a line of the paper's, on the right of their
points.
"""


def figure_idea(job: Job, *, eta: float = 0.5) -> go.Figure:
    """The cost of every configuration of a job, and the limit that one epoch chooses.

    Args:
        job: its configurations are the cells.
        eta: weight of energy against time in the cost.
    """
    table = outcomes(job, eta=eta)
    title = f"{job.title}: one epoch finds the best cell of a column"
    figure = figure_map(table, value="cost_j", title=title)
    figure.add_scatter(
        x=[*range(len(job.batch_sizes))],
        y=best_power_limits(job, eta),
        mode="markers",
        name="limit chosen within one epoch",
        marker={
            "symbol": "square-open",
            "size": 32,
            "color": PALETTE["stopped"],
            "line": {"width": 3},
        },
    )
    figure.data[0].colorbar.title.text = "cost ÷ default's"
    return finish(figure, height=470)


def figure_potential(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Energy left of the default when one knob or both are set in hindsight.

    ``table`` is :func:`potential_savings`'s.
    """
    series = {
        "power limit only": ("power_only_fraction", PALETTE["power"]),
        "batch size only": ("batch_only_fraction", PALETTE["time"]),
        "both": ("both_fraction", PALETTE["energy"]),
    }
    fig = go.Figure()
    for name, (column, colour) in series.items():
        left = 1 - table[column]
        fig.add_bar(
            x=wrapped(table["workload"]),
            y=left,
            name=name,
            marker_color=colour,
            text=[f"{v:.2f}" for v in left],
            textposition="inside",
            insidetextanchor="end",
            textangle=0,
            textfont={"size": 13, "color": "white"},
        )
    fig.add_hline(y=1, line={"dash": "dash", "color": PALETTE["baseline"], "width": 1.5})
    fig.update_layout(barmode="group", bargap=0.25)
    fig.update_yaxes(range=[0, 1.05])
    return finish(fig, title=title, y="energy to accuracy (default = 1)", height=440)


def figure_batch_curves(curves: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Cost of each batch size at its best limit, relative to the least (:func:`batch_curves`)."""
    return figure_lines(
        curves,
        x="relative_batch_size",
        y="relative_cost",
        by="workload",
        x_title="batch size ÷ b0",
        y_title="cost ÷ least cost",
        title=title,
        powers_of_two=True,
        y_range=(0.8, 4),
    )


def figure_regret_bands(bands: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Mean cumulative regret with its 95 % interval over seeds, one band a policy.

    Regret is in runs of the optimum: 5 means that learning has cost what five runs at the best
    configuration cost. The scale is logarithmic.

    Args:
        bands: :func:`regret_bands` of one workload.
    """
    bands = bands.assign(**bands.filter(like="regret").clip(lower=LEAST_REGRET))
    tables = {}
    colours = {}
    for policy, rows in bands.groupby("policy", sort=False):
        name = POLICY_WORDS.get(str(policy), str(policy))
        tables[name] = rows
        if policy in POLICY_COLOUR:
            colours[name] = POLICY_COLOUR[str(policy)]
    ticks = [digit * 10.0**k for k in range(-1, 5) for digit in (1, 3)]
    axis = {"type": "log", "tickvals": ticks}
    y_title = "regret (runs of the optimum)"
    return regret_lines(tables, title=title, y_title=y_title, colours=colours, **axis)


def figure_steps(regret: Mapping[str, float], *, title: str) -> go.Figure:
    """What each step of the mechanism wastes, as bars on a logarithmic axis.

    Args:
        regret: by step, cumulative regret in runs of the optimum.
        title: what the figure shows.
    """
    names = [name.replace(", ", ",<br>") for name in regret]
    values = [max(value, LEAST_REGRET) for value in regret.values()]
    colours = [PALETTE["baseline"]] + [PALETTE["ours"]] * (len(names) - 1)
    text = [f"{value:.3g}" for value in regret.values()]
    bars = go.Bar(x=names, y=values, text=text, textposition="outside", marker_color=colours)
    figure = go.Figure(bars)
    figure.update_yaxes(type="log", range=[0, np.log10(max(values)) + 0.25], dtick=1)
    y = "regret over all recurrences<br>(runs of the optimum)"
    return finish(
        figure, title=title, x="way to search (each adds a change to the one on its left)", y=y
    )


def figure_headline(
    chosen: str,
    points: Mapping[str, pd.DataFrame],
    *,
    energy: tuple[float, float],
    time: float,
    title: str,
) -> go.Figure:
    """Energy and time saved, a point a workload, for a policy and what it is compared with.

    Args:
        chosen: the policy whose points are named and have intervals, where its table has them.
        points: by name, columns workload, energy_reduction, time_reduction (fractions).
        energy: the least and the most energy saved that the paper reports.
        time: the most time saved that the paper reports.
        title: what the figure shows.
    """
    looks = {
        "bound: least energy in hindsight": ("star", PALETTE["bound"], 11),
        POLICY_WORDS["grid"]: ("square-open", PALETTE["baseline"], 15),
    }
    ours = ("circle", PALETTE["ours"], 13)
    figure = go.Figure()
    for name, table in points.items():
        is_chosen = name == chosen
        symbol, colour, size = ours if is_chosen else looks.get(name, ours)
        style: dict[str, Any] = {"mode": "markers"}
        if is_chosen:
            style = {"mode": "markers+text"}
            style["text"] = [f"    {each}    " for each in table["workload"]]
            places = [_LABEL_PLACES.get(each, "middle right") for each in table["workload"]]
            style["textposition"] = places
            style |= _intervals(table)
        figure.add_scatter(
            x=100 * table["time_reduction"],
            y=100 * table["energy_reduction"],
            name=name,
            marker={"symbol": symbol, "color": colour, "size": size, "line": {"width": 2}},
            **style,
        )
    figure.add_traces(_connections(points[chosen], [*points.values()]))
    line = {"color": PALETTE["paper"], "width": 2}
    look = {"annotation_font": {"color": PALETTE["paper"]}, "line": line}
    for share, word, side in zip(energy, ("least", "most"), ("right", "left"), strict=True):
        words = f"paper, {word} energy saved: {share:.1%}"
        place = f"top {side}"
        figure.add_hline(100 * share, annotation_text=words, annotation_position=place, **look)
    words = f"paper, most time saved: {time:.1%}"
    place = "bottom left"
    figure.add_vline(100 * time, annotation_text=words, annotation_position=place, **look)
    cross = {"symbol": "x", "size": 12, "color": PALETTE["muted"]}
    figure.add_scatter(x=[0], y=[0], mode="markers", name="baseline", marker=cross)
    figure.update_xaxes(range=[-46, 106])
    figure.update_yaxes(range=[-6, 88])
    x = "training time saved (%); negative: takes longer"
    return finish(figure, title=title, x=x, y="energy saved (%)", height=560)


def _connections(chosen: pd.DataFrame, others: list[pd.DataFrame]) -> go.Scatter:
    """A thin line from each workload's point to its other points."""
    ends = pd.concat(
        [chosen.merge(table, on="workload", suffixes=("", "_end")) for table in others]
    )
    gap = np.full(len(ends), np.nan)
    y, x = (100 * np.column_stack([ends[name], ends[f"{name}_end"], gap]).ravel() for name in SAVED)
    line = {"color": PALETTE["muted"], "width": 1}
    return go.Scatter(x=x, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip")


def _intervals(table: pd.DataFrame) -> dict[str, Any]:
    """Error bars from the columns …_high, where there are any."""
    bars = {}
    for axis, column in zip("yx", SAVED, strict=True):
        if f"{column}_high" in table:
            half = 100 * (table[f"{column}_high"] - table[column])
            bars[f"error_{axis}"] = {"array": half, "thickness": 1.2, "width": 4}
    return bars


def figure_shares(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Share of runs that still end after their cost grew, a line a workload.

    Args:
        table: columns workload, growth, share_fraction.
        title: what the figure shows.
    """
    x = "cost of a run ÷ what it was when the bound was set"
    return figure_lines(
        table,
        x="growth",
        y="share_fraction",
        by="workload",
        title=title,
        x_title=x,
        y_title="recorded runs below the bound",
    )


def figure_defaults(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Energy saved in hindsight against every possible default, a line a workload.

    Args:
        table: :func:`.hindsight` of a job for each of its batch sizes as the default.
        title: what the figure shows.
    """
    figure = figure_lines(
        table,
        x="relative_default",
        y="energy_saving_fraction",
        by="workload",
        x_title="default batch size ÷ best batch size",
        y_title="energy saved in hindsight",
        title=title,
        powers_of_two=True,
    )
    figure.add_vline(1, line={"dash": "dot", "color": PALETTE["muted"], "width": 1.5})
    at_top = {"x": 0, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left"}  # x: log10
    figure.add_annotation(text="default = best batch size", showarrow=False, **at_top)
    return figure
