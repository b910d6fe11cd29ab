"""MLaaS in the Wild (NSDI'22): durations of recurring jobs, estimated from those that are over.

    from labkit.papers import mlaas

    def guess(trace):
        return mlaas.estimates(trace, by=["tenant", "kind"])

    cluster.simulate(trace, gpus, cluster.priority_policy("guess", guess))

The job whose estimate is least comes first, as the least duration does in shortest job first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import Annotated, Literal

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.cluster.inputs.traces import Trace
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
    arrival = trace.column("arrival_s").tolist()
    duration = trace.column("duration_s").tolist()
    total: dict[Hashable, float] = defaultdict(float)
    count: dict[Hashable, int] = defaultdict(int)
    ahead: list[tuple[float, int]] = []  # jobs that are not over, by their end
    guess = np.zeros(len(trace))
    for job, group in enumerate(groups):
        while ahead and ahead[0][0] <= arrival[job]:
            _, over = heappop(ahead)
            for depth in range(len(by) + 1):
                total[groups[over][:depth]] += duration[over]
                count[groups[over][:depth]] += 1
        known = next((n for n in range(len(by), -1, -1) if count[group[:n]]), None)
        if known is not None:
            guess[job] = total[group[:known]] / count[group[:known]]
        heappush(ahead, (arrival[job] + duration[job], job))
    return guess
