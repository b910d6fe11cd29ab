"""What fits, drawn: every model at every ZeRO stage, and the least ranks that make it fit."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.kit.draw import PALETTE, finish
from labkit.memory.figures.bar_figures import components_in_order, look

LONGEST = 3.0  # bars are drawn up to this many times the capacity
PALE = 0.32  # opacity of what does not fit
_KEYS = ["model", "plan"]


def figure_fits(
    bars: pd.DataFrame,
    frontier: pd.DataFrame,
    *,
    capacity_gb: float,
    capacity_name: str = "",
    title: str = "",
    height: int | None = None,
) -> go.Figure:
    """What a device holds at the peak, model by model and stage by stage, and when it fits.

    ``bars`` has columns ``model``, ``plan``, ``component`` and ``size_gb``: what does not fit is
    pale, and what is longer than :data:`LONGEST` capacities leaves the panel, its total at the
    edge. ``frontier`` has ``model``, ``plan`` and ``dp``: the least data-parallel degree that
    fits, missing where none does.
    """
    titles = ["At the peak, on one device (GB)", "Least data-parallel ranks that fit"]
    widths: dict[str, Any] = {"column_widths": [0.66, 0.34], "horizontal_spacing": 0.03}
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=titles, **widths)
    limit_gb = LONGEST * capacity_gb
    totals = bars.groupby(_KEYS)["size_gb"].transform("sum")
    table = bars.assign(opacity=totals.le(capacity_gb).map({True: 1.0, False: PALE}))
    for component in components_in_order(table):
        rows = table[table["component"] == component]
        marker = look(component) | {"opacity": rows["opacity"], "line": {"width": 0}}
        figure.add_bar(
            name=component, x=rows["size_gb"], y=_rows(rows), marker=marker, orientation="h",
            width=0.82, hovertemplate="%{x:,.4g} GB", row=1, col=1,
        )  # fmt: skip
    sums = bars.groupby(_KEYS, sort=False)["size_gb"].sum().reset_index()
    texts = [
        f" {_number(size)}" if size <= limit_gb else f" <b>→ {_number(size)}</b>"
        for size in sums["size_gb"]
    ]
    _words(figure, sums, sums["size_gb"].clip(upper=limit_gb), texts, col=1)
    some, none = frontier[frontier["dp"].notna()], frontier[frontier["dp"].isna()]
    dots = {"size": 12, "color": PALETTE["ours"]}
    numbers = [f"  {ranks:,.0f}" for ranks in some["dp"]]
    _words(figure, some, some["dp"], numbers, col=2, mode="markers+text", marker=dots)
    _words(figure, none, [1] * len(none), [" none"] * len(none), col=2)
    line = {"color": PALETTE["capacity"], "dash": "dash", "width": 2}
    note = f"{capacity_name or f'{capacity_gb:g} GB'} · pale: does not fit"
    figure.add_vline(x=capacity_gb, line=line, annotation_text=note, row=1, col=1)
    most = max(10.0, float(some["dp"].max()) if len(some) else 10.0)
    ranks = {"type": "log", "dtick": 1, "tickformat": ",d", "range": [0, math.log10(most) + 1]}
    figure.update_layout(barmode="stack")
    figure.update_xaxes(range=[0, 1.16 * limit_gb], row=1, col=1)
    figure.update_xaxes(**ranks, row=1, col=2)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return finish(figure, title=title, height=height or 170 + 28 * len(sums))


def _rows(table: pd.DataFrame) -> list[list[str]]:
    """The names of each row, from the outer to the inner."""
    return [table[name].astype(str).tolist() for name in _KEYS]


def _words(
    figure: go.Figure, table: pd.DataFrame, x: Any, texts: list[str], *, col: int, **look: Any
) -> None:
    """A text at each row of the table, beside a mark where one is asked for."""
    look = {"mode": "text", "textfont_size": 14} | look
    figure.add_scatter(
        x=x, y=_rows(table), text=texts, textposition="middle right", cliponaxis=False,
        showlegend=False, hoverinfo="skip", row=1, col=col, **look,
    )  # fmt: skip


def _number(size: float) -> str:
    return f"{size:,.0f}" if size >= 100 else f"{size:.3g}"
