"""What a device holds, as stacked bars with a colour a component; what fits; lines of a sweep.

Drawn from tidy tables; nothing is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
from annotated_types import Ge
from plotly.subplots import make_subplots

from labkit.errors import not_among
from labkit.kit import tables
from labkit.kit.describe import Positive, checked
from labkit.kit.draw import CYCLE, PALETTE, VEIL, Part, finish

LONGEST = 3.0  # bars are drawn up to this many times the capacity
PALE = 0.32  # opacity of what does not fit
_KEYS = ["model", "plan"]
_LIMIT = {"color": PALETTE["capacity"], "dash": "dash", "width": 2}
_SWEPT = {
    "peak_bytes": ("on one GPU (GB)", 1e9),
    "communication_s": ("communication of a step (s)", 1.0),
}
# Kin share a colour; what comes and goes beside what stays is hatched. In the order of stacking.
_LOOK: dict[str, tuple[str, str]] = {
    "parameters": ("parameter", ""),
    "second copy of the parameters": ("parameter", "/"),
    "cast parameters": ("parameter", "x"),
    "gathered layer": ("buffer", ""),
    "gathered layers": ("buffer", ""),
    "gather buffers": ("buffer", "x"),
    "gathered sequence": ("buffer", "-"),
    "cached weights": ("buffer", "/"),
    "gradients": ("gradient", ""),
    "gradients to be reduced": ("gradient", "/"),
    "reduce buffers": ("gradient", "x"),
    "optimizer": ("optimizer", ""),
    "activations": ("activation", ""),
    "temporaries": ("temporary", ""),
    "buffers and inputs": ("muted", ""),
    "workspaces": ("muted", "x"),
    # of other people's arithmetic
    "embedding": ("activation", "/"),
    "head and loss": ("temporary", "x"),
    "allowance": ("muted", "/"),
}


def _in_order(table: pd.DataFrame) -> list[str]:
    """The table's components as they are stacked, those without a look of their own last."""
    names = list(dict.fromkeys(map(str, table["component"])))
    order = list(_LOOK)
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _look(component: str) -> dict[str, Any]:
    """Colour and hatching of a component's bars."""
    concept, shape = _LOOK.get(component, ("muted", ""))
    marker: dict[str, Any] = {"color": PALETTE[concept]}
    if shape:
        hatch = {"shape": shape, "fillmode": "overlay", "fgcolor": "white", "fgopacity": 0.75}
        marker["pattern"] = hatch | {"size": 6, "solidity": 0.35}
    return marker


@checked
def figure_states(
    table: pd.DataFrame,
    *,
    capacity_gb: Positive | None = None,
    capacity_name: str = "",
    title: str = "",
    height: Annotated[int, Ge(10)] = 420,
) -> go.Figure:
    """Stacked bars of what a rank holds, one bar a plan, a line at what the device has.

    Totals stand at the bars' ends. Bars lie, because the plans have names.

    Args:
        table: columns ``plan``, ``component`` and ``size_gb``, one row each. What is not on the
            device (a column ``place``) is left out.
        capacity_gb, capacity_name: of the device; None for no line.
    """
    texts = ["plan", "component", *(["place"] if "place" in table else [])]
    tables.check("figure_states", table, texts=texts, numbers=["size_gb"])
    if "place" in table:
        table = table[table["place"] == "device"]
    tables.check("figure_states", table, filled=True)
    order = list(dict.fromkeys(table["plan"].astype(str)))
    names = table["plan"].astype(str).to_numpy()
    sizes_gb = table["size_gb"].to_numpy()
    bars = []
    for component in _in_order(table):
        own = (table["component"] == component).to_numpy()
        bar = {"type": "bar", "name": component, "y": names[own], "x": sizes_gb[own]}
        bars.append(bar | {"orientation": "h", "marker": _look(component)})
    totals = table.groupby(names, sort=False)["size_gb"].sum()
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.35,
        "yaxis": {
            "autorange": "reversed",
            "dtick": 1,
            "categoryorder": "array",
            "categoryarray": order,
        },
        "xaxis": {"range": [0, 1.14 * max(totals.max(), capacity_gb or 0)]},
    }
    notes = []
    if capacity_gb is not None:
        line, note = _capacity(capacity_gb, capacity_name, float(totals.max()))
        layout["shapes"] = [line]
        notes = [note]
    at_ends: dict[str, Any] = {"showarrow": False, "xanchor": "left", "bgcolor": VEIL}
    for name, value in totals.items():
        notes.append(at_ends | {"x": value, "y": name, "text": f" {value:.3g} GB"})
    figure = go.Figure(bars, layout | {"annotations": notes})
    return finish(figure, title=title, x="on one GPU (GB)", height=height)


