"""Figures of PipeSwitch: copies beside computations, and latencies by ways of sending a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.pipeswitch.experiment import Experiment, Way
from labkit.papers.pipeswitch.layers import Layers, Link, stream

TITLES = {"resnet152": "ResNet-152", "bert_base": "BERT-base"}


def figure_stream(
    layers: Layers, link: Link, groupings: Mapping[str, Sequence[int]], *, title: str
) -> go.Figure:
    """When each group of layers is copied and when it runs; two rows a grouping.

    Args:
        layers: a small model.
        link: over which it comes.
        groupings: by the words beside the rows, layers in each group.
        title: what the figure shows.
    """
    figure = go.Figure()
    rows = []
    for label, groups in groupings.items():
        times = stream(layers, link, groups)
        ends = [*accumulate(groups)]
        starts = [0, *ends[:-1]]
        sent_s = [0.0, *times.arrival_s[:-1]]
        work_s = [sum(layers.compute_s[start:end]) for start, end in zip(starts, ends, strict=True)]
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            name = f"{start + 1}" if end == start + 1 else f"{start + 1} to {end}"
            copied_s = times.arrival_s[place] - sent_s[place]
            ran_from_s = times.finish_s[place] - work_s[place]
            for row, begin_s, length_s, colour in (
                (f"{label}: link", sent_s[place], copied_s, draw.PALETTE["communication"]),
                (f"{label}: GPU", ran_from_s, work_s[place], draw.PALETTE["forward"]),
            ):
                figure.add_bar(
                    y=[row],
                    base=[1e3 * begin_s],
                    x=[1e3 * length_s],
                    orientation="h",
                    marker={"color": colour, "line": {"color": "white", "width": 2}},
                    text=[name],
                    textposition="inside",
                    insidetextanchor="middle",
                    textangle=0,
                    name="layers " + name,
                )
        rows += [f"{label}: link", f"{label}: GPU"]
    figure.update_layout(barmode="overlay", bargap=0.15, showlegend=False)
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], title="")
    return draw.finish(figure, title=title, x="time (ms)", height=360)


def figure_ways(experiment: Experiment, ways: Iterable[Way], *, title: str) -> go.Figure:
    """Latencies of both models by way, the authors' rerun beside ours.

    Args:
        experiment: the models and their link.
        ways: in the order of the bars.
        title: what the figure shows.

    Source: Fig. 7.
    """
    ways = [*ways]
    figure = go.Figure()
    places: list[int] = []
    labels: list[str] = []
    reruns_ms: list[float | None] = []
    ours_ms: list[float] = []
    for group, model in enumerate(experiment.models):
        first = group * (len(ways) + 1)
        for place, way in enumerate(ways):
            rerun_s = experiment.rerun_s(way, model)
            places.append(first + place)
            labels.append(way.replace(", ", ",<br>").replace("streamed ", "streamed<br>"))
            reruns_ms.append(None if rerun_s is None else 1e3 * rerun_s)
            ours_ms.append(1e3 * experiment.latency_s(way, model))
        _lines(figure, experiment, model, first - 0.5, first + len(ways) - 0.5)
        figure.add_annotation(
            x=first + (len(ways) - 1) / 2,
            y=1,
            yref="y domain",
            text=TITLES[model],
            yanchor="top",
            showarrow=False,
            font={"size": 18},
        )
    for name, heights, colour in (
        ("authors' rerun", reruns_ms, "paper"),
        ("ours, modelled", ours_ms, "ours"),
    ):
        figure.add_bar(
            x=places,
            y=heights,
            marker_color=draw.PALETTE[colour],
            text=["" if height is None else f"{height:.0f}" for height in heights],
            textposition="outside",
            textangle=0,
            name=name,
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(tickvals=places, ticktext=labels, tickangle=0, tickfont={"size": 11})
    known = [height for height in reruns_ms if height is not None]
    figure.update_yaxes(range=[0, 1.2 * max(*known, *ours_ms)])
    x = "how the layers are sent"
    return draw.finish(figure, title=title, x=x, y="latency of a query (ms)", height=500)


def _lines(
    figure: go.Figure, experiment: Experiment, model: str, left: float, right: float
) -> None:
    """The model that is ready, and the bound, from one place to another."""
    levels = {
        "ready on the GPU": (experiment.models[model].ready_s, "dot", draw.PALETTE["muted"]),
        "bound of any grouping": (experiment.bound_s(model), "dash", draw.PALETTE["bound"]),
    }
    for name, (seconds, dash, colour) in levels.items():
        figure.add_scatter(
            x=[left, right],
            y=[1e3 * seconds] * 2,
            mode="lines",
            line={"dash": dash, "color": colour},
            name=name,
            showlegend=left < 0,
        )
