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
    arrival, work = ([Fraction(v) for v in trace.column(n)] for n in ("arrival_s", "duration_s"))
    gpus = [int(v) for v in trace.column("gpus")]
    keys = [Fraction(float(v)) for v in policy.key(trace)]
    jobs = range(len(gpus))
    left = list(work)
    held = [Fraction(0)] * len(gpus)
    level = [0] * len(gpus)
    ends: list[Fraction | None] = [None] * len(gpus)
    limits = [Fraction(limit) for limit in policy.thresholds]
    queue: list[int] = []
    running: list[int] = []
    now = Fraction(0)

    def service(job: int) -> Fraction:
        return held[job] * (gpus[job] if policy.order == "attained-service" else 1)

    def rank(job: int) -> tuple[Fraction, bool]:
        if policy.order == "key":
            return keys[job], False
        if policy.order == "remaining":
            return left[job], False
        if policy.order == "remaining-service":
            return left[job] * gpus[job], False
        return Fraction(level[job]), job not in ahead

    while None in ends:
        moments = [arrival[j] for j in jobs if arrival[j] > now or (j not in queue and not ends[j])]
        moments += [now + left[j] for j in running]
        for j in running:
            if level[j] < len(limits):
                wide = gpus[j] if policy.order == "attained-service" else 1
                moments.append(now + (limits[level[j]] - service(j)) / wide)
        step = min(moments) - now
        now = min(moments)
        for j in running:
            left[j] = left[j] - step
            held[j] = held[j] + step
        ahead = set(running)
        for j in [j for j in running if left[j] == 0]:
            ends[j] = now
            queue.remove(j)
            running.remove(j)
        queue += [j for j in jobs if arrival[j] == now]
        for j in sorted(running):
            if level[j] < len(limits) and service(j) >= limits[level[j]]:
                level[j] += 1
                queue.remove(j)
                queue.append(j)
                ahead.discard(j)
        queue.sort(key=rank)
        free = room
        chosen = []
        if not policy.preemptive:
            chosen = list(running)
            free = room - sum(gpus[j] for j in running)
        for j in queue:
            if j in chosen:
                continue
            if gpus[j] <= free:
                chosen.append(j)
                free -= gpus[j]
            elif policy.blocks:
                break
        running = chosen
    return [end for end in ends if end is not None]


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
    cluster.by("widest", lambda trace: -trace.gpus, preemptive=True),
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
