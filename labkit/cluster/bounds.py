"""What no policy can beat: mean completion time and makespan from fluid relaxations."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster, best_speed
from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue
from labkit.kit.describe import checked


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Lower bounds on any schedule of the jobs that can run, in seconds.

    Attributes:
        durations_s: every job runs at once, on its fastest pool.
        fluid_srpt_s: the jobs' areas (GPUs × seconds) on one machine as fast as all GPUs, where
            shortest remaining area first is optimal.
        busy_times_s: mean over jobs of M − arrival + duration / 2, where M is the mean moment at
            which a job's area is worked on, and the sum of M is least when the machine works on
            the smallest area first. A job that runs for its duration ends half of it after M or
            later.
        makespan_s: the last end after the first arrival.
    """

    durations_s: float
    fluid_srpt_s: float
    busy_times_s: float
    makespan_s: float

    @property
    def mean_jct_s(self) -> float:
        """The largest of the three bounds on the mean completion time."""
        return max(self.durations_s, self.fluid_srpt_s, self.busy_times_s)


@checked
def bound(trace: Trace, cluster: Cluster) -> Bound:
    """Mean completion time and makespan that no schedule of this trace can beat.

    A job that fits in no pool is left out, as from a run's averages. Stopping and moving cost
    nothing, every job has its fastest pool's speed, and an area may be worked on by any GPUs.

    >>> trace = Trace(arrival_s=[0, 0], duration_s=[10, 30], gpus=[1, 1])
    >>> bound(trace, Cluster.nodes(1, gpus=1)).mean_jct_s  # 10, then 40
    25.0

    Raises:
        BadValue: no job can ever run.

    Source: Schrage (1968) for shortest remaining first on one machine; Goemans et al. (2002),
    Single machine scheduling with release dates, for mean busy times.
    """
    best = best_speed(trace, cluster)
    able = best > 0
    if not able.any():
        raise BadValue(f"bound: no job of {trace.name} fits in a pool of {cluster}")
    arrival = trace.column("arrival_s")[able]
    duration = trace.column("duration_s")[able] / best[able]
    area = duration * trace.column("gpus")[able]
    room = cluster.num_gpus
    end, _ = fluid(arrival, area, room, by_remaining=True)
    _, busy = fluid(arrival, area, room, by_remaining=False)
    late = np.cumsum(area[::-1])[::-1] / room  # the work that arrives from a moment on
    return Bound(
        durations_s=float(duration.mean()),
        fluid_srpt_s=float((end - arrival).mean()),
        busy_times_s=float((busy - arrival + duration / 2).mean()),
        makespan_s=float(max((arrival + late).max(), (arrival + duration).max()) - arrival[0]),
    )


def fluid(
    arrival: NDArray[np.float64],
    area: NDArray[np.float64],
    room: float,
    *,
    by_remaining: bool,
    rank: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One machine as fast as all GPUs works on one job at a time; O(n log n).

    A newcomer that comes before the current job stops it.

    Args:
        arrival: of each job, rising.
        area: GPU-seconds of each job.
        room: GPUs of the machine.
        by_remaining: whether the job of least remaining area comes first; else of least area.
        rank: of each job, the least first, in the place of its area.

    Returns:
        When each job ends, and the mean moment at which it is worked on.

    >>> end, middle = fluid(np.array([0.0, 1.0]), np.array([8.0, 2.0]), 2.0, by_remaining=True)
    >>> end.tolist(), middle.tolist()
    ([5.0, 2.0], [2.75, 1.5])
    """
    end = np.zeros(area.size)
    moments = np.zeros(area.size)
    queue: list[tuple[float, int]] = []
    left = area.astype(float).tolist()
    times = [*arrival.tolist(), np.inf]
    now = times[0]
    for job in range(area.size):
        # 1. A job arrives.
        heappush(queue, (left[job] if rank is None else float(rank[job]), job))
        now = max(now, times[job])
        until = times[job + 1]
        # 2. Until the next one does, the machine works on whoever comes first.
        while queue and now < until:
            _, first = queue[0]
            step = min(left[first] / room, until - now)
            moments[first] += step * room * (now + step / 2)
            now += step
            if now >= until and step * room < left[first]:
                left[first] -= step * room
                if by_remaining:
                    queue[0] = (left[first], first)  # less than before: it stays first
            else:
                heappop(queue)
                end[first] = now
    return end, moments / area
