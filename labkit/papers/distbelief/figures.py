"""DistBelief's figures: what a cut crosses, speed-up by machines, accuracy over time, staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.distbelief.training import Run

HUES: tuple[str, ...] = tuple(
    draw.PALETTE[name] for name in ("baseline", "paper", "ours", "weight", "input", "cost")
)
_UNITS = 12  # of a layer in the picture


def figure_idea(machines: int = 4) -> go.Figure:
    """Two layers cut over machines, with the connections that cross a border in another colour."""
    figure = go.Figure()
    reaches = {"locally connected": 1, "fully connected": _UNITS}
    per_machine = _UNITS / machines
    for panel, (words, reach) in enumerate(reaches.items()):
        left = panel * (_UNITS + 3)
        lines: dict[bool, list[float | None]] = {True: [], False: []}
        heights: dict[bool, list[float | None]] = {True: [], False: []}
        for upper in range(_UNITS):
            for lower in range(max(0, upper - reach), min(_UNITS, upper + reach + 1)):
                across = upper // per_machine != lower // per_machine
                lines[across] += [left + lower, left + upper, None]
                heights[across] += [0, 1, None]
        crossing = len(lines[True]) // 3
        for across, concept, wide in ((False, "idle", 1), (True, "communication", 1.5)):
            figure.add_scatter(
                x=lines[across],
                y=heights[across],
                mode="lines",
                showlegend=False,
                hoverinfo="skip",
                line={"color": draw.PALETTE[concept], "width": wide},
            )
        for border in range(machines + 1):
            place = left - 0.5 + border * per_machine
            figure.add_shape(
                type="line",
                x0=place,
                x1=place,
                y0=-0.15,
                y1=1.15,
                line={"color": draw.PALETTE["bound"], "width": 1, "dash": "dot"},
            )
        for height in (0, 1):
            figure.add_scatter(
                x=[left + unit for unit in range(_UNITS)],
                y=[height] * _UNITS,
                mode="markers",
                showlegend=False,
                hoverinfo="skip",
                marker={"size": 9, "color": draw.PALETTE["ours"]},
            )
        figure.add_annotation(
            x=left + (_UNITS - 1) / 2,
            y=1.35,
            text=f"{words}: {crossing} connections cross a border",
            showarrow=False,
        )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, range=[-0.3, 1.5])
    title = f"Two layers on {machines} machines: full connections send every unit everywhere"
    draw.finish(figure, title=title, height=340)
    figure.layout.margin.b = 10
    return figure


def figure_speedup(
    speedups: Mapping[str, Mapping[int, float]],
    published: Mapping[int, tuple[float, str]],
    *,
    title: str,
) -> go.Figure:
    """The headline: speed-up over the number of machines.

    Args:
        speedups: for each network, or way to cut it, the speed-up by number of machines.
        published: the paper's speed-ups and what they are of, by number of machines.
    """
    figure = go.Figure()
    hues = [draw.PALETTE[concept] for concept in ("ours", "weight", "baseline")]
    for (name, values), hue in zip(speedups.items(), hues, strict=False):
        figure.add_scatter(
            x=[*values], y=[*values.values()], mode="lines+markers", name=name, line_color=hue
        )
    most = max(max(values) for values in speedups.values())
    figure.add_scatter(
        x=[1, most],
        y=[1, most],
        mode="lines",
        name="no loss (bound)",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    figure.add_scatter(
        x=[*published],
        y=[value for value, _ in published.values()],
        mode="markers+text",
        text=[words for _, words in published.values()],
        textposition=["top left", "bottom right"],
        marker={"symbol": "diamond", "size": 13, "color": draw.PALETTE["highlight"]},
        name="paper",
        showlegend=False,
    )
    ticks = [1, 2, 4, 8, 16, 32, 64, 128]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks])
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks])
    return draw.finish(
        figure, title=title, x="machines", y="speed-up (times one machine)", height=460
    )


def figure_accuracy(runs: Mapping[str, Run], *, target: float, title: str) -> go.Figure:
    """Test accuracy over virtual time, a line a way to train; the target is a dotted line."""
    figure = go.Figure()
    for (name, run), hue in zip(runs.items(), HUES, strict=False):
        figure.add_scatter(
            x=[round(seconds, 3) for seconds, _ in run.curve],
            y=[round(share, 3) for _, share in run.curve],
            mode="lines",
            name=name,
            line_color=hue,
        )
    figure.add_hline(
        y=target, line_dash="dot", line_color=draw.PALETTE["bound"], annotation_text="target"
    )
    figure.update_xaxes(type="log", dtick=1)
    return draw.finish(
        figure, title=title, x="virtual time since the warm start (s)", y="test accuracy"
    )


def figure_budget(times: pd.DataFrame, *, title: str) -> go.Figure:
    """Virtual seconds to the target over the number of machines, a line a way to train.

    Args:
        times: a row a number of machines, a column a way; NaN where the target was not reached.
    """
    figure = go.Figure()
    places = [*range(len(times))]
    for name, hue in zip(times, HUES[1:], strict=False):
        figure.add_scatter(
            x=places,
            y=times[name].round(3),
            mode="lines+markers",
            name=str(name),
            line_color=hue,
        )
    figure.update_xaxes(tickvals=places, ticktext=[str(count) for count in times.index])
    figure.update_yaxes(type="log", dtick=1)
    return draw.finish(
        figure, title=title, x="machines, one replica each", y="virtual time to the target (s)"
    )


def figure_staleness(updates: pd.DataFrame, *, most: int, title: str) -> go.Figure:
    """Updates to the target over staleness, a line a rule; runs that miss it lie on the top.

    Args:
        updates: a row a staleness, a column a rule; NaN where the target was not reached.
        most: updates at which a run gave up.
    """
    figure = go.Figure()
    places: Sequence[int] = range(len(updates))
    for name, hue in zip(updates, (HUES[1], HUES[2], HUES[3]), strict=False):
        figure.add_scatter(
            x=[*places],
            y=updates[name].fillna(most),
            mode="lines+markers",
            name=str(name),
            line_color=hue,
        )
    figure.add_hline(
        y=most,
        line_dash="dot",
        line_color=draw.PALETTE["bound"],
        annotation_text="given up",
        annotation_position="top left",
    )
    figure.update_xaxes(
        tickvals=[*places], ticktext=[str(staleness) for staleness in updates.index]
    )
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title=title,
        x="staleness (updates between fetch and push)",
        y="updates to the target",
    )
