"""Replaying a recurring job: ours beside zeus-ml's own simulator, as a ratio, in one run.

``make bench`` runs it; nothing here asserts a time.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from labkit import tuning
from tests.tuning.conftest import trace_files
from tests.tuning.test_bandit import peer_history


@pytest.mark.parametrize("num_seeds", [1, 100])
@pytest.mark.parametrize("name", ["cifar100", "librispeech"])
def test_recurrences_per_second(benchmark: Any, name: str, num_seeds: int) -> None:
    import pandas as pd

    files = trace_files("stand-in")
    tables = tuple(pd.read_csv(path, comment="#") for path in files)
    job = tuning.TrainingTrace.from_csv(*files).job(name)
    start = time.perf_counter()
    peer_history(tables, job, 0, job.num_recurrences)
    peer_s = (time.perf_counter() - start) / job.num_recurrences

    runs = benchmark(tuning.simulate, job, seeds=range(num_seeds))
    assert runs.per_recurrence("energy_j").shape == (num_seeds, job.num_recurrences)
    if benchmark.stats:
        ours_s = benchmark.stats["median"] / (num_seeds * job.num_recurrences)
        benchmark.extra_info |= {
            "ours_us_per_recurrence": round(ours_s * 1e6, 2),
            "peer_us_per_recurrence": round(peer_s * 1e6, 2),
            "times_faster": round(peer_s / ours_s),
        }
        print(f"\n{name}, {num_seeds} seeds: {peer_s / ours_s:,.0f} times faster per recurrence")
