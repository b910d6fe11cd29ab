"""Tiresias's figures: the idea on a few jobs, the workload, the index, completion times, gains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike
from plotly.subplots import make_subplots

from labkit.cluster.bounds import Bound
from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import fifo, las2d
from labkit.cluster.results import Run
from labkit.cluster.simulation import simulate
from labkit.kit import draw
from labkit.papers.tiresias.experiment import Method

COLORS = {
    Method.FIFO: draw.PALETTE["baseline"],
    Method.BEST_EFFORT: draw.CYCLE[5],
    Method.LAS: draw.CYCLE[1],
    Method.LAS2D: draw.PALETTE["ours"],
    Method.SLICES: draw.CYCLE[3],
    Method.GITTINS: draw.CYCLE[2],
    Method.SRSF: draw.CYCLE[6],
}
_QUEUE_COLORS = [draw.CYCLE[0], draw.CYCLE[5], draw.PALETTE["idle"]]
_PAPER = draw.PALETTE["paper"]
_BOUND = draw.PALETTE["bound"]


def figure_idea(trace: Trace, num_gpus: int) -> go.Figure:
    """When each of a few jobs runs, first come first served and by 2D-LAS; colours are queues.

    Args:
        trace: the jobs, named by their ids.
        num_gpus: of the one node that they share.

    Source: §3.2; our drawing.
    """
    policies = {"first come, first served": fifo(), "least GPU time first": las2d()}
    node = Cluster.nodes(1, gpus=num_gpus)
    runs = {name: simulate(trace, node, policy) for name, policy in policies.items()}
    titles = [f"{name}: {run.jct_s.mean() / 60:.0f} min on average" for name, run in runs.items()]
    figure = make_subplots(rows=2, cols=1, subplot_titles=titles, shared_xaxes=True)
    for row, run in enumerate(runs.values(), start=1):
        for job, start_s, end_s, queue in _pieces(run):
            figure.add_bar(
                y=[trace.ids[job]],
                base=[start_s / 60],
                x=[(end_s - start_s) / 60],
                orientation="h",
                marker={"color": _QUEUE_COLORS[queue], "line": {"color": "white"}},
                showlegend=False,
                row=row,
                col=1,
            )
    for queue, words in enumerate(["first queue", "second queue", "last queue"]):
        figure.add_bar(x=[None], y=[None], name=words, marker_color=_QUEUE_COLORS[queue])
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(autorange="reversed", title="", categoryarray=[*trace.ids])
    title = "Small jobs pass a large one once it has received its share"
    figure = draw.finish(figure, title=title, x="time (min)", y=" ", height=480)
    figure.update_xaxes(title="", row=1, col=1)
    return figure


def _pieces(run: Run) -> list[tuple[int, float, float, int]]:
    """Stretches of time in which a job runs in one queue of 2D-LAS: job, start_s, end_s, queue."""
    limits = np.array([0.0, *las2d().thresholds, np.inf])
    received = np.zeros(len(run.trace))
    rows = []
    for place in np.argsort(run.segments["start_s"], kind="stable"):
        job, start_s, end_s, gpus = (
            run.segments[name][place].item() for name in ("job", "start_s", "end_s", "gpus")
        )
        while start_s < end_s - 1e-9:
            queue = int(np.searchsorted(limits, received[job] + 1e-9)) - 1
            left_s = (limits[queue + 1] - received[job]) / gpus
            until_s = min(end_s, start_s + left_s)
            received[job] += (until_s - start_s) * gpus
            rows.append((job, start_s, until_s, queue))
            start_s = until_s
    return rows


def figure_largest(trace: Trace) -> go.Figure:
    """The share of all GPU time that the largest jobs hold."""
    work = np.sort(trace.work_gpu_s)[::-1]
    jobs = np.linspace(0, 1, 101)
    held = np.append(0.0, np.cumsum(work) / work.sum())
    held = np.interp(jobs * work.size, np.arange(held.size), held)
    figure = go.Figure()
    ours = {"color": draw.PALETTE["ours"]}
    equal = {"color": draw.PALETTE["baseline"], "dash": "dot"}
    figure.add_scatter(x=jobs, y=held, mode="lines", name="recorded jobs", line=ours)
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="equal jobs", line=equal)
    figure.update_xaxes(tickformat=".0%").update_yaxes(tickformat=".0%", range=[0, 1.02])
    return draw.finish(
        figure,
        title="A few large jobs are nearly all of the GPU time",
        x="largest jobs, share of all jobs",
        y="share of GPU time",
    )


def figure_index(received_gpu_s: ArrayLike, index: ArrayLike, limits: Sequence[float]) -> go.Figure:
    """The Gittins index by GPU time received; dotted: where 2D-LAS has its thresholds."""
    values = np.asarray(index, dtype=float)
    figure = go.Figure()
    positive = np.where(values > 0, values, np.nan)
    figure.add_scatter(x=received_gpu_s, y=positive, mode="lines", name="index")
    for limit in limits:
        figure.add_vline(x=limit, line={"dash": "dot", "color": draw.PALETTE["baseline"]})
    _name_line(figure, max(limits), "thresholds of 2D-LAS")
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", exponentformat="e", dtick=1)
    return draw.finish(
        figure,
        title="Past its peaks, the index falls with what a job has received",
        x="GPU time received (GPU-s)",
        y="Gittins index (1/GPU-s)",
    )


def figure_times(runs: Mapping[Method, Run], bound: Bound, *, title: str) -> go.Figure:
    """The share of jobs done within a time of their arrival, a line a method."""
    figure = go.Figure()
    shares = np.linspace(0, 1, 200)
    for method, run in runs.items():
        figure.add_scatter(
            x=np.quantile(run.jct_s, shares) / 3600,
            y=shares,
            mode="lines",
            name=f"{method}: mean {run.jct_s.mean() / 3600:.1f} h",
            line={"color": COLORS[method]},
        )
    figure.add_vline(x=bound.mean_jct_s / 3600, line={"dash": "dot", "color": _BOUND})
    _name_line(figure, bound.mean_jct_s / 3600, "no mean is below")
    figure.update_xaxes(type="log", dtick=1).update_yaxes(tickformat=".0%")
    return draw.finish(figure, title=title, x="completion time (h)", y="jobs done", height=460)


def _name_line(figure: go.Figure, x: float, words: str) -> None:
    """Write words beside an upright line of a logarithmic axis, at its foot."""
    figure.add_annotation(
        x=math.log10(x), y=0.02, yref="paper", text=words, xanchor="left", showarrow=False, xshift=4
    )


def figure_thresholds(
    mean_h: Mapping[str, Sequence[float]], limits: Sequence[float], bound_h: float
) -> go.Figure:
    """Mean completion time with two queues over the threshold between them, a line a rule."""
    figure = go.Figure()
    colors = (COLORS[Method.LAS2D], COLORS[Method.LAS])
    for color, (name, values) in zip(colors, mean_h.items(), strict=True):
        best = f"{name}: {min(values):.1f} h at best"
        figure.add_scatter(x=limits, y=values, name=best, mode="lines", line={"color": color})
    figure.add_hline(
        y=bound_h,
        line={"dash": "dot", "color": _BOUND},
        annotation_text="no mean is below",
        annotation_position="bottom right",
    )
    figure.update_xaxes(type="log", dtick=1).update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title="GPU time and time alone want different thresholds",
        x="threshold (GPU-s, or s)",
        y="mean completion time (h)",
    )


def figure_gains(
    gains: Mapping[Method, Sequence[float]],
    loads: Sequence[float],
    bound: Sequence[float],
    *,
    paper: float,
    title: str,
) -> go.Figure:
    """FIFO's mean completion time over each method's, by offered load.

    Args:
        gains: by method, one a load.
        loads: GPU time that jobs ask for, over what the cluster has while they arrive.
        bound: what no method beats, one a load.
        paper: the paper's largest gain.
        title: what the figure shows.
    """
    figure = go.Figure()
    for method, values in gains.items():
        line = {"color": COLORS[method]}
        figure.add_scatter(x=loads, y=values, name=str(method), line=line, mode="lines+markers")
    dash = {"color": _BOUND, "dash": "dash"}
    figure.add_scatter(x=loads, y=bound, name="bound: no method beats it", mode="lines", line=dash)
    ends = [min(loads), max(loads)]
    figure.add_scatter(
        x=ends,
        y=[paper, paper],
        mode="lines+text",
        text=[f"paper: up to {paper:g}", ""],
        textposition="top right",
        textfont={"color": _PAPER},
        line={"dash": "dot", "color": _PAPER},
        name="paper",
        showlegend=False,
    )
    figure.update_yaxes(type="log", tickvals=[1, 2, 3, 5, 10, 20])
    return draw.finish(
        figure, title=title, x="offered load", y="FIFO's mean time, over it", height=480
    )


def figure_bars(gains: Mapping[Method, float], *, paper: float, title: str) -> go.Figure:
    """FIFO's mean completion time over each method's, as bars beside the paper's line."""
    figure = go.Figure()
    figure.add_bar(
        x=[str(method) for method in gains],
        y=[*gains.values()],
        marker_color=[COLORS[method] for method in gains],
    )
    figure.add_hline(
        y=paper,
        line={"dash": "dot", "color": _PAPER},
        annotation_text=f"paper: up to {paper:g}",
        annotation_position="top left",
        annotation_font_color=_PAPER,
        annotation_bgcolor=draw.VEIL,
    )
    return draw.finish(figure, title=title, x=" ", y="FIFO's mean time, over it")
