"""Figures of REEF: units filled by padding, and what policies serve on DISB."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.serving.device.kernels import Program

REAL_TIME = draw.PALETTE["ours"]
BEST_EFFORT = draw.PALETTE["weight"]
KILLED = draw.PALETTE["highlight"]
COLOURS = ("ours", "weight", "communication", "all-reduce", "recompute")


def figure_idea(
    real: Program, guest: Program, *, kernels: int, reset_s: float, units: int = 60
) -> go.Figure:
    """Which units compute what, from the moment at which a real-time program arrives.

    The best-effort program's kernel is killed, and its blocks then run beside real-time kernels on
    the units that these leave.

    Args:
        real: the real-time program.
        guest: the best-effort program; its kernels are drawn as blocks that end in time.
        kernels: how many of the real-time program's first kernels are drawn.
        reset_s: to kill all kernels and empty the queues.
        units: compute units of the GPU.
    """
    figure = go.Figure()
    before_us = 4e6 * reset_s
    _area(figure, -before_us, 0, 0, units, KILLED, "best effort, killed")
    start_us = 1e6 * reset_s
    for number in range(kernels):
        end_us = start_us + 1e6 * real.total_s[number]
        layers = ceil(real.blocks[number] / units)
        taken = ceil(real.blocks[number] / layers)
        _area(figure, start_us, end_us, 0, taken, REAL_TIME, "real time")
        fits = [s for s in guest.wave_s[0] if s <= real.total_s[number]]
        if fits and taken < units:
            rounds = int(real.total_s[number] / fits[-1] + 1e-9)
            used_us = 1e6 * rounds * fits[-1]
            _area(figure, start_us, start_us + used_us, taken, units, BEST_EFFORT, "padding")
        start_us = end_us
    for name, colour in {
        "best effort, killed": KILLED,
        "real time": REAL_TIME,
        "best effort, as padding": BEST_EFFORT,
    }.items():
        marker = {"color": colour, "symbol": "square", "size": 14}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name)
    figure.add_vline(x=0, line={"color": draw.PALETTE["bound"], "dash": "dot"})
    figure.add_annotation(
        x=0,
        y=1.02 * units,
        text="a real-time program arrives",
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
    )
    figure.update_yaxes(range=[0, 1.2 * units])
    title = "Kill what runs, then fill the units that each real-time kernel leaves"
    return draw.finish(figure, title=title, x="time (µs)", y="compute units", height=380)


def _area(
    figure: go.Figure, x0: float, x1: float, y0: float, y1: float, colour: str, name: str
) -> None:
    figure.add_scatter(
        x=[x0, x0, x1, x1],
        y=[y0, y1, y1, y0],
        fill="toself",
        mode="lines",
        line={"color": "white", "width": 1},
        fillcolor=colour,
        name=name,
        showlegend=False,
    )


def _write_latencies(figure: go.Figure, table: pd.DataFrame, shift: float) -> None:
    """Write the latency that a policy adds above each of its bars."""
    pairs = zip(table["latency"], table["throughput"], strict=True)
    for group, (latency, throughput) in enumerate(pairs):
        figure.add_annotation(
            x=group + shift,
            y=throughput,
            text=f"+{100 * (latency - 1):.0f} %",
            yanchor="bottom",
            yshift=2,
            bgcolor=draw.VEIL,
            borderpad=0,
            showarrow=False,
        )


def figure_disb(
    tables: Mapping[str, pd.DataFrame],
    bounds: pd.Series,
    *,
    paper: tuple[float, float],
    title: str,
) -> go.Figure:
    """Throughput on DISB, a bar a policy, with the real-time latency that it adds above the bar.

    Args:
        tables: by policy, the columns ``latency`` and ``throughput`` over a GPU kept for real-time
            programs, with a row a workload.
        bounds: the throughput that no policy beats, by workload.
        paper: the paper's largest throughput, and the latency that it adds.
        title: what the figure shows.

    Source: Fig. 10.
    """
    width = 0.8 / len(tables)
    figure = go.Figure()
    for place, (name, table) in enumerate(tables.items()):
        shift = (place - (len(tables) - 1) / 2) * width
        colour = "baseline" if name == "one at a time" else COLOURS[place % len(COLOURS)]
        figure.add_bar(
            x=[group + shift for group in range(len(table))],
            y=table["throughput"],
            width=0.92 * width,
            marker_color=draw.PALETTE[colour],
            name=name,
        )
    for group, (workload, bound) in enumerate(bounds.items()):
        figure.add_scatter(
            x=[group - 0.42, group + 0.42],
            y=[bound, bound],
            mode="lines",
            line={"color": draw.PALETTE["bound"], "dash": "dash"},
            name="bound: all that is asked for",
            showlegend=group == 0,
            hovertext=str(workload),
        )
    for place, table in enumerate(tables.values()):
        _write_latencies(figure, table, (place - (len(tables) - 1) / 2) * width)
    figure.add_hline(y=paper[0], line={"color": draw.PALETTE["paper"], "dash": "dot"})
    figure.add_annotation(
        x=0,
        xref="x domain",
        y=paper[0],
        text=f"paper: up to {paper[0]:g} times, at +{100 * paper[1]:.0f} % latency",
        font={"color": draw.PALETTE["paper"]},
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
    )
    figure.update_xaxes(
        tickvals=[*range(len(bounds))],
        ticktext=[*bounds.index],
        range=[-0.5, len(bounds) - 0.5],
    )
    figure.update_yaxes(range=[0, 1.15 * max(paper[0], float(bounds.max()))])
    x = "workload (above the bars: real-time latency added)"
    y = "programs a second over real-time only"
    return draw.finish(figure, title=title, x=x, y=y, height=500)


def figure_guests(latencies_ms: pd.DataFrame, *, title: str) -> go.Figure:
    """Latency of a real-time program by the number of best-effort clients, a line a policy.

    Args:
        latencies_ms: milliseconds, a row a number of clients, a column a policy.
        title: what the figure shows.

    Source: Fig. 1.
    """
    figure = go.Figure()
    for place, (name, column) in enumerate(latencies_ms.items()):
        figure.add_scatter(
            x=latencies_ms.index,
            y=column,
            mode="lines+markers",
            line_color=draw.PALETTE[COLOURS[place % len(COLOURS)]],
            name=str(name),
        )
    figure.update_xaxes(tickvals=[*latencies_ms.index])
    figure.update_yaxes(rangemode="tozero")
    x = "ResNet-152 clients beside it"
    return draw.finish(figure, title=title, x=x, y="mean latency of VGG (ms)", direct=True)


def figure_units(programs: Mapping[str, Program], *, title: str, units: int = 60) -> go.Figure:
    """The share of each program's time in kernels that take so many units or fewer.

    Args:
        programs: by model.
        title: what the figure shows.
        units: compute units of the GPU.
    """
    figure = go.Figure()
    colours = [colour for colour in draw.CYCLE if colour != draw.PALETTE["paper"]]
    for colour, (name, program) in zip(colours, programs.items(), strict=False):
        spent_s = pd.Series(0.0, index=range(units + 1))
        for blocks, total_s in program.work:
            spent_s[ceil(blocks / ceil(blocks / units))] += total_s
        figure.add_scatter(
            x=spent_s.index,
            y=spent_s.cumsum() / spent_s.sum(),
            mode="lines",
            line={"shape": "hv", "color": colour},
            name=name,
        )
    x = f"compute units that a kernel takes, of {units}"
    return draw.finish(figure, title=title, x=x, y="share of the program's time")
