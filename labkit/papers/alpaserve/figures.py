"""Figures of AlpaServe: a burst on two GPUs, and the rates that placements sustain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

HUES = {"A": draw.PALETTE["ours"], "B": draw.PALETTE["baseline"]}
LINES = ("ours", "weight", "communication", "all-reduce")  # colours of the methods


def figure_burst(
    arrivals: Sequence[tuple[float, str]],
    placements: Mapping[str, Sequence[str]],
    *,
    latency_s: float,
    title: str,
) -> go.Figure:
    """What each of two GPUs computes, and when; a block of rows a placement.

    Args:
        arrivals: requests in order: when, and for which model.
        placements: by the words beside their rows, the models of each group; a group that is alone
            runs its models in two stages.
        latency_s: of a request on one GPU.
        title: what the figure shows.
    """
    figure = go.Figure()
    rows = []
    for label, groups in placements.items():
        stages = 2 // len(groups)
        free_s = [0.0, 0.0]
        rows += [f"{label}, GPU {gpu + 1}" for gpu in range(2)]
        for number, (moment_s, model) in enumerate(arrivals, start=1):
            first_gpu = next(k for k, models in enumerate(groups) if model in models)
            for gpu in range(first_gpu, first_gpu + stages):
                start_s = max(moment_s, free_s[gpu])
                moment_s = start_s + latency_s / stages
                free_s[gpu] = moment_s
                figure.add_bar(
                    y=[f"{label}, GPU {gpu + 1}"],
                    base=[start_s],
                    x=[latency_s / stages],
                    orientation="h",
                    marker={"color": HUES[model], "line": {"color": "white", "width": 2}},
                    text=[f"{model}, request {number}"],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    name=f"model {model}",
                )
    figure.update_layout(barmode="overlay", bargap=0.2, showlegend=False)
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], title="")
    return draw.finish(figure, title=title, x="time (s)", height=320)


def figure_rates(
    rates: pd.DataFrame, *, baseline: str, bound: float, paper: float, title: str
) -> go.Figure:
    """The highest rates with 99 % in time: a place for each kind of arrivals, a marker a method.

    Args:
        rates: requests a second, a row a kind of arrivals, a column a method.
        baseline: the column over which the paper gives its gain.
        bound: what the GPUs can compute.
        paper: the paper's gain over the baseline; where it is beyond the bound, the bound is drawn.
        title: what the figure shows.
    """
    figure = go.Figure()
    places = [*range(len(rates))]
    colours = iter(LINES)
    for place, rate in zip(places, rates[baseline], strict=True):
        level = min(paper * rate, bound)
        figure.add_scatter(
            x=[place - 0.3, place],
            y=[level, level],
            mode="lines",
            line={"color": draw.PALETTE["paper"], "dash": "dot"},
            name=f"paper: {paper:g} times {baseline}, or the bound",
            showlegend=place == 0,
            legendrank=1001,
        )
    for name, column in rates.items():
        colour = "baseline" if name == baseline else next(colours)
        figure.add_scatter(
            x=places,
            y=column,
            mode="markers+text",
            marker={"color": draw.PALETTE[colour], "size": 14},
            text=[f" {rate:.2g}" for rate in column],
            textposition="middle right",
            name=str(name),
        )
    figure.add_hline(
        y=bound,
        line={"color": draw.PALETTE["bound"], "dash": "dash"},
    )
    figure.add_annotation(
        x=1,
        xref="x domain",
        y=bound,
        text=f"bound {bound:.1f}: all GPUs busy",
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
    )
    figure.update_xaxes(
        tickvals=places,
        ticktext=[str(name) for name in rates.index],
        range=[-0.5, len(rates) - 0.5],
    )
    figure.update_yaxes(range=[-0.05 * bound, 1.15 * bound])
    return draw.finish(
        figure,
        title=title,
        x="arrivals (CV: spread of their gaps, over the mean)",
        y="requests/s, 99 % in time",
        height=480,
    )
