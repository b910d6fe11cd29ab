"""Gavel's figure of speeds shows the numbers of its table."""

from __future__ import annotations

import numpy as np

from labkit import cluster
from labkit.papers import gavel

TABLE = cluster.Throughputs(
    kinds=("a", "b"),
    gpu_types=("fast", "slow"),
    alone=np.array([[2.0, 1.0], [3.0, 3.0]]),
    shared=np.zeros((2, 2, 2)),
)


def test_speeds_are_over_the_last_gpu_type() -> None:
    bars = gavel.figure_speeds(TABLE)
    assert list(bars.data[0].x) == [2.0, 1.0]
