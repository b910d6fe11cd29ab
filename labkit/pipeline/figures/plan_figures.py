"""Pictures of plans: energy against time, side by side, and what memory and deadlines buy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from labkit.kit import tables
from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, Part, finish
from labkit.pipeline.simulation.costs import amount
from labkit.quantities import significant

if TYPE_CHECKING:
    import pandas as pd

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "pentagon")


@checked
def figure_frontier(
    front: pd.DataFrame,
    *,
    plans: pd.DataFrame | None = None,
    lines: Mapping[str, pd.DataFrame] | None = None,
    title: str = "",
) -> go.Figure:
    """Draw energy of an iteration against its duration.

    Args:
        front: :func:`labkit.pipeline.frontier`'s table: its plans as a line, its bound dotted.
        plans: single plans to mark: :func:`labkit.pipeline.compare`'s table, or any other with
            columns plan, makespan_s, energy_j.
        lines: other frontiers by name: columns makespan_s, energy_j.
        title: of the figure.
    """
    spans = ("makespan_s", "energy_j")
    tables.check("figure_frontier: front", front, numbers=("deadline_s", *spans, "bound_j"))
    for name, line in (lines or {}).items():
        tables.check(f"figure_frontier: lines[{name!r}]", line, numbers=spans)
    if plans is not None:
        tables.check("figure_frontier: plans", plans, texts=["plan"], numbers=spans)
    data = [*_frontiers(lines or {}), *_plans_and_bound(front)]
    axis = {}
    if plans is not None:
        data.append(_marks(plans))
        first = plans["makespan_s"].min()
        last = front["deadline_s"].max()
        axis = {"range": [first - 0.2 * (last - first), last + 0.05 * (last - first)]}
    fig = go.Figure(data, {"xaxis": axis})
    return finish(fig, title=title, x="iteration time (s)", y="energy of an iteration (J)")


def _frontiers(lines: Mapping[str, pd.DataFrame]) -> Iterator[Part]:
    """Draw other frontiers, a line each."""
    colours = (PALETTE["paper"], PALETTE["baseline"], *CYCLE[4:])
    for (name, table), colour in zip(lines.items(), colours, strict=False):
        line = {"color": colour, "width": 2}
        yield _line(table["makespan_s"], table["energy_j"], name, line)


def _plans_and_bound(front: pd.DataFrame) -> Iterator[Part]:
    """Draw a frontier's plans, each marked on its line, and the bound below them, dotted."""
    solid = {"color": PALETTE["ours"], "width": 2}
    marks = {"mode": "lines+markers", "marker": {"size": 5}}
    yield _line(front["makespan_s"], front["energy_j"], "optimal plans", solid) | marks
    dotted = {"color": PALETTE["bound"], "width": 2, "dash": "dot"}
    yield _line(front["deadline_s"], front["bound_j"], "lower bound", dotted)


def _line(x: Any, y: Any, name: str, line: Part) -> Part:
    """Draw a line that the legend names."""
    return {"type": "scatter", "x": x, "y": y, "mode": "lines", "name": name, "line": line}


def _marks(plans: pd.DataFrame) -> Part:
    """Mark single plans, each with its name."""
    return {
        "type": "scatter",
        "x": plans["makespan_s"],
        "y": plans["energy_j"],
        "mode": "markers+text",
        "text": plans["plan"],
        "textposition": "middle left",
        "showlegend": False,
        "marker": {"color": PALETTE["highlight"], "size": 11, "symbol": "diamond"},
        "hovertemplate": "%{text}<br>%{x:.4g} s, %{y:.5g} J<extra></extra>",
    }


@checked
def figure_plans(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Draw energy against iteration time, a mark for each plan, a colour for each schedule.

    Args:
        table: columns schedule, method, makespan_s, energy_j and, for a dash at the least energy of
            any plan as late as this one, bound_j.
        title: of the figure.
    """
    import plotly.express as px

    spans = ["makespan_s", "energy_j", *(["bound_j"] * ("bound_j" in table.columns))]
    texts = ["schedule", "method"]
    tables.check("figure_plans", table, texts=texts, numbers=spans)
    plotted = table[[*texts, *spans]]
    style = {"x": "makespan_s", "color": "schedule", "color_discrete_sequence": CYCLE}
    fig = px.scatter(plotted, y="energy_j", symbol="method", symbol_sequence=_SYMBOLS, **style)
    fig.update_traces(marker={"size": 13, "line": {"color": "white", "width": 1}})
    fig.update_layout(legend_title_text="")
    if "bound_j" in table.columns:
        bounds = px.scatter(plotted, y="bound_j", **style)
        bounds.update_traces(marker={"symbol": "line-ew-open", "size": 22}, showlegend=False)
        fig.add_traces(bounds.data)
    return finish(
        fig, title=title, x="iteration time (s)", y="energy of an iteration (J)", height=480
    )


@checked
def figure_tradeoff(table: pd.DataFrame) -> go.Figure:
    """Draw least energy against the memory of a device, a line for each deadline.

    With one memory limit the deadlines are on the axis instead. Every mark says which schedule it
    took.

    Args:
        table: :meth:`Search.tradeoff`'s; limits that nothing fits stay empty.
    """
    import plotly.express as px

    numbers = ["memory_limit_bytes", "deadline_s", "energy_j"]
    tables.check("figure_tradeoff", table, texts=["schedule"], numbers=numbers, filled=True)
    table = table[["schedule", *numbers]]
    limits = table["memory_limit_bytes"]
    by_memory = limits.nunique() > 1
    finite = limits[np.isfinite(limits)]
    room = float(finite.max() * 1.15) if len(finite) else 1.0
    place = limits.where(np.isfinite(limits), room) if by_memory else table["deadline_s"]
    table = table.assign(place=place, by=[f"by {significant(t, 4)} s" for t in table["deadline_s"]])
    line = {"x": "place", "y": "energy_j", "text": "schedule", "markers": True}
    fig = px.line(table, color="by" if by_memory else None, color_discrete_sequence=CYCLE, **line)
    fig.update_traces(textposition="top right", line_shape="hv" if by_memory else "linear")
    if by_memory:
        words = [amount(limit) for limit in limits]
        fig.update_layout(xaxis={"tickvals": place, "ticktext": words}, legend_title_text="")
    x = "memory of a device" if by_memory else "deadline (s)"
    return finish(fig, title="", x=x, y="energy of an iteration (J)", height=460)