def _capacity(capacity_gb: float, name: str, longest_gb: float) -> tuple[Part, Part]:
    """A line, and its name on the side that has room."""
    ends = {"x0": capacity_gb, "x1": capacity_gb, "y0": 0, "y1": 1}
    right = capacity_gb > 0.9 * longest_gb and name
    words = {
        "x": capacity_gb,
        "y": 0.03,
        "yref": "paper",
        "showarrow": False,
        "bgcolor": VEIL,
        "text": f" {name or f'{capacity_gb:g} GB'} ",
        "xanchor": "right" if right else "left",
        "yanchor": "bottom",
    }
    return {"type": "line", "xref": "x", "yref": "y domain", "line": _LIMIT} | ends, words


@checked
def figure_moments(table: pd.DataFrame, **look: Any) -> go.Figure:
    """What is on one device at each moment of a step.

    Args:
        table: ``Plan.moments()``.
        look: further arguments of :func:`figure_states`, which draws it.
    """
    tables.check("figure_moments", table, numbers=["total", *map(str, table.columns)])
    tidy = table.drop(columns="total").rename_axis("plan").reset_index()
    tidy = tidy.melt(id_vars="plan", var_name="component", value_name="num_bytes")
    return figure_states(tidy.assign(size_gb=tidy["num_bytes"] / 1e9), **{"height": 460} | look)


@checked
def figure_pairs(table: pd.DataFrame, *, category: str) -> go.Figure:
    """Predicted and measured bytes side by side, a pair a row of ``table``, in GB.

    Args:
        table: columns ``predicted_bytes`` and ``measured_bytes``, and one that names the rows.
        category: that column.
    """
    sizes = ["predicted_bytes", "measured_bytes"]
    tables.check("figure_pairs", table, texts=[category], numbers=sizes)
    figure = go.Figure()
    for name, colour in (("predicted", "ours"), ("measured", "baseline")):
        figure.add_bar(
            name=name,
            y=table[category].astype(str),
            x=table[f"{name}_bytes"] / 1e9,
            orientation="h",
            marker_color=PALETTE[colour],
        )
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_yaxes(autorange="reversed")
    return finish(figure, x="GB", height=140 + 46 * len(table))


@checked
def figure_fits(
    bars: pd.DataFrame, frontier: pd.DataFrame, *, capacity_gb: Positive, capacity_name: str = ""
) -> go.Figure:
    """What a device holds at the peak, model by model and stage by stage, and when it fits.

    Args:
        bars: columns ``model``, ``plan``, ``component`` and ``size_gb``. What does not fit is pale,
            and what is longer than :data:`LONGEST` capacities leaves the panel, its total at the
            edge.
        frontier: columns ``model``, ``plan`` and ``dp``, the least data-parallel degree that fits,
            missing where none does.
        capacity_gb, capacity_name: of the device.
    """
    texts = [*_KEYS, "component"]
    tables.check("figure_fits: bars", bars, texts=texts, numbers=["size_gb"], filled=True)
    tables.check("figure_fits: frontier", frontier, texts=_KEYS, numbers=["dp"])
    titles = ["At the peak, on one device (GB)", "Least data-parallel ranks that fit"]
    widths: dict[str, Any] = {"column_widths": [0.66, 0.34], "horizontal_spacing": 0.03}
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=titles, **widths)
    limit_gb = LONGEST * capacity_gb
    totals = bars.groupby(_KEYS)["size_gb"].transform("sum")
    table = bars.assign(opacity=totals.le(capacity_gb).map({True: 1.0, False: PALE}))
    for component in _in_order(table):
        rows = table[table["component"] == component]
        marker = _look(component) | {"opacity": rows["opacity"], "line": {"width": 0}}
        figure.add_bar(
            name=component,
            x=rows["size_gb"],
            y=_rows(rows),
            marker=marker,
            orientation="h",
            width=0.82,
            hovertemplate="%{x:,.4g} GB",
            row=1,
            col=1,
        )
    sums = bars.groupby(_KEYS, sort=False)["size_gb"].sum().reset_index()
    texts = [
        f" {_number(size)}" if size <= limit_gb else f" <b>→ {_number(size)}</b>"
        for size in sums["size_gb"]
    ]
    _words(figure, sums, sums["size_gb"].clip(upper=limit_gb), texts, col=1)
    some = frontier[frontier["dp"].notna()]
    none = frontier[frontier["dp"].isna()]
    dots = {"size": 12, "color": PALETTE["ours"]}
    numbers = [f"  {ranks:,.0f}" for ranks in some["dp"]]
    _words(figure, some, some["dp"], numbers, col=2, mode="markers+text", marker=dots)
    _words(figure, none, [1] * len(none), [" none"] * len(none), col=2)
    note = f"{capacity_name or f'{capacity_gb:g} GB'} · pale: does not fit"
    figure.add_vline(x=capacity_gb, line=_LIMIT, annotation_text=note, row=1, col=1)
    most = max(10.0, float(some["dp"].max()) if len(some) else 10.0)
    ranks = {"type": "log", "dtick": 1, "tickformat": ",d", "range": [0, math.log10(most) + 1]}
    figure.update_layout(barmode="stack")
    figure.update_xaxes(range=[0, 1.16 * limit_gb], row=1, col=1)
    figure.update_xaxes(**ranks, row=1, col=2)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return finish(figure, height=170 + 28 * len(sums))


