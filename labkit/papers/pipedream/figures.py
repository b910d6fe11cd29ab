"""PipeDream's figures: the idea as two bars, waiting, steps of a pipeline, weights, speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.papers.pipedream.configurations import COSTINGS, NETWORKS
from labkit.papers.pipedream.training import Rule
from labkit.planner.plans import Plan

HUES: dict[str, str] = {
    Rule.ONE_WORKER: draw.PALETTE["baseline"],
    Rule.STASHING: draw.PALETTE["ours"],
    Rule.VERTICAL_SYNC: draw.PALETTE["weight"],
    Rule.NO_STASHING: draw.PALETTE["cost"],
}
"""Colour of each rule of weights."""
STAGE_HUES = draw.CYCLE[:1] + draw.CYCLE[2:]


def figure_idea(plan: Plan) -> go.Figure:
    """Where a network's compute and its weights are, and which stage gets them.

    Args:
        plan: its stages are the colours.
    """
    chain = plan.chain
    shares = {
        "compute": np.add(chain.forward_s, chain.backward_s) / chain.time_s,
        "weights": np.divide(chain.parameter_bytes, sum(chain.parameter_bytes)),
    }
    figure = go.Figure()
    for number, stage in enumerate(plan.stages):
        gpus = f"{stage.replicas} GPUs" if stage.replicas > 1 else "1 GPU"
        parts = [100 * float(sum(share[stage.first : stage.end])) for share in shares.values()]
        figure.add_bar(
            x=parts,
            y=[*shares],
            orientation="h",
            name=f"stage {number}: layers {stage.first + 1} to {stage.end}, {gpus}",
            text=[f"{part:.0f} %" for part in parts],
            textposition="inside",
            insidetextanchor="middle",
            textfont={"color": "white"},
            marker={"color": STAGE_HUES[number % len(STAGE_HUES)], "line": {"color": "white"}},
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(range=[0, 100])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    title = "What computes much is replicated; what weighs much stays on one GPU"
    return draw.finish(figure, title=title, x="share of the network (%)", y="", height=290)


def figure_waiting(table: pd.DataFrame, *, title: str) -> go.Figure:
    """The share of time that a GPU of data parallelism waits, by their number.

    Args:
        table: columns network, devices, waits_fraction.
        title: what the figure shows.
    """
    figure = go.Figure()
    sizes = sorted(table["devices"].unique().tolist())
    places = {size: place for place, size in enumerate(sizes)}
    for hue, (network, rows) in zip(
        draw.CYCLE[2:], table.groupby("network", sort=False), strict=False
    ):
        figure.add_scatter(
            x=rows["devices"].map(places),
            y=100 * rows["waits_fraction"],
            mode="lines+markers",
            name=NETWORKS.get(str(network), str(network)),
            line={"color": hue, "width": 3},
        )
    figure.update_xaxes(
        tickvals=[*places.values()],
        ticktext=[*map(str, sizes)],
        range=[-0.1, len(sizes) - 1],
    )
    figure.update_yaxes(range=[0, 100])
    return draw.finish(figure, title=title, x="GPUs", y="time spent waiting (%)", direct=True)


def figure_steps(seconds: Mapping[str, float], bound_s: float, *, title: str) -> go.Figure:
    """Seconds a minibatch, step by step of the mechanism, and the least there could be.

    Args:
        seconds: by the step's name.
        bound_s: compute divided among the GPUs, nothing else.
        title: what the figure shows.
    """
    values_ms = [1000 * value for value in seconds.values()]
    figure = go.Figure(
        go.Bar(
            x=[*range(len(values_ms))],
            y=values_ms,
            marker_color=draw.PALETTE["ours"],
            text=[f"{value:.3g}" for value in values_ms],
            textposition="outside",
            name="one minibatch",
        )
    )
    figure.add_scatter(
        x=[-0.5, len(values_ms) - 0.5],
        y=[1000 * bound_s] * 2,
        mode="lines",
        name="bound: compute alone, shared evenly",
        line={"color": draw.PALETTE["bound"], "dash": "dot"},
    )
    ticks = [name.replace(", ", ",<br>") for name in seconds]
    figure.update_xaxes(tickvals=[*range(len(ticks))], ticktext=ticks)
    figure.update_yaxes(range=[0, 1.15 * max(values_ms)])
    return draw.finish(figure, title=title, x="step by step", y="ms a minibatch", height=440)


def figure_ages(
    trained: Mapping[str, np.ndarray], rates: Sequence[float], *, title: str
) -> go.Figure:
    """Accuracy by learning rate and by the weights that a minibatch sees.

    Args:
        trained: by rule, :func:`.accuracies`' array of rates and seeds.
        rates: learning rates.
        title: what the figure shows.
    """
    figure = go.Figure()
    places = [*range(len(rates))]
    for rule, scores in trained.items():
        mean = scores.mean(1)
        whiskers = {
            "type": "data",
            "array": 100 * (scores.max(1) - mean),
            "arrayminus": 100 * (mean - scores.min(1)),
        }
        figure.add_scatter(
            x=places,
            y=100 * mean,
            error_y=whiskers,
            mode="lines+markers",
            name=str(rule),
            line={"color": HUES[rule], "width": 3},
        )
    figure.update_xaxes(tickvals=places, ticktext=[f"{rate:g}" for rate in rates])
    x = "learning rate (bars: range of the seeds)"
    return draw.finish(figure, title=title, x=x, y="test accuracy (%)", height=460)


def figure_bandwidth(
    lines: Mapping[str, pd.DataFrame],
    published: float,
    *,
    published_gbit: float,
    title: str,
) -> go.Figure:
    """Speed-up over data parallelism by the rate of a link, with the paper's number and the bound.

    Args:
        lines: by name, :func:`.speedups`' table; the first is drawn as ours, and its bound shown.
        published: the paper's largest speed-up.
        published_gbit: the rate of the paper's links, at which it is marked.
        title: what the figure shows.
    """
    figure = go.Figure()
    first = next(iter(lines.values()))
    bound_name = f"bound, {next(iter(lines))}"
    places = {rate: place for place, rate in enumerate(first["gbit_per_s"])}
    x = [*places.values()]
    looks = [
        {"color": draw.PALETTE["ours"], "width": 4},
        {"color": draw.PALETTE["ours"], "width": 2, "dash": "dash"},
        {"color": draw.PALETTE["energy"], "width": 2},
        {"color": draw.PALETTE["energy"], "width": 2, "dash": "dash"},
    ]
    dotted = {"color": draw.PALETTE["bound"], "dash": "dot"}
    figure.add_scatter(x=x, y=first["bound"], name=bound_name, line=dotted)
    for (name, table), look in zip(lines.items(), looks, strict=False):
        figure.add_scatter(x=x, y=table["speedup"], name=name, mode="lines+markers", line=look)
    figure.add_hline(1, line={"color": draw.PALETTE["baseline"], "width": 1})
    figure.add_annotation(
        x=x[0], y=0, text="data parallelism", showarrow=False, xanchor="left", yanchor="bottom"
    )
    figure.add_scatter(
        x=[places[published_gbit]],
        y=[published],
        mode="markers+text",
        text=[f"paper: up to {published:g}"],
        textposition="top right",
        name="paper",
        showlegend=False,
        marker={"color": draw.PALETTE["paper"], "size": 15, "symbol": "diamond"},
    )
    figure.update_xaxes(tickvals=x, ticktext=[f"{rate:g}" for rate in places])
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    x_title = "a GPU's link (Gbit/s)"
    return draw.finish(
        figure, title=title, x=x_title, y="speed-up over data parallelism (×)", height=480
    )


def figure_costings(table: pd.DataFrame, published: float, *, title: str) -> go.Figure:
    """Speed-up and plan under each way to add up costs, beside the paper's number.

    Args:
        table: columns costing, speedup, plan.
        published: the paper's largest speed-up.
        title: what the figure shows.
    """
    figure = go.Figure(
        go.Bar(
            x=[*range(len(table))],
            y=table["speedup"],
            text=table["plan"],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            marker_color=draw.PALETTE["ours"],
            name="",
        )
    )
    figure.add_hline(
        published,
        line={"color": draw.PALETTE["paper"], "width": 3},
        annotation_text=f"paper: up to {published:g}",
        annotation_position="top right",
    )
    ticks = [COSTINGS[costing].replace(", ", ",<br>") for costing in table["costing"]]
    figure.update_xaxes(tickvals=[*range(len(ticks))], ticktext=ticks)
    figure.update_yaxes(range=[0, 9])
    x = "how costs add up (in a bar: its plan)"
    return draw.finish(figure, title=title, x=x, y="speed-up over data parallelism (×)", height=460)
