"""Figures of real trainings by batch size (``recording.stacked``)."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.kit.draw import CYCLE, PALETTE, finish

COLOURS = {
    "gradual": PALETTE["ours"],
    "none": PALETTE["input"],
    "constant": CYCLE[4],
    "root": PALETTE["weight"],
    "kept": PALETTE["baseline"],
}
"""By rule: linear scaling with a gradual, no or constant warm-up, the square root, rate kept."""
_SYMBOLS = dict(zip(COLOURS, ("circle", "x", "diamond", "triangle-up", "square"), strict=True))


def figure_losses(runs: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Mean training loss by epoch, a line for each of the rates (``stacked.sweep``).

    Rounded to what one can see: runs past the largest stable rate differ in further digits from
    one processor to another.
    """
    fig = go.Figure()
    for name, rows in runs.groupby("rates", sort=False):
        mean = rows.groupby("epoch")["loss"].mean().round(3)
        line = {"color": COLOURS.get(str(name), PALETTE["bound"])}
        fig.add_scatter(x=mean.index, y=mean, mode="lines", name=str(name), line=line)
    return finish(fig, title=title, x="epoch", y="training loss (nats)", height=450)


def figure_errors(table: pd.DataFrame, printed: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Error above the small batch's by batch size, ours as lines and the paper's in orange.

    Both tables have rates and k, then ``above`` and ``std`` (as ``stacked.errors``).
    """
    fig = go.Figure()
    for of_paper, rows in ((False, table.reset_index()), (True, printed)):
        for name, line in rows.groupby("rates", sort=False):
            colour = PALETTE["paper"] if of_paper else COLOURS[str(name)]
            fig.add_scatter(
                x=line["k"],
                y=line["above"],
                error_y={"array": line["std"], "thickness": 1.2},
                mode="lines+markers",
                line={"color": colour, "dash": "dash" if of_paper else "solid"},
                marker={"symbol": _SYMBOLS[str(name)], "size": 10},
                name=f"paper, {name}" if of_paper else str(name),
            )
    ticks = [2**n for n in range(-1, 9)]
    fig.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    fig.update_yaxes(tickformat=".0%", range=[-0.02, 0.35])
    return finish(fig, title=title, x="batch size ÷ small batch", y="error added", height=480)


def figure_times(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Time to each validation error, a line a policy (``adaptive.times_to``)."""
    fig = go.Figure()
    colours = {"adaptive": PALETTE["ours"], "small batch": PALETTE["baseline"]}
    for index, (name, rows) in enumerate(table.groupby("policy", sort=False)):
        line = {"color": colours.get(str(name), CYCLE[index + 1])}
        fig.add_scatter(x=rows["time_s"], y=rows["error"], mode="lines", name=str(name), line=line)
    fig.update_yaxes(tickformat=".0%")
    y = "validation error reached"
    return finish(fig, title=title, x="modelled time (s)", y=y, height=450)
