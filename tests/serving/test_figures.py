"""Figures of servers draw what the runs say."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import serving
from labkit.errors import BadValue

GPT3 = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)
REQUESTS = serving.generate(2, 60, prompt_tokens=(32, 512), output_tokens=(1, 128))
HELD = serving.Batcher(level="request", max_batch=8)


@pytest.mark.parametrize("batcher", [HELD, serving.Batcher()])
def test_bars_of_a_request_add_up_to_its_latency(batcher: serving.Batcher) -> None:
    run = serving.simulate(REQUESTS, GPT3, batcher)
    fig = serving.figure_requests({"": run}, first=10)
    waits, computed, held = (np.array(bar.x) for bar in fig.data)
    np.testing.assert_allclose(waits + computed + held, run.latency_s[10:26], rtol=1e-4)
    assert (held.sum() > 0) == (batcher is HELD)
    with pytest.raises(BadValue, match="first must be from 0 to 59"):
        serving.figure_requests({"": run}, first=60)


def test_lines_are_the_sweep_in_milliseconds_and_the_papers_points_stand_out() -> None:
    table = serving.sweep(REQUESTS, GPT3, {"held": HELD, "ours": serving.Batcher()}, [0.5, 2])
    fig = serving.figure_latency(table, limit_s=0.08, bound_per_s=18, paper=[(6.81, 0.19)])
    assert [line.name for line in fig.data] == ["held", "ours", "paper"]
    np.testing.assert_allclose(fig.data[0].y, 1e3 * table["median_token_s"][:2], rtol=1e-5)
    assert list(fig.data[2].y) == [190]
    assert fig.data[2].marker.color not in {line.line.color for line in fig.data[:2]}
    with pytest.raises(BadValue, match="lacks 'throughput_per_s'"):
        serving.figure_latency(table.drop(columns="throughput_per_s"))
