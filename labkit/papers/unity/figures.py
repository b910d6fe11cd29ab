"""Unity's figures: two plans of a pair of layers, throughput by way, gain by width, verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.unity.rules import Verdict
from labkit.papers.unity.study import Way

HUES: dict[Way, str] = {
    Way.TOGETHER: draw.PALETTE["ours"],
    Way.ONE_AFTER_THE_OTHER: draw.PALETTE["weight"],
    Way.LAYOUTS: draw.PALETTE["highlight"],
    Way.DATA: draw.PALETTE["baseline"],
}
"""Colour of each way to plan."""
_SENT = "#D55E00"


def figure_idea() -> go.Figure:
    """A wide layer and a narrow one on two devices: with the ReLU apart, and fused.

    Source: §2 (from memory).
    """
    rows = {
        "ReLU apart: the narrow sums travel": [
            ("x, a copy", 0.8, "baseline"),
            ("wide, half each", 2.0, "ours"),
            ("partial sums", 1.0, "ours"),
            ("add up", 0.35, "sent"),
            ("ReLU", 0.7, "ours"),
        ],
        "ReLU fused: the wide layer travels": [
            ("x, a copy", 0.8, "baseline"),
            ("wide, half each", 2.0, "ours"),
            ("bring together", 1.4, "sent"),
            ("linear + ReLU", 1.0, "ours"),
        ],
    }
    figure = go.Figure()
    for row, (words, boxes) in enumerate(rows.items()):
        x = 0.0
        figure.add_annotation(
            x=0, y=1.1 - 1.6 * row, text=words, showarrow=False, xanchor="left", yanchor="bottom"
        )
        for name, width, hue in boxes:
            colour = _SENT if hue == "sent" else draw.PALETTE[hue]
            y = -1.6 * row
            figure.add_shape(
                type="rect",
                x0=x,
                x1=x + width,
                y0=y,
                y1=y + 1,
                fillcolor=colour,
                opacity=0.35,
                line_width=0,
            )
            figure.add_annotation(
                x=x + width / 2, y=y + 0.5, text=name.replace(" ", "<br>"), showarrow=False
            )
            x += width + 0.12
    figure.update_xaxes(visible=False, range=[-0.1, 6.2])
    figure.update_yaxes(visible=False, range=[-1.8, 1.6])
    title = "What a rule fuses decides what must travel (orange)"
    draw.finish(figure, title=title, height=340)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def figure_times(
    table: pd.DataFrame, *, claimed: Mapping[str, float], title: str, ways: tuple[Way, ...] = ()
) -> go.Figure:
    """The headline: throughput over data parallelism's by network, a bar a way.

    Args:
        table: columns network, way, times.
        claimed: the paper's, by network.
        ways: to draw; all but data parallelism where left out.
    """
    figure = go.Figure()
    names = [*table["network"].unique()]
    places = [*range(len(names))]
    shown = ways or tuple(way for way in Way if way is not Way.DATA)
    for way in shown:
        values = table[table["way"] == way].set_index("network")["times"][names]
        figure.add_bar(
            x=places,
            y=values.round(3),
            name=way.value,
            marker_color=HUES[way],
            text=[f"{value:.2f}" for value in values],
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
        )
    for number, name in enumerate(names):
        if name in claimed:
            figure.add_scatter(
                x=[number - 0.42, number + 0.42],
                y=[claimed[name]] * 2,
                mode="lines",
                line={"color": draw.PALETTE["paper"], "width": 3},
                name="paper, over the best other framework",
                showlegend=number == 0,
            )
    figure.add_scatter(
        x=[-0.6, len(names) - 0.4],
        y=[1, 1],
        mode="lines",
        line={"color": "#222222", "dash": "dot"},
        name="data parallelism",
    )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(tickvals=places, ticktext=names, range=[-0.6, len(names) - 0.4])
    most = max(float(table["times"].max()), *claimed.values())
    figure.update_yaxes(range=[0, 1.15 * most])
    y = "throughput, times data parallelism's"
    return draw.finish(figure, title=title, x="network", y=y, height=440)


def figure_gain(table: pd.DataFrame, *, claimed: float, title: str) -> go.Figure:
    """Gain of one search over two by the width of the narrow layer.

    Args:
        table: columns narrow, gain.
        claimed: the paper's largest gain.
    """
    figure = go.Figure()
    places = [*range(len(table))]
    figure.add_scatter(
        x=places,
        y=table["gain"].round(3),
        mode="lines+markers",
        name="ours",
        line_color=draw.PALETTE["ours"],
    )
    figure.add_hline(
        claimed,
        line_dash="dash",
        line_color=draw.PALETTE["paper"],
        annotation_text=f"paper, at most: {claimed:g}",
        annotation_position="top right",
    )
    ticks = [f"{width:,}" for width in table["narrow"]]
    figure.update_xaxes(tickvals=places, ticktext=ticks, range=[-0.2, len(places) - 0.7])
    most = max(float(table["gain"].max()), claimed)
    figure.update_yaxes(range=[0.8, 1.1 * most])
    return draw.finish(
        figure,
        title=title,
        x="channels of the narrow layer (the wide one has 8,192)",
        y="throughput, times that of two searches",
    )


def figure_verdicts(verdicts: Mapping[str, Verdict], *, title: str) -> go.Figure:
    """How many rules hold, and what is wrong with the others.

    Args:
        verdicts: by a rule's name.
    """
    counts = Counter(verdicts.values())
    shown = [verdict for verdict in Verdict if counts[verdict]]
    figure = go.Figure()
    figure.add_bar(
        y=[verdict.value for verdict in shown],
        x=[counts[verdict] for verdict in shown],
        orientation="h",
        marker_color=[
            draw.PALETTE["ours" if verdict is Verdict.HOLDS else "baseline"] for verdict in shown
        ],
        text=[str(counts[verdict]) for verdict in shown],
        textposition="outside",
        showlegend=False,
    )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, 1.12 * max(counts.values())])
    return draw.finish(figure, title=title, x="rules", y="placed on devices", height=320)
