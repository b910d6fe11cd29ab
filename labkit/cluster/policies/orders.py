"""Policies: who runs next, and whether a running job may be stopped for it.

A policy is an order of jobs. At every event (a job ends, arrives, or falls to a lower queue) the
jobs are gone through in that order and each runs if its GPUs are free.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, get_args

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import NonNegative, Positive, checked, description

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labkit.cluster.inputs.traces import Trace

Order = Literal["key", "remaining", "remaining-service", "attained", "attained-service"]
ORDERS = get_args(Order)


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
        backfills: whether the first job that does not fit gets a reservation, for the moment at
            which it will fit if running jobs take as long as their users estimated; those behind
            it may start where they do not delay it. A job without an estimate counts with its true
            duration. The cluster must be one pool, without placement.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.
        ranks: the place of each queue in the order, from the first; default: as numbered.
        demotion: when a job of several GPUs falls to the next queue: ``exact``, at the moment its
            service reaches the threshold; ``tiresias``, at the next whole second that Tiresias's
            simulator computes, which subtracts seconds from GPU-seconds and so comes late.

    Raises:
        BadValue: a policy does two of blocking, backfilling and preempting; it backfills in an
            order that changes; thresholds do not rise, or an order by attained time
            has none.
    """

    name: str
    order: Order = "key"
    key: Callable[..., Any] = methodcaller("column", "arrival_s")
    thresholds: tuple[Positive, ...] = ()
    preemptive: bool = False
    blocks: bool = False
    backfills: bool = False
    restart_s: NonNegative = 0.0
    demotion: Literal["exact", "tiresias"] = "exact"
    ranks: tuple[NonNegative, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks and len(self.ranks) != len(self.thresholds) + 1:
            raise BadValue(
                f"Policy.ranks must be one a queue, {len(self.thresholds) + 1}; got {self.ranks}"
            )
        rising = all(low < high for low, high in pairwise(self.thresholds))
        is_attained = self.order.startswith("attained")
        if self.blocks and self.preemptive:
            raise BadValue(f"Policy {self.name!r} blocks and preempts; valid: one of the two")
        if self.backfills and (self.blocks or self.preemptive or self.order != "key"):
            raise BadValue(
                f"Policy {self.name!r} backfills, and also blocks, preempts or has the order "
                f"{self.order!r}; valid: the order 'key', and neither of the two"
            )
        if not rising or bool(self.thresholds) != is_attained:
            raise BadValue(
                f"Policy.thresholds must rise, one or more for an order by attained time or "
                f"service and none for others; got {self.thresholds} for order {self.order!r}"
            )


@checked
def fifo(*, blocks: bool = True) -> Policy:
    """First come, first served.

    Args:
        blocks: whether the first job that does not fit keeps those behind it waiting.

    >>> fifo().name, fifo(blocks=False).name
    ('fifo', 'best-effort')
    """
    return Policy(name="fifo" if blocks else "best-effort", blocks=blocks)


@checked
def sjf() -> Policy:
    """Shortest job first, by its known duration; nothing is stopped.

    >>> sjf().preemptive
    False
    """
    return Policy(name="sjf", key=methodcaller("column", "duration_s"))


def _by_priority(trace: Trace) -> NDArray[np.float64]:
    """The greatest priority first."""
    return -trace.column("priority")


@checked
def by_priority() -> Policy:
    """The greatest priority first, then the first to come; nobody passes a job that does not fit.

    Without priorities in the trace it is :func:`fifo`.

    >>> by_priority().blocks
    True
    """
    return Policy(name="priority", key=_by_priority, blocks=True)


@checked
def easy() -> Policy:
    """EASY backfilling: jobs pass the first that does not fit where they do not delay it.

    The order is by priority, the greatest first, then by arrival. What jobs are expected to take is
    their users' estimate (``Trace.estimate_s``); a job without one counts with its true duration.

    Source: Lifka (1995), The ANL/IBM SP scheduling system; Mu'alem and Feitelson (2001) §2.

    >>> easy().backfills
    True
    """
    return Policy(name="easy", key=_by_priority, backfills=True)


@checked
def srtf(*, restart_s: NonNegative = 0.0) -> Policy:
    """Shortest remaining time first: the job with the least work left stops others.

    Source: Schrage and Miller (1966), for one server; here of jobs of several GPUs.
    """
    return Policy(name="srtf", order="remaining", preemptive=True, restart_s=restart_s)


@checked
def srsf(*, restart_s: NonNegative = 0.0) -> Policy:
    """Shortest remaining service first: remaining time times GPUs.

    Source: Tiresias (NSDI'19) §3.1, its baseline with perfect knowledge.
    """
    return Policy(name="srsf", order="remaining-service", preemptive=True, restart_s=restart_s)


@checked
def las(*thresholds_s: Positive, restart_s: NonNegative = 0.0) -> Policy:
    """Least attained time first, in queues: a job falls to the next one at each threshold.

    Args:
        thresholds_s: in seconds; default: 3,250 and 7,200, those of Tiresias's simulator.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.

    Source: Tiresias (NSDI'19) §3.2, in time alone.

    >>> las(100.0, 900.0).thresholds
    (100.0, 900.0)
    """
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

    Args:
        thresholds_gpu_s: in GPU-seconds; default: 3,250 and 7,200, those of Tiresias's simulator.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.
        demotion: when a job falls to the next queue, as :class:`Policy` has it.

    Source: Tiresias (NSDI'19) §3.2.

    >>> las2d(3250, 7200).order
    'attained-service'
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
def priority_policy(name: str, key: Callable[..., Any], *, preemptive: bool = False) -> Policy:
    """A policy of your own: the job with the least key comes first.

    Args:
        name: as tables show it.
        key: a function of a trace that gives one number a job.
        preemptive: whether a running job is stopped for one that comes before it.

    >>> shortest = priority_policy("guess", lambda trace: trace.duration_s * 1.5)
    >>> shortest.preemptive
    False
    """
    return Policy(name=name, key=key, preemptive=preemptive)


POLICIES: dict[str, Callable[..., Policy]] = {
    "fifo": fifo,
    "best-effort": partial(fifo, blocks=False),
    "priority": by_priority,
    "easy": easy,
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

    Args:
        text: a key of :data:`POLICIES`, and thresholds where it takes them.
        restart_s: what stopping a job costs, for policies that stop jobs.

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
