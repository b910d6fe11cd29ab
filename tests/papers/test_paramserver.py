"""The parameter server: proximal steps, bounded delay, bytes, ring and clocks of ranges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from labkit.errors import BadValue
from labkit.papers import paramserver
from labkit.papers.paramserver import ALL, PLAIN, Cluster, Problem, RangeClock, Ring, Sending
from labkit.papers.paramserver.clicks import count_entries, find_keys

PROBLEM = Problem(penalty=2.0, blocks=8)
CLUSTER = Cluster(workers=4)


@pytest.fixture(scope="module")
def clicks() -> paramserver.Clicks:
    return paramserver.draw_clicks(examples=512, features=1_024, per_example=12, rng=0)


@pytest.fixture(scope="module")
def sequential(clicks: paramserver.Clicks) -> paramserver.Learned:
    return paramserver.learn(
        clicks, problem=PROBLEM, cluster=CLUSTER, rate=0.5, max_iterations=1_200
    )


def test_the_end_meets_the_conditions_of_optimality(
    clicks: paramserver.Clicks, sequential: paramserver.Learned
) -> None:
    """Of an l1 penalty: a slope of the penalty's size, or a zero weight and a smaller slope."""
    weights = sequential.weights
    margins = clicks.clicked * (clicks.rows @ weights)
    chance = 1 / (1 + np.exp(margins))
    slope = clicks.rows.T @ (-clicks.clicked * chance)
    zero = weights == 0
    assert (np.abs(slope[zero]) <= PROBLEM.penalty * 1.001).all()
    assert slope[~zero] == pytest.approx(-PROBLEM.penalty * np.sign(weights[~zero]), rel=1e-3)


def test_filters_and_delays_end_at_the_sequential_optimum(
    clicks: paramserver.Clicks, sequential: paramserver.Learned
) -> None:
    for delay, sending in ((0, ALL), (4, PLAIN), (4, ALL), (4, Sending(filtering="significant"))):
        run = paramserver.learn(
            clicks,
            problem=PROBLEM,
            cluster=CLUSTER,
            delay=delay,
            sending=sending,
            rate=0.25,
            max_iterations=1_600,
        )
        assert run.objective == pytest.approx(sequential.objective, rel=2e-3)


def test_a_filter_that_judges_by_fresh_derivatives_changes_no_weight(
    clicks: paramserver.Clicks,
) -> None:
    """A zero weight whose derivative is below the penalty stays zero in the proximal step."""
    fresh = replace(ALL, filtering="fresh kkt")
    runs = [
        paramserver.learn(
            clicks, problem=PROBLEM, cluster=CLUSTER, sending=sending, max_iterations=160
        )
        for sending in (PLAIN, fresh)
    ]
    assert (runs[0].weights == runs[1].weights).all()
    assert runs[1].filtered > 0.3


def test_a_worker_sends_the_keys_of_its_own_examples(clicks: paramserver.Clicks) -> None:
    keys, borders = find_keys(clicks, 8, 4)
    entries = count_entries(clicks, 8, 4)
    dense = clicks.rows.toarray()
    for block, features in enumerate(clicks.blocks(8)):
        for worker, rows in enumerate(clicks.shards(4)):
            own = dense[np.ix_(rows, features)]
            held = keys[block][borders[block][worker] : borders[block][worker + 1]]
            assert [*held] == [*np.flatnonzero(own.any(0))]
            assert entries[block, worker] == own.sum()


def test_waiting_falls_with_the_delay_and_work_does_not_change(
    clicks: paramserver.Clicks,
) -> None:
    runs = [
        paramserver.learn(
            clicks, problem=PROBLEM, cluster=CLUSTER, delay=delay, rate=0.1, max_iterations=64
        )
        for delay in (0, 1, 4, 64)
    ]
    shares = [run.waiting for run in runs]
    assert shares == sorted(shares, reverse=True)
    assert all(run.computing_s == pytest.approx(runs[0].computing_s) for run in runs)


def test_a_delay_of_zero_does_not_depend_on_the_clock(clicks: paramserver.Clicks) -> None:
    even = replace(CLUSTER, spread=0.0)
    quick = paramserver.learn(clicks, problem=PROBLEM, cluster=even, max_iterations=40)
    slow = paramserver.learn(
        clicks, problem=PROBLEM, cluster=replace(even, entry_s=1.0), max_iterations=40
    )
    assert (quick.weights == slow.weights).all()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.07, 0.3, 1.0])
def test_compressed_bytes_are_snappys(share: float) -> None:
    generator = np.random.default_rng(1)
    nonzero = generator.random(4_000) < share
    values = np.where(nonzero, generator.standard_normal(4_000), 0.0)
    written = len(pa.compress(values.tobytes(), codec="snappy", asbytes=True))
    assert paramserver.compressed_bytes(nonzero) == pytest.approx(written, rel=0.12)


def test_several_messages_are_counted_one_by_one() -> None:
    nonzero = np.random.default_rng(2).random(300) < 0.2
    parts = paramserver.compressed_parts(nonzero, np.array([0, 100, 100, 300]))
    alone = [nonzero[:100], nonzero[100:100], nonzero[100:]]
    assert [*parts] == [paramserver.compressed_bytes(part) for part in alone]


def test_only_the_leaving_servers_keys_move() -> None:
    ring = Ring(tuple(f"server {number}" for number in range(6)))
    places = np.linspace(0, 2**32 - 1, 500).astype(int)
    before = [ring.master(int(at)) for at in places]
    after = [ring.without("server 2").master(int(at)) for at in places]
    for old, new in zip(before, after, strict=True):
        assert old == "server 2" or old == new
    assert set(before) == set(ring.servers)
    with pytest.raises(BadValue, match="no server"):
        ring.without("server 9")


def test_replicas_lie_on_other_servers_and_take_over() -> None:
    ring = Ring(tuple(f"server {number}" for number in range(5)))
    for at in range(0, 2**32, 2**32 // 50):
        holders = ring.holders(at, 2)
        assert len(set(holders)) == 3
        assert holders[0] == ring.master(at)
        assert ring.without(holders[0]).master(at) == holders[1]


def test_clocks_of_ranges_know_each_keys_time() -> None:
    generator = np.random.default_rng(3)
    clock = RangeClock(60)
    plain = np.zeros(60, dtype=int)
    for time in range(1, 80):
        start, end = sorted(generator.choice(61, size=2, replace=False))
        before = len(clock.times)
        clock.set(int(start), int(end), time)
        plain[start:end] = time
        assert [clock.time(key) for key in range(60)] == [*plain]
        assert len(clock.times) <= before + 2
    with pytest.raises(BadValue, match="no range"):
        clock.set(5, 5, 1)
