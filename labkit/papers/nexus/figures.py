"""Nexus's figures: duty cycles, gains part by part, and splits of a query's latency."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.nexus.packing import Packing

GREY = draw.PALETTE["idle"]
HUES = (draw.CYCLE[0], draw.CYCLE[2], draw.CYCLE[4], draw.CYCLE[5], draw.CYCLE[6])
"""Colours of models and of parts; the paper's orange is not among them."""


def figure_cycles(plans: Mapping[str, Packing]) -> go.Figure:
    """One duty cycle of each GPU, and beside it how long a request may take at worst.

    Args:
        plans: by the name that stands before their GPUs.

    Source: Fig. 2.
    """
    bars: list[go.Bar] = []
    notes: list[tuple[str, float, str]] = []
    models = sorted({s.model for plan in plans.values() for s in plan.sessions})
    colours = dict(zip(models, HUES, strict=False))
    named: set[str] = set()
    for name, plan in plans.items():
        for number, server in enumerate(plan.servers):
            row = f"{name}, GPU {number}"
            start_s = 0.0
            worst: list[str] = []
            for slot in server.slots:
                model = slot.session.model
                bars.append(
                    _bar(row, start_s, slot.latency_s, colours[model], f"{slot.batch} of {model}")
                )
                bars[-1].update(name=f"model {model}", showlegend=model not in named)
                named.add(model)
                start_s += slot.latency_s
                worst_ms = 1e3 * (server.duty_s + slot.latency_s)
                allowed_ms = 1e3 * slot.session.slo_s
                late = "<b>late</b>: " if worst_ms > allowed_ms * (1 + 1e-9) else ""
                worst.append(f"{late}{model} {worst_ms:.0f} of {allowed_ms:.0f} ms")
            if server.duty_s > start_s * (1 + 1e-9):
                bars.append(_bar(row, start_s, server.duty_s - start_s, GREY, ""))
                bars[-1].update(name="idle", showlegend="idle" not in named)
                named.add("idle")
            notes.append((row, 1e3 * server.duty_s, "<br>".join(worst)))
    figure = go.Figure(bars)
    for row, end_ms, text in notes:
        figure.add_annotation(
            x=end_ms, y=row, text=text, showarrow=False, xanchor="left", xshift=8, align="left"
        )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_yaxes(autorange="reversed", title="")
    figure.update_xaxes(range=[0, 1.45 * max(end_ms for _, end_ms, _ in notes)])
    title = "A shorter duty cycle shrinks every batch, so nobody is late"
    return draw.finish(figure, title=title, x="time in a duty cycle (ms)", height=360)


def _bar(row: str, start_s: float, length_s: float, colour: str, text: str) -> go.Bar:
    return go.Bar(
        y=[row],
        base=[1e3 * start_s],
        x=[1e3 * length_s],
        orientation="h",
        marker_color=colour,
        text=[text],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
    )


def figure_gains(gains: pd.DataFrame, bounds: pd.Series, *, paper: float, title: str) -> go.Figure:
    """Bars of each part that is added; a group of bars a number of models.

    Args:
        gains: rates over the baseline's, a row a part (the first is the baseline), a column a
            number of models.
        bounds: what no plan can beat, over the baseline's rate, by number of models.
        paper: the gain that the paper prints.
        title: what the bars show.
    """
    width = 0.2
    traces: list[go.Bar | go.Scatter] = []
    for place, (part, row) in enumerate(gains.iterrows()):
        centres = [group + (place - (len(gains) - 1) / 2) * width for group in range(len(row))]
        traces.append(
            go.Bar(
                x=centres,
                y=row.to_numpy(),
                width=width * 0.9,
                name=str(part),
                marker_color=draw.PALETTE["baseline"] if place == 0 else HUES[place - 1],
                text=[f"{gain:.2f}" for gain in row],
                textposition="inside",
                insidetextanchor="end",
                textangle=0,
            )
        )
    figure = go.Figure(traces)
    for group, models in enumerate(gains.columns):
        level = float(bounds[models])
        figure.add_scatter(
            x=[group - 0.45, group + 0.45],
            y=[level, level],
            mode="lines+text",
            text=["", f"bound, none late: {level:.2f}"],
            textposition="top left",
            line={"color": draw.PALETTE["bound"], "dash": "dash"},
            showlegend=False,
            name="bound",
        )
    figure.add_hline(
        y=paper,
        line={"color": draw.PALETTE["paper"], "dash": "dot"},
        annotation={
            "text": f"the paper's smallest gain, {paper:g}",
            "font_color": draw.PALETTE["paper"],
            "x": 0.51,  # over the second group: the first one's bound is as high
            "xanchor": "left",
            "yanchor": "bottom",
        },
    )
    figure.update_xaxes(
        tickvals=[*range(gains.shape[1])],
        ticktext=[f"{models} models" for models in gains.columns],
        range=[-0.5, gains.shape[1] - 0.5],
    )
    top = max(float(bounds.max()), paper, float(gains.to_numpy().max()))
    figure.update_yaxes(range=[0, 1.15 * top])
    y = "rate over the baseline's"
    return draw.finish(figure, title=title, x="specialised models on the GPUs", y=y, height=460)


def figure_splits(queries: pd.DataFrame, *, title: str) -> go.Figure:
    """Queries a second and GPU over the budget of the first model, each line over its best.

    Args:
        queries: an index of budgets in milliseconds, a column a line.
        title: what the lines show.

    Source: Fig. 4.
    """
    figure = go.Figure()
    for colour, (name, column) in zip(HUES, queries.items(), strict=False):
        share = column / column.max()
        best_ms = share.idxmax()
        figure.add_scatter(
            x=queries.index, y=share, mode="lines+markers", name=str(name), line_color=colour
        )
        figure.add_scatter(
            x=[best_ms],
            y=[1],
            mode="markers",
            marker={"color": colour, "size": 15, "symbol": "star"},
            showlegend=False,
            name=f"best: {best_ms:g} ms",
        )
    figure.update_yaxes(range=[0, 1.08])
    y = "rate a GPU, over the best"
    x = "budget of the first model (ms); the second has the rest"
    return draw.finish(figure, title=title, x=x, y=y)
