"""Replaying a recurring job: ours beside zeus-ml's own simulator, as a ratio, in one run.

``make bench`` runs it; nothing here asserts a time.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from labkit import tuning
from tests.oracles import zeus_simulator as peer
from tests.tuning.conftest import trace_files


@pytest.mark.parametrize("policy", ["zeus", "cost-curve"])
@pytest.mark.parametrize("num_seeds", [1, pytest.param(100, marks=pytest.mark.large)])
@pytest.mark.parametrize("name", ["cifar100", "librispeech"])
def test_recurrences_per_second(benchmark: Any, name: str, num_seeds: int, policy: str) -> None:
    files = trace_files("stand-in")
    case = peer.Case(trace="stand-in", gpu="v100", workload=name, seed=0, recurrences=0)
    job = peer.job_of(*files, case)
    start = time.process_time()
    peer.simulate(*files, case)
    peer_s = (time.process_time() - start) / job.num_recurrences

    start = time.process_time()
    runs = tuning.simulate(job, policy=policy, seeds=range(num_seeds))
    ours_s = (time.process_time() - start) / (num_seeds * job.num_recurrences)
    benchmark(tuning.simulate, job, policy=policy, seeds=range(num_seeds))
    assert runs.per_recurrence("energy_j").shape == (num_seeds, job.num_recurrences)
    benchmark.extra_info |= {
        "ours_us_per_recurrence": round(ours_s * 1e6, 2),
        "zeus-ml_us_per_recurrence": round(peer_s * 1e6, 2),
        "times_faster": round(peer_s / ours_s),
    }
    print(
        f"\n{name}, {policy}, {num_seeds} seeds: {1 / ours_s:,.0f} recurrences a CPU second, "
        f"{peer_s / ours_s:,.0f} times the peer's"
    )
