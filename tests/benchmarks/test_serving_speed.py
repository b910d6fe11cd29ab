"""Iterations a CPU second beside the SimPy oracle; microseconds a request through groups of GPUs,
beside AlpaServe's own simulators.

``make bench`` runs it; nothing here asserts a time.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from labkit import serving
from tests.oracles import alpaserve_two_models as two_models
from tests.serving import reference

GPT3 = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)
LENGTHS: dict[str, Any] = {"prompt_tokens": (32, 512), "output_tokens": (1, 128)}


@pytest.mark.parametrize(("rate", "max_batch"), [(1.0, 32), (6.0, 32), (20.0, 32), (20.0, 8)])
def test_iterations_a_second(benchmark: Any, rate: float, max_batch: int) -> None:
    batcher = serving.Batcher(max_batch=max_batch)
    requests = serving.generate(rate, 20_000, **LENGTHS)
    serving.simulate(requests.head(2), GPT3, batcher)  # compiles, or loads what was compiled
    start = time.process_time()
    run = serving.simulate(requests, GPT3, batcher)
    ours = run.iterations / (time.process_time() - start)
    few = requests.head(100)
    start = time.process_time()
    reference.by_iteration(few, GPT3, batcher)
    peer = serving.simulate(few, GPT3, batcher).iterations / (time.process_time() - start)
    benchmark(serving.simulate, requests, GPT3, batcher)
    benchmark.extra_info |= {"ours_per_s": round(ours), "simpy_per_s": round(peer)}
    print(f"\nrate {rate:g}, batches of {max_batch}: {ours:,.0f} iterations/s; SimPy {peer:,.0f}")


def test_a_panel_of_ten_rates(benchmark: Any) -> None:
    requests = serving.generate(1, 1000, **LENGTHS)
    rates = [0.1 * 2**k for k in range(10)]
    ways = {"ours": serving.Batcher()}
    serving.sweep(requests, GPT3, ways, rates[:1])
    benchmark(serving.sweep, requests, GPT3, ways, rates)


@pytest.mark.parametrize("name", two_models.SETTINGS)
def test_a_request_through_groups(benchmark: Any, name: str) -> None:
    """AlpaServe's two models on two GPUs: 60,154 requests, or 1,804."""
    setting = two_models.SETTINGS[name]
    requests = two_models.requests(setting, "skew")
    groups, models = two_models.plan(setting, 2)
    plan = (models, serving.Groups(groups=groups))
    serving.simulate(requests, *plan)  # compiles, or loads what was compiled
    start = time.process_time()
    serving.simulate(requests, *plan)
    ours_us = (time.process_time() - start) / len(requests) * 1e6
    benchmark(serving.simulate, requests, *plan)
    peer_us = json.loads(two_models.STORED.read_text())[name]["skew, 2"]["cpu_us_a_request"]
    benchmark.extra_info |= {"ours_us": round(ours_us, 3), "alpaserve_us": peer_us}
    print(f"\n{name}: {ours_us:.3f} µs a request; AlpaServe's own, when stored, {peer_us:,.2f}")
