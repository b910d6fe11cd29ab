"""EnvPipe (ATC'23): the energy valley of a stage, drawn.

The planner itself stands in ``labkit.pipeline.planning.envpipe``.

Source: Choi et al., "EnvPipe: Performance-preserving DNN Training Framework for Saving Energy",
USENIX ATC'23, §2.
"""

from __future__ import annotations

import pandas as pd

from labkit.kit.describe import checked
from labkit.kit.draw import PALETTE, finish, go


@checked
def figure_valley(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """A stage's energy by clock, all of it and what lies above waiting, each with its least.

    Args:
        table: ``EnergyProfile.stage_table``'s: clock_mhz, energy_j, above_waiting_j.
    """
    fig = go.Figure()
    lines = {"energy_j": ("energy", "energy"), "above_waiting_j": ("above waiting", "bound")}
    for column, (name, colour) in lines.items():
        fig.add_scatter(
            x=table["clock_mhz"],
            y=table[column],
            mode="lines+markers",
            name=name,
            line={"color": PALETTE[colour], "width": 2},
            marker_size=6,
        )
        lowest = table.iloc[int(table[column].argmin())]
        fig.add_annotation(
            x=lowest["clock_mhz"],
            y=lowest[column],
            ay=-36,
            ax=0,
            arrowhead=2,
            text=f"least at {lowest['clock_mhz']:.0f} MHz",
        )
    fig.update_yaxes(rangemode="tozero")
    return finish(fig, title=title, x="SM clock (MHz)", y="energy (J)")
