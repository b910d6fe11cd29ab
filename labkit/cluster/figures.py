"""Figures of simulated clusters: completion times by policy, the cluster over time, a sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from labkit.cluster.bounds import Bound
from labkit.cluster.inputs.throughputs import Throughputs
from labkit.cluster.results import Run
from labkit.errors import BadValue
from labkit.kit import tables
from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, finish

POLICY_COLOUR = {
    "fifo": PALETTE["baseline"],
    "best-effort": CYCLE[5],
    "sjf": CYCLE[2],
    "srtf": CYCLE[4],
    "srsf": CYCLE[6],
    "las": CYCLE[1],
    "las2d": CYCLE[0],
    "gittins": PALETTE["weight"],
    "slices": CYCLE[3],
}
POINTS = 200
"""Points of a line; a trace may have 100,000 jobs."""


def _colour(policy: str, index: int) -> str:
    return POLICY_COLOUR.get(policy, CYCLE[index % len(CYCLE)])


@checked
def figure_jct(runs: Sequence[Run], *, bound: Bound | None = None, title: str = "") -> go.Figure:
    """The share of jobs done within a time of their arrival, one line a run.

    Args:
        runs: of one trace, under different policies.
        bound: no policy's mean completion time lies left of the dotted line; default: no line.
        title: of the figure.

    Raises:
        BadValue: there are no runs.
    """
    if not runs:
        raise BadValue("figure_jct: runs must hold one run or more")
    fig = go.Figure()
    shares = np.linspace(0, 1, POINTS)
    for index, run in enumerate(runs):
        jct = run.jct_s[run.ran]
        name = f"{run.policy.name}: mean {jct.mean():,.0f} s"
        fig.add_scatter(
            x=np.quantile(jct, shares),
            y=shares,
            mode="lines",
            name=name,
            line={"color": _colour(run.policy.name, index)},
        )
    if bound is not None:
        fig.add_vline(x=bound.mean_jct_s, line={"dash": "dot", "color": PALETTE["bound"]})
        fig.add_annotation(
            x=np.log10(bound.mean_jct_s),
            y=0.02,
            yanchor="bottom",
            showarrow=False,
            text=f"bound on the mean: {bound.mean_jct_s:,.0f} s",
            xanchor="left",
            xshift=6,
        )
    fig.update_xaxes(type="log").update_yaxes(tickformat=".0%")
    return finish(fig, title=title, x="completion time (s, simulated)", y="jobs done", height=460)


@checked
def figure_timeline(run: Run, *, title: str = "") -> go.Figure:
    """GPUs that hold jobs, and GPUs that waiting jobs ask for, over time."""
    gpus = run.trace.column("gpus")
    ran = run.ran
    arrival = run.trace.column("arrival_s")[ran]
    job = run.segments["job"]
    begin = float(arrival.min())
    end = float(np.nanmax(run.end_s))
    grid = np.linspace(begin, end, 2 * POINTS + 1)
    spans = run.segments["start_s"], run.segments["end_s"]
    busy = _level(*spans, run.segments["gpus"], grid)
    served = _level(*spans, gpus[job], grid)
    inside = _level(arrival, run.end_s[ran], gpus[ran], grid)
    fig = go.Figure()
    hours = (grid[:-1] - begin) / 3600
    for name, values, colour in (
        ("held by jobs", busy, PALETTE["ours"]),
        ("asked for by waiting jobs", inside - served, PALETTE["highlight"]),
    ):
        line = {"color": colour, "shape": "hv", "width": 1}
        fig.add_scatter(x=hours, y=values, mode="lines", name=name, line=line, stackgroup="gpus")
    fig.add_hline(y=run.cluster.num_gpus, line={"dash": "dot", "color": PALETTE["capacity"]})
    return finish(fig, title=title, x="time since the first arrival (h, simulated)", y="GPUs")


def _level(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    gpus: NDArray[np.int64],
    grid: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The mean number of GPUs between neighbouring moments of ``grid``, from intervals."""

    def area(moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """GPU-seconds from each of the sorted ``moments`` to each point of the grid, summed."""
        order = np.argsort(moments)
        weights = np.concatenate([[0], np.cumsum(gpus[order])])
        reached = np.concatenate([[0], np.cumsum(gpus[order] * moments[order])])
        before = np.searchsorted(moments[order], grid)
        return np.asarray(weights[before] * grid - reached[before])

    return np.asarray(np.diff(area(start) - area(end)) / np.diff(grid))


@checked
def figure_sweep(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Mean completion time over the cluster's size, one line a policy, and the bound.

    Args:
        table: rows of :func:`labkit.cluster.sweep` of one trace.
        title: of the figure.

    Raises:
        BadValue: the table lacks a column.
    """
    numbers = ("gpus", "mean_jct_s", "bound_jct_s")
    tables.check("figure_sweep", table, texts=["policy"], numbers=numbers)
    fig = go.Figure()
    for index, (policy, rows) in enumerate(table.groupby("policy", sort=False)):
        rows = rows.sort_values("gpus")
        fig.add_scatter(
            x=rows["gpus"],
            y=rows["mean_jct_s"],
            mode="lines+markers",
            name=str(policy),
            line={"color": _colour(str(policy), index)},
        )
    least = table.drop_duplicates("gpus").sort_values("gpus")
    line = {"color": PALETTE["bound"], "dash": "dot"}
    fig.add_scatter(x=least["gpus"], y=least["bound_jct_s"], mode="lines", name="bound", line=line)
    fig.update_yaxes(type="log")
    return finish(fig, title=title, x="GPUs", y="mean completion time (s, simulated)")


@checked
def figure_pairs(table: Throughputs, gpu: int = 0) -> go.Figure:
    """What two jobs on one GPU of a type get done, over one after the other; blank: no room.

    Args:
        table: speeds of kinds of jobs.
        gpu: the GPU type, by its place in the table.

    Raises:
        BadValue: there is no such GPU type.
    """
    if not 0 <= gpu < len(table.gpu_types):
        raise BadValue(f"figure_pairs: gpu must be from 0 to {len(table.gpu_types) - 1}; got {gpu}")
    both = np.where(table.packed[:, :, gpu] > 0, table.packed[:, :, gpu], np.nan)
    look = {"x": table.kinds, "y": table.kinds, "colorscale": "RdBu", "colorbar_title": "times"}
    fig = go.Figure(go.Heatmap(z=both, zmid=1, **look), layout_plot_bgcolor="#999999")
    models = [kind.partition(" (")[0] for kind in table.kinds]
    middle = {model: models.index(model) + (models.count(model) - 1) / 2 for model in models}
    edges = {models.index(model) - 0.5 for model in models}
    for edge in sorted(edges - {-0.5}):
        fig.add_hline(edge, line_color="white").add_vline(edge, line_color="white")
    fig.update_yaxes(tickvals=[*middle.values()], ticktext=[*middle], autorange="reversed")
    fig.update_xaxes(showticklabels=False, ticks="").update_yaxes(ticks="")
    title = f"Work of two jobs on one {table.gpu_types[gpu].upper()}, over one after the other"
    return finish(fig, title=title, x="the same kinds, in the same order", height=620)
