"""Rounds asked at events: two moments that floating point cannot tell apart are one."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.cluster.running.rounds import Steady


def test_work_too_short_for_the_clock_to_move_is_done() -> None:
    """At 700,000 s the clock steps by 1e-10 s: a job with less left would be asked for for ever."""
    steady = Steady(np.array([4.7e-11, 5.0, 1e-12]), lambda jobs, held: np.array([1.0, 1.0, 0.0]))
    needed = steady.advance(np.arange(3), np.ones((3, 1), dtype=int), np.zeros(3))
    assert steady.left.tolist() == [0.0, 5.0, 1e-12]  # the third stands still
    assert needed[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_allocator_asked_at_events_ends_as_the_event_loop_does(seed: int) -> None:
    draw, num = np.random.default_rng(seed), 300
    arrival_s = np.cumsum(draw.exponential(3600 / 0.7, num))
    is_long = draw.random(num) >= 0.8
    exponent = np.where(is_long, draw.uniform(3, 4, num), draw.uniform(1.5, 3, num))
    trace = cluster.Trace(arrival_s=arrival_s, duration_s=60 * 10**exponent, gpus=np.ones(num))
    gpus = cluster.Cluster.nodes(2, gpus=8)
    asked = cluster.InOrder(name="fifo", policy=cluster.fifo(blocks=False), ask="events")
    run = cluster.simulate(trace, gpus, asked)
    events = cluster.simulate(trace, gpus, cluster.fifo(blocks=False))
    assert run.end_s == pytest.approx(events.end_s, abs=1e-3)
