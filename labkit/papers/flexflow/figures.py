"""FlexFlow's figures: timelines before and after a change, walks, throughput, and gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.flexflow.tasks import Way
from labkit.planner.moves import Chosen, Search
from labkit.planner.simulating import Timeline

HUES: dict[Way, str] = {
    Way.WALK: draw.PALETTE["ours"],
    Way.DESCENT: draw.PALETTE["highlight"],
    Way.OPTCNN: draw.PALETTE["cost"],
    Way.KRIZHEVSKY: draw.PALETTE["weight"],
    Way.DATA: draw.PALETTE["baseline"],
}
"""Colour of each way to find a plan."""


def figure_change(
    timelines: Mapping[str, Timeline], resources: Sequence[str], *, title: str
) -> go.Figure:
    """Tasks on GPUs and links, a panel a plan; those that differ from the first plan are coloured.

    Args:
        timelines: by what is done, the plan before the change first.
        resources: what each resource is called.
        title: what the figure shows.
    """
    figure = make_subplots(
        rows=len(timelines), shared_xaxes=True, subplot_titles=[*timelines], vertical_spacing=0.12
    )
    before = next(iter(timelines.values())).frame()
    known = {(row.part, row.task, row.start_s, row.end_s) for row in before.itertuples()}
    for place, timeline in enumerate(timelines.values(), start=1):
        table = timeline.frame()
        table = table[(table["end_s"] > table["start_s"]) & (table["resource"] >= 0)]
        keys = list(
            zip(table["part"], table["task"], table["start_s"], table["end_s"], strict=True)
        )
        same = np.array([key in known for key in keys], dtype=bool)
        for words, rows, hue in [
            ("as before the change", table[same], draw.PALETTE["baseline"]),
            ("at another time, or new", table[~same], draw.PALETTE["ours"]),
        ]:
            figure.add_bar(
                y=[resources[resource] for resource in rows["resource"]],
                base=(1000 * rows["start_s"]).round(4),
                x=(1000 * (rows["end_s"] - rows["start_s"])).round(4),
                orientation="h",
                name=words,
                legendgroup=words,
                showlegend=place == len(timelines),
                marker={"color": hue, "line": {"color": "white", "width": 1}},
                hovertext=rows["part"],
                row=place,
                col=1,
            )
    used = sorted({int(r) for t in timelines.values() for r in t.frame()["resource"] if r >= 0})
    figure.update_yaxes(
        categoryorder="array", categoryarray=[resources[r] for r in reversed(used)], title_text=""
    )
    figure.update_layout(barmode="overlay")
    figure = draw.finish(figure, title=title, x="ms", y="GPU or link", height=520)
    figure.update_xaxes(title_text="", row=1, col=1)
    return figure


def figure_walks(
    searches: Sequence[Search[Chosen]], *, best: float, best_is: str, title: str
) -> go.Figure:
    """The best plan so far by plans priced, a line a walk, over the best there is.

    Args:
        best: cost of the best plan, and ``best_is`` how it was found.
        title: what the figure shows.
    """
    figure = go.Figure()
    for number, search in enumerate(searches):
        history = [*search.history, search.history[-1]._replace(num_priced=search.num_priced)]
        figure.add_scatter(
            x=[better.num_priced for better in history],
            y=[round(better.cost / best, 4) for better in history],
            mode="lines",
            line={"shape": "hv", "color": draw.PALETTE["ours"]},
            opacity=0.5,
            name=f"{len(searches)} walks",
            showlegend=number == 0,
        )
    figure.add_hline(
        1.0,
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
        annotation_text=best_is,
        annotation_position="bottom right",
    )
    most = max(search.num_priced for search in searches)
    figure.update_xaxes(type="log", dtick=1, range=[0, np.log10(most)])
    least = min(search.history[0].cost for search in searches) / best
    figure.update_yaxes(range=[1 - 0.15 * (least - 1) - 0.01, 1.05 * least])
    return draw.finish(figure, title=title, x="plans priced", y="best so far, times the optimum")


def _add_claimed(figure: go.Figure, claimed: float) -> None:
    """Draw the paper's gain as a level."""
    figure.add_hline(
        claimed,
        line_dash="dash",
        line_color=draw.PALETTE["paper"],
        annotation_text=f"paper, at most: {claimed:g}",
        annotation_position="top left",
    )


def figure_throughput(table: pd.DataFrame, *, claimed: float, title: str) -> go.Figure:
    """The headline: throughput over the better of the paper's rivals, by network and way.

    Args:
        table: columns network, way, gain, and bound (one a network).
        claimed: the paper's gain, at most.
        title: what the figure shows.
    """
    figure = go.Figure()
    names = list(dict.fromkeys(table["network"]))
    for way, rows in table.groupby("way", sort=False):
        figure.add_bar(
            x=rows["network"],
            y=rows["gain"].round(3),
            name=str(way),
            marker_color=HUES[Way(str(way))],
            text=[f"{gain:.2f}" for gain in rows["gain"]],
            textposition="inside",  # above a bar the bound would strike it through
        )
    bounds = table.drop_duplicates("network")
    figure.add_scatter(
        x=bounds["network"],
        y=bounds["bound"].round(3),
        mode="markers",
        marker={
            "symbol": "line-ew",
            "size": 130,
            "line": {"width": 2, "color": draw.PALETTE["bound"]},
        },
        name="bound: even compute, nothing is sent",
    )
    _add_claimed(figure, claimed)
    most = max(claimed, float(table["gain"].max()), float(table["bound"].max()))
    figure.update_yaxes(range=[0, 1.15 * most])
    figure.update_xaxes(categoryorder="array", categoryarray=names)
    figure.update_layout(barmode="group")
    return draw.finish(
        figure, title=title, x="network", y="throughput, times the better rival's", height=480
    )


def figure_gain(table: pd.DataFrame, *, x: str, claimed: float, title: str) -> go.Figure:
    """Throughput over the better rival's by something that is disputed, a line a way.

    Args:
        table: the first column is what is disputed, the others are ways.
        x: what the first column is.
        claimed: the paper's gain, at most.
        title: what the figure shows.
    """
    figure = go.Figure()
    positions = [*range(len(table))]
    for way in table.columns[1:]:
        figure.add_scatter(
            x=positions,
            y=table[way].round(3),
            mode="lines+markers",
            name=str(way),
            line_color=HUES[Way(str(way))],
        )
    _add_claimed(figure, claimed)
    ticks = [str(value) for value in table.iloc[:, 0]]
    figure.update_xaxes(tickvals=positions, ticktext=ticks, range=[-0.1, positions[-1] + 0.1])
    most = max(float(table.iloc[:, 1:].max().max()), claimed)
    figure.update_yaxes(range=[0, 1.12 * most])
    return draw.finish(figure, title=title, x=x, y="throughput, times the better rival's")
