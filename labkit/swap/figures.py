"""Figures of recomputation, from chains."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.kit.describe import checked
from labkit.kit.draw import PALETTE, finish
from labkit.quantities import GB
from labkit.swap.chain import Chain, Replay
from labkit.swap.methods import METHODS, Slots, optimum, plan, segments

MOST_ADDED = 0.6  # of a step's time, in the figure


@checked
def figure_tradeoff(chain: Chain, *, slots: Slots = 400, title: str = "") -> go.Figure:
    """Time added against peak memory: every number of equal segments, the methods, the optimum.

    Methods that add more than :data:`MOST_ADDED`, or need no recomputation, are left out.

    Args:
        slots: sizes of memory that the exact optimum distinguishes.
    """
    memory, cost = optimum(chain, slots=slots).frontier()
    added = cost / chain.step_cost - 1
    figure = go.Figure()
    figure.add_scatter(
        x=memory[added <= MOST_ADDED] / GB,
        y=100 * added[added <= MOST_ADDED],
        name="exact optimum",
        mode="lines",
        line_color=PALETTE["bound"],
    )
    equal = [segments(chain, number).replay() for number in range(2, chain.num_blocks + 1)]
    groups: dict[str, list[Replay]] = {"equal segments": equal}
    groups |= {name: [plan(chain, name).replay()] for name in METHODS}
    for name, runs in groups.items():
        shown = [run for run in runs if 0 < run.added_fraction <= MOST_ADDED]
        if shown:
            figure.add_scatter(
                x=[run.peak_bytes / GB for run in shown],
                y=[100 * run.added_fraction for run in shown],
                name=name,
                mode="markers",
                marker_size=8 if len(shown) > 1 else 14,
            )
    return finish(figure, title=title, x="peak of the feature maps (GB)", y="time added (%)")
