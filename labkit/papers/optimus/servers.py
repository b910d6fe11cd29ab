"""Parameter servers: how fast they are, and who gets them.

A step of synchronous training takes C/w + F + E·w/p + δ·w + δ'·p seconds: the batch divided over
workers, what no worker divides, a server's part of the weights exchanged with every worker, and
what each further task costs.

Each job adds workers and servers along a path of its own, so the greedy choice over both kinds of
tasks is that over numbers of tasks, and the engine's allocators of GPUs hand tasks out. A plain
loop over both kinds is the oracle (``tests/papers/test_optimus.py``).

Source: Optimus (EuroSys'18) §3.2 and §4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from labkit.cluster.bounds import fluid
from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.allocators import (
    Allocator,
    FairShares,
    Floats,
    Ints,
    MarginalGains,
)
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

Split = Literal["even", "gains", "best"]


@description
class ServerSpeed:
    """Seconds of a training step on workers and parameter servers.

    Attributes:
        compute_s: gradients of the whole batch on one worker.
        fixed_s: what more workers do not shorten.
        exchange_s: weights and gradients between one worker and one server that holds them all.
        worker_s, server_s: what each further worker and server adds to a step.
    """

    compute_s: NonNegative
    fixed_s: NonNegative = 0.0
    exchange_s: NonNegative = 0.0
    worker_s: NonNegative = 0.0
    server_s: NonNegative = 0.0

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
            self,
            compute_s=self.compute_s * compute,
            fixed_s=self.fixed_s * compute,
            exchange_s=self.exchange_s * exchange,
        )

    @checked
    def step_s(self, workers: ArrayLike, servers: ArrayLike) -> Floats:
        """Seconds a step of one batch, for numbers of tasks that broadcast; each at least 1.

        >>> float(ServerSpeed(compute_s=8, exchange_s=1, worker_s=0.5).step_s(4, 2))
        6.0
        """
        w = np.asarray(workers, dtype=float)
        p = np.asarray(servers, dtype=float)
        if not ((w >= 1).all() and (p >= 1).all()):
            raise BadValue("ServerSpeed.step_s: workers and servers must be at least 1 each")
        tasks_s = self.worker_s * w + self.server_s * p
        return np.asarray(self.compute_s / w + self.fixed_s + self.exchange_s * w / p + tasks_s)

    @checked
    def by_tasks(self, most: Count, split: Split = "gains") -> Floats:
        """Seconds of a step on n tasks, for n from 1 to ``most``; NaN where n cannot be divided.

        ``even``: as many workers as servers. ``best``: the fastest division of n. ``gains``: from
        one worker and one server on, each further task is the kind that shortens a step more, a
        server at a tie; it never turns back.
        """
        times = np.full(most, np.nan)
        workers = 1
        for n in range(2, most + 1):
            choice = {"best": range(1, n), "even": [n // 2], "gains": [workers, workers + 1]}[split]
            tried = np.array([w for w in choice if w < n and (split != "even" or 2 * w == n)])
            if tried.size:
                steps = self.step_s(tried, n - tried)
                times[n - 1] = steps.min()
                workers = int(tried[steps.argmin()])
        return times


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

        def work_per_s(jobs: Ints, held: Ints) -> Floats:
            return np.asarray(by_tasks[jobs, held.sum(1)])

        return work_per_s

    return table, rates


@checked
def marginal_gains(
    times: Mapping[str, ArrayLike],
    *,
    first: Count = 2,
    misjudged: ArrayLike = 1.0,
    length_power: float = 1.0,
    name: str = "gains",
    round_s: Positive = 600.0,
    restart_s: NonNegative = 30.0,
) -> Callable[[Trace], MarginalGains]:
    """Marginal gains for the jobs of a trace, whose kinds have these step times by tasks from 1 on.

    Args:
        first: tasks that every job gets at first, for which the trace states its duration.
        misjudged: the factor by which each job's remaining work is believed too long.
        length_power: of the remaining work in a gain. 1 counts seconds saved, as the paper does; at
            0 only the share of a step counts, below 0 short jobs come first.
        times: by kind of job: seconds of a step on 1, 2, … tasks, NaN where so many cannot run.
        name: of the policy.
        round_s: between decisions, as in the authors' program.
        restart_s: without progress, of a job whose tasks change.
    """

    def make(trace: Trace) -> MarginalGains:
        table, rates = _of_jobs(times, trace, first)
        factor = np.broadcast_to(misjudged, len(table)) / table[:, first - 1]

        def steps_left(progress: Any, job: int) -> float:
            return float((progress.left[job] * factor[job]) ** length_power)

        return MarginalGains(
            name=name,
            step_s=table,
            steps_left=steps_left,
            first=first,
            rates=rates,
            restart_s=restart_s,
            round_s=round_s,
        )

    return make


@checked
def equal_shares(
    times: Mapping[str, ArrayLike],
    *,
    bundle: Count = 2,
    stops: bool = True,
    name: str = "",
    round_s: Positive = 600.0,
    restart_s: NonNegative = 30.0,
) -> Callable[[Trace], FairShares]:
    """Equal shares of the same, handed out in bundles: one worker and one server are two tasks.

    Args:
        times, round_s, restart_s: as of :func:`marginal_gains`.
        bundle: tasks that are handed out together.
        stops: whether a job takes no more than its fastest number of tasks; else it takes all
            there are.
        name: of the policy; default: what it does.
    """

    def make(trace: Trace) -> FairShares:
        table, rates = _of_jobs(times, trace, bundle)
        valid = np.where(np.arange(1, table.shape[1] + 1) % bundle == 0, table, np.nan)
        most = np.nanargmin(valid, axis=1) + 1
        if not stops:
            most = np.isfinite(valid).sum(1) * bundle
        return FairShares(
            name=name or ("stops" if stops else "takes all"),
            most=most,
            bundle=bundle,
            rates=rates,
            restart_s=restart_s,
            round_s=round_s,
        )

    return make


@checked
def least_mean_s(laws: Mapping[str, ServerSpeed], trace: Trace, most: Count) -> float:
    """Mean completion time that no division of ``most`` tasks beats; durations are of two tasks.

    Every job alone on its fastest number; or, on one machine as fast as all tasks, the least
    seconds times tasks that each job can take, least remaining first.

    Args:
        laws: by kind of job.
        trace: jobs of these kinds.
        most: tasks there are.
    """
    table, _ = _of_jobs({kind: law.by_tasks(most, "best") for kind, law in laws.items()}, trace, 2)
    work = trace.column("duration_s") / table[:, 1]
    arrival = trace.column("arrival_s")
    area = work * np.nanmin(table * np.arange(1, most + 1), axis=1)
    end_s, _ = fluid(arrival, area, most, by_remaining=True)
    return float(max((work * np.nanmin(table, axis=1)).mean(), (end_s - arrival).mean()))


@checked
def task_policies(
    laws: Mapping[str, ServerSpeed], most: Count, **pace: Any
) -> list[Callable[[Trace], Allocator]]:
    """Four ways to hand out up to ``most`` tasks to jobs of these kinds, to be compared.

    Equal shares of pairs, which take all there are, or stop where a job is fastest; the same, with
    each job's best division into workers and servers; marginal gains.

    Args:
        laws: by kind of job.
        most: tasks there are.
        pace: ``round_s`` and ``restart_s``, as of :func:`marginal_gains`.
    """
    even = {kind: law.by_tasks(most, "even") for kind, law in laws.items()}
    best = {kind: law.by_tasks(most, "best") for kind, law in laws.items()}
    gains = {kind: law.by_tasks(most, "gains") for kind, law in laws.items()}
    return [
        equal_shares(even, stops=False, name="pairs", **pace),
        equal_shares(even, name="pairs that stop", **pace),
        equal_shares(best, name="best division", **pace),
        marginal_gains(gains, **pace),
    ]
