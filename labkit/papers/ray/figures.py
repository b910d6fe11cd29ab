"""Ray's figures: the idea, tasks a second, a lost worker, locality, all-reduce, simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit.draw import CYCLE, PALETTE, finish

Place = tuple[float, float]


def _box(figure: go.Figure, at: Place, size: Place, words: str, color: str) -> None:
    left = at[0] - size[0] / 2
    right = at[0] + size[0] / 2
    low = at[1] - size[1] / 2
    high = at[1] + size[1] / 2
    figure.add_scatter(
        x=[left, right, right, left, left],
        y=[low, low, high, high, low],
        fill="toself",
        mode="lines",
        line={"color": "white", "width": 2},
        fillcolor=color,
        name=words,
        showlegend=False,
    )
    font = {"color": "white", "size": 14}
    figure.add_annotation(x=at[0], y=at[1], text=words, showarrow=False, font=font)


def _arrow(figure: go.Figure, start: Place, end: Place, *, dashed: bool = False) -> None:
    figure.add_annotation(
        x=end[0],
        y=end[1],
        ax=start[0],
        ay=start[1],
        axref="x",
        ayref="y",
        showarrow=True,
        arrowhead=2,
        arrowwidth=1.5 if dashed else 2.5,
        arrowcolor=PALETTE["muted"] if dashed else PALETTE["bound"],
        text="",
    )


def figure_idea() -> go.Figure:
    """Tasks on their way to workers: through one scheduler, and bottom-up (§4.2, our drawing)."""
    figure = go.Figure()
    nodes = [0.0, 1.0, 2.0]
    wide = (0.85, 0.5)
    for left, is_central in ((0.0, True), (4.0, False)):
        title = "one central scheduler" if is_central else "bottom-up"
        figure.add_annotation(x=left + 1, y=4.6, text=title, showarrow=False, font={"size": 16})
        for number, node in enumerate(nodes, start=1):
            place = left + node
            _box(figure, (place, 0.3), wide, f"workers {number}", PALETTE["ours"])
            if is_central:
                _arrow(figure, (place - 0.1, 0.6), (left + 0.9, 2.2))
                _arrow(figure, (left + 1.1, 2.2), (place + 0.1, 0.6))
            else:
                _box(figure, (place, 1.3), wide, f"scheduler {number}", CYCLE[1])
                _arrow(figure, (place - 0.15, 0.6), (place - 0.15, 1.0))
                _arrow(figure, (place + 0.15, 1.0), (place + 0.15, 0.6))
                _arrow(figure, (place, 1.6), (left + 1, 2.2), dashed=True)
        if is_central:
            words = "scheduler<br>with all state"
            _box(figure, (left + 1, 2.7), (1.9, 0.95), words, PALETTE["baseline"])
        else:
            _box(figure, (left + 1, 2.5), (2.2, 0.5), "global: what is left", PALETTE["baseline"])
            for shard in range(4):
                at = (left - 0.2 + 0.8 * shard, 3.7)
                _box(figure, at, (0.76, 0.5), f"shard {shard + 1}", CYCLE[2])
            _arrow(figure, (left + 1, 2.8), (left + 1, 3.4), dashed=True)
    figure.update_xaxes(visible=False, range=[-0.7, 6.8])
    figure.update_yaxes(visible=False, range=[-0.1, 4.9])
    title = "Most tasks never leave their node, and schedulers keep no state of their own"
    return finish(figure, title=title, height=430)


def figure_rates(
    tasks_per_s: Mapping[str, Mapping[int, float]],
    bound_per_s: Mapping[int, float],
    paper: pd.DataFrame,
    *,
    title: str,
) -> go.Figure:
    """Tasks a second by nodes, a line a way of scheduling.

    Args:
        tasks_per_s: by way, and there by nodes.
        bound_per_s: by nodes, what the first full station can serve.
        paper: columns ``nodes``, ``tasks_per_s`` and ``words``, the paper's points.
        title: what the figure shows.
    """
    looks = {
        "bottom-up": (PALETTE["ours"], "circle"),
        "replicas of the global scheduler": (CYCLE[2], "square-open"),
        "one central scheduler": (PALETTE["baseline"], "diamond"),
    }
    figure = go.Figure()
    figure.add_scatter(
        x=[*bound_per_s],
        y=[*bound_per_s.values()],
        mode="lines",
        name="bound: the first full station",
        line={"color": PALETTE["bound"], "dash": "dot"},
    )
    for way, rates in tasks_per_s.items():
        color, symbol = looks[way]
        figure.add_scatter(
            x=[*rates],
            y=[*rates.values()],
            mode="markers" if way == "bottom-up" else "lines+markers",
            name=way,
            line={"color": color},
            marker={"color": color, "symbol": symbol, "size": 11},
        )
    figure.add_scatter(
        x=[*paper.nodes],
        y=[*paper.tasks_per_s],
        mode="markers+text",
        text=[
            words if nodes < 100 or "beyond" in words else ""
            for nodes, words in zip(paper.nodes, paper.words, strict=True)
        ],
        textposition="top left",
        textfont={"color": PALETTE["paper"]},
        name="paper, Fig. 8b",
        marker={"color": PALETTE["paper"], "symbol": "x", "size": 12},
    )
    nodes = [*bound_per_s]
    figure.update_xaxes(type="log", tickvals=nodes, ticktext=[*map(str, nodes)])
    figure.update_yaxes(type="log", dtick=1, exponentformat="SI", range=[3.9, 6.7])
    return finish(figure, title=title, x="nodes", y="tasks a second", height=480)


def figure_again(made_again: Mapping[str, int]) -> go.Figure:
    """Values made again after a kill, a bar a distance between copies."""
    figure = go.Figure()
    figure.add_bar(
        x=[*made_again],
        y=[*made_again.values()],
        text=[*made_again.values()],
        marker_color=PALETTE["recompute"],
        name="",
    )
    figure.update_xaxes(type="category")
    title = "After a kill everything since the last copy is made again"
    return finish(figure, title=title, x="tasks between copies", y="values made again")


def figure_locality(ratios: pd.DataFrame, paper: Sequence[float]) -> go.Figure:
    """Latency of tasks placed at random over that of tasks placed by their input.

    Args:
        ratios: a row a size of the input in bytes, a column a duration of the tasks.
        paper: the least and the largest ratio that the paper found.
    """
    figure = go.Figure()
    sizes_mb = [size / 1e6 for size in ratios.index]
    for height, fill in zip(paper, ("none", "tonexty"), strict=True):
        figure.add_scatter(
            x=[sizes_mb[0], sizes_mb[-1]],
            y=[height, height],
            mode="lines+text",
            fill=fill,
            fillcolor="rgba(230, 159, 0, 0.2)",
            line={"color": PALETTE["paper"], "width": 1},
            text=["paper, at inputs of 10 to 100 MB" if fill == "tonexty" else "", ""],
            textposition="bottom right",
            name="paper's range",
            showlegend=False,
        )
    for number, name in enumerate(ratios):
        color = CYCLE[2 * number]
        figure.add_scatter(
            x=sizes_mb,
            y=[*ratios[name]],
            name=str(name),
            line={"color": color},
        )
    ticks = [0.1, 1, 10, 100]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[*map(str, ticks)])
    figure.update_yaxes(type="log", dtick=1, range=[-0.1, 2.2])
    title = "A large input costs more on its way than the task that reads it"
    return finish(
        figure, title=title, x="input (MB)", y="latency, at random over by input", height=440
    )


def figure_allreduce(
    times_ms: Mapping[float, float], *, central_ms: float, paper: Mapping[str, float]
) -> go.Figure:
    """An all-reduce's time by what scheduling adds to each of its rounds.

    Args:
        times_ms: by milliseconds that are added.
        central_ms: what a central scheduler adds.
        paper: words and heights in ms to draw as lines.
    """
    figure = go.Figure()
    delays = [*times_ms]
    figure.add_scatter(
        x=delays,
        y=[*times_ms.values()],
        mode="lines",
        name="simulated",
        showlegend=False,
        line={"color": PALETTE["ours"]},
    )
    for words, height in paper.items():
        figure.add_scatter(
            x=[delays[0], delays[-1]],
            y=[height, height],
            mode="lines+text",
            text=[words, ""],
            textposition="top right",
            textfont={"color": PALETTE["paper"]},
            line={"color": PALETTE["paper"], "dash": "dot"},
            name=words,
            showlegend=False,
        )
    figure.add_scatter(
        x=[central_ms, central_ms],
        y=[0, max(times_ms.values())],
        mode="lines+text",
        text=["", "a central scheduler"],
        textposition="middle right",
        line={"color": PALETTE["baseline"], "dash": "dot"},
        name="a central scheduler",
        showlegend=False,
    )
    figure.update_yaxes(rangemode="tozero")
    title = "A few milliseconds a round double an all-reduce"
    return finish(
        figure, title=title, x="scheduling of a round (ms)", y="all-reduce of 100 MB (ms)"
    )


def figure_asynchronous(
    ratios: Mapping[str, Mapping[int, float]], paper: Mapping[int, float], *, title: str
) -> go.Figure:
    """Steps a second over those with barriers, by CPUs, a line a way of giving out tasks."""
    figure = go.Figure()
    colors = [PALETTE["ours"], CYCLE[2]]
    cpus = [*paper]
    for (way, by_cpus), color in zip(ratios.items(), colors, strict=False):
        figure.add_scatter(
            x=[*by_cpus],
            y=[*by_cpus.values()],
            mode="lines+markers",
            name=way,
            line={"color": color},
        )
    figure.add_scatter(
        x=cpus,
        y=[*paper.values()],
        mode="markers",
        name="paper, Table 4",
        marker={"color": PALETTE["paper"], "symbol": "x", "size": 12},
    )
    figure.add_scatter(
        x=[cpus[0], cpus[-1]],
        y=[1, 1],
        mode="lines+text",
        text=["", "with barriers (baseline)"],
        textposition="bottom left",
        line={"color": PALETTE["baseline"], "dash": "dot"},
        name="with barriers",
        showlegend=False,
    )
    figure.update_xaxes(type="log", tickvals=cpus, ticktext=[*map(str, cpus)])
    figure.update_yaxes(range=[0.8, 2.1])
    return finish(figure, title=title, x="CPUs", y="steps a second, over barriers")
