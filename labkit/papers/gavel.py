"""Gavel (OSDI'20): how fast its kinds of jobs are on each GPU type."""

from __future__ import annotations

from typing import Any

from labkit.cluster.jobs.throughputs import Throughputs
from labkit.kit.describe import checked


@checked
def figure_speeds(table: Throughputs) -> Any:
    """Speed of each kind of job on each GPU type over that on the last one, a row a model."""
    from labkit.kit import draw

    over = table.alone / table.alone[:, -1:]
    models = [k.partition(" (")[0] for k in table.kinds]
    size = [9 + 4 * models[:k].count(model) for k, model in enumerate(models)]
    look = {"text": table.kinds, "mode": "markers", "marker_size": size, "orientation": "h"}
    fig = draw.go.Figure(layout_scattermode="group").add_vline(1, line_dash="dot")
    for gpu, speeds in zip(table.gpu_types[:-1], over.T, strict=False):
        fig.add_scatter(x=speeds, y=models, name=gpu.upper(), **look)
    title = "Speed by model: the larger the dot, the larger the batch"
    base = table.gpu_types[-1]
    return draw.finish(fig, title=title, x=f"speed / speed on {base.upper()} (dotted: 1)")
