"""Figures of goodput, each from one tidy table of ``goodput``, ``step_fit`` or a joint choice."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from labkit.errors import BadValue
from labkit.kit import tables
from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, PALETTE, VEIL, finish
from labkit.tuning.choice.choose import JointChoice, counted, place_text
from labkit.tuning.figures.configuration_figures import MARK, figure_lines, points, stroke

_STAR = {**MARK["best"], "line": {"width": 1.2, "color": "white"}}
_MOST_POINTS = 1500


@checked
def figure_goodput(table: pd.DataFrame) -> go.Figure:
    """Draw goodput over total batch size (``goodput.surface``), a line for each number of GPUs.

    Of allocations with as many GPUs, the best counts.
    """
    numbers = ["num_gpus", "batch_size", "goodput"]
    tables.check("figure_goodput", table, numbers=numbers, filled=True)
    best = table.groupby(["num_gpus", "batch_size"], as_index=False)["goodput"].max()
    return figure_lines(
        best.assign(num_gpus=[counted(gpus, "GPU") for gpus in best["num_gpus"]]),
        x="batch_size",
        y="goodput",
        by="num_gpus",
        x_title="batch size (examples)",
        y_title="goodput (useful examples/s)",
        powers_of_two=True,
    )


@checked
def figure_fit(table: pd.DataFrame, *, of: str = "measured") -> go.Figure:
    """Draw predicted against given step times (``cross_validate``), coloured by number of nodes.

    The line is exact agreement, the band 10 % to both sides.

    Args:
        table: the steps, each predicted by a fit that has not seen it.
        of: says what kind of steps they are: ``measured``, or made by a model.
    """
    numbers = ["step_time_s", "predicted_s", "num_nodes", "atomic_bsz"]
    tables.check("figure_fit", table, texts=["allocation"], numbers=numbers, filled=True)
    if not (table[["step_time_s", "predicted_s"]].min() > 0).all():
        raise BadValue("figure_fit: the table's step_time_s and predicted_s must be above 0")
    measured = table["step_time_s"]
    predicted = table["predicted_s"]
    low = min(measured.min(), predicted.min()) / 1.1
    high = max(measured.max(), predicted.max()) * 1.1
    fig = go.Figure()
    band = [0.9 * low, 0.9 * high, 1.1 * high, 1.1 * low]
    fill = {"fill": "toself", "fillcolor": "rgba(122,122,122,0.18)", "name": "within 10 %"}
    fig.add_trace(stroke([low, high, high, low], band, {"width": 0}, **fill))
    line = {"color": PALETTE["bound"], "width": 1.5}
    fig.add_trace(stroke([low, high], [low, high], line, name="exact"))
    for index, (name, rows) in enumerate(table.groupby("num_nodes")):
        dot = {"size": 5, "color": CYCLE[index % len(CYCLE)], "opacity": 0.65}
        steps = zip(rows["allocation"], rows["atomic_bsz"], strict=True)
        said = {
            "text": [f"{allocation}, {size}" for allocation, size in steps],
            "hovertemplate": f"%{{text}} a GPU: %{{x:.3g}} s {of}, %{{y:.3g}} s predicted"
            "<extra></extra>",
        }
        x = rows["step_time_s"]
        y = rows["predicted_s"]
        fig.add_trace(points(x, y, dot, f"nodes: {name}", hoverinfo=None, **said))
    edges = [math.log10(low), math.log10(high)]
    ticks = _decades(low, high)
    axis = {"type": "log", "range": edges, "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    fig.update_xaxes(**axis)
    fig.update_yaxes(**axis)
    return finish(fig, x=f"{of} step (s)", y="predicted step (s)", height=560)


@checked
def figure_choice(choice: JointChoice) -> go.Figure:
    """Draw time and energy to the target of a joint choice: the front, coloured by GPUs, and a
    star.

    Other points are grey; those slower than twice the front's slowest or costlier than thrice its
    costliest are left out, and of many every n-th is drawn. Everything is predicted.
    """
    front = choice.frontier
    others = choice.frame()
    hour, unit = (3600, "h") if front["time_s"].max() > 7200 else (60, "min")
    joules, energy = _energy_unit(front["energy_j"])
    front, others = (
        table.assign(time=table["time_s"] / hour, energy=table["energy_j"] / joules)
        for table in (front, others)
    )
    axes = ["time", "energy"]
    far = others[axes] / front[axes].max() / [2, 3]
    others = others[far.max(axis=1) <= 1]
    others = others.iloc[:: max(1, -(-len(others) // _MOST_POINTS))]
    fig = go.Figure()
    dot = {"size": 3, "color": PALETTE["muted"], "opacity": 0.45}
    fig.add_trace(points(others["time"], others["energy"], dot, "other points"))
    line = {"color": PALETTE["muted"], "width": 1.5}
    fig.add_trace(stroke(front["time"], front["energy"], line, showlegend=False))
    for index, (gpus, rows) in enumerate(front.groupby("num_gpus")):
        dot = {"size": 10, "color": CYCLE[index % len(CYCLE)]}
        said = {
            "text": [place_text(row) for row in rows.itertuples()],
            "hovertemplate": f"%{{text}}<br>%{{x:.3g}} {unit}, %{{y:.4g}} {energy}<extra></extra>",
        }
        name = counted(gpus, "GPU")
        fig.add_trace(points(rows["time"], rows["energy"], dot, name, hoverinfo=None, **said))
    star = front[front["is_chosen"]].iloc[0]
    fig.add_trace(points([star.time], [star.energy], _STAR, "chosen", hoverinfo=None))
    fig.add_annotation(
        x=math.log10(star.time),
        y=math.log10(star.energy),
        align="left",
        showarrow=False,
        text=place_text(star).replace(", ", "<br>", 1),
        xanchor="left",
        yanchor="bottom",
        xshift=10,
        yshift=10,
        bgcolor=VEIL,
    )
    if choice.deadline_s is not None:
        line = {"dash": "dash", "color": PALETTE["bound"], "width": 1.5}
        edges = [others["energy"].min(), others["energy"].max()]
        fig.add_trace(stroke([choice.deadline_s / hour] * 2, edges, line, name="deadline"))
    for axis, name in ((fig.layout.xaxis, "time"), (fig.layout.yaxis, "energy")):
        ticks = _decades(front[name].min() / 2, 4 * front[name].max())
        axis.update(type="log", tickvals=ticks, ticktext=[f"{t:,g}" for t in ticks])
    x = f"predicted time to the target ({unit})"
    y = f"predicted energy ({energy})"
    finish(fig, x=x, y=y, height=520)
    legend = {"orientation": "v", "x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top"}
    return fig.update_layout(legend=legend)


@checked
def figure_knobs(table: pd.DataFrame) -> go.Figure:
    """Draw the energy with some knobs free and the others as given (``JointChoice.one_by_one``).

    A bar stands for each row; where nothing in time satisfies a row, words say so.
    """
    tables.check("figure_knobs", table, texts=["knobs", "energy_j"], filled=True)
    energies_j = pd.to_numeric(table["energy_j"], errors="coerce")
    if energies_j.isna().sum() > table["energy_j"].isna().sum():
        raise BadValue("figure_knobs: energy_j of the table must hold numbers, or be missing")
    table = table.assign(energy_j=energies_j)
    rows = table.iloc[::-1]
    known = rows["energy_j"].astype(float)
    joules, energy = _energy_unit(known)
    names = rows["knobs"].astype(str)
    colors = [PALETTE["ours" if k == "all together" else "baseline"] for k in names]
    fig = go.Figure(
        go.Bar(
            x=known.fillna(0.0) / joules,
            y=names,
            orientation="h",
            marker={"color": colors},
            text=["not in time" if math.isnan(e) else f"{e / joules:.4g}" for e in known],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    return finish(fig, x=f"predicted energy in time ({energy})", y="", height=420)


def _energy_unit(energies_j: pd.Series) -> tuple[float, str]:
    """Choose a unit of energy that keeps the largest number short: its joules, and its name."""
    return (1e6, "MJ") if energies_j.max() > 3e6 else (1e3, "kJ")


def _decades(low: float, high: float) -> list[float]:
    """Place ticks at 1, 2 and 5 times each power of ten between two values."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**e for e in exponents for digit in (1, 2, 5)]
    return [t for t in ticks if low <= t <= high]
