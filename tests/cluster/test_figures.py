"""Figures show the numbers of the runs they are given."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import BadValue

TRACE = cluster.generate(300, num_gpus=16, load=1.1, rng=2)
GPUS = cluster.Cluster.nodes(2)


@pytest.fixture(scope="module")
def run() -> cluster.Run:
    """Not at import: every worker of pytest imports this module, and would compile the engine."""
    return cluster.simulate(TRACE, GPUS, cluster.las2d())


def test_completion_times_rise_to_all_jobs_beside_the_bound(run: cluster.Run) -> None:
    least = cluster.bound(TRACE, GPUS)
    fifo = cluster.simulate(TRACE, GPUS, cluster.fifo())
    fig = cluster.figure_jct([run, fifo], bound=least, title="x")
    for line, drawn in zip(fig.data, (run, fifo), strict=True):
        assert list(line.y) == sorted(line.y)
        assert line.y[-1] == 1
        assert line.x[-1] == pytest.approx(drawn.jct_s.max(), rel=1e-5)
        assert f"mean {drawn.jct_s.mean():,.0f} s" in line.name
    assert fig.layout.shapes[0].x0 == pytest.approx(least.mean_jct_s, rel=1e-5)
    with pytest.raises(BadValue, match="one run or more"):
        cluster.figure_jct([])


def test_the_timeline_holds_all_gpu_seconds(run: cluster.Run) -> None:
    fig = cluster.figure_timeline(run)
    held, asked = (np.array(line.y) for line in fig.data)
    hours = np.diff(fig.data[0].x).mean()
    assert (held.sum() * hours * 3600) == pytest.approx(TRACE.work_gpu_s.sum(), rel=1e-4)
    waiting = (run.waits_s.sum(axis=1) * TRACE.column("gpus")).sum()
    assert (asked.sum() * hours * 3600) == pytest.approx(waiting, rel=1e-4)
    assert held.max() <= GPUS.num_gpus * (1 + 1e-6)


def test_a_sweep_is_drawn_over_sizes() -> None:
    sizes = [cluster.Cluster.nodes(n) for n in (4, 2)]
    table = cluster.sweep([TRACE], sizes, [cluster.fifo(), cluster.srsf()])
    fig = cluster.figure_sweep(table)
    assert [line.name for line in fig.data] == ["fifo", "srsf", "bound"]
    assert all(list(line.x) == [16, 32] for line in fig.data)
    least = np.array(fig.data[2].y)
    assert all((np.array(line.y) >= least * (1 - 1e-5)).all() for line in fig.data[:2])
