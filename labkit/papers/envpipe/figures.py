"""EnvPipe's figures: the idea on a timeline, the energy valley, steps of the planner, savings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit import pipeline
from labkit.kit import draw
from labkit.kit.describe import checked
from labkit.papers.envpipe.configurations import Policy, shaped
from labkit.pipeline.figures.timeline_figures import on_stages, part_bars
from labkit.pipeline.profiles.profile import EnergyProfile

OUTSIDE = "outer envelope: highest clock"
INSIDE = "inside: clock of least energy"
WAITS = "waits"
PARTS = {
    OUTSIDE: draw.PALETTE["energy"],
    INSIDE: draw.PALETTE["ours"],
    WAITS: draw.PALETTE["bubble"],
}
"""What a GPU does in the idea's picture -> colour."""
LOOKS: dict[str, str] = {
    Policy.ENVPIPE: draw.CYCLE[0],
    Policy.ON_1F1B: draw.CYCLE[5],
    Policy.CLOCK_A_GPU: draw.CYCLE[3],
    Policy.ONE_CLOCK: draw.CYCLE[4],
    Policy.VALLEY: draw.CYCLE[2],
}
"""Colour of each policy."""


def figure_idea(profile: EnergyProfile, *, last_stage: float = 1.5) -> go.Figure:
    """A small iteration as EnvPipe runs it: the envelope, the work inside, what waits.

    Args:
        profile: whose first stage gives the clock curve of four stages.
        last_stage: work of the last one, over that of the others.
    """
    four = shaped(profile, 4, last_stage)
    schedule = pipeline.build_for(four, "1f1b", 5)
    plan = pipeline.plan(schedule, four, "envpipe")
    table = plan.frame()
    outside = pipeline.outer_envelope(schedule)
    table["part"] = np.where(outside, OUTSIDE, INSIDE)
    span_s = plan.makespan_s
    waits = go.Bar(
        x=[span_s] * 4,
        y=[*range(4)],
        orientation="h",
        name=WAITS,
        marker={"color": PARTS[WAITS], "line": {"width": 0}},
        hoverinfo="skip",
    )
    bars = part_bars(table, {part: PARTS[part] for part in (OUTSIDE, INSIDE)})
    figure = on_stages([waits, *bars], 4)
    figure.update_xaxes(range=[0, span_s * 1.005])
    title = "One path sets the iteration's time and stays fast; all work inside it runs slower"
    x = "time of one iteration (s); F: forward, B: backward of a microbatch"
    return draw.finish(figure, title=title, x=x, y="stage (a GPU each)", height=330)


@checked
def figure_valley(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """A stage's energy by clock, all of it and what lies above waiting, each with its least.

    Args:
        table: ``EnergyProfile.stage_table``'s: clock_mhz, energy_j, above_waiting_j.
        title: what the figure shows.
    """
    figure = go.Figure()
    lines = {
        "energy_j": ("all of it", draw.PALETTE["energy"]),
        "above_waiting_j": ("above what a waiting GPU draws", draw.PALETTE["bound"]),
    }
    for column, (name, colour) in lines.items():
        figure.add_scatter(
            x=table["clock_mhz"],
            y=table[column],
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2},
            marker_size=6,
        )
        lowest = table.iloc[int(table[column].argmin())]
        figure.add_annotation(
            x=lowest["clock_mhz"],
            y=lowest[column],
            ay=-36,
            ax=0,
            arrowhead=2,
            text=f"least at {lowest['clock_mhz']:.0f} MHz",
        )
    figure.update_yaxes(rangemode="tozero")
    y = "energy of one microbatch (J)"
    return draw.finish(figure, title=title, x="clock of the GPU's cores (MHz)", y=y)


def figure_steps(steps: pd.DataFrame, *, title: str) -> go.Figure:
    """What each step of the mechanism saves, and what it costs in time.

    Args:
        steps: indexed by the step's name: saving_fraction, slowdown_fraction.
        title: what the figure shows.
    """
    figure = go.Figure()
    columns = {
        "saving_fraction": ("energy saved", draw.PALETTE["ours"]),
        "slowdown_fraction": ("iteration longer", draw.PALETTE["energy"]),
    }
    for column, (name, colour) in columns.items():
        values = 100 * steps[column]
        figure.add_bar(
            x=[*range(len(steps))],
            y=values,
            name=name,
            marker_color=colour,
            text=[f"{value:.1f}" for value in values],
            textposition="outside",
        )
    ticks = [name.replace(", ", ",<br>") for name in steps.index]
    figure.update_xaxes(tickvals=[*range(len(steps))], ticktext=ticks)
    figure.update_yaxes(range=[0, 1.2 * 100 * steps[[*columns]].to_numpy().max()])
    y = "against the highest clock (%)"
    return draw.finish(figure, title=title, x="step by step", y=y, height=440)


