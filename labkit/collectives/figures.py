"""Pictures of collectives: who sends to whom in which step, what it costs, what hides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.collectives.overlapping import Overlap
from labkit.collectives.programs import Action, Program
from labkit.errors import BadValue
from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, finish

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 4_000
"""Rows of a program that a picture still shows apart."""
_WHAT = {Action.ADD: "added", Action.COPY: "kept"}
_COLOURS = {Action.ADD: PALETTE["all-reduce"], Action.COPY: PALETTE["forward"]}


@checked
def figure_program(program: Program, *, title: str = "") -> go.Figure:
    """Steps from left to right, ranks from top to bottom, a line from sender to receiver.

    Raises:
        BadValue: it has more rows than a picture shows.
    """
    rows = program.rows
    if len(rows.step) > MOST_ROWS:
        raise BadValue(
            f"collectives.figure_program: the program has {len(rows.step):,} rows; a picture shows "
            f"at most {MOST_ROWS:,}"
        )
    fig = go.Figure()
    for action, words in _WHAT.items():
        chosen = rows.at(rows.action == action)
        fig.add_scatter(
            x=_with_gaps(chosen.step, chosen.step + 0.85),
            y=_with_gaps(chosen.source, chosen.destination),
            mode="lines",
            line={"color": _COLOURS[action], "width": 2},
            name=f"{words} by the receiver",
            hoverinfo="skip",
        )
        fig.add_scatter(
            x=chosen.step + 0.85,
            y=chosen.destination,
            mode="markers",
            marker={"color": _COLOURS[action], "size": 7},
            text=[
                f"chunk {chunk} from rank {source}"
                for source, chunk in zip(chosen.source, chosen.chunk, strict=True)
            ],
            hovertemplate="rank %{y}: %{text}<extra></extra>",
            showlegend=False,
        )
    servers = range(program.num_workers, program.num_ranks)
    labels = [*map(str, range(program.num_workers)), *(f"server {rank}" for rank in servers)]
    ranks = list(range(program.num_ranks))
    fig.update_yaxes(tickvals=ranks, ticktext=labels, range=[program.num_ranks - 0.5, -0.5])
    fig.update_xaxes(range=[-0.1, program.num_steps], dtick=max(1, program.num_steps // 12))
    return finish(fig, title=title, x="step", y="rank")


def _with_gaps(begin: np.ndarray, end: np.ndarray) -> list[float | None]:
    """Coordinates of separate lines, as one trace: begin, end, nothing."""
    return [value for pair in zip(begin, end, strict=True) for value in (*map(float, pair), None)]


@checked
def figure_costs(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Seconds over the size of the message, a line an algorithm, and what none can beat.

    Args:
        table: as :func:`labkit.collectives.compare` gives it.

    Raises:
        BadValue: it lacks a column.
    """
    for column in ("num_bytes", "algorithm", "time_s", "bound_s"):
        if column not in table.columns:
            raise BadValue(
                f"collectives.figure_costs: the table lacks the column {column!r}, which "
                "collectives.compare gives"
            )
        if list(table.columns).count(column) > 1 or table[column].isna().any():
            raise BadValue(
                f"collectives.figure_costs: the table's column {column!r} stands twice, or lacks a "
                "value"
            )
    fig = go.Figure()
    for place, (name, rows) in enumerate(table.sort_values("num_bytes").groupby("algorithm")):
        fig.add_scatter(
            x=rows["num_bytes"],
            y=rows["time_s"],
            name=str(name),
            line={"color": CYCLE[place % len(CYCLE)]},
        )
    none = table.drop_duplicates("num_bytes").sort_values("num_bytes")
    fig.add_scatter(
        x=none["num_bytes"],
        y=none["bound_s"],
        name="bound",
        line={"color": PALETTE["bound"], "dash": "dot"},
    )
    fig.update_xaxes(type="log")
    fig.update_yaxes(type="log")
    return finish(fig, title=title, x="message (bytes)", y="time (s)")


@checked
def figure_overlap(runs: Mapping[str, Overlap], *, title: str = "") -> go.Figure:
    """One step of each run, on two lanes: what computes, and what is sent.

    Args:
        runs: by the name that is written over their lanes.
    """
    if not runs:
        raise BadValue("collectives.figure_overlap: runs is empty; one run at least is valid")
    fig = make_subplots(
        rows=len(runs), cols=1, shared_xaxes=True, subplot_titles=list(runs), vertical_spacing=0.12
    )
    concepts = {"forward": "forward", "backward": "backward", "gradients": "communication"}
    for row, run in enumerate(runs.values(), start=1):
        events = run.frame()
        begin_s = events["start_s"].min()
        for what, concept in concepts.items():
            chosen = events[events["what"] == what]
            fig.add_bar(
                x=1e3 * (chosen["end_s"] - chosen["start_s"]),
                base=1e3 * (chosen["start_s"] - begin_s),
                y=chosen["lane"],
                orientation="h",
                marker={"color": PALETTE[concept], "line": {"color": "white", "width": 0.5}},
                name=what,
                text=[f"layer {layer}" for layer in chosen["layer"]],
                textposition="none",
                hovertemplate="%{text}: %{x:.4g} ms<extra>%{fullData.name}</extra>",
                showlegend=row == 1,
                row=row,
                col=1,
            )
        fig.add_vline(
            1e3 * run.step_s, line={"color": PALETTE["bound"], "dash": "dot"}, row=row, col=1
        )
        fig.update_yaxes(categoryarray=["network", "compute"], categoryorder="array", row=row)
    fig.update_layout(barmode="overlay")
    return finish(fig, title=title, x="time (ms)", height=160 + 130 * len(runs))
