"""HiveD's figures: the idea on one node, refused requests, waits by tenant, extra delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

COLORS = {
    "cell": "#C9CDD2",
    "tenant A's job": draw.CYCLE[0],
    "tenant B's cell, whole": draw.CYCLE[2],
    "free, of no use to B": "#F2C9B8",
}


def figure_idea() -> go.Figure:
    """One node, where tenant B reserved four GPUs and tenant A runs four small jobs.

    Source: §3 (cells of a GPU, a switch, a socket, a node); our drawing.
    """
    a, b, free = [*COLORS][1:]
    rows = [("node", "cell", [(0, 8)])]
    rows += [("sockets", "cell", [(0, 4), (4, 4)])]
    rows += [("switches", "cell", [(start, 2) for start in range(0, 8, 2)])]
    quota = "by quotas"
    rows += [(quota, a, [(gpu, 1) for gpu in (1, 3, 6, 7)])]
    rows += [(quota, free, [(gpu, 1) for gpu in (0, 2, 4, 5)])]
    cells = "by cells"
    rows += [(cells, a, [(gpu, 1) for gpu in range(4)]), (cells, b, [(4, 4)])]
    figure = go.Figure()
    for row, name, blocks in rows:
        figure.add_bar(
            y=[row] * len(blocks),
            base=[start for start, _ in blocks],
            x=[width for _, width in blocks],
            orientation="h",
            name=name,
            legendgroup=name,
            showlegend=name not in {trace.name for trace in figure.data},
            marker={"color": COLORS[name], "line": {"color": "white", "width": 3}},
        )
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(autorange="reversed", type="category")
    places = [gpu + 0.5 for gpu in range(8)]
    figure.update_xaxes(tickvals=places, ticktext=[*map(str, range(8))], range=[0, 8])
    title = "Four GPUs are free twice; only cells keep four that are near each other"
    return draw.finish(figure, title=title, x="GPU of one node", y=" ", height=380)


def figure_refusals(refused: pd.DataFrame, num_requests: int) -> go.Figure:
    """Requests within reservations that found no hardware, over nodes to spare.

    Args:
        refused: a row a number of spare nodes (the index), a column a way of cutting cells.
        num_requests: how many were sent.
    """
    colors = [draw.PALETTE["ours"], draw.PALETTE["baseline"]]
    figure = go.Figure()
    for name, color in zip(refused, colors, strict=False):
        figure.add_scatter(
            x=[*refused.index],
            y=[*refused[name]],
            name=str(name),
            mode="lines+markers",
            line={"color": color},
        )
    figure.update_xaxes(dtick=1)
    return draw.finish(
        figure,
        title="Buddies keep every promise with no node to spare; largest first needs more",
        x="nodes beyond what is reserved",
        y=f"refused, of {num_requests:,} requests",
        height=380,
        direct=True,
    )


def figure_waits(waits_h: pd.DataFrame) -> go.Figure:
    """Mean waits by tenant, bars side by side, a column a way of sharing (hours)."""
    hues = [draw.PALETTE["ours"], draw.PALETTE["baseline"], draw.PALETTE["bound"]]
    figure = go.Figure()
    for name, color in zip(waits_h, hues, strict=False):
        figure.add_bar(x=[*waits_h.index], y=[*waits_h[name]], name=str(name), marker_color=color)
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    return draw.finish(
        figure,
        title="With cells every tenant waits as long as on a private cluster",
        x="tenant",
        y="mean wait (h)",
    )


def figure_delays(
    longest_min: Mapping[str, Sequence[Mapping[str, float]]], *, paper_min: float, title: str
) -> go.Figure:
    """The longest extra delay by way of sharing and order of the queues, a marker a week.

    Args:
        longest_min: by way of sharing, and there by week: minutes by order of the queues.
        paper_min: the paper's longest delay under quotas.
        title: what the figure shows.
    """
    ways = [*longest_min]
    orders = [*next(iter(longest_min.values()))[0]]
    figure = go.Figure()
    span = [-0.5, len(ways) - 0.5]
    draw.level(figure, span, paper_min, f"paper: up to {paper_min:,.0f} min", "paper")
    draw.level(figure, span, 0.0, "private clusters", "bound")
    for number, order in enumerate(orders):
        shift = 0.22 * (number - (len(orders) - 1) / 2)
        points = [
            (where + shift, week[order])
            for where, way in enumerate(ways)
            for week in longest_min[way]
        ]
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="markers",
            name=order,
            marker={"size": 11, "color": draw.CYCLE[number + 2], "symbol": number},
        )
    labels = [way.replace(", ", ",<br>") for way in ways]
    figure.update_xaxes(tickvals=[*range(len(ways))], ticktext=labels, range=span)
    done = draw.finish(figure, title=title, x=" ", y="longest extra delay (min)", height=460)
    return done.update_layout(margin_r=215)
