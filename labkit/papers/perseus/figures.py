"""Perseus's figures: a cut on a timeline, walks of cuts, savings behind a straggler and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit import pipeline
from labkit.kit import draw
from labkit.papers.perseus.published import JOBS
from labkit.papers.perseus.stragglers import Way
from labkit.pipeline.figures.timeline_figures import on_stages, part_bars
from labkit.pipeline.planning import cuts
from labkit.pipeline.planning.perseus import menus
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.schedule import Schedule

SLACK = "#E4E6E9"
CRITICAL = "#9AA1AB"
PARTS = {
    "one unit faster": draw.PALETTE["energy"],
    "one unit slower": draw.PALETTE["ours"],
    "critical, not touched": CRITICAL,
    "has slack": SLACK,
}
"""What a cut does to an instruction -> colour."""
LOOKS: dict[str, dict[str, Any]] = {
    Way.ENVPIPE: {"color": draw.PALETTE["baseline"], "dash": "dash"},
    Way.ONE_CLOCK: {"color": draw.PALETTE["cost"], "dash": "dash"},
    Way.CLOCK_A_GPU: {"color": draw.PALETTE["frequency"], "dash": "dash"},
}
"""How the lines of rivals look; the way that is asked about is solid."""
BOUND = "bound: no plan saves more"


def figure_idea(profile: EnergyProfile, *, unit_s: float = 0.005) -> go.Figure:
    """The cut that hurries most instructions at once, on the plan that it shortens.

    Args:
        profile: of 8 stages; the schedule is 1F1B with 4 microbatches.
        unit_s: what one cut saves.
    """
    schedule = pipeline.build("1f1b", profile.num_stages, 4)
    plans = [*cuts.hurried(schedule.graph, menus(schedule, profile, unit_s=unit_s))]
    hurried = [int((after < before).sum()) for before, after in pairwise(plans)]
    chosen = int(np.argmax(hurried))
    title = "The cheapest cut through all critical paths ends the iteration one unit earlier"
    return figure_cut(schedule, plans[chosen], plans[chosen + 1], unit_s=unit_s, title=title)


def figure_cut(
    schedule: Schedule, before: np.ndarray, after: np.ndarray, *, unit_s: float, title: str
) -> go.Figure:
    """A timeline before a cut, its instructions coloured by what the cut does to them.

    Args:
        schedule: its instructions, shape (n,).
        before: their durations in units, shape (n,).
        after: the same, once the cut is made.
        unit_s: seconds of a unit.
        title: what the figure shows.
    """
    line = pipeline.simulate(schedule, before * unit_s)
    table = line.frame()
    table["part"] = np.select(
        [after < before, after > before, table["slack_s"] < unit_s / 2], [*PARTS][:3], [*PARTS][3]
    )
    inks = dict.fromkeys(PARTS, "#222222")
    inks["one unit slower"] = "white"
    stages = schedule.num_devices
    figure = on_stages(part_bars(table, PARTS, inks=inks), stages)
    words = "time of one iteration (s); F: forward, B: backward of a microbatch"
    return draw.finish(figure, title=title, x=words, y="stage", height=150 + 34 * stages)


def figure_walks(walks: Mapping[str, Sequence[float]], times_s: Sequence[float]) -> go.Figure:
    """By how much each walk's plans need more energy than the last walk's, above waiting.

    Args:
        walks: by name, the energy above waiting (J) of the plan at each of the times; the last
            walk is the one that the others are compared with.
        times_s: the iteration time of each plan.
    """
    *others, reference = walks
    figure = go.Figure()
    for name, color in zip(others, (draw.PALETTE["baseline"], draw.PALETTE["cost"]), strict=False):
        more = 100 * (np.divide(walks[name], walks[reference]) - 1)
        figure.add_scatter(x=times_s, y=np.round(more, 4), name=name, line={"color": color})
    figure.add_scatter(
        x=times_s, y=np.zeros(len(times_s)), name=reference, line={"color": draw.PALETTE["ours"]}
    )
    title = "Cuts beat hurrying path by path; slowing elsewhere adds little"
    x = "iteration time as planned (s): walks go from right to left"
    return draw.finish(figure, title=title, x=x, y="energy above Perseus's (%)")


def figure_stragglers(
    chosen: str,
    saved: Mapping[str, Mapping[str, pd.DataFrame]],
    best: Mapping[str, pd.Series[float]],
    *,
    published: float,
    title: str,
) -> go.Figure:
    """Energy saved until a straggler ends, a panel a job.

    Args:
        chosen: the way that is drawn solid.
        saved: by way and job, :func:`.savings`'s table.
        best: by job, the most that any plan saves at each slowdown (fractions).
        published: the fraction that the abstract states.
        title: what the figure shows.
    """
    figure = make_subplots(1, len(best), shared_yaxes=True, horizontal_spacing=0.03)
    others = [way for way in (Way.ENVPIPE, Way.ONE_CLOCK) if way != chosen]
    for column, (job, most) in enumerate(best.items(), start=1):
        place = {"row": 1, "col": column}
        style: dict[str, Any] = {"mode": "lines", "showlegend": column == 1}
        slowdown = saved[chosen][job]["slowdown"]
        dotted = {"color": draw.PALETTE["bound"], "dash": "dot"}
        bound = go.Scatter(x=slowdown, y=100 * most, name=BOUND, line=dotted, **style)
        figure.add_trace(bound, **place)
        for way in (*others, chosen):
            look = LOOKS[way] if way != chosen else {"color": draw.PALETTE["ours"], "width": 4}
            line = 100 * saved[way][job]["saving_fraction"]
            figure.add_trace(
                go.Scatter(x=slowdown, y=line, name=str(way), line=look, **style), **place
            )
        _mark_published(figure, 100 * published, column, label=column == 1)
        figure.add_annotation(
            text=JOBS[job],
            x=0.5,
            y=0.02,
            yanchor="bottom",
            showarrow=False,
            bgcolor=draw.VEIL,
            xref=f"x{column if column > 1 else ''} domain",
            yref=f"y{column if column > 1 else ''} domain",
        )
    figure.update_yaxes(range=[0, 34])
    x = "straggler's slowdown (×)"
    return draw.finish(figure, title=title, x=x, y="energy saved (%)", height=460)


def figure_full_speed(
    chosen: str,
    lines: Mapping[str, Mapping[str, Sequence[float]]],
    num_microbatches: Sequence[int],
    *,
    title: str,
) -> go.Figure:
    """Energy saved without a straggler over the number of microbatches, a panel a job.

    Args:
        chosen: the way that is drawn as ours.
        lines: by job, then by name, a fraction for each number of microbatches. The names
            "published" and "bound" have looks of their own.
        num_microbatches: of an iteration.
        title: what the figure shows.
    """
    figure = make_subplots(1, len(lines), shared_yaxes=True, horizontal_spacing=0.05)
    ticks = [*map(str, num_microbatches)]
    places = [*range(len(ticks))]
    looks: dict[str, dict[str, Any]] = {
        **{way: {"line": look} for way, look in LOOKS.items()},
        BOUND: {"line": {"color": draw.PALETTE["bound"], "dash": "dot"}},
        chosen: {"line": {"color": draw.PALETTE["ours"], "width": 4}},
        "published frontiers": {
            "mode": "markers",
            "marker": {"color": draw.PALETTE["paper"], "size": 14, "symbol": "diamond"},
        },
    }
    for column, (job, shares) in enumerate(lines.items(), start=1):
        for name, values in shares.items():
            style = {"mode": "lines+markers", "showlegend": column == 1, **looks[name]}
            y = [100 * value for value in values]
            figure.add_trace(go.Scatter(x=places, y=y, name=name, **style), row=1, col=column)
        figure.add_annotation(
            text=JOBS[job],
            x=0.5,
            y=0.02,
            yanchor="bottom",
            showarrow=False,
            xref=f"x{column if column > 1 else ''} domain",
            yref=f"y{column if column > 1 else ''} domain",
        )
    figure.update_xaxes(tickvals=places, ticktext=ticks)
    figure.update_yaxes(range=[0, 18])
    x = "microbatches of an iteration"
    return draw.finish(figure, title=title, x=x, y="energy saved at full speed (%)", height=440)


def _mark_published(figure: go.Figure, value: float, column: int, *, label: bool) -> None:
    """The abstract's number as a line across a panel, with its words in the first."""
    line = {"color": draw.PALETTE["paper"], "width": 2}
    words: dict[str, Any] = {}
    if label:
        words = {
            "annotation_text": f"paper: up to {value:.0f} %",
            "annotation_position": "top left",
        }
    figure.add_hline(value, line=line, row=1, col=column, **words)
