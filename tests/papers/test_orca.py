"""Orca's comparison: the highest rate at a limit of latency, and what equal lengths leave of it."""

from __future__ import annotations

import pytest

from labkit import serving
from labkit.papers import orca

GPT3 = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)


def paper_trace(rate: float, count: int) -> serving.Requests:
    return serving.generate(rate, count, prompt_tokens=(32, 512), output_tokens=(1, 128))


def test_capacity_is_where_the_limit_is_met() -> None:
    requests = paper_trace(1, 2000)
    batcher = serving.Batcher()
    least = serving.bound(requests, GPT3, batcher)
    limit = 2 * least.token_latency_s
    rate = orca.capacity(requests, GPT3, {"": batcher})[""]
    assert orca.capacity(requests, GPT3, {"": batcher}, limit_s=limit)[""] == rate
    medians = [
        serving.simulate(requests.at_rate(r), GPT3, batcher).summary()["median_token_s"]
        for r in (rate, 1.03 * rate)
    ]
    assert medians[0] <= limit < medians[1]
    assert rate < least.rate_per_s
    assert orca.capacity(requests, GPT3, {"": batcher}, times_alone=0.5)[""] == 0


def test_equal_lengths_leave_less_to_gain() -> None:
    """Orca Fig. 11: with equal lengths no request of a batch ends early."""

    ways = {level: serving.Batcher(level=level, max_batch=8) for level in ("iteration", "request")}  # type: ignore[arg-type]

    def gain(requests: serving.Requests) -> float:
        row = orca.gain(requests, GPT3, {"": ways["iteration"]}, {"": ways["request"]})
        rates = orca.capacity(requests, GPT3, ways)
        assert row["ratio"] == pytest.approx(rates["iteration"] / rates["request"])
        return float(row["ratio"] or 0)

    equal = serving.generate(1, 1000, prompt_tokens=(32, 32), output_tokens=(32, 32))
    assert 1 < gain(equal) < 0.5 * gain(paper_trace(1, 1000))
    run = serving.simulate(equal, GPT3, serving.Batcher(level="request", max_batch=8))
    assert not run.wasted_steps.any()
