"""One figure for rates and shares: a line a method, the bound, and what the paper says."""

from __future__ import annotations

from itertools import cycle

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.kit.describe import checked

_COLOURS = ("forward", "weight", "communication", "all-reduce")  # not the paper's orange


@checked
def figure_lines(
    table: pd.DataFrame, *, title: str, x: str, y: str = "requests a second, 99 % in time",
    log_x: bool = False,
) -> go.Figure:  # fmt: skip
    """Columns over the index: ``bound`` dashed and black, names that begin with ``paper`` dotted
    and orange, ``baseline`` grey, others each in a colour of its own."""
    few = len(table) <= 20
    chart, colours = px.line(table, markers=few, log_x=log_x), cycle(_COLOURS)
    for trace in chart.data:
        if trace.name.startswith("paper") or trace.name == "bound":
            colour = draw.PALETTE["bound" if trace.name == "bound" else "paper"]
            dash = "dash" if trace.name == "bound" else "dot"
            trace.update(line={"color": colour, "dash": dash}, mode="lines")
        else:
            name = "baseline" if trace.name == "baseline" else next(colours)
            trace.update(line_color=draw.PALETTE[name])
    if log_x and few:
        chart.update_xaxes(
            tickvals=list(table.index), ticktext=[str(value) for value in table.index]
        )
    chart.update_layout(legend_title_text="")
    return draw.finish(chart, title=title, x=x, y=y)
