"""Pictures of chains and plans: where time, weights and activations are, and what stages cost."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, finish
from labkit.planner.chain import Chain
from labkit.planner.plans import Plan

_PARTS = {"compute_s": "forward", "gradients_s": "all-reduce", "transfers_s": "communication"}
_ROWS = (
    ("time (ms)", 1e3, (("forward_s", "forward"), ("backward_s", "backward"))),
    ("weights (MB)", 1e-6, (("parameter_bytes", "parameter"),)),
    ("cut (MB)", 1e-6, (("cut_bytes", "communication"),)),
)


@checked
def figure_layers(
    chain: Chain, *, plans: Mapping[str, Plan] | None = None, title: str = ""
) -> go.Figure:
    """Seconds, weights and bytes that cross each cut, layer by layer; plans' cuts as lines.

    Args:
        plans: by the name that is written beside their cuts.
    """
    fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.05)
    table = chain.frame()
    number = list(range(1, len(chain) + 1))
    for row, (label, scale, columns) in enumerate(_ROWS, start=1):
        for column, concept in columns:
            fig.add_bar(
                x=number,
                y=table[column] * scale,
                name=column.rpartition("_")[0].replace("_", " "),
                marker_color=PALETTE[concept],
                text=table["layer"],
                textposition="none",
                hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
                row=row,
                col=1,
                showlegend=len(columns) > 1,
            )
        fig.update_yaxes(title_text=label, row=row, col=1)
    for place, (name, plan) in enumerate((plans or {}).items()):
        colour = CYCLE[(place + 3) % len(CYCLE)]
        for cut in plan.cuts:
            fig.add_vline(cut + 0.5, line={"color": colour, "dash": "dash", "width": 2})
        fig.add_scatter(
            x=[None],
            y=[None],
            mode="lines",
            name=f"cuts: {name}",
            line={"color": colour, "dash": "dash"},
            row=1,
            col=1,
        )
    fig.update_layout(barmode="stack", bargap=0.1)
    return finish(fig, title=title, x="layer", height=600)


@checked
def figure_plans(plans: Mapping[str, Plan], *, title: str = "") -> go.Figure:
    """What each stage's replicas need for a minibatch, by part; the slowest limits its plan.

    Args:
        plans: flat ones, by the name that is written below their stages.
    """
    fig = go.Figure()
    rows = [
        (f"{name}: {plan.name}", f"{stage.stage} ×{stage.replicas}", stage)
        for name, plan in plans.items()
        for stage in plan.frame().itertuples()
    ]
    for part, concept in _PARTS.items():
        fig.add_bar(
            x=[[label for label, _, _ in rows], [stage for _, stage, _ in rows]],
            y=[1e3 * float(getattr(row, part, 0.0)) for _, _, row in rows],
            name=part.removesuffix("_s"),
            marker_color=PALETTE[concept],
        )
    fig.update_layout(barmode="group")
    return finish(fig, title=title, x="stage × replicas, by plan", y="a minibatch (ms)")
