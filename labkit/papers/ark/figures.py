"""ARK's figures: a message's way, and lines over message sizes with the paper's points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

HUES: dict[str, str] = {
    "mediated": draw.PALETTE["baseline"],
    "mediated, queued": draw.PALETTE["power"],
    "self-driven": draw.PALETTE["ours"],
    "self-driven, one at a time": draw.PALETTE["recompute"],
    "own copies": draw.PALETTE["weight"],
}
"""Colours of the ways; other lines take theirs in turn."""
NEXT_HUES = [draw.PALETTE[name] for name in ("ours", "cost", "weight", "input", "baseline")]
STEPS = {
    "asks": draw.PALETTE["input"],
    "wakes up": draw.PALETTE["bubble"],
    "copies": draw.PALETTE["ours"],
    "sees": draw.PALETTE["weight"],
}
"""What happens to a message, and its colour."""
MEDIATED = (("sender", "asks", 1), ("mediator", "wakes up", 3), ("mediator", "copies", 2))
BACK = (("sender", "wakes up", 3), ("sender", "sees", 1))


def timeline(num_messages: int = 3) -> list[tuple[str, str, float, float]]:
    """What the lanes of the picture do: lane, step, begin and end.

    Mediated, a message begins where the one before it ends. Self-driven, the sender asks whenever
    it likes, and the engine copies one message after another.
    """
    bars: list[tuple[str, str, float, float]] = []
    now = 0.0
    for _ in range(num_messages):
        for lane, step, length in (*MEDIATED, *BACK):
            bars.append((f"mediated: {lane}", step, now, now + length))
            now += length
    copied = 0.0
    for message in range(num_messages):
        bars.append(("self-driven: sender", "asks", message, message + 1))
        begin = max(copied, message + 1)
        copied = begin + 2
        bars.append(("self-driven: engine", "copies", begin, copied))
    bars.append(("self-driven: sender", "sees", copied, copied + 1))
    return bars


def figure_idea() -> go.Figure:
    """Draw three messages of each way, a lane a process."""
    figure = go.Figure()
    bars = timeline()
    lanes = list(dict.fromkeys(lane for lane, *_ in bars))
    for step, hue in STEPS.items():
        of_step = [bar for bar in bars if bar[1] == step]
        figure.add_bar(
            orientation="h",
            y=[lane for lane, *_ in of_step],
            x=[end - begin for _, _, begin, end in of_step],
            base=[begin for _, _, begin, _ in of_step],
            name=step,
            marker={"color": hue, "line": {"color": "white", "width": 1}},
        )
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(categoryorder="array", categoryarray=lanes[::-1])
    figure.update_xaxes(showticklabels=False, ticks="")
    title = "Whoever need not be woken can start the next copy while the last one runs"
    return draw.finish(figure, title=title, x="time", height=330)


def _add_level(figure: go.Figure, ends: pd.Index, words: str, height: float) -> None:
    """Draw a number of the paper as a level from end to end, its words beneath its left end."""
    figure.add_scatter(
        x=ends,
        y=[height, height],
        mode="lines",
        showlegend=False,
        hovertemplate=f"{words}<extra></extra>",
        line={"color": draw.PALETTE["paper"], "dash": "dot"},
    )
    # beneath, where lines come down to it from the left
    draw.note(figure, ends[0], height, words, "paper", xanchor="left", yanchor="top")


def figure_lines(
    lines: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str,
    ticks: Sequence[str],
    points: Mapping[str, tuple[float, float]] | None = None,
    level: tuple[str, float] | None = None,
    log_y: bool = True,
) -> go.Figure:
    """Draw a line a column over sizes, labelled at its end.

    Args:
        lines: the index is the size; a column whose name has "bound" is dotted.
        title: what the figure shows.
        x, y: titles of the axes, with units.
        ticks: words of the x axis, one a row of ``lines``.
        points: by their words, a size and a height of the paper's.
        level: words and height of a number that the paper gives without a size.
        log_y: whether the y axis is logarithmic.
    """
    figure = go.Figure()
    draw.lines(figure, lines, hues=HUES, others=NEXT_HUES)
    draw.decades(figure, lines.index, ticks, y=log_y)
    if level:
        _add_level(figure, lines.index[[0, -1]], *level)
    for words, (size, value) in (points or {}).items():
        draw.stars(figure, [size], [value], words)
        draw.note(figure, size, value, words, "paper", yshift=-16)
    return draw.finish(figure, title=title, x=x, y=y, height=440, direct=True)
