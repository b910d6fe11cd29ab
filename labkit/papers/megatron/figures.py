"""Megatron-LM's figures: the idea as blocks of matrices, what is sent, time, and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.megatron.profile import Kind

GREY = "#C9CDD2"
HUES: dict[str, str] = {
    Kind.PRODUCTS: draw.CYCLE[0],
    Kind.ATTENTION: draw.CYCLE[2],
    Kind.SOFTMAX: draw.CYCLE[3],
    Kind.GELU: draw.CYCLE[4],
    Kind.REPEATED: draw.CYCLE[5],
    Kind.ENDS: GREY,
    "all-reduces": draw.PALETTE["all-reduce"],
}
"""Colours of the parts of a step; those that are not here take the cycle's."""


def figure_idea(num_ranks: int = 2) -> go.Figure:
    """The two products of a pair, each matrix in the colours of the ranks that hold its parts.

    Source: §3, Fig. 3a.
    """
    blocks: list[go.Scatter] = []
    ranks = [("every rank", GREY)]
    for rank in range(num_ranks):
        ranks.append((f"rank {rank}", draw.CYCLE[rank % len(draw.CYCLE)]))
    every, *own = ranks
    blocks += _blocks(0, 10, 8, 8, [every])
    blocks += _blocks(13, 11, 20, 6, own)
    blocks += _blocks(44, 10, 20, 8, own)
    blocks += _blocks(70, 6, 6, 16, own, upright=False)
    for place in range(num_ranks):
        blocks += _blocks(82 + 1.6 * place, 10 - 1.2 * place, 7, 8, [own[place]])
    blocks += _blocks(106, 10, 8, 8, [every])
    seen: set[str] = set()
    for block in blocks:
        block.showlegend = block.name not in seen
        seen.add(block.name)
    figure = go.Figure(blocks)
    notes = [
        (4, 19.5, "X"),
        (23, 19.5, "A<br>by columns"),
        (54, 19.5, "Y = GeLU(XA)<br>by columns"),
        (73, 23.5, "B<br>by rows"),
        (86.5, 19.5, "one addend<br>a rank"),
        (110, 19.5, "Z = YB"),
        (10.5, 14, "×"),
        (38.5, 14, "→"),
        (67, 14, "×"),
        (79, 14, "="),
        (100, 14, "→"),
        (10.5, 4.5, "f: passes X on;<br>backward, adds gradients"),
        (38.5, 4.5, "nothing is sent"),
        (100, 4.5, "g: adds the addends;<br>backward, passes on"),
    ]
    for x, y, text in notes:
        anchor = "bottom" if y > 15 else "middle"
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, yanchor=anchor)
    figure.update_xaxes(visible=False, range=[-4, 118])
    figure.update_yaxes(visible=False, range=[2, 28.5])
    title = "Columns, then rows: the ranks meet once, after the second product"
    draw.finish(figure, title=title, height=350)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def _blocks(
    left: float,
    bottom: float,
    width: float,
    height: float,
    holders: Sequence[tuple[str, str]],
    *,
    upright: bool = True,
) -> list[go.Scatter]:
    """A matrix as rectangles side by side, or one above the other, each in its holder's colour."""
    across = width / len(holders) if upright else width
    down = height if upright else height / len(holders)
    drawn = []
    for place, (name, color) in enumerate(holders):
        x = left + place * across if upright else left
        y = bottom if upright else bottom + height - (place + 1) * down
        drawn.append(
            go.Scatter(
                x=[x, x + across, x + across, x, x],
                y=[y, y, y + down, y + down, y],
                fill="toself",
                fillcolor=color,
                line={"color": "white", "width": 2},
                mode="lines",
                name=name,
                legendgroup=name,
                hoverinfo="name",
            )
        )
    return drawn


def figure_messages(messages: Mapping[str, pd.DataFrame]) -> go.Figure:
    """The all-reduces of one layer in their order, by cut.

    Args:
        messages: by cut, a row an all-reduce in the order of sending: ``pass`` (forward or
            backward) and ``width``, in multiples of the hidden size.
    """
    traces = []
    for direction in ("forward", "backward"):
        cuts: list[str] = []
        places: list[str] = []
        widths: list[float] = []
        starts: list[float] = []
        for cut, table in messages.items():
            before = table["width"].cumsum() - table["width"]
            chosen = table["pass"] == direction
            cuts += [cut] * int(chosen.sum())
            places += [f"{width:g}" for width in table.loc[chosen, "width"]]
            widths += [*table.loc[chosen, "width"]]
            starts += [*before[chosen]]
        traces.append(
            go.Bar(
                x=widths,
                y=cuts,
                base=starts,
                text=places,
                orientation="h",
                name=f"{direction} pass",
                marker={"color": draw.PALETTE[direction], "line": {"color": "white", "width": 3}},
                textposition="inside",
                insidetextanchor="middle",
            )
        )
    figure = go.Figure(traces)
    figure.update_layout(barmode="overlay", bargap=0.35)
    figure.update_yaxes(autorange="reversed", type="category")
    return draw.finish(
        figure,
        title="Rows first sends twice as many all-reduces, and wider ones",
        x="values added up a token, over the hidden size",
        y="cut",
        height=320,
    )


