"""The batch server against SimPy, queueing theory, and what each drop policy promises."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
from numpy.typing import NDArray

from labkit import serving
from labkit.errors import BadValue
from labkit.papers import nexus
from labkit.serving.batching.profiles import HEADING

PROFILE = serving.BatchProfile(name="p", latency_s=tuple(0.02 + 0.004 * b for b in range(1, 17)))


def slot(
    model: str, batch: int, *, rate_per_s: float = 1.0, profile: serving.BatchProfile = PROFILE
) -> serving.Slot:
    session = serving.Session(model=model, profile=profile, rate_per_s=1.0, slo_s=1.0)
    return serving.Slot(session=session, batch=batch, rate_per_s=rate_per_s)


def server(*batches: int, profile: serving.BatchProfile = PROFILE) -> serving.BatchServer:
    return serving.BatchServer(
        slots=tuple(
            slot(f"m{place}", batch, profile=profile) for place, batch in enumerate(batches)
        )
    )


def served(
    requests: serving.Requests, *servers: serving.BatchServer, drop: Any = "early"
) -> serving.Served:
    """The requests on these servers, whose batches take what was planned with."""
    all_of_them = serving.BatchServers(servers=servers, drop=drop)
    return serving.simulate(requests, all_of_them.profiles, all_of_them)


def stream(
    rates: list[float], count: int, *, slo_s: float = 0.2, cv: float = 1.0, rng: int = 0
) -> serving.Requests:
    return serving.merge_streams(
        [
            serving.generate(
                rate,
                int(count * rate / sum(rates)),
                cv=cv,
                slo_s=slo_s,
                model=f"m{i}",
                rng=10 * rng + i,
            )
            for i, rate in enumerate(rates)
        ]
    )


def by_simpy(requests: serving.Requests, batches: list[int], drop: str) -> NDArray[np.float64]:
    """The same server as SimPy processes and plain queues."""
    env = simpy.Environment()
    queues: list[deque[int]] = [deque() for _ in batches]
    arrival = requests.column("arrival_s")
    slo_s = requests.column("slo_s")
    due = arrival + slo_s * (1 + 1e-9)
    end = np.full(len(requests), np.nan)
    woken = [env.event()]

    def source() -> Any:
        for i, model in enumerate(requests.model):
            if arrival[i] > env.now:
                yield env.timeout(arrival[i] - env.now)
            queues[int(model[1:])].append(i)
            if not woken[0].triggered:
                woken[0].succeed()

    def takes(queue: deque[int], cap: int) -> list[int]:
        seconds = PROFILE.latency_s
        if drop == "early":
            while queue and env.now + seconds[min(cap, len(queue)) - 1] > due[queue[0]]:
                queue.popleft()
            return [queue.popleft() for _ in range(min(cap, len(queue)))]
        while drop == "lazy" and queue and env.now + seconds[0] > due[queue[0]]:
            queue.popleft()
        size = min(cap, len(queue))
        while drop == "lazy" and size > 1 and env.now + seconds[size - 1] > due[queue[0]]:
            size -= 1
        return [queue.popleft() for _ in range(size)]

    def gpu() -> Any:
        turn = 0
        while True:
            yield env.timeout(0)  # arrivals of this moment first
            for step in range(len(queues)):
                m = (turn + step) % len(queues)
                if chosen := takes(queues[m], batches[m]):
                    yield env.timeout(PROFILE.latency_s[len(chosen) - 1])
                    end[chosen] = env.now
                    turn = m + 1
                    break
            else:
                woken[0] = env.event()
                yield woken[0]

    env.process(source())
    env.process(gpu())
    env.run(until=float(arrival[-1]) + 100)
    return end


@pytest.mark.parametrize("drop", ["early", "lazy", "never"])
@pytest.mark.parametrize("batches", [[16], [4, 8], [2, 2, 2]])
def test_every_request_ends_when_simpy_says(drop: Any, batches: list[int]) -> None:
    requests = stream([400.0 / len(batches)] * len(batches), 4000)
    run = served(requests, server(*batches), drop=drop)
    simulated = by_simpy(requests, batches, drop)
    assert (np.isnan(run.end_s) == np.isnan(simulated)).all()
    np.testing.assert_allclose(run.end_s, simulated, rtol=1e-9)
    assert drop == "never" or 0 < np.isnan(run.end_s).sum() < len(requests)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_batches_of_one_are_md1(load: float) -> None:
    requests = serving.generate(load / PROFILE.latency_s[0], 400_000, model="m0", rng=2)
    run = served(requests, server(1), drop="never")
    mean_s = PROFILE.latency_s[0] * (1 + load / (2 * (1 - load)))
    assert run.latency_s.mean() == pytest.approx(mean_s, rel=0.02)


@pytest.mark.parametrize("drop", ["early", "lazy"])
def test_what_is_answered_is_in_time(drop: Any) -> None:
    run = served(stream([900.0], 20_000), server(16), drop=drop)
    assert (run.met == ~np.isnan(run.end_s)).all()
    assert 0.01 < run.met.mean() < 0.999
    row = run.summary()
    assert row["dropped"] == len(run.requests) * (1 - row["slo_fraction"])
    assert row["goodput_per_s"] < run.requests.rate_per_s
    assert row["median_latency_s"] <= row["p99_latency_s"] <= run.requests.column("slo_s").max()


@pytest.mark.parametrize(("alpha_ms", "least"), [(1.0, 1.15), (1.8, 1.0)])
def test_early_drop_gains_most_where_a_batch_costs_most(alpha_ms: float, least: float) -> None:
    """The paper's setting: 500 requests a second at best, an objective of 100 ms."""
    beta_ms = 50 - 25 * alpha_ms
    profile = nexus.linear_profile(alpha_ms, beta_ms)
    alone = (server(25, profile=profile),)
    assert profile.best(0.05) == (25, pytest.approx(500.0))
    requests = stream([500.0], 20_000, slo_s=0.1)

    def rate(drop: Any) -> float:
        def attainment(rate_per_s: float) -> float:
            return served(requests.at_rate(rate_per_s), *alone, drop=drop).met.mean()

        return serving.highest_load(attainment, 100, 600)

    early = rate("early")
    lazy = rate("lazy")
    assert lazy < early < 500
    assert least < early / lazy < 1.3


