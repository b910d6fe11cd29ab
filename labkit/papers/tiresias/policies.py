"""Tiresias (NSDI'19): what history knows of durations, as the Gittins index; and time slicing.

    from labkit.papers import tiresias

    cluster.simulate(trace, gpus, tiresias.gittins(history.work_gpu_s))

Its queues by attained service are :func:`labkit.cluster.las2d`, which other papers use too.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.policies.orders import Policy
from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Positive, checked

MOST_QUEUES = 10_000
"""Queues of a policy: its index takes their number squared, and every pass goes through them."""


@checked
def gittins_index(service: ArrayLike, attained: ArrayLike) -> NDArray[np.float64]:
    """How likely a job ends soon: the Gittins index at each attained service.

    G(a) is the largest over Δ of P(S ≤ a + Δ) / E[min(S − a, Δ)], both of jobs with S > a, where
    S is drawn from ``service`` and a + Δ is a later entry of ``attained`` or without limit; 0
    where no S is above a. O(n log n + m²).

    Args:
        service: the sample of n jobs.
        attained: m levels, rising from 0.

    >>> gittins_index([1, 9], [0, 1])  # half end within 1; then 8 are left
    array([0.5  , 0.125])

    Source: Gittins (1979); Tiresias (NSDI'19) §3.2.
    """
    # 1. The sample, sorted, and the levels.
    known = np.sort(np.ravel(service)).astype(float)
    levels = np.ravel(attained).astype(float)
    if not known.size or not np.isfinite([known.sum(), levels.sum()]).all():
        raise BadValue(
            "gittins_index: service and attained must be finite numbers, service not "
            f"empty; got {known} and {levels}"
        )
    done = np.searchsorted(known, levels, side="right")  # of the sample, by each level
    spent = np.append(0.0, np.cumsum(known))
    until = np.append(levels, np.inf)  # what a job has got when it is looked at again
    ended = np.append(done, known.size)
    work = spent[ended] + np.multiply(known.size - ended, np.where(np.isinf(until), 0, until))
    index = np.zeros(levels.size)
    for at in np.flatnonzero(done < known.size):
        left = known.size - done[at]
        begun = spent[done[at]] + left * levels[at]
        ends = ended[at + 1 :] - done[at]
        index[at] = np.max(ends / (work[at + 1 :] - begun))
    return index


@checked
def gittins(
    service_gpu_s: ArrayLike,
    *,
    queues: Annotated[int, Ge(2), Le(MOST_QUEUES)] = 24,
    restart_s: NonNegative = 0.0,
) -> Policy:
    """Largest Gittins index first, of a sample of GPU-seconds: what history knows of durations.

    A job is looked at again where its service passes one of ``queues`` - 1 thresholds that rise by
    a factor from the 1st to the 99th percentile of the sample. With none left it comes last.

    Args:
        service_gpu_s: the sample.
        queues: how many.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.

    Source: Tiresias (NSDI'19) §3.2 (two-dimensional Gittins index).
    """
    sample = np.asarray(service_gpu_s, float).ravel()
    if not sample.size or not (np.isfinite(sample) & (sample > 0)).all():
        raise BadValue(f"gittins: the sample must be finite numbers above 0; got {sample}")
    low, high = np.quantile(sample, [0.01, 0.99])
    thresholds = np.unique(np.geomspace(low, high, queues - 1))
    index = gittins_index(sample, np.append(0, thresholds))
    _, ranks = np.unique(-index, return_inverse=True)
    return Policy(
        name="gittins",
        order="attained-service",
        thresholds=tuple(thresholds.tolist()),
        ranks=tuple(ranks.astype(float).tolist()),
        preemptive=True,
        restart_s=restart_s,
    )


@checked
def slices(quantum_s: Positive, *, longest_s: Positive, restart_s: NonNegative = 0.0) -> Policy:
    """Time slicing: a job that has held its GPUs for ``quantum_s`` goes to the end of the queue.

    Args:
        quantum_s: of a slice.
        longest_s: where slices end; a job that lasts longer then keeps its place.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.

    Raises:
        BadValue: a slice is no longer than a restart, so that no job would ever progress; or there
            are more than :data:`MOST_QUEUES` of them.
    """
    if restart_s >= quantum_s:
        raise BadValue(f"slices: restart_s {restart_s:g} must be below quantum_s {quantum_s:g}")
    if longest_s > MOST_QUEUES * quantum_s:
        raise BadValue(
            f"slices: quantum_s {quantum_s:g} cuts longest_s {longest_s:g} into more than "
            f"{MOST_QUEUES:,} slices; valid: {longest_s / MOST_QUEUES:g} or longer"
        )
    thresholds = np.arange(quantum_s, longest_s, quantum_s).tolist() or [quantum_s]
    return Policy(
        name="slices",
        order="attained",
        thresholds=tuple(thresholds),
        ranks=(0.0,) * (len(thresholds) + 1),
        preemptive=True,
        restart_s=restart_s,
    )