def figure_steps(parts: pd.DataFrame) -> go.Figure:
    """Seconds of a step by what they are spent on, one bar a model.

    Args:
        parts: a row a model, its index the models' names; a column for each part that is drawn.
    """
    traces = []
    for place, name in enumerate(parts):
        color = HUES.get(str(name), draw.CYCLE[place % len(draw.CYCLE)])
        traces.append(go.Bar(x=parts.index, y=parts[name], name=str(name), marker_color=color))
    figure = go.Figure(traces)
    figure.update_layout(barmode="stack")
    return draw.finish(
        figure,
        title="The repeated work and the all-reduces grow; a GPU's products do not",
        x="model, parameters on GPUs",
        y="modelled time of a step (s)",
        height=460,
    )


def figure_scaling(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    gpus: tuple[Sequence[int], Sequence[int]],
    *,
    abstract: float,
    title: str = "Each GPU keeps less of one GPU's rate as the model grows",
) -> go.Figure:
    """Fig. 5: what each GPU keeps of the rate of one GPU alone.

    Args:
        lines: by who says so, the shares (fractions) of one replica and of many, a value for each
            number of GPUs. Names that begin with "paper", "ours" and "plain" are drawn in the
            house's colours of the paper, of our result and of a baseline.
        gpus: the numbers of GPUs of one replica, and of many.
        abstract: the share that the abstract states, of the most GPUs.
    """
    alone, many = gpus
    first = [*range(len(alone))]
    later = [len(alone) + 0.5 + place for place in range(len(many))]
    places = [*first, None, *later]
    traces: list[Any] = [
        go.Scatter(
            x=[first[0], later[-1]],
            y=[100, 100],
            name="no loss: one GPU alone",
            mode="lines",
            line={"color": draw.PALETTE["bound"], "dash": "dot"},
        )
    ]
    for name, (one, replicas) in lines.items():
        shares = [*(100 * share for share in one), None, *(100 * share for share in replicas)]
        line = go.Scatter(x=places, y=shares, name=name, mode="lines+markers", **_look(name))
        traces.append(line)
    star = go.Scatter(x=later[-1:], y=[100 * abstract], name="paper, abstract", mode="markers")
    star.update(_look(star.name))
    star.marker.update(symbol="star", size=14)
    figure = go.Figure([*traces, star])
    for group, words in ((first, "one replica"), (later, "64 replicas")):
        middle = (group[0] + group[-1]) / 2
        figure.add_annotation(x=middle, y=4, text=words, showarrow=False)
    ticks = [*map(str, alone), *map(str, many)]
    span = [first[0] - 0.4, later[-1] + 0.2]
    figure.update_xaxes(tickvals=[*first, *later], ticktext=ticks, range=span)
    figure.update_yaxes(range=[0, 110])
    return draw.finish(
        figure, title=title, x="GPUs", y="of one GPU's rate (%)", height=460, direct=True
    )


def _look(name: str) -> dict[str, Any]:
    """Colour and symbol of a line, by who says so."""
    concepts = {"paper": "paper", "ours": "ours", "plain": "baseline"}
    concept = next((concepts[word] for word in concepts if name.startswith(word)), "highlight")
    color = draw.PALETTE[concept]
    return {"line": {"color": color}, "marker": {"color": color}}


def figure_lost(shares: pd.DataFrame, *, title: str, x: str) -> go.Figure:
    """Bars side by side: what each way of sharing a model adds to computing.

    Args:
        shares: a row a place on the axis, a column a way; per cent of the time of computing.
    """
    figure = go.Figure(
        [go.Bar(x=shares.index.astype(str), y=shares[name], name=str(name)) for name in shares]
    )
    figure.update_layout(barmode="group")
    figure.update_xaxes(type="category")
    return draw.finish(figure, title=title, x=x, y="added to computing (%)")
