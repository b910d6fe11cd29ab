"""Aceso's figures: stages of plans, the best plan by stages priced, and iterations by way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.aceso.alleviating import Result
from labkit.papers.aceso.experiment import Way
from labkit.papers.aceso.pricing import Job, Plan

HUES: dict[Way, str] = {
    Way.BOTTLENECK: draw.PALETTE["ours"],
    Way.RANDOM: draw.PALETTE["highlight"],
    Way.WALK: draw.PALETTE["weight"],
    Way.LAYERS: draw.PALETTE["baseline"],
    Way.EVEN: draw.PALETTE["cost"],
}
"""Colour of each way."""
_CAUSES = (
    ("compute_s", "forward and backward", draw.PALETTE["forward"]),
    ("again_s", "computed again", draw.PALETTE["recompute"]),
    ("transfers_s", "input and output", draw.PALETTE["communication"]),
)


def figure_stages(job: Job, plans: Mapping[str, Plan], *, title: str) -> go.Figure:
    """Milliseconds of each stage a microbatch, a panel a plan, and its memory above the bar.

    Args:
        plans: by what the panel is called.
        title: what the figure shows.
    """
    highest = 0.0
    figure = make_subplots(
        cols=len(plans),
        shared_yaxes=True,
        subplot_titles=[*plans],
        horizontal_spacing=0.03,
    )
    for column, plan in enumerate(plans.values(), start=1):
        price = job.price(plan)
        numbers = [*range(1, len(plan.stages) + 1)]
        for field, words, color in _CAUSES:
            # A microbatch holds more samples in some plans: milliseconds a sample compare.
            heights = [1000 * getattr(stage, field) / plan.microbatch for stage in price.stages]
            figure.add_bar(
                x=numbers,
                y=heights,
                name=words,
                marker_color=color,
                showlegend=column == 1,
                row=1,
                col=column,
            )
        tops = [1000 * stage.time_s / plan.microbatch for stage in price.stages]
        highest = max(highest, *tops)
        figure.add_scatter(
            x=numbers,
            y=tops,
            mode="text",
            text=[f"{stage.memory_mib:,.0f} MiB" for stage in price.stages],
            textposition="top center",
            showlegend=False,
            row=1,
            col=column,
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(dtick=1)
    figure.update_yaxes(range=[0, 1.15 * highest])  # room for the words on the bars
    return draw.finish(figure, title=title, x="stage", y="time a sample (ms)", height=400)


def figure_search(
    results: Mapping[Way, Result],
    *,
    bound_s: float | None = None,
    published_s: float | None = None,
    title: str,
) -> go.Figure:
    """The best plan known, by how many stages were priced.

    Args:
        results: by way; grids are drawn as one point.
        bound_s: what no plan beats.
        published_s: the authors' prediction.
        title: what the figure shows.
    """
    figure = go.Figure()
    last = max(result.priced for result in results.values())
    for way, result in results.items():
        color = HUES[way]
        if way in (Way.LAYERS, Way.EVEN):
            marker = {"color": color, "size": 12, "symbol": "diamond"}
            figure.add_scatter(
                x=[result.priced], y=[result.iteration_s], mode="markers", name=way, marker=marker
            )
            continue
        places = [max(step.priced, 1) for step in result.steps] + [result.priced]
        heights = [step.iteration_s for step in result.steps] + [result.iteration_s]
        line = {"color": color, "shape": "hv", "width": 2.5}
        figure.add_scatter(x=places, y=heights, mode="lines", name=way, line=line)
    span = [1, last]
    if bound_s is not None:
        line = {"color": draw.PALETTE["bound"], "dash": "dot"}
        name = "bound: no plan is faster"
        figure.add_scatter(x=span, y=[bound_s] * 2, mode="lines", name=name, line=line)
    if published_s is not None:
        line = {"color": draw.PALETTE["paper"], "dash": "dash"}
        name = "the authors' plan, predicted"
        figure.add_scatter(x=span, y=[published_s] * 2, mode="lines", name=name, line=line)
    figure.update_xaxes(type="log", dtick=1)
    return draw.finish(
        figure, title=title, x="stages priced", y="predicted iteration (s)", height=440
    )


def figure_gains(
    gains: Mapping[str, Sequence[float]],
    names: Sequence[str],
    *,
    published: Sequence[float | None],
    title: str,
) -> go.Figure:
    """Throughput over a rival, a group of bars a network, with the paper's as a thick line.

    Args:
        gains: by way, one a network.
        names: of the networks.
        published: of the paper, or None.
        title: what the figure shows.
    """
    figure = go.Figure()
    places = [*range(len(names))]
    for way, values in gains.items():
        figure.add_bar(x=places, y=[*values], name=way, marker_color=HUES.get(Way(way)))
    shown = [place for place in places if published[place] is not None]
    figure.add_scatter(
        x=shown,
        y=[published[place] for place in shown],
        mode="markers",
        name="the paper's, measured",
        marker={
            "symbol": "line-ew",
            "size": 70,
            "line": {"width": 4, "color": draw.PALETTE["paper"]},
        },
    )
    figure.update_xaxes(tickvals=places, ticktext=[*names])
    rival = "throughput over Alpa's space (×)"
    return draw.finish(figure, title=title, x="network", y=rival, height=400)


def figure_limits(
    table: Mapping[Way, Sequence[float]], limits_mib: Sequence[float], chosen: float, *, title: str
) -> go.Figure:
    """Iteration by memory limit, a line a way, with the limit that is looked at."""
    figure = go.Figure()
    for way, values in table.items():
        line = {"color": HUES[way], "width": 2.5}
        figure.add_scatter(x=[*limits_mib], y=[*values], mode="lines+markers", name=way, line=line)
    figure.add_vline(chosen, line={"color": draw.PALETTE["highlight"], "dash": "dot"})
    figure.update_xaxes(tickvals=[*limits_mib], tickformat=",.0f")
    return draw.finish(
        figure,
        title=title,
        x="memory limit of a GPU (MiB)",
        y="predicted iteration (s)",
        height=400,
    )
