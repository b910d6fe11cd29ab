"""Work of a GPU-second by the GPUs of a job."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from labkit.cluster.inputs.rates import Rates
from labkit.kit.describe import checked
from labkit.kit.draw import CYCLE, finish


@checked
def figure_scaling(rates: Rates, *, title: str = "") -> go.Figure:
    """Work of a GPU-second over that on the fewest GPUs, by GPUs of a job, a line a kind.

    Of kinds that differ in the last part of ``a/b/c`` alone, the first is drawn.
    """
    fig = go.Figure()
    gpus = np.array(rates.gpus)
    seen = set[str]()
    for kind, row in zip(rates.kinds, rates.work_per_s, strict=True):
        name = kind.rsplit("/", 1)[0]
        ran = row > 0
        if name in seen or not ran.any():
            continue
        each = row[ran] / gpus[ran]
        dash = "dash" if len(seen) >= len(CYCLE) else "solid"
        line = {"color": CYCLE[len(seen) % len(CYCLE)], "dash": dash}
        fig.add_scatter(x=gpus[ran], y=np.round(each / each[0], 4), name=name, line=line)
        seen.add(name)
    fig.update_xaxes(type="log", tickvals=gpus).update_yaxes(rangemode="tozero")
    return finish(fig, title=title, x="GPUs of a job", y="work of a GPU-second")
