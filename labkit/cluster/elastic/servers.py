"""Training on parameter servers: how fast w workers and p servers are, and which jobs get them.

A step of synchronous training takes C/w + F + E·w/p + δ·w + δ'·p seconds: the batch divided over
workers, what no worker divides, a server's part of the weights exchanged with every worker, and
what each further task costs. An asynchronous worker goes ahead alone, with C for its own batch, so
that steps come w at a time. Both are linear in their coefficients.

Source: Optimus (EuroSys'18) §3.2 and §4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from labkit.cluster.elastic.adaptive import FairShares, MarginalGains
from labkit.cluster.jobs.clusters import Cluster
from labkit.cluster.jobs.jobs import Trace
from labkit.cluster.running.rounds import Floats, Ints
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

Split = Literal["even", "gains", "best"]


@description
@dataclass(frozen=True, kw_only=True)
class ServerSpeed:
    """Seconds of a training step on workers and parameter servers.

    Attributes:
        compute_s: gradients of the whole batch on one worker (asynchronous: of a worker's own).
        fixed_s: what more workers do not shorten.
        exchange_s: weights and gradients between one worker and one server that holds them all.
        worker_s, server_s: what each further worker and server adds to a step.
        synchronous: workers wait for each other after every step.
    """

    compute_s: NonNegative
    fixed_s: NonNegative = 0.0
    exchange_s: NonNegative = 0.0
    worker_s: NonNegative = 0.0
    server_s: NonNegative = 0.0
    synchronous: bool = True

    @classmethod
    @checked
    def from_peaks(cls, workers: Count, servers: Count, even: Count) -> ServerSpeed:
        """The law, in units of one exchange, whose fastest division and number of tasks are these.

        ``workers`` and ``servers`` are the fastest division of their sum, ``even`` the fastest
        number of workers with as many servers. A further task costs the same of either kind.
        """
        compute = (workers + servers) * workers**2 / servers**2
        task = compute / (2 * even**2)
        return cls(compute_s=compute, exchange_s=1.0, worker_s=task, server_s=task)

    @checked
    def scaled(self, compute: Positive, exchange: Positive) -> ServerSpeed:
        """A network with so many times the work and the parameters; tasks cost the same."""
        return replace(
            self, compute_s=self.compute_s * compute, fixed_s=self.fixed_s * compute,
            exchange_s=self.exchange_s * exchange,
        )  # fmt: skip

    @checked
    def step_s(self, workers: ArrayLike, servers: ArrayLike) -> Floats:
        """Seconds a step of one batch, for numbers of tasks that broadcast; each at least 1.

        >>> float(ServerSpeed(compute_s=8, exchange_s=1, worker_s=0.5).step_s(4, 2))
        6.0
        """
        coefficients = [self.compute_s, self.fixed_s, self.exchange_s, self.worker_s, self.server_s]
        return np.asarray(_columns(workers, servers, self.synchronous) @ np.array(coefficients))

    @checked
    def workers(self, most: Count, split: Split = "gains") -> Ints:
        """How many of n tasks are workers, for n from 1 to ``most``; 0 where n is no valid number.

        ``even``: half of an even number. ``best``: the fastest division of n. ``gains``: from one
        worker and one server on, each further task is the kind that shortens a step more, a server
        at a tie; it never turns back.
        """
        tasks, rows = np.arange(1, most + 1), np.zeros(most, dtype=np.int64)
        if split == "even":
            return np.where(tasks % 2 == 0, tasks // 2, 0)
        for n in tasks[1:]:
            valid = np.arange(1, n)
            if split == "gains" and n > 2:
                valid = rows[n - 2] + np.array([0, 1])
            rows[n - 1] = valid[self.step_s(valid, n - valid).argmin()]
        return rows

    @checked
    def by_tasks(self, most: Count, split: Split = "gains") -> Floats:
        """Seconds of a step on n tasks, for n from 1 to ``most``; NaN where n is not valid."""
        workers, times = self.workers(most, split), np.full(most, np.nan)
        valid = workers > 0
        times[valid] = self.step_s(workers[valid], (np.arange(1, most + 1) - workers)[valid])
        return times


def _columns(workers: ArrayLike, servers: ArrayLike, synchronous: bool) -> Floats:
    """What multiplies each coefficient in a step's seconds, as the last axis."""
    w, p = np.broadcast_arrays(np.asarray(workers, dtype=float), np.asarray(servers, dtype=float))
    if not ((w >= 1) & (p >= 1)).all():
        raise BadValue("ServerSpeed: workers and servers must be at least 1 each")
    shared = 1 / w if synchronous else np.ones_like(w)
    columns = np.stack([shared, np.ones_like(w), w / p, w, p], axis=-1)
    return columns if synchronous else columns / w[..., None]


@checked
def fit_speed(
    workers: ArrayLike, servers: ArrayLike, step_s: ArrayLike, *, synchronous: bool = True
) -> ServerSpeed:
    """The coefficients, none negative, of least squared error relative to each step time.

    Asynchronous training cannot tell ``fixed_s`` from ``compute_s``: the former stays 0.
    """
    from scipy.optimize import nnls

    times = np.asarray(step_s, dtype=float)
    columns = _columns(workers, servers, synchronous)
    if times.shape != columns.shape[:1] or not (times > 0).all():
        raise BadValue(
            f"fit_speed: step_s must be {len(columns)} numbers above 0, one a pair of workers and "
            f"servers; got shape {times.shape}"
        )
    if not synchronous:
        columns[:, 1] = 0.0
    values = nnls(columns / times[:, None], np.ones(times.size))[0].tolist()
    names = ("compute_s", "fixed_s", "exchange_s", "worker_s", "server_s")
    return ServerSpeed(**dict(zip(names, values, strict=True)), synchronous=synchronous)


def _of_jobs(times: Mapping[str, ArrayLike], trace: Trace, first: int) -> tuple[Floats, Any]:
    """Step times by job and tasks, and the rates they make: durations are stated for ``first``."""
    if missing := sorted(set(trace.kind) - times.keys()) or ["" for _ in (1,) if not trace.kind]:
        raise BadValue(
            f"no times of kind {missing[0]!r} of {trace.name}; valid: {', '.join(times)}"
        )
    table = np.array([times[kind] for kind in trace.kind], dtype=float)
    if table.ndim != 2 or table.shape[1] < first or not (table[:, first - 1] > 0).all():
        raise BadValue(
            f"times must be rows by number of tasks, each above 0 at {first}; got {table.shape}"
        )
    speed = np.nan_to_num(table[:, [first - 1]] / table, nan=0.0)
    by_tasks = np.pad(speed, ((0, 0), (1, 0)))

    def rates(_: Trace, cluster: Cluster) -> Any:
        if cluster.num_gpus > table.shape[1]:
            raise BadValue(f"times reach {table.shape[1]} tasks; {cluster} has {cluster.num_gpus}")
        return lambda jobs, held: by_tasks[jobs, held.sum(1)]

    return table, rates


@checked
def by_gains(
    times: Mapping[str, ArrayLike], *, first: Count = 2, misjudged: ArrayLike = 1.0,
    length_power: float = 1.0, **options: Any,
) -> Callable[[Trace], MarginalGains]:  # fmt: skip
    """Marginal gains for the jobs of a trace, whose kinds have these step times by tasks from 1 on.

    Args:
        first: tasks that every job gets at first, for which the trace states its duration.
        misjudged: the factor by which each job's remaining work is believed too long.
        length_power: of the remaining work in a gain. 1 counts seconds saved, as the paper does; at
            0 only the share of a step counts, below 0 short jobs come first.
        options: fields of the allocator, such as ``name``, ``round_s`` and ``restart_s``.
    """

    def make(trace: Trace) -> MarginalGains:
        table, rates = _of_jobs(times, trace, first)
        factor = np.broadcast_to(misjudged, len(table)) / table[:, first - 1]

        def steps_left(progress: Any, job: int) -> float:
            return float((progress.left[job] * factor[job]) ** length_power)

        return MarginalGains(
            step_s=table, steps_left=steps_left, first=first, rates=rates, **options
        )

    return make


@checked
def by_shares(
    times: Mapping[str, ArrayLike], *, bundle: Count = 2, stops: bool = True, **options: Any
) -> Callable[[Trace], FairShares]:
    """Equal shares of the same, handed out in bundles: one worker and one server are two tasks.

    ``stops``: a job takes no more than its fastest number of tasks; else it takes all there are.
    ``options``: as for :func:`by_gains`.
    """

    def make(trace: Trace) -> FairShares:
        table, rates = _of_jobs(times, trace, bundle)
        valid = np.where(np.arange(1, table.shape[1] + 1) % bundle == 0, table, np.nan)
        most = np.nanargmin(valid, axis=1) + 1
        if not stops:
            most = np.isfinite(valid).sum(1) * bundle
        return FairShares(most=most, bundle=bundle, rates=rates, **options)

    return make
