"""Pollux's figures: goodput as a product, best batches, step times, rounds, load, restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw
from labkit.papers.pollux.experiment import Method
from labkit.papers.pollux.training import Training
from labkit.tuning.goodput import StepTimes, fit

COLORS = {
    Method.POLLUX: draw.PALETTE["ours"],
    Method.FIXED_BATCH: draw.CYCLE[5],
    Method.BLIND: draw.CYCLE[6],
    Method.TIRESIAS: draw.CYCLE[3],
    Method.OPTIMUS: draw.PALETTE["baseline"],
    Method.JUMPS: draw.CYCLE[4],
    Method.FAIR: draw.CYCLE[2],
}
_GPUS = [1, 2, 4, 8, 16, 32, 64]
_CROSS = {"symbol": "x", "size": 11}


def figure_idea(training: Training, *, gpus: int) -> go.Figure:
    """Throughput, what an example is worth, and their product, over the batch size.

    Args:
        training: whose step times and gradient noise.
        gpus: on how many GPUs, in nodes of four.

    Source: §2 and Eq. 6; our drawing.
    """
    least = max(training.init_batch, gpus * training.least_on_a_gpu)
    batch = np.round(np.geomspace(least, min(training.max_batch, gpus * training.most), 40))
    times = fit(training.tables.steps, compute="linear", sync="linear").step_times
    throughput = times.throughput(-(-gpus // 4), gpus, batch / gpus)
    panels = ("examples a second", "× worth of an example", "= goodput")
    figure = make_subplots(cols=3, rows=1, subplot_titles=panels)
    figure.add_scatter(
        x=batch, y=throughput, row=1, col=1, showlegend=False, line_color=draw.PALETTE["muted"]
    )
    for color, share in zip(draw.CYCLE, (0.05, 0.5, 0.95), strict=False):
        noise_scale = training.tables.noise_scale(share)
        worth = (noise_scale + training.init_batch) / (noise_scale + batch)
        goodput = throughput * worth
        best = int(goodput.argmax())
        line = {"line": {"color": color}, "mode": "lines", "legendgroup": share}
        name = f"{share:.0%} of training done"
        figure.add_scatter(x=batch, y=worth, row=1, col=2, name=name, **line)
        figure.add_scatter(x=batch, y=goodput, row=1, col=3, showlegend=False, **line)
        figure.add_scatter(
            x=[batch[best]],
            y=[goodput[best]],
            row=1,
            col=3,
            mode="markers+text",
            text=[f"{batch[best]:,.0f}"],
            textposition="bottom center",
            cliponaxis=False,
            marker={"color": color, "size": 11},
            showlegend=False,
        )
    figure.update_xaxes(type="log", tickvals=[250, 1000, 4000])
    figure.update_yaxes(rangemode="tozero")
    title = f"{training.tables.title} on {gpus} GPUs: the best batch (dots) moves"
    return draw.finish(figure, title=title, x="batch (examples)", y=" ", height=430)


def figure_batches(best: pd.DataFrame) -> go.Figure:
    """The batch of most goodput by number of GPUs (the index), a column a moment of training."""
    figure = go.Figure()
    for name in best:
        figure.add_scatter(x=[*best.index], y=[*best[name]], name=str(name), mode="lines+markers")
    figure.update_xaxes(type="log", tickvals=[*best.index])
    return draw.finish(
        figure,
        title="CIFAR-10: the best batch grows with GPUs and with training",
        x="GPUs",
        y="batch of most goodput (examples)",
    )


def figure_step_times(steps: pd.DataFrame, times: StepTimes, *, model: str) -> go.Figure:
    """Measured throughput on whole nodes as points, the fitted model as lines.

    Args:
        steps: measured step times (:class:`labkit.tuning.goodput.Tables`).
        times: the model that was fitted to them.
        model: what is trained.
    """
    whole = steps[steps["num_gpus"] == 4 * steps["num_nodes"]].sort_values("num_gpus")
    figure = go.Figure()
    sizes = np.unique(whole["atomic_bsz"])[::3]
    for size, color in zip(sizes, draw.CYCLE, strict=False):
        rows = whole[whole["atomic_bsz"] == size]
        gpus = rows["num_gpus"]
        measured = gpus * size / rows["step_time_s"]
        fitted = times.throughput(rows["num_nodes"], gpus, rows["atomic_bsz"])
        name = f"{size:g} examples a GPU"
        points = {"mode": "markers", "marker": {"color": color}, "showlegend": False}
        figure.add_scatter(x=gpus, y=measured, **points)
        figure.add_scatter(x=gpus, y=fitted, name=name, mode="lines", line={"color": color})
    figure.update_xaxes(type="log", tickvals=_GPUS[2:])
    return draw.finish(
        figure,
        title=f"{model}: few coefficients (lines) follow most measured points",
        x="GPUs, on whole nodes",
        y="examples a second",
        direct=True,
    )


def figure_rounds(
    minutes: Sequence[int], ratios: Mapping[str, Sequence[float]], published: Sequence[float]
) -> go.Figure:
    """Mean completion time over that with rounds of a minute, by length of a round.

    Args:
        minutes: lengths of a round.
        ratios: by method, one a length.
        published: the paper's, for Pollux.
    """
    figure = go.Figure()
    for name, values in ratios.items():
        color = COLORS[Method(name)]
        figure.add_scatter(x=minutes, y=values, name=f"{name}, ours", line={"color": color})
    orange = draw.PALETTE["paper"]
    figure.add_scatter(
        x=minutes,
        y=published,
        name="Pollux, paper",
        mode="markers",
        marker={"color": orange, **_CROSS},
    )
    figure.update_xaxes(tickvals=[*minutes])
    return draw.finish(
        figure,
        title="Longer rounds cost a scheduler that adapts nothing as much",
        x="minutes between decisions",
        y="mean time, over that of 1 minute",
    )


def figure_load(
    ours_s: Mapping[Method, Mapping[float, Sequence[float]]],
    published: pd.DataFrame,
    bound_s: Mapping[float, float],
    *,
    title: str,
) -> go.Figure:
    """Mean completion time over load: lines are ours, crosses the paper's.

    Args:
        ours_s: by method and load: seconds of each workload; a bar shows their range.
        published: columns ``method``, ``load`` and ``mean_s`` (Fig. 8a).
        bound_s: by load: what no method beats.
        title: what the figure shows.
    """
    figure = go.Figure()
    loads = [*bound_s]
    places = np.arange(len(loads))
    for number, (method, by_load) in enumerate(ours_s.items()):
        beside = places + 0.03 * (number - (len(ours_s) - 1) / 2)  # so that bars can be told apart
        by_workload = [np.array(by_load[load]) / 3600 for load in loads]
        mean = np.array([each.mean() for each in by_workload])
        color = COLORS[method]
        figure.add_scatter(
            x=beside,
            y=mean,
            name=f"{method}, ours",
            mode="lines",
            line={"color": color},
            error_y={
                "type": "data",
                "array": [each.max() for each in by_workload] - mean,
                "arrayminus": mean - [each.min() for each in by_workload],
            },
        )
        rows = published[published["method"] == str(method)].set_index("load")["mean_s"]
        if len(rows):
            figure.add_scatter(
                x=beside,
                y=rows.loc[loads] / 3600,
                name=f"{method}, paper",
                mode="markers",
                marker={"color": color, **_CROSS},
            )
    bound = {"color": draw.PALETTE["bound"], "dash": "dot"}
    hours = [bound_s[load] / 3600 for load in loads]
    figure.add_scatter(
        x=places, y=hours, name="bound: no method is faster", mode="lines", line=bound
    )
    figure.update_xaxes(tickvals=places, ticktext=[f"{load:g}" for load in loads])
    figure.update_yaxes(rangemode="tozero")
    return draw.finish(
        figure,
        title=title,
        x="jobs, over those of load 1",
        y="mean completion time (h)",
        height=480,
    )


def figure_restarts(mean_s: Mapping[Method, float], bound_s: float, *, title: str) -> go.Figure:
    """Mean completion time of one workload by method, as bars; the bound as a line."""
    figure = go.Figure()
    names = [str(method) for method in mean_s]
    figure.add_bar(
        x=names,
        y=[seconds / 3600 for seconds in mean_s.values()],
        marker_color=[COLORS[method] for method in mean_s],
    )
    figure.add_hline(
        y=bound_s / 3600,
        line_dash="dot",
        annotation_text="bound: no method is faster",
        annotation_position="top right",
        annotation_bgcolor=draw.VEIL,
    )
    return draw.finish(figure, title=title, x=" ", y="mean completion time (h)", height=400)
