"""A slow, plain scheduler in exact fractions, written apart from the engine: its oracle.

One pool whose GPUs are only counted. At every event it forgets who runs, orders the queue, and
hands the GPUs out again from the front.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from labkit import cluster


def schedule(trace: cluster.Trace, room: int, policy: cluster.Policy) -> list[Fraction]:
    """When each job ends."""
    jobs = _Jobs(trace, policy)
    while None in jobs.end:
        step = jobs.next_moment() - jobs.now
        jobs.let_pass(step)
        was_running = set(jobs.running)  # those that end or fall a queue are taken out of it
        jobs.end_those_done()
        jobs.queue += [job for job in jobs.all if jobs.arrival[job] == jobs.now]
        jobs.demote(was_running)
        jobs.queue.sort(key=lambda job: jobs.rank(job, was_running))
        jobs.hand_out(room)
    return [end for end in jobs.end if end is not None]


class _Jobs:
    """Everything about the jobs at one moment."""

    def __init__(self, trace: cluster.Trace, policy: cluster.Policy) -> None:
        self.policy = policy
        self.arrival = [Fraction(moment) for moment in trace.column("arrival_s")]
        self.left = [Fraction(seconds) for seconds in trace.column("duration_s")]
        self.gpus = [int(count) for count in trace.column("gpus")]
        self.keys = [Fraction(float(key)) for key in policy.key(trace)]
        self.limits = [Fraction(limit) for limit in policy.thresholds]
        self.all = range(len(self.gpus))
        self.held_s = [Fraction(0)] * len(self.all)
        self.level = [0] * len(self.all)
        self.end: list[Fraction | None] = [None] * len(self.all)
        self.queue: list[int] = []
        self.running: list[int] = []
        self.now = Fraction(0)

    def width(self, job: int) -> int:
        """What a second on its GPUs counts towards a threshold."""
        return self.gpus[job] if self.policy.order == "attained-service" else 1

    def next_moment(self) -> Fraction:
        """When a job arrives, ends or reaches its threshold next."""
        moments = [self.now + self.left[job] for job in self.running]
        for job in self.all:
            is_ahead = job not in self.queue and self.end[job] is None
            if self.arrival[job] > self.now or is_ahead:
                moments.append(self.arrival[job])
        for job in self.running:
            if self.level[job] < len(self.limits):
                missing = self.limits[self.level[job]] - self.held_s[job] * self.width(job)
                moments.append(self.now + missing / self.width(job))
        return min(moments)

    def let_pass(self, step: Fraction) -> None:
        self.now += step
        for job in self.running:
            self.left[job] -= step
            self.held_s[job] += step

    def end_those_done(self) -> None:
        for job in [job for job in self.running if self.left[job] == 0]:
            self.end[job] = self.now
            self.queue.remove(job)
            self.running.remove(job)

    def demote(self, was_running: set[int]) -> None:
        """Jobs that reached their threshold go to the end of the next queue, by place."""
        for job in sorted(self.running):
            if self.level[job] == len(self.limits):
                continue
            if self.held_s[job] * self.width(job) >= self.limits[self.level[job]]:
                self.level[job] += 1
                self.queue.remove(job)
                self.queue.append(job)
                was_running.discard(job)

    def rank(self, job: int, was_running: set[int]) -> tuple[Fraction, bool]:
        """The least comes first; within a queue, jobs that run."""
        if self.policy.order == "key":
            return self.keys[job], False
        if self.policy.order == "remaining":
            return self.left[job], False
        if self.policy.order == "remaining-service":
            return self.left[job] * self.gpus[job], False
        return Fraction(self.level[job]), job not in was_running

    def hand_out(self, room: int) -> None:
        """Go through the queue once."""
        chosen = [] if self.policy.preemptive else list(self.running)
        free = room - sum(self.gpus[job] for job in chosen)
        for job in self.queue:
            if job in chosen:
                continue
            if self.gpus[job] <= free:
                chosen.append(job)
                free -= self.gpus[job]
            elif self.policy.blocks:
                break
        self.running = chosen


POLICIES = [
    cluster.fifo(),
    cluster.fifo(blocks=False),
    cluster.sjf(),
    cluster.srtf(),
    cluster.srsf(),
    cluster.las(4, 9),
    cluster.las(3),
    cluster.las2d(5, 12),
    cluster.las2d(2, 3, 20),
    cluster.priority_policy("widest", lambda trace: -trace.gpus, preemptive=True),
]


@st.composite
def traces(draw: st.DrawFn, room: int = 8, most: int = 12) -> cluster.Trace:
    """Few jobs of whole seconds, so that many things happen at the same time."""
    jobs = draw(
        st.lists(
            st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(1, room)),
            min_size=1,
            max_size=most,
        )
    )
    arrival, duration, gpus = zip(*jobs, strict=True)
    return cluster.Trace(arrival_s=arrival, duration_s=duration, gpus=gpus)


@st.composite
def clusters(draw: st.DrawFn) -> cluster.Cluster:
    """One or two pools, of different nodes and speeds."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2))
    speeds = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=2, max_size=2))
    return cluster.Cluster(
        pools=[
            cluster.Pool(nodes=nodes, gpus_per_node=size, gpu=f"type{i}", speed=speeds[i])
            for i, (nodes, size) in enumerate(shapes)
        ]
    )


def overlaps(intervals: list[tuple[float, float]]) -> bool:
    """Whether two of the intervals share more than a moment."""
    return any(end > start for (_, end), (start, _) in pairwise(sorted(intervals)))
