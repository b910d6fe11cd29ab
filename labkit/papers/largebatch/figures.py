"""Large-batch SGD's figures: small and large steps, losses, errors by batch size, scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.kit.draw import CYCLE, PALETTE, finish, go
from labkit.papers.largebatch.runs import Rule

COLOURS: dict[str, str] = {
    Rule.GRADUAL: PALETTE["ours"],
    Rule.NONE: PALETTE["input"],
    Rule.CONSTANT: CYCLE[4],
    Rule.ROOT: PALETTE["weight"],
    Rule.KEPT: PALETTE["baseline"],
}
"""Colour of each rule."""
SYMBOLS: dict[str, str] = dict(
    zip(COLOURS, ("circle", "x", "diamond", "triangle-up", "square"), strict=True)
)

LOOKS: dict[str, dict[str, object]] = {
    Rule.GRADUAL: {"width": 5},
    Rule.CONSTANT: {"width": 2, "dash": "dash"},
}
"""Lines of learning rates that others would hide."""


def figure_rates(rates: Mapping[str, np.ndarray], num_epochs: int, *, title: str) -> go.Figure:
    """Learning rates by epoch, a line a rule.

    Args:
        rates: by rule, one for every step.
        num_epochs: in which they are taken.
        title: what the figure shows.
    """
    figure = go.Figure()
    for rule, values in rates.items():
        epochs = num_epochs * np.arange(len(values)) / len(values)
        figure.add_scatter(
            x=epochs,
            y=values,
            mode="lines",
            name=str(rule),
            line={"color": COLOURS[rule], "shape": "hv", **LOOKS.get(rule, {"width": 2})},
        )
    figure.update_yaxes(rangemode="tozero")
    return finish(figure, title=title, x="epoch", y="learning rate", height=420)


def figure_distances(
    distances: Mapping[str, Sequence[float]], factors: Sequence[int], *, title: str
) -> go.Figure:
    """How far one large step ends from k small ones, over how far these went.

    Args:
        distances: by name, one for each of ``factors``.
        factors: k.
        title: what the figure shows.
    """
    figure = go.Figure()
    places = [*range(len(factors))]
    for (name, values), colour in zip(distances.items(), CYCLE, strict=False):
        figure.add_scatter(
            x=places,
            y=[100 * value for value in values],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 3},
        )
    figure.update_xaxes(tickvals=places, ticktext=[*map(str, factors)])
    figure.update_yaxes(rangemode="tozero")
    y = "distance apart (% of the small steps' way)"
    return finish(figure, title=title, x="small steps that one large step replaces, k", y=y)


def figure_losses(runs: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Mean training loss by epoch, a line for each of the rules (:func:`.sweep`).

    Rounded to what one can see: runs past the largest stable rate differ in further digits from
    one processor to another.
    """
    figure = go.Figure()
    for name, rows in runs.groupby("rates", sort=False):
        mean = rows.groupby("epoch")["loss"].mean().round(3)
        line = {"color": COLOURS.get(str(name), PALETTE["bound"])}
        figure.add_scatter(x=mean.index, y=mean, mode="lines", name=str(name), line=line)
    return finish(figure, title=title, x="epoch", y="training loss (nats)", height=450)


def figure_errors(
    table: pd.DataFrame, printed: pd.DataFrame, *, chosen: str = "", title: str = ""
) -> go.Figure:
    """Error above the small batch's by batch size, ours as lines and the paper's in orange.

    Args:
        table: :func:`.errors`'s: rates and k, then ``above`` and ``std``.
        printed: the paper's, of the same columns.
        chosen: the rule of ours that is drawn wide; "" for none.
        title: what the figure shows.
    """
    figure = go.Figure()
    figure.add_hline(0, line={"color": PALETTE["bound"], "dash": "dot", "width": 1})
    ours = table.reset_index()
    both = {*ours["rates"]} & {*printed["rates"]}  # the legend names their marks once
    for of_paper, rows in ((False, ours), (True, printed)):
        for name, line in rows.groupby("rates", sort=False):
            colour = PALETTE["paper"] if of_paper else COLOURS[str(name)]
            wide = str(name) == chosen and not of_paper
            figure.add_scatter(
                x=line["k"],
                y=100 * line["above"],
                error_y={"array": 100 * line["std"], "thickness": 1.2},
                mode="lines+markers",
                line={
                    "color": colour,
                    "dash": "dash" if of_paper else "solid",
                    "width": 5 if wide else 2,
                },
                marker={"symbol": SYMBOLS[str(name)], "size": 10},
                name=f"paper: {name}" if of_paper else str(name),
                showlegend=not (of_paper and name in both),
            )
    if both:
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="lines",
            name="the paper's: the same marks in orange",
            line={"color": PALETTE["paper"], "dash": "dash"},
        )
    ticks = [2**n for n in range(-1, 9)]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    figure.update_yaxes(range=[-3, 35])
    figure.add_annotation(
        x=0.99,
        xref="paper",
        y=0,
        text="bound: the small batch's error",
        showarrow=False,
        xanchor="right",
        yanchor="top",
    )
    x = "batch size, in small batches (k)"
    return finish(figure, title=title, x=x, y="error added (percentage points)", height=540)


def figure_scaling(table: pd.DataFrame, published: tuple[int, float], *, title: str) -> go.Figure:
    """Efficiency by the number of GPUs, with the paper's point.

    Args:
        table: :func:`.efficiencies`'s.
        published: the paper's number of GPUs and efficiency.
        title: what the figure shows.
    """
    figure = go.Figure()
    gpus = [*table["gpus"]]
    places = {count: place for place, count in enumerate(gpus)}
    x = [*places.values()]
    looks = {
        "no traffic": {"color": PALETTE["bound"], "dash": "dot"},
        "halving and doubling": {"color": PALETTE["ours"], "width": 4},
        "ring": {"color": PALETTE["energy"], "width": 2},
        "no overlap": {"color": PALETTE["baseline"], "dash": "dash"},
    }
    words = {"no traffic": "bound: no traffic, waiting alone"}
    for column, look in looks.items():
        name = words.get(column, column)
        figure.add_scatter(x=x, y=100 * table[column], mode="lines", name=name, line=look)
    count, efficiency = published
    figure.add_scatter(
        x=[places[count]],
        y=[100 * efficiency],
        mode="markers+text",
        text=[f"paper: about {efficiency:.0%}"],
        textposition="bottom center",
        name="paper",
        showlegend=False,
        marker={"color": PALETTE["paper"], "size": 15, "symbol": "diamond"},
    )
    figure.update_xaxes(tickvals=x, ticktext=[*map(str, gpus)])
    figure.update_yaxes(range=[0, 105])
    y = "throughput over ideal (%)"
    return finish(
        figure, title=title, x="GPUs (ideal: the rate of 8, times GPUs over 8)", y=y, height=460
    )
