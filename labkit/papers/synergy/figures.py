"""Synergy's figures: what models can use, CPUs to GPUs, and how much sooner jobs end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.synergy.resources import TASKS, Sensitivity


def figure_needs(needs: Mapping[str, Sensitivity], share_cpus: float) -> go.Figure:
    """CPUs that models can use for one GPU, beside the share of a GPU.

    Args:
        needs: by model.
        share_cpus: CPUs that belong to a GPU.
    """
    figure = go.Figure()
    for number, (task, models) in enumerate(TASKS.items()):
        cpus = [needs[model].cpus for model in models]
        figure.add_bar(x=[*models], y=cpus, name=task, marker_color=draw.CYCLE[number + 2])
    names = [model for group in TASKS.values() for model in group]
    figure.add_scatter(
        x=names,
        y=[share_cpus] * len(names),
        mode="lines+text",
        text=["share of a GPU" if model == "transformer" else "" for model in names],
        textposition="top center",
        name="share of a GPU",
        showlegend=False,
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    return draw.finish(
        figure,
        title="A share of the CPUs is too small for images and idle in language models",
        x="model",
        y="CPUs that it can use for a GPU",
    )


def figure_speeds(profiles: pd.DataFrame) -> go.Figure:
    """Speed with all that a model can use over that with its share, by CPUs a GPU.

    Args:
        profiles: rows of ``data/papers/synergy/needs.csv``.
    """
    figure = go.Figure()
    for number, (ratio, rows) in enumerate(profiles.groupby("cpus_per_gpu")):
        color = draw.CYCLE[number + 2]
        name = f"{ratio} CPUs a GPU"
        figure.add_bar(x=[*rows.model], y=[*rows.speed], name=name, marker_color=color)
    figure.update_layout(barmode="group")
    return draw.finish(
        figure,
        title="More CPUs and memory than a share speed up images, and no language model",
        x="model",
        y="speed over the share's",
    )


def figure_ratio(by_ratio: pd.DataFrame, shares_h: float) -> go.Figure:
    """Mean completion over CPUs a GPU, by split of the jobs and by the speeds that are used.

    Args:
        by_ratio: columns ``cpus_per_gpu``, ``split``, ``speeds`` and ``mean_h``.
        shares_h: the mean with proportional shares, the same at every ratio, as speeds are
            over the share's.
    """
    words = {"used": "program's speeds", "read": "tables' speeds"}
    dashes = {"used": "solid", "read": "dash"}
    figure = go.Figure()
    for number, (split, rows) in enumerate(by_ratio.groupby("split", sort=False)):
        for speeds, line in rows.groupby("speeds", sort=False):
            figure.add_scatter(
                x=[*line.cpus_per_gpu],
                y=[*line.mean_h],
                mode="lines+markers",
                name=f"{split}, {words[str(speeds)]}",
                line={"color": draw.CYCLE[number + 2], "dash": dashes[str(speeds)]},
            )
    ratios = sorted(set(by_ratio.cpus_per_gpu))
    figure.add_scatter(
        x=ratios,
        y=[shares_h] * len(ratios),
        mode="lines+text",
        text=["proportional shares", *[""] * (len(ratios) - 1)],
        textposition="top right",
        name="proportional shares",
        showlegend=False,
        line={"color": draw.PALETTE["baseline"]},
    )
    figure.update_xaxes(dtick=1)
    largest_h = max(shares_h, by_ratio.mean_h.max())
    figure.update_yaxes(range=[0, 1.15 * largest_h])
    return draw.finish(
        figure,
        title="With more CPUs a GPU there is less to trade",
        x="CPUs a GPU",
        y="mean completion (h, simulated)",
    )


def figure_gains(
    gains: pd.DataFrame, bound: Sequence[float], *, paper_gain: float, title: str
) -> go.Figure:
    """How many times sooner jobs end than with proportional shares.

    Args:
        gains: a row a draw of the jobs, a column a division (``greedy``, ``tune``, …).
        bound: by draw, what no division can beat; empty: not drawn.
        paper_gain: the paper's largest.
        title: what the figure shows.
    """
    places = [*range(len(gains))]
    span = [-0.5, len(gains) - 0.5]
    figure = go.Figure()
    draw.level(figure, span, paper_gain, f"paper: up to {paper_gain:g}", "paper")
    draw.level(figure, span, 1.0, "proportional shares<br>(baseline)", "baseline")
    looks = {
        "proportional": ("proportional shares, simulated", "baseline", "diamond"),
        "greedy": ("Greedy, simulated", "highlight", "square"),
        "tune": ("Tune, simulated", "ours", "circle"),
    }
    for number, division in enumerate(gains):
        shift = 0.1 * (number - (len(gains.columns) - 1) / 2)
        name, concept, symbol = looks[str(division)]
        figure.add_scatter(
            x=[place + shift for place in places],
            y=[*gains[division]],
            mode="markers",
            name=name,
            marker={"color": draw.PALETTE[concept], "symbol": symbol, "size": 13},
        )
    if bound:
        figure.add_scatter(
            x=places,
            y=[*bound],
            mode="markers",
            name="bound: nobody waits",
            marker={"color": draw.PALETTE["bound"], "symbol": "line-ew-open", "size": 30},
            marker_line_width=3,
        )
    figure.update_xaxes(tickvals=places, ticktext=[*map(str, gains.index)], range=span)
    largest = max(*gains.max(), *bound, paper_gain)
    figure.update_yaxes(range=[0, 1.1 * largest])
    done = draw.finish(
        figure,
        title=title,
        x="jobs counted",
        y="times sooner than with shares",
    )
    return done.update_layout(margin_r=170)
