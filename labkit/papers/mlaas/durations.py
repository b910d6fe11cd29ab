"""Estimated durations of jobs, and policies that serve the shortest estimate first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import Annotated, Literal

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import Policy, priority_policy
from labkit.errors import BadValue
from labkit.kit.describe import checked

Feature = Literal["tenant", "kind", "gpus", "gpu"]


@checked
def estimates(trace: Trace, *, by: Annotated[Sequence[Feature], MinLen(1)]) -> NDArray[np.float64]:
    """The mean duration of earlier jobs that agree in ``by``, in seconds, one a job.

    1. Only jobs that would be over count, had they run at once.
    2. Where none agrees, the last of ``by`` is left out, and so on; then all jobs count.
    3. Before any job is over the estimate is 0, and the job goes first. O(n log n).

    Args:
        trace: the jobs.
        by: what jobs must agree in, coarsest first.

    >>> trace = Trace(arrival_s=[0, 1, 20], duration_s=[4, 8, 1], gpus=[1, 2, 1])
    >>> estimates(trace, by=["gpus"])
    array([0., 0., 4.])

    Raises:
        BadValue: the trace does not know a feature.

    Source: MLaaS in the Wild (NSDI'22) §5, durations of recurring tasks.
    """
    columns: list[list[Hashable]] = []
    for feature in by:
        values = list(getattr(trace, feature))
        if not values:
            raise BadValue(f"estimates: {trace.name} does not know {feature!r} of its jobs")
        columns.append(values)
    groups = list(zip(*columns, strict=True))
    arrival_s = trace.column("arrival_s").tolist()
    duration_s = trace.column("duration_s").tolist()
    total_s: dict[Hashable, float] = defaultdict(float)
    count: dict[Hashable, int] = defaultdict(int)
    not_over: list[tuple[float, int]] = []  # jobs by their end, had they run at once
    estimate_s = np.zeros(len(trace))
    for job, group in enumerate(groups):
        # 1. Jobs that are over by now join what is known, at every depth of their features.
        while not_over and not_over[0][0] <= arrival_s[job]:
            _, over = heappop(not_over)
            for depth in range(len(by) + 1):
                total_s[groups[over][:depth]] += duration_s[over]
                count[groups[over][:depth]] += 1
        # 2. The mean at the deepest level that knows a job.
        for depth in range(len(by), -1, -1):
            alike = group[:depth]
            if count[alike]:
                estimate_s[job] = total_s[alike] / count[alike]
                break
        heappush(not_over, (arrival_s[job] + duration_s[job], job))
    return estimate_s


@checked
def shortest_estimate(
    name: str, by: Annotated[Sequence[Feature], MinLen(1)], *, longest: bool = False
) -> Policy:
    """The policy that serves the job with the shortest estimate first, without preemption.

    Args:
        name: as tables show it.
        by: what jobs must agree in for an estimate, as :func:`estimates` has it.
        longest: serve the longest estimate first instead.
    """
    sign = -1.0 if longest else 1.0

    def key(trace: Trace) -> NDArray[np.float64]:
        return sign * estimates(trace, by=by)

    return priority_policy(name, key)