def test_requests_go_round_by_planned_rates() -> None:
    fast, slow = (
        serving.BatchServer(slots=(slot("m0", 1, rate_per_s=rate_per_s),))
        for rate_per_s in (3.0, 1.0)
    )
    run = served(stream([1.0], 400), fast, slow, drop="never")
    assert np.bincount(run.server).tolist() == [300, 100]
    counts = np.cumsum(run.server == 0) - 0.75 * np.arange(1, 401)
    assert abs(counts).max() <= 1  # never a request ahead of or behind its share


def test_a_model_that_nobody_holds_is_dropped() -> None:
    run = served(stream([1.0, 1.0], 40), server(4))
    assert (np.isnan(run.end_s) == (np.array(run.requests.model) == "m1")).all()
    assert (run.server[np.array(run.requests.model) == "m1"] == -1).all()


def test_batches_that_take_longer_than_planned_with_are_answered_later() -> None:
    requests = stream([300.0], 20_000)
    plain = served(requests, server(16))
    alone = serving.BatchServers(servers=(server(16),))
    slower = serving.simulate(requests, {"m0": PROFILE.slower(1.5)}, alone)
    assert slower.met.mean() < plain.met.mean()


def test_highest_finds_a_step_and_names_faults() -> None:
    step = serving.highest_load(lambda load: float(load <= 37), 1, 1000, steps=30)
    assert step == pytest.approx(37, rel=1e-6)
    assert serving.highest_load(lambda _: 1.0, 1, 1000) == 1000
    assert serving.highest_load(lambda _: 0.0, 1, 1000) == 1
    with pytest.raises(BadValue, match="high must be above low"):
        serving.highest_load(lambda _: 1.0, 2, 1)
    with pytest.raises(BadValue, match=r"Slot\.batch of 'm' must be from 1 to 16"):
        slot("m", 17)


def test_a_profile_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(f"\ufeff{HEADING}\n1,2000,5,0\n", encoding="utf-8")
    assert serving.BatchProfile.read(path).latency_s == (0.002,)
