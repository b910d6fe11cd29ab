"""DAPPLE's figures: both orders, activations held, steps of the planner, and the ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit import pipeline
from labkit.kit import draw
from labkit.papers.dapple.ways import NETWORKS
from labkit.pipeline.scheduling.schedule import Schedule

HUES = dict(zip(NETWORKS, (*draw.CYCLE[:1], *draw.CYCLE[2:5]), strict=True))
"""Colour of each network."""


def figure_idea(num_stages: int, num_microbatches: int, costs: pipeline.Costs) -> go.Figure:
    """GPipe's order above, early backward below, on devices of their own.

    Args:
        num_stages, num_microbatches: of each order.
        costs: seconds of a forward and a backward.
    """
    above, below = (
        pipeline.simulate(pipeline.build(name, num_stages, num_microbatches), costs).frame()
        for name in ("gpipe", "dapple")
    )
    lower = below["device"] + num_stages
    moved = below.assign(device=lower, stage=lower)
    title = "Forwards first (above) or backwards early (below): the same time, less to keep"
    figure = pipeline.figure_timeline(pd.concat([above, moved]), title=title)
    names = [f"GPipe, stage {stage}" for stage in range(num_stages)]
    names += [f"DAPPLE, stage {stage}" for stage in range(num_stages)]
    figure.update_yaxes(tickvals=[*range(2 * num_stages)], ticktext=names)
    return draw.finish(figure, height=190 + 30 * len(names))


def figure_held(schedules: Mapping[str, Mapping[int, Schedule]], *, title: str) -> go.Figure:
    """Microbatches whose activations the fullest stage holds, by their number in an iteration.

    Args:
        schedules: by name, then by the number of microbatches.
        title: what the figure shows.
    """
    figure = go.Figure()
    hues = (draw.PALETTE["baseline"], draw.PALETTE["ours"])
    sizes = [*next(iter(schedules.values()))]
    places = [*range(len(sizes))]
    for (name, by_size), hue in zip(schedules.items(), hues, strict=False):
        held = [max(schedule.peak_in_flight) for schedule in by_size.values()]
        figure.add_scatter(
            x=places, y=held, name=name, mode="lines+markers", line={"color": hue, "width": 3}
        )
    figure.update_xaxes(tickvals=places, ticktext=[*map(str, sizes)], range=[-0.1, places[-1]])
    figure.update_yaxes(rangemode="tozero")
    y = "microbatches held by the fullest stage"
    return draw.finish(figure, title=title, x="microbatches of an iteration", y=y, direct=True)


def figure_steps(seconds: Mapping[str, float], bound_s: float, *, title: str) -> go.Figure:
    """Seconds of an iteration, step by step of the planner, and what no plan can beat.

    Args:
        seconds: by the step's name.
        bound_s: no plan's iteration is shorter.
        title: what the figure shows.
    """
    places = [*range(len(seconds))]
    values = [*seconds.values()]
    figure = go.Figure(
        go.Bar(
            x=places,
            y=values,
            name="one iteration",
            marker_color=draw.PALETTE["ours"],
            text=[f"{value:.3f}" for value in values],
            textposition="outside",
        )
    )
    figure.add_scatter(
        x=[-0.5, places[-1] + 0.5],
        y=[bound_s] * 2,
        mode="lines",
        name="bound: no plan ends earlier by the formula",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    ticks = [name.replace(", ", ",<br>") for name in seconds]
    figure.update_xaxes(tickvals=places, ticktext=ticks)
    figure.update_yaxes(range=[0, 1.15 * max(values)])
    return draw.finish(figure, title=title, x="plan", y="seconds an iteration", height=440)


def _add_network(
    figure: go.Figure,
    network: str,
    rows: pd.DataFrame,
    free: pd.DataFrame,
    places: Mapping[int, int],
) -> None:
    """Draw a network's ratios, solid with activations charged and dotted without."""
    hue = HUES[network]
    figure.add_scatter(
        x=rows["num_microbatches"].map(places),
        y=rows["ratio"],
        mode="lines+markers",
        name=NETWORKS[network],
        line={"color": hue, "width": 3},
    )
    figure.add_scatter(
        x=free["num_microbatches"].map(places),
        y=free["ratio"],
        mode="lines",
        name=f"{NETWORKS[network]}, activations free",
        line={"color": hue, "width": 2, "dash": "dot"},
        showlegend=False,
    )


def figure_ratios(
    table: pd.DataFrame,
    default: pd.DataFrame,
    best: pd.DataFrame,
    *,
    published: float,
    title: str,
) -> go.Figure:
    """How much longer an iteration of PipeDream's plan is, by network and number of microbatches.

    Args:
        table: :func:`.ratios`' table, PipeDream's program with activations charged.
        default: the same with the program's default, activations free.
        best: the same for the best plan by the formula, where it was searched for.
        published: the paper's largest ratio.
        title: what the figure shows.
    """
    figure = go.Figure()
    sizes = sorted(table["num_microbatches"].unique().tolist())
    places = {size: place for place, size in enumerate(sizes)}
    for network, rows in table.groupby("network", sort=False):
        free = default[default["network"] == network]
        _add_network(figure, str(network), rows, free, places)
    figure.add_scatter(
        x=best["num_microbatches"].map(places),
        y=best["ratio"],
        mode="markers",
        name="bound: best plan by the formula",
        marker={"color": draw.PALETTE["bound"], "size": 11, "symbol": "diamond-open"},
    )
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="lines",
        name="dotted: activations free",
        line={"color": draw.PALETTE["muted"], "width": 2, "dash": "dot"},
    )
    words = f"paper: up to {published:g}"
    figure.add_scatter(
        x=[*places.values()],
        y=[published] * len(places),
        mode="lines",
        name=words,
        showlegend=False,
        line={"color": draw.PALETTE["paper"], "width": 3},
    )
    figure.add_annotation(
        x=len(sizes) - 1,
        y=math.log10(published),
        text=words,
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
    )
    figure.add_hline(1, line={"color": draw.PALETTE["baseline"], "width": 1})
    figure.add_annotation(
        x=len(sizes) - 1.4, y=0, text="1: both take as long", showarrow=False, yanchor="top"
    )
    figure.update_xaxes(tickvals=[*places.values()], ticktext=[*map(str, sizes)])
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    x = "microbatches of an iteration"
    y = "PipeDream's iteration (× the plan's)"
    return draw.finish(figure, title=title, x=x, y=y, height=560)


def figure_gains(
    gains: Mapping[int, float], published: float, *, title: str, highest: float = 2.2
) -> go.Figure:
    """Throughput of early backward over GPipe, by the number of stages.

    Args:
        gains: by the number of stages.
        published: the paper's.
        title: what the figure shows.
        highest: end of the axis.
    """
    places = [*range(len(gains))]
    values: Sequence[float] = [*gains.values()]
    figure = go.Figure(
        go.Bar(
            x=places,
            y=values,
            name="",
            marker_color=draw.PALETTE["ours"],
            text=[f"{value:.2f}" for value in values],
            textposition="inside",
            insidetextanchor="middle",
        )
    )
    figure.add_hline(
        published,
        line={"color": draw.PALETTE["paper"], "width": 3},
        annotation_text=f"paper: {published:g} (abstract)",
        annotation_position="top left",
    )
    figure.update_xaxes(tickvals=places, ticktext=[*map(str, gains)])
    figure.update_yaxes(range=[0, highest])
    return draw.finish(figure, title=title, x="stages", y="times GPipe's throughput", height=430)
