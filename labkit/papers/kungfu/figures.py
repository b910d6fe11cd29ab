"""KungFu's figures: the idea as two timelines, noise beside the batch, and times by policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from labkit.kit import draw

COMPUTE = draw.PALETTE["forward"]
SYNC = draw.PALETTE["all-reduce"]
METRIC = draw.CYCLE[3]
STALL = draw.PALETTE["idle"]

# A step computes for 5 units, sums gradients for 2 and asks a metric for 1; none is measured.
_TIMELINES: dict[str, list[tuple[str, str, float, float, float]]] = {
    "after a restart": [
        ("gradient", COMPUTE, 0, 5, 0),
        ("sum of gradients", SYNC, 5, 7, 0),
        ("checkpoint, restart with another batch", STALL, 7, 17, 0),
        ("gradient", COMPUTE, 17, 22, 0),
        ("sum of gradients", SYNC, 22, 24, 0),
    ],
    "inside the step": [
        ("gradient", COMPUTE, 0, 5, 0),
        ("sum of gradients", SYNC, 5, 7, 0),
        ("sum of norms, then the policy", METRIC, 7, 9, 0.42),
        ("gradient", COMPUTE, 7, 12, 0),
        ("sum of gradients", SYNC, 12, 14, 0),
        ("sum of norms, then the policy", METRIC, 14, 16, 0.42),
        ("gradient", COMPUTE, 14, 19, 0),
        ("sum of gradients", SYNC, 19, 21, 0),
    ],
}


def figure_idea() -> go.Figure:
    """How training adapts by a restart, and with monitoring inside the step; drawn by hand."""
    bars = []
    seen: set[str] = set()
    for lane, (_, parts) in enumerate(reversed(_TIMELINES.items())):
        for name, color, start, end, lift in parts:
            low = lane + lift
            bars.append(
                go.Scatter(
                    x=[start, end, end, start, start],
                    y=[low, low, low + 0.38, low + 0.38, low],
                    fill="toself",
                    fillcolor=color,
                    line={"color": "white", "width": 2},
                    mode="lines",
                    name=name,
                    legendgroup=name,
                    showlegend=name not in seen,
                    hoverinfo="name",
                )
            )
            seen.add(name)
    figure = go.Figure(bars)
    figure.update_xaxes(showticklabels=False, range=[-0.2, 24.5])
    names = [*reversed(_TIMELINES)]
    figure.update_yaxes(tickvals=[0.2, 1.2], ticktext=names, range=[-0.2, 1.9], showgrid=False)
    return draw.finish(
        figure,
        title="The norms travel while the next gradient is computed",
        x="time (drawn, not measured)",
        y="a worker adapts",
        height=340,
    )


def figure_noise(run: pd.DataFrame, threshold: float) -> go.Figure:
    """Noise scale and batch size over the examples that a run has seen.

    Args:
        run: columns examples, noise_scale and batch_size.
        threshold: the batch doubles while the noise scale is so many batches.
    """
    examples = run["examples"]
    figure = go.Figure(
        [
            go.Scatter(
                x=examples,
                y=run["noise_scale"],
                name="noise scale",
                line={"color": draw.CYCLE[1]},
            ),
            go.Scatter(
                x=examples,
                y=threshold * run["batch_size"],
                name=f"{threshold:g} batches: the threshold",
                line={"color": draw.PALETTE["bound"], "dash": "dot", "shape": "hv"},
            ),
            go.Scatter(
                x=examples,
                y=run["batch_size"],
                name="batch",
                line={"color": draw.PALETTE["ours"], "shape": "hv"},
            ),
        ]
    )
    return draw.finish(
        figure,
        title="The batch doubles where the noise scale lies above the threshold",
        x="examples seen",
        y="examples",
        height=400,
    )


def figure_times(times: pd.DataFrame, *, title: str = "") -> go.Figure:
    """The time to each validation error, a line a policy (``times_to``)."""
    colours = {"noise scale": draw.PALETTE["ours"], "small batch": draw.PALETTE["baseline"]}
    figure = go.Figure()
    for index, (name, rows) in enumerate(times.groupby("policy", sort=False)):
        line = {"color": colours.get(str(name), draw.CYCLE[(index + 2) % len(draw.CYCLE)])}
        figure.add_scatter(
            x=rows["time_s"], y=rows["error"], mode="lines", name=str(name), line=line
        )
    figure.update_yaxes(tickformat=".0%")
    y = "validation error reached"
    return draw.finish(figure, title=title, x="modelled time (s), mean over seeds", y=y)


def figure_ratios(
    times: pd.DataFrame,
    policies: Sequence[str],
    *,
    baseline: str,
    paper: float,
    gpus: int,
    words: Mapping[str, str] | None = None,
) -> go.Figure:
    """Each policy's time over the baseline's: a dot a seed, a bar for the ratio of means.

    Args:
        times: a row a seed, a column a policy (``times_by_seed``).
        policies: those drawn, from top to bottom.
        paper: the ratio that the paper states.
        gpus: GPUs that the times are modelled for.
        words: names of policies on the axis, where not their own.
    """
    names = [(words or {}).get(policy, policy) for policy in policies]
    means = []
    dots_x: list[float] = []
    dots_y: list[str] = []
    for policy, name in zip(policies, names, strict=True):
        means.append(float(times[policy].mean(skipna=False) / times[baseline].mean(skipna=False)))
        dots_x += [*(times[policy] / times[baseline])]
        dots_y += [name] * len(times)
    colours = [draw.PALETTE["ours"]] + [draw.PALETTE["baseline"]] * (len(names) - 1)
    labels = [f"{mean:.2f}" for mean in means]
    figure = go.Figure(
        [
            go.Bar(
                x=means,
                y=names,
                orientation="h",
                marker_color=colours,
                text=labels,
                textposition="inside",
                insidetextanchor="start",
                name="all seeds: ratio of mean times",
            ),
            go.Scatter(
                x=dots_x,
                y=dots_y,
                mode="markers",
                name="one seed",
                marker={"color": "white", "size": 9, "line": {"color": "#222222", "width": 2}},
            ),
        ]
    )
    lines = [
        (paper, f"paper (memory): {paper:.2f}", draw.PALETTE["paper"], "solid", "right"),
        (1.0, f"baseline: {baseline}", draw.PALETTE["bound"], "dot", "left"),
    ]
    for ratio, text, color, dash, anchor in lines:
        figure.add_vline(x=ratio, line_color=color, line_dash=dash)
        figure.add_annotation(x=ratio, y=-0.8, text=text, showarrow=False, xanchor=anchor)
    fastest = names[means.index(min(means))] if min(means) < 1 else baseline
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(range=[len(names) - 0.5, -1.1], type="category")
    return draw.finish(
        figure,
        title=f"On {gpus} GPUs the fastest is: {fastest} (modelled)",
        x=f"time to the target error, over that of the {baseline}",
        y="policy",
        height=400,
    )
