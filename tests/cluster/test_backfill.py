"""EASY backfilling: a log by hand, a scheduler written apart, and whom it must never delay."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue

ROOM = 8
ONE_POOL = cluster.Cluster.nodes(1, gpus=ROOM)


@st.composite
def estimated(draw: st.DrawFn, *, least: int) -> cluster.Trace:
    """Few jobs of whole seconds; an estimate is the duration and ``least`` to 9 seconds more."""
    job = st.tuples(
        st.integers(0, 20),
        st.integers(1, 12),
        st.integers(1, ROOM),
        st.integers(least, 9),
        st.integers(0, 2),
    )
    rows = draw(st.lists(job, min_size=1, max_size=12))
    arrival, duration, gpus, more, priority = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return cluster.Trace(
        arrival_s=arrival,
        duration_s=duration,
        gpus=gpus,
        estimate_s=np.maximum(duration + more, 1),
        priority=priority,
    )


class Easy:
    """Schedules with sets and fractions: at each moment it plans anew who is held back."""

    def __init__(self, trace: cluster.Trace) -> None:
        self.arrival = [Fraction(moment) for moment in trace.arrival_s]
        self.duration = [Fraction(seconds) for seconds in trace.duration_s]
        self.estimate = [Fraction(seconds) for seconds in trace.estimate_s]
        self.gpus = [int(count) for count in trace.gpus]
        priority = trace.column("priority")
        self.queue = sorted(range(len(trace)), key=lambda job: (-priority[job], job))
        self.start: dict[int, Fraction] = {}
        self.reserved: list[tuple[int, Fraction]] = []

    def end(self, job: int) -> Fraction:
        return self.start[job] + self.duration[job]

    def running(self, now: Fraction) -> set[int]:
        return {job for job in self.start if self.end(job) > now}

    def free(self, now: Fraction) -> int:
        return ROOM - sum(self.gpus[job] for job in self.running(now))

    def free_as_expected(self, now: Fraction, moment: Fraction) -> int:
        """GPUs free at a later moment, if jobs take as long as estimated."""
        held = 0
        for job in self.running(now):
            expected = max(self.start[job] + self.estimate[job], now)
            held += self.gpus[job] * (expected > moment)
        return ROOM - held

    def reservation(self, job: int, now: Fraction) -> Fraction:
        """The first expected end at which a job fits."""
        moments = sorted(
            max(self.start[other] + self.estimate[other], now) for other in self.running(now)
        )
        return next(m for m in moments if self.free_as_expected(now, m) >= self.gpus[job])

    def decide(self, now: Fraction) -> None:
        """Start, from the front of the queue, whoever fits and does not delay the first misfit."""
        first = None
        for job in [job for job in self.queue if self.arrival[job] <= now]:
            if self.gpus[job] > self.free(now):
                if first is None:
                    first = job
                    moment = self.reservation(job, now)
                    self.reserved.append((job, moment))
                continue
            if first is not None:
                # It starts on trial: does the first still fit at its moment?
                self.start[job] = now
                trial = self.estimate[job]
                stays = now + trial > moment
                room_then = self.free_as_expected(now, moment)
                del self.start[job]
                if stays and room_then < self.gpus[first]:
                    continue
            self.start[job] = now
            self.queue.remove(job)

    def run(self) -> list[Fraction]:
        while self.queue:
            ends = {self.end(job) for job in self.start}
            for now in sorted({*self.arrival, *ends}):
                if now >= max(self.start.values(), default=Fraction(0)):
                    before = len(self.queue)
                    self.decide(now)
                    if len(self.queue) < before:
                        break
        return [self.start[job] for job in range(len(self.arrival))]


def test_a_short_job_passes_and_a_long_one_does_not() -> None:
    """b waits for a until 10. c would end by then; d would not; e needs a GPU that b leaves."""
    trace = cluster.Trace(
        arrival_s=[0, 1, 2, 3, 4],
        duration_s=[10, 10, 5, 9, 20],
        gpus=[5, 7, 2, 2, 1],
        ids=["a", "b", "c", "d", "e"],
    )
    run = cluster.simulate(trace, ONE_POOL, cluster.easy())
    assert dict(zip(trace.ids, run.start_s, strict=True)) == {
        "a": 0,
        "b": 10,
        "c": 2,
        "d": 20,
        "e": 4,
    }


def test_the_estimate_decides_and_not_the_duration() -> None:
    jobs = {"arrival_s": [0, 1, 2], "duration_s": [10, 10, 5], "gpus": [5, 7, 3]}
    cautious = cluster.Trace(**jobs, estimate_s=[10, 10, 9])
    known = cluster.Trace(**jobs)
    starts = [
        cluster.simulate(t, ONE_POOL, cluster.easy()).start_s.tolist() for t in (known, cautious)
    ]
    assert starts == [[0, 10, 2], [0, 10, 20]]


def test_a_job_with_priority_comes_first() -> None:
    trace = cluster.Trace(
        arrival_s=[0, 1, 2], duration_s=[10, 10, 10], gpus=[8, 8, 8], priority=[0, 0, 5]
    )
    for policy in (cluster.easy(), cluster.by_priority()):
        assert cluster.simulate(trace, ONE_POOL, policy).start_s.tolist() == [0, 20, 10]


@given(trace=estimated(least=-9))
@settings(max_examples=300, deadline=None)
def test_a_scheduler_written_apart_starts_every_job_at_the_same_moment(
    trace: cluster.Trace,
) -> None:
    run = cluster.simulate(trace, ONE_POOL, cluster.easy())
    assert run.start_s.tolist() == [float(start) for start in Easy(trace).run()]


@given(trace=estimated(least=0))
@settings(max_examples=300, deadline=None)
def test_nobody_delays_the_first_of_the_queue(trace: cluster.Trace) -> None:
    """Where no job takes longer than estimated, a reservation holds until a better job comes."""
    trace = trace.changed(priority=())
    run = cluster.simulate(trace, ONE_POOL, cluster.easy())
    arrival_s = trace.column("arrival_s")
    expected_s = run.start_s + trace.column("estimate_s")
    for now in np.unique([*arrival_s, *run.end_s]):
        waiting = np.flatnonzero((arrival_s <= now) & (run.start_s > now))
        if not waiting.size:
            continue
        first = waiting[0]
        running = np.flatnonzero((run.start_s <= now) & (run.end_s > now))
        moments = np.sort(expected_s[running])
        held = [trace.gpus[running[expected_s[running] > moment]].sum() for moment in moments]
        fits = ROOM - np.array(held) >= trace.gpus[first]
        assert run.start_s[first] <= moments[fits][0]


@given(trace=estimated(least=0))
@settings(max_examples=100, deadline=None)
def test_without_priorities_an_order_by_priority_is_fifo(trace: cluster.Trace) -> None:
    plain = trace.changed(priority=())
    runs = [cluster.simulate(plain, ONE_POOL, p) for p in (cluster.fifo(), cluster.by_priority())]
    assert np.array_equal(runs[0].end_s, runs[1].end_s)


def test_waits_are_told_apart() -> None:
    """c fits from 2 on, and waits for its turn; the first of the queue waits for GPUs."""
    trace = cluster.Trace(arrival_s=[0, 1, 2], duration_s=[10, 10, 9], gpus=[5, 7, 3])
    run = cluster.simulate(trace, ONE_POOL, cluster.easy())
    assert run.waits_s[1].tolist() == [9, 0, 0, 0, 0]
    assert run.waits_s[2].tolist() == [10, 8, 0, 0, 0]


def test_why_names_the_job_ahead_and_what_it_lacks() -> None:
    trace = cluster.Trace(
        arrival_s=[0, 1, 2], duration_s=[100, 50, 5], gpus=[1, 8, 1], ids=["a", "big", "small"]
    )
    run = cluster.simulate(trace, ONE_POOL, cluster.fifo())
    said = run.why("small")
    assert "7 GPUs were free; big (8 GPUs, 1 more than that) was first in the queue" in said
    assert "When it arrived, 7 GPUs were free. " in run.why("big")


def test_reservations_are_of_one_pool_and_by_number() -> None:
    trace = cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[1])
    pools = [cluster.Pool(nodes=1, gpus_per_node=8, gpu=gpu) for gpu in ("a", "b")]
    with pytest.raises(BadValue, match="reserves GPUs by number; got 2 pools"):
        cluster.simulate(trace, cluster.Cluster(pools=pools), cluster.easy())
    with pytest.raises(BadValue, match="placement 'consolidated'; valid: a cluster of one pool"):
        cluster.simulate(trace, ONE_POOL, cluster.easy(), placement="consolidated")
    with pytest.raises(BadValue, match="backfills, and also blocks"):
        cluster.Policy(name="x", backfills=True, blocks=True)
