"""A sweep of pure calls beside the bare loop, the executor's own ``map`` and joblib.

``make bench`` runs it; nothing here asserts a time. ``over_us`` is what a point costs over its
call, ``peers`` the seconds of the others on the same points, ``peak_bytes_a_row`` how much memory
a row takes at most, the table included.
"""

from __future__ import annotations

import itertools
import time
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

import labkit

WORK = np.random.default_rng(7).random(2_000)


def point(rate: int, size: int) -> dict[str, float]:
    """A pure call of some ten microseconds, as a closed form of an engine takes."""
    scaled = WORK * rate + size
    return {"mean_s": float(scaled.mean()), "most_s": float(scaled.max())}


def pair(given: tuple[int, int]) -> dict[str, float]:
    return point(*given)


@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.large)])
@pytest.mark.parametrize("points", [400, pytest.param(10_000, marks=pytest.mark.large)])
def test_a_sweep_beside_its_peers(benchmark: Any, points: int, workers: int | None) -> None:
    joblib = pytest.importorskip("joblib")
    grid = {"rate": range(points // 20), "size": range(20)}
    pairs = list(itertools.product(*grid.values()))
    peers = {"loop_s": timed(lambda: list(map(pair, pairs)))}
    calls = (joblib.delayed(pair)(each) for each in pairs)
    peers["joblib_s"] = timed(lambda: joblib.Parallel(workers or 1)(calls))
    with ProcessPoolExecutor(workers or 1) as pool:
        list(pool.map(pair, pairs[:8]))  # the processes have started
        if workers:
            peers["map_s"] = timed(lambda: list(pool.map(pair, pairs, chunksize=256)))
        executor = pool if workers else None
        table = benchmark(labkit.sweep, point, grid, executor=executor)
    assert table["mean_s"].tolist() == [pair(each)["mean_s"] for each in pairs]
    tracemalloc.start()
    labkit.sweep(lambda rate, size: rate + size, grid)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    benchmark.extra_info |= {k: round(v, 4) for k, v in peers.items()} | {
        "peak_bytes_a_row": round(peak_bytes / points)
    }
    if benchmark.stats:
        over = benchmark.stats.stats.median - peers["loop_s"] / (workers or 1)
        benchmark.extra_info["over_us"] = round(over / points * 1e6, 1)


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