def figure_plane(
    chosen: str,
    panels: Mapping[str, pd.DataFrame],
    published: Sequence[float],
    bounds: Sequence[float],
    *,
    title: str,
) -> go.Figure:
    """Energy saved over the time that it costs, a panel for each number of GPUs.

    Args:
        chosen: the policy that is drawn large.
        panels: by the panel's name, :func:`.savings`'s table: plan, saving_fraction,
            slowdown_fraction.
        published: the largest saving that the paper states, for each panel.
        bounds: the largest saving of any plan as fast as the highest clock, for each panel.
        title: what the figure shows.
    """
    names = [f"<b>{name}</b>" for name in panels]
    figure = make_subplots(
        1, len(panels), shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=names
    )
    for column, (table, most, bound) in enumerate(
        zip(panels.values(), published, bounds, strict=True), start=1
    ):
        place = {"row": 1, "col": column}
        for policy in [*table["plan"].unique()]:
            mine = table[table["plan"] == policy]
            figure.add_trace(_points(mine, policy, policy == chosen, column == 1), **place)
        figure.add_trace(_paper_bar(100 * most, column == 1), **place)
        figure.add_trace(_bound_mark(100 * bound, column == 1), **place)
    slowest = 100 * max(table["slowdown_fraction"].max() for table in panels.values())
    figure.update_xaxes(range=[-1, 1.08 * slowest])
    figure.update_yaxes(range=[0, 34])
    x = "time added to an iteration (%)"
    return draw.finish(figure, title=title, x=x, y="energy saved (%)", height=500)


def _points(table: pd.DataFrame, policy: str, chosen: bool, legend: bool) -> go.Scatter:
    """One policy's savings, a mark for each configuration."""
    places = zip(table["profile"], table["last_stage"], strict=True)
    hover = [f"{profile}, last stage {work:.2f}" for profile, work in places]
    return go.Scatter(
        x=100 * table["slowdown_fraction"],
        y=100 * table["saving_fraction"],
        mode="markers",
        name=str(policy),
        showlegend=legend,
        text=hover,
        marker={
            "color": LOOKS[policy],
            "size": 13 if chosen else 9,
            "opacity": 1 if chosen else 0.8,
            "symbol": "circle" if chosen else "circle-open",
            "line": {"width": 2},
        },
    )


def _paper_bar(most: float, legend: bool) -> go.Scatter:
    """The abstract's saving, as long as the slowdown that it allows."""
    return go.Scatter(
        x=[0, 1],
        y=[most, most],
        mode="lines+text",
        text=["", f"paper: up to {most:.1f} %"],
        textposition="top right",
        textfont={"color": draw.PALETTE["paper"]},
        name="paper: at most 1 % slower",
        showlegend=legend,
        line={"color": draw.PALETTE["paper"], "width": 7},
    )


def _bound_mark(bound: float, legend: bool) -> go.Scatter:
    """The most that any plan on EnvPipe's order saves at full speed."""
    return go.Scatter(
        x=[0],
        y=[bound],
        mode="markers",
        name="bound at full speed",
        showlegend=legend,
        marker={"color": draw.PALETTE["bound"], "size": 13, "symbol": "diamond-open"},
    )


def figure_balance(lines: pd.DataFrame, published: Mapping[str, float], *, title: str) -> go.Figure:
    """Energy saved by the work of the last stage.

    Args:
        lines: columns last_stage, saving_fraction, GPUs (how a number of GPUs is named), plan.
        published: by the same names of GPUs, the paper's largest saving.
        title: what the figure shows.
    """
    figure = go.Figure()
    hues = dict(zip(published, (draw.PALETTE["energy"], draw.PALETTE["ours"]), strict=True))
    widths: dict[str, Any] = {"solid": 3, "dash": 2}
    for (gpus, plan), table in lines.groupby(["GPUs", "plan"], sort=False):
        dash = "solid" if plan == Policy.ENVPIPE else "dash"
        figure.add_scatter(
            x=table["last_stage"],
            y=100 * table["saving_fraction"],
            mode="lines",
            name=f"{plan}, {gpus}",
            line={"color": hues[str(gpus)], "dash": dash, "width": widths[dash]},
        )
    right = float(lines["last_stage"].max())
    for gpus, share in published.items():
        figure.add_hline(
            100 * share,
            line={"color": hues[gpus], "dash": "dot", "width": 1},
            annotation_text=f"paper, {gpus}: up to {100 * share:.1f} %",
            annotation_position="top right",
        )
    figure.update_xaxes(range=[float(lines["last_stage"].min()), right])
    figure.update_yaxes(range=[0, 34])
    x = "work of the last stage, over that of any other"
    return draw.finish(figure, title=title, x=x, y="energy saved (%)", height=480)
