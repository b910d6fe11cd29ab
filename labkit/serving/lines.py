"""One figure for rates and shares: a line a method, the bound, and what the paper says."""

from __future__ import annotations

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from labkit.kit import draw
from labkit.kit.describe import checked


@checked
def figure_lines(
    table: pd.DataFrame, *, title: str, x: str, y: str = "requests a second", log_x: bool = False
) -> go.Figure:
    """Columns over the index: ``bound`` dashed and black, names that begin with ``paper`` dotted
    and orange, others as lines with markers, ``baseline`` grey."""
    chart = px.line(table, markers=True, log_x=log_x)
    for trace in chart.data:
        if trace.name.startswith("paper") or trace.name == "bound":
            colour = draw.PALETTE["bound" if trace.name == "bound" else "paper"]
            dash = "dash" if trace.name == "bound" else "dot"
            trace.update(line={"color": colour, "dash": dash}, mode="lines")
        elif trace.name == "baseline":
            trace.update(line_color=draw.PALETTE["baseline"])
    chart.update_layout(legend_title_text="")
    return draw.finish(chart, title=title, x=x, y=y)
