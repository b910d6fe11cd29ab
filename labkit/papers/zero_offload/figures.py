"""ZeRO-Offload's figures: the cut of the graph, all cuts, Adam, late updates, and throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

_PLACES = {
    "p16": (0, 1),
    "forward,<br>backward": (1, 1),
    "g16": (2, 1),
    "update": (2, 0),
    "p32, m32, v32": (1, 0),
    "cast": (0, 0),
}
_ARROWS = [
    ("p16", "forward,<br>backward", "4"),
    ("forward,<br>backward", "g16", "2"),
    ("g16", "update", "2"),
    ("update", "p32, m32, v32", "12"),
    ("p32, m32, v32", "update", "12"),
    ("p32, m32, v32", "cast", "4"),
    ("cast", "p16", "2"),
]


def figure_idea() -> go.Figure:
    """The data-flow graph of a step, bytes a parameter on its edges, and the paper's cut.

    Source: §3, Fig. 2.
    """
    figure = go.Figure()
    sides = {"GPU": (0.75, 1.35, "#DCE9F5"), "host": (-0.35, 0.55, "#FBEBD3")}
    for name, (bottom, top, color) in sides.items():
        figure.add_shape(
            type="rect",
            x0=-0.4,
            x1=2.4,
            y0=bottom,
            y1=top,
            fillcolor=color,
            line_width=0,
            layer="below",
        )
        figure.add_annotation(
            x=-0.38, y=top, text=f"<b>{name}</b>", showarrow=False, xanchor="left", yanchor="top"
        )
    for start, end, num_bytes in _ARROWS:
        x0, y0 = _PLACES[start]
        x1, y1 = _PLACES[end]
        back = (start, end) == ("p32, m32, v32", "update")
        shift = 0.06 if back else (-0.06 if (end, start) == ("p32, m32, v32", "update") else 0)
        figure.add_annotation(
            x=x1 - 0.22 * _sign(x1 - x0),
            y=y1 - 0.12 * _sign(y1 - y0) + shift,
            ax=x0 + 0.22 * _sign(x1 - x0),
            ay=y0 + 0.12 * _sign(y1 - y0) + shift,
            axref="x",
            ayref="y",
            showarrow=True,
            arrowhead=2,
            arrowwidth=1.5,
        )
        figure.add_annotation(
            x=(x0 + x1) / 2 + (0.07 if x0 == x1 else 0),
            y=(y0 + y1) / 2
            + (0.06 if x0 != x1 and shift >= 0 else 0)
            + (1.7 if shift > 0 else 2.2) * shift,
            text=num_bytes,
            showarrow=False,
        )
    for name, (x, y) in _PLACES.items():
        figure.add_annotation(x=x, y=y, text=name, showarrow=False, bgcolor="white", borderpad=5)
    figure.update_xaxes(visible=False, range=[-0.45, 2.45])
    figure.update_yaxes(visible=False, range=[-0.4, 1.4])
    title = "Two edges are cut, 2 bytes a parameter each: gradients go down, parameters come up"
    draw.finish(figure, title=title, height=360)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def figure_cuts(cuts: pd.DataFrame) -> go.Figure:
    """Every placement: what crosses the link, and what stays on the GPU.

    Args:
        cuts: a row a placement, with ``crossing`` and ``on_gpu`` in bytes a parameter.
    """
    counted = cuts.groupby(["crossing", "on_gpu"]).size().reset_index(name="placements")
    kinds = {
        "everything on the GPU": counted["crossing"] == 0,
        "the paper's choice": (counted["crossing"] == 4) & (counted["on_gpu"] == 2),
    }
    kinds["other placements"] = ~(kinds["everything on the GPU"] | kinds["the paper's choice"])
    hues = [draw.PALETTE["baseline"], draw.PALETTE["paper"], draw.PALETTE["ours"]]
    figure = go.Figure()
    for (name, chosen), hue in zip(kinds.items(), hues, strict=True):
        rows = counted[chosen]
        figure.add_scatter(
            x=rows["crossing"],
            y=rows["on_gpu"],
            mode="markers",
            name=name,
            marker={"size": 12, "color": hue},
            hovertext=[f"{number} placements" for number in rows["placements"]],
        )
    return draw.finish(
        figure,
        title="One placement has the fewest bytes crossing and the fewest left",
        x="bytes a parameter across the link, each step",
        y="bytes a parameter left on the GPU",
    )


def figure_adam(gains: pd.DataFrame) -> go.Figure:
    """Adam's speed-up on a CPU over PyTorch's, tensor by tensor.

    Args:
        gains: ``who`` ("ours", "paper"), ``how`` and ``times``.
    """
    figure = go.Figure()
    for who, rows in gains.groupby("who", sort=False):
        figure.add_bar(
            x=rows["how"], y=rows["times"], name=str(who), marker_color=draw.PALETTE[str(who)]
        )
    return draw.finish(
        figure,
        title="One pass over memory makes Adam several times as fast",
        x="way to compute Adam, or size of the paper's model",
        y="times as fast as PyTorch by tensors",
        height=380,
    )


def figure_losses(
    losses: Mapping[str, Sequence[float]], *, every: int, title: str, log: bool = False
) -> go.Figure:
    """Validation losses over steps, a line for each delay.

    Args:
        losses: by the line's name, losses at every ``every``-th step.
        log: the losses' axis is logarithmic.
    """
    hues = [draw.PALETTE["baseline"], draw.PALETTE["ours"], draw.CYCLE[3], draw.CYCLE[4]]
    figure = go.Figure()
    for (name, values), hue in zip(losses.items(), hues, strict=False):
        steps = [every * (place + 1) for place in range(len(values))]
        figure.add_scatter(x=steps, y=values, name=name, mode="lines", line_color=hue)
    if log:
        figure.update_yaxes(type="log", tickvals=[0.1, 0.2, 0.5, 1, 2])
    return draw.finish(figure, title=title, x="steps", y="validation loss")


def figure_sizes(
    sizes: Mapping[str, float], paper: Mapping[str, float], *, bound: float
) -> go.Figure:
    """The largest model on one GPU, by what leaves it.

    Args:
        sizes: by what leaves the GPU, parameters in billions.
        paper: the paper's sizes in billions, by the same names.
        bound: the size whose 16-bit parameters alone fill the GPU, in billions.
    """
    figure = go.Figure()
    figure.add_bar(
        x=[*sizes.values()],
        y=[*sizes],
        orientation="h",
        name="ours, modelled",
        marker_color=draw.PALETTE["ours"],
        text=[f"{size:.1f}" for size in sizes.values()],
        textposition="inside",
        insidetextanchor="start",
    )
    figure.add_scatter(
        x=[*paper.values()],
        y=[*paper],
        mode="markers",
        name="paper, abstract",
        marker={"symbol": "diamond", "size": 14, "color": draw.PALETTE["paper"]},
    )
    for leaves, size in paper.items():
        figure.add_annotation(
            x=max(size, sizes[leaves]),
            y=leaves,
            text=f"paper: {size:g}",
            showarrow=False,
            xanchor="left",
            xshift=12 if size > sizes[leaves] else 4,
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, 1.2 * bound])
    figure.add_vline(
        bound,
        line_dash="dot",
        line_color=draw.PALETTE["bound"],
        annotation_text="bound: 2 bytes<br>a parameter",
        annotation_position="top right",
    )
    return draw.finish(
        figure,
        title="With Adam and gradients away one GPU holds about ten times the model",
        x="largest model on one V100 (10⁹ parameters)",
        y="leaves the GPU",
        height=360,
    )


def figure_throughput(
    lines: pd.DataFrame,
    *,
    bound: float,
    title: str,
    x: str,
    paper: pd.DataFrame | None = None,
) -> go.Figure:
    """TFLOP/s of one GPU along an axis, a line a way to update.

    Args:
        lines: a row a place on the axis, a column a way.
        bound: the GPU's own rate.
        paper: the paper's points: ``system``, ``size_billion``, ``tflops``.
    """
    hues = [draw.PALETTE["ours"], draw.CYCLE[2], draw.CYCLE[4], draw.PALETTE["baseline"]]
    figure = go.Figure()
    for way, hue in zip(lines, hues, strict=False):
        figure.add_scatter(
            x=lines.index, y=lines[way], name=str(way), mode="lines+markers", line_color=hue
        )
    if paper is not None:
        known = paper.dropna(subset=["tflops"])
        figure.add_scatter(
            x=known["size_billion"],
            y=known["tflops"],
            mode="markers+text",
            text=[f"paper: {system}" for system in known["system"]],
            textposition="bottom center",
            name="paper, abstract",
            marker={"symbol": "diamond", "size": 14, "color": draw.PALETTE["paper"]},
        )
    figure.add_hline(
        bound,
        line_dash="dot",
        line_color=draw.PALETTE["bound"],
        annotation_text="bound: the GPU never waits",
        annotation_position="top right",
    )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(range=[0, 1.15 * bound])
    return draw.finish(figure, title=title, x=x, y="rate of one GPU (TFLOP/s)", height=440)
