"""Alpa's figures: stages on meshes, throughput by GPUs beside what was measured, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit import draw

HUES: dict[str, str] = {
    "Alpa": draw.PALETTE["ours"],
    "intra-operator alone": draw.PALETTE["weight"],
    "inter-operator alone": draw.PALETTE["cost"],
    "stages and data parallelism": draw.PALETTE["highlight"],
    "DeepSpeed": draw.PALETTE["highlight"],
    "DeepSpeed, gradients divided": draw.PALETTE["highlight"],
    "Megatron-LM": draw.PALETTE["highlight"],
    "equal meshes": draw.PALETTE["paper"],
    "equal layers": draw.PALETTE["cost"],
}
"""Colour of each method, modelled or measured."""
NAMES = {"gpt": "GPT", "moe": "MoE", "wresnet": "Wide-ResNet"}
"""The models in words."""


def _box(
    figure: go.Figure, x: float, y: float, width: float, height: float, hue: str, words: str
) -> None:
    """Draw a coloured box with words in it."""
    figure.add_shape(
        type="rect",
        x0=x,
        x1=x + width,
        y0=y,
        y1=y + height,
        fillcolor=hue,
        opacity=0.55,
        line={"color": "white", "width": 2},
    )
    figure.add_annotation(x=x + width / 2, y=y + height / 2, text=words, showarrow=False)


def figure_idea() -> go.Figure:
    """Draw eight layers in three stages, and the meshes of two machines that they stand on."""
    figure = go.Figure()
    stages = [(0, 4), (4, 6), (6, 8)]
    meshes = [(0, 4), (4, 6), (6, 8)]
    for number, (first, end) in enumerate(stages):
        for layer in range(first, end):
            _box(figure, layer, 3.0, 0.92, 0.8, draw.CYCLE[number], f"layer {layer + 1}")
    for number, (first, end) in enumerate(meshes):
        gap = 0.3 if first >= 4 else 0.0
        for gpu in range(first, end):
            _box(figure, gpu + gap, 0.6, 0.92, 0.8, draw.CYCLE[number], f"GPU {gpu % 4}")
    words = [
        (2.0, 2.2, "mesh of 4: the program inside cuts operators"),
        (5.2, 1.75, "mesh of 2"),
        (7.2, 1.75, "mesh of 2"),
        (2.0, 0.2, "machine 0, fast links inside"),
        (6.3, 0.2, "machine 1"),
        (4.0, 4.2, "stages: the program across cuts the chain of layers"),
    ]
    for x, y, text in words:
        figure.add_annotation(x=x, y=y, text=text, showarrow=False)
    for left, right in ((-0.05, 3.97), (4.25, 8.27)):
        figure.add_shape(
            type="rect",
            x0=left,
            x1=right,
            y0=0.45,
            y1=1.5,
            line={"color": "#8A8F98", "dash": "dot"},
        )
    figure.update_xaxes(visible=False, range=[-0.2, 8.5])
    figure.update_yaxes(visible=False, range=[-0.1, 4.5])
    title = "Inside a mesh much is sent, over fast links; between stages one tensor"
    draw.finish(figure, title=title, height=340)
    figure.layout.margin.b = 16  # no axis stands below
    return figure


def figure_throughput(
    modelled: pd.DataFrame,
    measured: pd.DataFrame,
    rates: Mapping[str, float],
    *,
    title: str,
) -> go.Figure:
    """Draw the throughput of a GPU by number of GPUs, a panel a model.

    Args:
        modelled, measured: columns kind, method, gpus, tera_flops; NaN where nothing fits.
        rates: of one GPU alone, by kind: what nothing sent and nothing waited for would keep.
        title: what the figure shows.
    """
    kinds = [kind for kind in NAMES if kind in set(modelled["kind"])]
    names = [NAMES[kind] for kind in kinds]
    figure = make_subplots(cols=len(kinds), subplot_titles=names, horizontal_spacing=0.07)
    sizes = sorted(modelled["gpus"].unique().tolist())
    place = {size: number for number, size in enumerate(sizes)}
    shown: set[str] = set()

    def add(kind: str, name: str, **options: object) -> None:
        figure.add_scatter(
            name=name,
            legendgroup=name,
            showlegend=name not in shown,
            row=1,
            col=kinds.index(kind) + 1,
            **options,
        )
        shown.add(name)

    for column, kind in enumerate(kinds, start=1):
        bound = {"color": draw.PALETTE["bound"], "dash": "dot"}
        ends = [0, len(sizes) - 1]
        add(
            kind,
            "one GPU's rate (our bound)",
            x=ends,
            y=[rates[kind]] * 2,
            mode="lines",
            line=bound,
        )
        for source, rows in (("ours", modelled), ("measured", measured)):
            here = rows[(rows["kind"] == kind) & rows["gpus"].isin(sizes)]
            for method, line in here.groupby("method", sort=False):
                hue = HUES.get(str(method), draw.PALETTE["baseline"])
                ours = source == "ours"
                add(
                    kind,
                    f"{method}, {source}",
                    x=[place[size] for size in line["gpus"]],
                    y=line["tera_flops"],
                    mode="lines+markers" if ours else "markers",
                    line={"color": hue},
                    marker={"size": 6 if ours else 11, "symbol": "circle" if ours else "x"},
                )
        most = measured.loc[measured["kind"] == kind, "tera_flops"].max()
        figure.update_yaxes(range=[0, 1.08 * max(most, rates[kind])], row=1, col=column)
    figure.update_xaxes(
        tickvals=[*range(len(sizes))],
        ticktext=[str(size) for size in sizes],
        range=[-0.3, len(sizes) - 0.7],
    )
    return draw.finish(figure, title=title, x="GPUs", y="TFLOP/s of a GPU", height=520)


def figure_lines(
    lines: pd.DataFrame,
    *,
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, tuple[float, str]] | None = None,
    ticks: Sequence[str] | None = None,
) -> go.Figure:
    """Draw a line a column, labelled at its end.

    Args:
        lines: the index is the x axis, equally spaced; a line has no point where its value is NaN.
        title: what the figure shows.
        x, y: titles of the axes, with units.
        levels: by name, a height and its concept among ``draw.PALETTE``.
        ticks: words of the x axis, one a row; the index where left out.
    """
    figure = go.Figure()
    places = [*range(len(lines))]
    for number, name in enumerate(lines):
        known = lines[name].notna().to_numpy()
        if not known.any():
            continue
        figure.add_scatter(
            x=[place for place, has_value in zip(places, known, strict=True) if has_value],
            y=lines[name][known],
            mode="lines+markers",
            name=str(name),
            line_color=HUES.get(str(name), draw.CYCLE[number % len(draw.CYCLE)]),
        )
    draw.levels(figure, [places[0], places[-1]], levels or {})
    words = [str(value) for value in lines.index]
    figure.update_xaxes(tickvals=places, ticktext=ticks or words, range=[-0.2, places[-1] + 0.2])
    heights = [value for value, _ in (levels or {}).values()]
    figure.update_yaxes(range=[0, 1.25 * max([float(lines.max().max()), *heights])])
    return draw.finish(figure, title=title, x=x, y=y, height=420, direct=True)
