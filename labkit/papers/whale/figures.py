"""Whale's figures: who waits in a step, speeds by batch size, and bars beside the paper's range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.whale.speeds import Speed

HUES = {
    "equal": draw.PALETTE["baseline"],
    "by FLOP/s": draw.PALETTE["ours"],
    "by memory": draw.PALETTE["input"],
    "by measured speed": draw.PALETTE["weight"],
    "linear program": draw.PALETTE["bound"],
}
"""Colours of ways to give out batches; others take theirs in turn."""
NEXT_HUES = [draw.PALETTE[name] for name in ("ours", "cost", "input", "weight", "baseline")]


def figure_step(
    batches: Mapping[str, Sequence[int]], speeds: Mapping[str, Speed], *, title: str
) -> go.Figure:
    """Draw how long each GPU computes in a step, and waits, for several ways.

    Args:
        batches: by way, of each GPU in the order of ``speeds``.
        speeds: by GPU.
    """
    figure = go.Figure()
    places: list[int] = []
    words = []
    for row, (way, given) in enumerate(batches.items()):
        step_s = max(
            speed.step_s(batch) for speed, batch in zip(speeds.values(), given, strict=True)
        )
        for place, (gpu, batch) in enumerate(zip(speeds, given, strict=True)):
            busy_s = speeds[gpu].step_s(batch)
            y = -3 * row - place
            places.append(y)
            words.append(f"{way}: {gpu}, {batch} samples")
            for name, start_s, seconds, concept in (
                ("computes", 0.0, busy_s, "forward"),
                ("waits", busy_s, step_s - busy_s, "idle"),
            ):
                figure.add_bar(
                    x=[1e3 * seconds],
                    base=[1e3 * start_s],
                    y=[y],
                    orientation="h",
                    width=0.8,
                    name=name,
                    legendgroup=name,
                    showlegend=len(places) == 1,
                    marker_color=draw.PALETTE[concept],
                )
    figure.update_yaxes(tickvals=places, ticktext=words, showgrid=False)
    figure.update_layout(barmode="overlay")
    height = 150 + 75 * len(batches)
    return draw.finish(figure, title=title, x="time of a step (ms)", y="", height=height)


def figure_ratios(
    speeds: Mapping[str, Mapping[str, Speed]], datasheet: float, *, title: str
) -> go.Figure:
    """Draw how many times as fast a V100 is as a P100, by model and batch size.

    Args:
        datasheet: the ratio of the GPUs' FLOP/s.
    """
    figure = go.Figure()
    largest = 1.0
    for number, (model, by_gpu) in enumerate(speeds.items()):
        sizes = by_gpu["v100"].sizes
        figure.add_scatter(
            x=sizes,
            y=by_gpu["p100"].seconds / by_gpu["v100"].seconds,
            mode="lines+markers",
            name=model,
            line={"color": NEXT_HUES[number % len(NEXT_HUES)]},
        )
        largest = max(largest, float(sizes[-1]))
    levels = {"by FLOP/s": (datasheet, "paper"), "equally fast": (1.0, "baseline")}
    draw.levels(figure, [4, largest], levels)
    ticks = [4, 16, 64, 256, 1024, 4096]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title=title,
        x="batch size of a GPU (samples)",
        y="V100 over P100 (times)",
        height=440,
    )


def figure_gains(
    gains: pd.DataFrame, *, title: str, paper: Sequence[float] = (), x: str = "model"
) -> go.Figure:
    """Draw markers of several ways, a place a row, with the paper's range.

    Args:
        gains: a column a way.
        paper: the ends of the paper's range, or nothing.
        x: title of the axis that has the rows.
    """
    figure = go.Figure()
    places = list(range(len(gains)))
    ends = [places[0] - 0.4, places[-1] + 0.4]
    for value in paper:
        draw.level(figure, ends, value, f"paper: {value:g}", "paper")
    draw.level(figure, ends, 1.0, "equal", "baseline")
    for number, way in enumerate(gains):
        shift = (number - (len(gains.columns) - 1) / 2) * 0.2
        figure.add_scatter(
            x=[place + shift for place in places],
            y=gains[way],
            mode="markers+text",
            name=str(way),
            text=[f"{value:.2f}" for value in gains[way]],
            textposition="top center",
            cliponaxis=False,
            showlegend=len(gains.columns) > 1,
            marker={
                "color": HUES.get(str(way), NEXT_HUES[number % len(NEXT_HUES)]),
                "size": 12,
                "symbol": "line-ew" if way == "linear program" else "circle",
                "line": {"width": 3 if way == "linear program" else 0},
            },
        )
    figure.update_xaxes(tickvals=places, ticktext=[str(name) for name in gains.index])
    figure.update_xaxes(range=[ends[0], ends[1] + 0.35])
    return draw.finish(figure, title=title, x=x, y="throughput over equal (times)", height=440)
