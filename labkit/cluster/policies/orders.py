"""Policies: who runs next, and whether a running job may be stopped for it.

A policy is an order of jobs. At every event (a job ends, arrives, or falls to a lower queue) the
jobs are gone through in that order and each runs if its GPUs are free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from operator import methodcaller
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.jobs.jobs import Trace
from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import NonNegative, Positive, checked, description

Order = Literal["key", "remaining", "remaining-service", "attained", "attained-service"]
ORDERS = get_args(Order)
Feature = Literal["tenant", "kind", "gpus", "gpu"]


@description
class Policy:
    """An order of jobs, and what is done for a job that does not fit.

    Attributes:
        name: as tables show it.
        order: ``key`` (a number a job that never changes), ``remaining`` (seconds of work left),
            ``remaining-service`` (times its GPUs), ``attained`` (seconds it has held its GPUs) or
            ``attained-service`` (times its GPUs). The least comes first. Jobs that are equal keep
            the order they had, and new ones come last.
        key: for ``order="key"``: the numbers, from the trace; default: order of arrival.
        thresholds: for attained time or service: where a job falls to the next queue, in seconds
            or GPU-seconds. Within a queue, jobs that run stay ahead of those that wait.
        preemptive: whether a running job is stopped for one that comes before it.
        blocks: whether the first job that does not fit keeps those behind it waiting.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.
        ranks: the place of each queue in the order, from the first; default: as numbered.
        demotion: when a job of several GPUs falls to the next queue: ``exact``, at the moment its
            service reaches the threshold; ``tiresias``, at the next whole second that Tiresias's
            simulator computes, which subtracts seconds from GPU-seconds and so comes late.

    Raises:
        BadValue: a policy blocks and preempts, thresholds do not rise, or an order by attained time
            has none.
    """

    name: str
    order: Order = "key"
    key: Callable[..., Any] = methodcaller("column", "arrival_s")
    thresholds: tuple[Positive, ...] = ()
    preemptive: bool = False
    blocks: bool = False
    restart_s: NonNegative = 0.0
    demotion: Literal["exact", "tiresias"] = "exact"
    ranks: tuple[NonNegative, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks and len(self.ranks) != len(self.thresholds) + 1:
            raise BadValue(
                f"Policy.ranks must be one a queue, {len(self.thresholds) + 1}; got {self.ranks}"
            )
        rising = all(low < high for low, high in zip(self.thresholds, self.thresholds[1:]))  # noqa: B905
        is_attained = self.order.startswith("attained")
        if self.blocks and self.preemptive:
            raise BadValue(f"Policy {self.name!r} blocks and preempts; valid: one of the two")
        if not rising or bool(self.thresholds) != is_attained:
            raise BadValue(
                f"Policy.thresholds must rise, one or more for an order by attained time or "
                f"service and none for others; got {self.thresholds} for order {self.order!r}"
            )


@checked
def fifo(*, blocks: bool = True) -> Policy:
    """First come, first served; ``blocks=False`` lets later jobs pass one that does not fit."""
    return Policy(name="fifo" if blocks else "best-effort", blocks=blocks)


@checked
def sjf() -> Policy:
    """Shortest job first, by its known duration; nothing is stopped."""
    return Policy(name="sjf", key=methodcaller("column", "duration_s"))


@checked
def srtf(*, restart_s: NonNegative = 0.0) -> Policy:
    """Shortest remaining time first."""
    return Policy(name="srtf", order="remaining", preemptive=True, restart_s=restart_s)


@checked
def srsf(*, restart_s: NonNegative = 0.0) -> Policy:
    """Shortest remaining service first: remaining time times GPUs.

    Source: Tiresias (NSDI'19) §3.1, its baseline with perfect knowledge.
    """
    return Policy(name="srsf", order="remaining-service", preemptive=True, restart_s=restart_s)


@checked
def las(*thresholds_s: Positive, restart_s: NonNegative = 0.0) -> Policy:
    """Least attained time first, in queues; default: Tiresias's thresholds, 3,250 and 7,200 s."""
    return Policy(
        name="las",
        order="attained",
        thresholds=thresholds_s or (3250.0, 7200.0),
        preemptive=True,
        restart_s=restart_s,
    )


@checked
def las2d(
    *thresholds_gpu_s: Positive,
    restart_s: NonNegative = 0.0,
    demotion: Literal["exact", "tiresias"] = "exact",
) -> Policy:
    """Least attained service first: GPU-seconds, in queues (discretised two-dimensional LAS).

    Default: 3,250 and 7,200 GPU-seconds, those of Tiresias's simulator.

    Source: Tiresias (NSDI'19) §3.2.
    """
    return Policy(
        name="las2d",
        order="attained-service",
        thresholds=thresholds_gpu_s or (3250.0, 7200.0),
        preemptive=True,
        restart_s=restart_s,
        demotion=demotion,
    )


@checked
def slices(quantum_s: Positive, *, longest_s: Positive, restart_s: NonNegative = 0.0) -> Policy:
    """Time slicing: a job that has held its GPUs for ``quantum_s`` goes to the end of the queue.

    ``longest_s``: where slices end; a job that lasts longer then keeps its place.

    Raises:
        BadValue: a slice is no longer than a restart, so that no job would ever progress.
    """
    if restart_s >= quantum_s:
        raise BadValue(f"slices: restart_s {restart_s:g} must be below quantum_s {quantum_s:g}")
    thresholds = np.arange(quantum_s, longest_s, quantum_s).tolist() or [quantum_s]
    return Policy(
        name="slices",
        order="attained",
        thresholds=tuple(thresholds),
        ranks=(0.0,) * (len(thresholds) + 1),
        preemptive=True,
        restart_s=restart_s,
    )


@checked
def gittins_index(service: ArrayLike, attained: ArrayLike) -> NDArray[np.float64]:
    """How likely a job ends soon: the Gittins index at each attained service.

    G(a) is the largest over Δ of P(S ≤ a + Δ) / E[min(S − a, Δ)], both of jobs with S > a, where
    S is drawn from ``service`` and a + Δ is a later entry of ``attained`` or without limit; 0
    where no S is above a. ``attained`` rises from 0. O(n log n + m²).

    >>> gittins_index([1, 9], [0, 1])  # half end within 1; then 8 are left
    array([0.5  , 0.125])

    Source: Gittins (1979); Tiresias (NSDI'19) §3.2.
    """
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
        index[at] = np.max((ended[at + 1 :] - done[at]) / (work[at + 1 :] - begun))
    return index


@checked
def gittins(
    service_gpu_s: ArrayLike, *, queues: Annotated[int, Ge(2)] = 24, restart_s: NonNegative = 0.0
) -> Policy:
    """Largest Gittins index first, of a sample of GPU-seconds: what history knows of durations.

    A job is looked at again where its service passes one of ``queues`` - 1 thresholds that rise by
    a factor from the 1st to the 99th percentile of the sample. With none left it comes last.

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
def by(name: str, key: Callable[..., Any], *, preemptive: bool = False) -> Policy:
    """A policy of your own: ``key(trace)`` gives one number a job, the least comes first.

    >>> shortest = by("guess", lambda trace: trace.duration_s * 1.5)
    >>> shortest.preemptive
    False
    """
    return Policy(name=name, key=key, preemptive=preemptive)


@checked
def estimates(trace: Trace, *, by: Annotated[Sequence[Feature], MinLen(1)]) -> NDArray[np.float64]:
    """The mean duration of earlier jobs that agree in ``by``, in seconds, one a job.

    1. Only jobs that would be over count, had they run at once.
    2. Where none agrees, the last of ``by`` is left out, and so on; then all jobs count.
    3. Before any job is over the estimate is 0, and the job goes first. O(n log n).

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


POLICIES: dict[str, Callable[..., Policy]] = {
    "fifo": fifo,
    "best-effort": lambda: fifo(blocks=False),
    "sjf": sjf,
    "srtf": srtf,
    "srsf": srsf,
    "las": las,
    "las2d": las2d,
}
"""Policies by name; ``las`` and ``las2d`` take thresholds."""


@checked
def named(text: str, *, restart_s: NonNegative = 0.0) -> Policy:
    """The policy a text names, such as ``srsf`` or ``las2d:3250,7200``.

    >>> named("las2d:1000").thresholds
    (1000.0,)

    Raises:
        UsageError: there is no such policy, or it takes no such settings.
    """
    name, colon, settings = text.partition(":")
    if name not in POLICIES:
        raise not_among("policy", name, POLICIES)
    queues = name in ("las", "las2d")
    if colon and not queues:
        raise UsageError(
            f"policy {text!r}: only las and las2d take thresholds, as in las2d:3250,7200"
        )
    try:
        thresholds = [float(part) for part in settings.split(",") if part]
    except ValueError:
        raise UsageError(
            f"policy {text!r}: thresholds are numbers, as in las2d:3250,7200"
        ) from None
    restart = {"restart_s": restart_s} if queues or name in ("srtf", "srsf") else {}
    return POLICIES[name](*thresholds, **restart)
