"""The parameter server's figures: who waits for whom, time over delay, bytes by filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

_SECONDS = ((1.0, 1.6, 0.9, 1.4), (1.5, 0.8, 1.2, 1.0), (0.8, 1.1, 1.7, 0.9))
"""Seconds that three workers compute in four iterations of the picture."""


def _starts(delay: int) -> list[tuple[int, int, float, float]]:
    """Worker, iteration, start and end; iteration t waits for all before t - delay."""
    finished: list[float] = []
    free = [0.0] * len(_SECONDS)
    bars = []
    for iteration in range(len(_SECONDS[0])):
        bound = iteration - delay - 1
        waited = finished[bound] if bound >= 0 else 0.0
        for worker, seconds in enumerate(_SECONDS):
            start = max(free[worker], waited)
            free[worker] = start + seconds[iteration]
            bars.append((worker, iteration, start, free[worker]))
        finished.append(max(free))
    return bars


def figure_idea(delays: Sequence[int] = (0, 1)) -> go.Figure:
    """Three workers and four iterations, with one bound on the delay above the other."""
    figure = go.Figure()
    hues = [draw.PALETTE[name] for name in ("ours", "paper", "weight", "cost")]
    places = []
    words = []
    ends: dict[int, float] = {}
    for panel, delay in enumerate(delays):
        for worker, iteration, start, end in _starts(delay):
            place = -(panel * (len(_SECONDS) + 1) + worker)
            figure.add_bar(
                x=[end - start],
                base=[start],
                y=[place],
                orientation="h",
                marker_color=hues[iteration],
                name=f"iteration {iteration + 1}",
                showlegend=panel == 0 and worker == 0,
            )
            if iteration == 0:
                places.append(place)
                words.append(f"delay {delay}, worker {worker + 1}")
            ends[delay] = max(ends.get(delay, 0.0), end)
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(tickvals=places, ticktext=words)
    first_s = ends[delays[0]]
    saved_s = first_s - ends[delays[-1]]
    title = f"Who may be ahead by an iteration waits less: {saved_s:.1f} of {first_s:.1f} s saved"
    return draw.finish(figure, title=title, x="time (s)", height=360)


def figure_delay(
    times: Mapping[str, Mapping[str, float]], best: Mapping[str, str], *, title: str
) -> go.Figure:
    """The headline: seconds to the same objective over the delay that is allowed.

    Args:
        times: for each way, seconds by delay in words; NaN where it was not reached.
        best: what a marker says at a way's shortest time.
    """
    figure = go.Figure()
    hues = [draw.PALETTE[name] for name in ("ours", "baseline", "weight")]
    for (name, values), hue in zip(times.items(), hues, strict=False):
        figure.add_scatter(
            x=[*range(len(values))],
            y=[round(value, 3) for value in values.values()],
            mode="lines+markers",
            name=name,
            line_color=hue,
        )
        if name in best:
            seconds = np.array([*values.values()])
            figure.add_annotation(
                x=int(np.nanargmin(seconds)),
                y=float(np.nanmin(seconds)),
                text=best[name],
                ay=-45,
                ax=-45,
            )
    labels = max(times.values(), key=len)
    figure.update_xaxes(tickvals=[*range(len(labels))], ticktext=[*labels])
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title=title,
        x="delay allowed (iterations)",
        y="virtual time to the objective (s)",
        height=460,
    )


def figure_shares(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Seconds of a worker by delay, computing below waiting.

    Args:
        table: a row a delay; ``computing_s`` and ``waiting_s``.
    """
    figure = go.Figure()
    places = [*range(len(table))]
    for column, words, concept in (
        ("computing_s", "computing", "ours"),
        ("waiting_s", "waiting", "idle"),
    ):
        figure.add_bar(
            x=places,
            y=table[column].round(3),
            name=words,
            marker_color=draw.PALETTE[concept],
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(tickvals=places, ticktext=[str(delay) for delay in table.index])
    return draw.finish(
        figure, title=title, x="delay allowed (iterations)", y="a worker's virtual time (s)"
    )


def figure_bytes(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Bytes that workers and servers send, by what is left out.

    Args:
        table: a row a set of filters; ``workers`` and ``servers`` in bytes.
    """
    figure = go.Figure()
    for column, concept in (("workers", "ours"), ("servers", "paper")):
        figure.add_bar(
            x=[*table.index],
            y=(table[column] / 1e6).round(3),
            name=f"sent by {column}",
            marker_color=draw.PALETTE[concept],
        )
    figure.update_layout(barmode="group")
    return draw.finish(figure, title=title, x="messages", y="sent (MB)")