def _rows(table: pd.DataFrame) -> list[list[str]]:
    """The names of each row, from the outer to the inner."""
    return [table[name].astype(str).tolist() for name in _KEYS]


def _words(
    figure: go.Figure, table: pd.DataFrame, x: Any, texts: list[str], *, col: int, **look: Any
) -> None:
    """A text at each row of the table, beside a mark where one is asked for."""
    look = {"mode": "text", "textfont_size": 14} | look
    figure.add_scatter(
        x=x,
        y=_rows(table),
        text=texts,
        textposition="middle right",
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
        row=1,
        col=col,
        **look,
    )


def _number(size: float) -> str:
    """A size in GB, to three digits where it is small."""
    return f"{size:,.0f}" if size >= 100 else f"{size:.3g}"


@checked
def figure_sweep(
    table: pd.DataFrame,
    *,
    y: str,
    x: str = "dp",
    title: str = "",
    levels: Mapping[str, float] | None = None,
) -> go.Figure:
    """A column of a sweep against the number of ranks, both logarithmic, a line a ``plan``.

    Args:
        table: :func:`labkit.memory.sweep`'s of several plans.
        y: ``"peak_bytes"`` or ``"communication_s"``.
        x: another axis of the sweep.
        levels: horizontal marks by name, in the unit of the axis: GB for bytes, seconds for times.
    """
    tables.check("figure_sweep", table, texts=["plan"], numbers=[x], filled=True)
    if y not in _SWEPT or y not in table:
        raise not_among("column of a sweep that is drawn", y, [c for c in _SWEPT if c in table])
    tables.check("figure_sweep", table, numbers=[y])
    y_title, divide = _SWEPT[y]
    figure = go.Figure()
    for index, name in enumerate(dict.fromkeys(table["plan"])):
        rows = table[table["plan"] == name]
        colour = CYCLE[index % len(CYCLE)]
        figure.add_scatter(
            name=str(name), x=rows[x], y=rows[y] / divide, mode="lines", line_color=colour
        )
    for name, value in (levels or {}).items():
        ends = [table[x].min(), table[x].max()]
        figure.add_scatter(name=name, x=ends, y=[value, value], mode="lines", line=_LIMIT)
    figure.update_xaxes(**_logarithmic(table[x]))
    figure.update_yaxes(**_logarithmic(table[y]))
    named = "data-parallel ranks" if x == "dp" else x.replace("_", " ")
    return finish(figure, title=title, x=named, y=y_title)


def _logarithmic(values: pd.Series[float]) -> dict[str, object]:
    """A mark a decade, or at 1, 2 and 5 as well where there are few."""
    decades = math.log10(values.max() / values.min()) if values.min() > 0 else math.inf
    few: dict[str, object] = {"dtick": "D2", "tickformat": ".4~g"}
    many: dict[str, object] = {"dtick": 1, "exponentformat": "power"}
    return {"type": "log"} | (few if decades < 2.5 else many)
