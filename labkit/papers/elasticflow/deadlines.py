"""Policies that know deadlines and how fast a job runs on each number of GPUs, and their bound."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.rates import Rates
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops.records import jobs_of, replayed
from labkit.cluster.policies.allocators import OwnLoop
from labkit.cluster.results import Run
from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, checked, description
from labkit.papers.elasticflow import planning

Share = Literal["least", "most", "turns"]
Sizes = Literal["best", "largest", "asked"]
Judged = Literal["nobody", "each", "together"]
Rules = Literal["paper", "artifact"]


@description(eq=False)
class Deadlines(OwnLoop):
    """Jobs in order of deadline, decided when one arrives or ends, a round apart or more.

    Attributes:
        rates: how fast each kind of job is on each number of GPUs; default: a job has the GPUs it
            asked for, or none.
        share: ``least``, as few GPUs as meet the deadline (the minimum satisfactory share);
            ``most``, a job's size, or the largest that is free; ``turns``, its size in turn,
            whatever the deadline.
        sizes: what a job may have at most: its ``best``, the size at which it runs fastest; its
            ``largest``, of all that its rates list; or what it ``asked`` for.
        judged: whose deadlines decide about a job that arrives: ``nobody``'s, all are taken in;
            ``each`` is taken in where it and all jobs before it can be in time; jobs of one round
            are taken in or refused ``together``.
        spare: whether idle GPUs go to the jobs whose GPU time they cut most.
        doubling_s: what ``restart_s`` grows by when a job's GPUs double.
        stay_s: seconds without progress at each decision for a job that keeps its GPUs; a turn
            costs ``restart_s`` in any case.
        rules: ``artifact``, as the authors' program has them: a job has its share as late as that
            will do, and the size below it before; idle GPUs go to whose GPU time they add to most;
            a job ends with its slot. Until then it does the work of its plan, which leaves out
            restarts: what they cost is still to be done at a decision before the slot's end.
    """

    rates: Rates | None = None
    share: Share = "least"
    sizes: Sizes = "best"
    judged: Judged = "nobody"
    spare: bool = True
    doubling_s: NonNegative = 0.0
    stay_s: NonNegative = 0.0
    rules: Rules = "paper"

    def run(self, trace: Trace, cluster: Cluster) -> Run:
        """By the compiled loop, 10 µs a decision rather than a round's 100.

        Raises:
            BadValue: there are several pools, or rates lack a job's kind.
        """
        if len(cluster.pools) > 1:
            raise BadValue(f"{self.name}: the cluster has {len(cluster.pools)} pools; valid: 1")
        gpus, speed, tops = speeds_by_size(trace, cluster, self.rates)
        jobs = jobs_of(trace, planning.JOB)
        jobs["due"] = trace.deadline_s
        jobs["top"] = tops[self.sizes]
        doubling = self.doubling_s * np.log2(np.maximum(gpus, 1))
        again = self.restart_s + doubling
        stay = again if self.share == "turns" else np.full(gpus.size, self.stay_s)
        rule = planning.Rule(
            gpus=gpus,
            total=cluster.num_gpus,
            share=get_args(Share).index(self.share),
            lost_s=np.array([again, stay]),
            slot_s=float(self.round_s),
            judged=get_args(Judged).index(self.judged),
            spare=self.spare,
            is_artifact=self.rules == "artifact",
        )
        able = np.flatnonzero(jobs["top"] > 0)
        mine = jobs[able]
        rows = planning.replay(rule, mine, speed[able])
        jobs[able] = mine
        rows[:, 0] = able[rows[:, 0].astype(np.int64)]
        return replayed(self, trace, cluster, jobs, rows, jobs["refused"] > 0)


def speeds_by_size(
    trace: Trace, cluster: Cluster, rates: Rates | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], dict[str, NDArray[np.int64]]]:
    """Sizes (0 first), each job's speed at each, and the level of its best, largest and own size.

    Args:
        trace, cluster: jobs and machines; larger sizes than the cluster have speed 0.
        rates: how fast each kind of job is on each number of GPUs; default: a job has the GPUs it
            asked for, or none.

    Raises:
        BadValue: a job's kind is not among those of the rates.
    """
    asked = trace.column("gpus")
    room = cluster.num_gpus
    if rates is None:
        sizes = np.unique(asked)
        speed = np.where(sizes == asked[:, None], cluster.pools[0].speed, 0.0)
    else:
        sizes = np.array(rates.gpus)
        speed = rates.of(trace)
    speed = np.where(sizes <= room, speed, 0.0)
    runs = speed > 0
    largest = np.where(runs.any(1), sizes.size - runs[:, ::-1].argmax(1), 0)
    is_asked = runs & (sizes == asked[:, None])
    own = np.where(is_asked, np.arange(sizes.size) + 1, 0).max(1)
    best = np.where(runs.any(1), speed.argmax(1) + 1, 0)
    padded = np.hstack([np.zeros((len(trace), 1)), speed])
    levels = {"best": best, "largest": largest, "asked": own}
    return np.append(0, sizes), padded, levels


@checked
def policy(rates: Rates | None = None, **options: Any) -> Deadlines:
    """Minimum satisfactory shares in order of deadline; who cannot be in time is refused.

    Args:
        rates: how fast each kind of job is on each number of GPUs.
        options: other fields of :class:`Deadlines`.

    Source: ElasticFlow (ASPLOS'23), algorithms of admission control and resource allocation.
    """
    return Deadlines(**{"name": "elasticflow", "rates": rates, "judged": "each"} | options)


@checked
def edf(rates: Rates | None = None, *, sizes: Sizes = "best", **options: Any) -> Deadlines:
    """Earliest deadline first: each job in turn takes its size, or the largest that is free.

    Args:
        rates: how fast each kind of job is on each number of GPUs.
        sizes: what a job may have at most, as :class:`Deadlines` has it.
        options: other fields of :class:`Deadlines`.
    """
    given = {"name": f"edf-{sizes}", "rates": rates, "share": "most", "spare": False}
    return Deadlines(sizes=sizes, **given | options)


@checked
def time_slicing(rates: Rates | None = None, **options: Any) -> Deadlines:
    """Jobs take turns of a round on the GPUs they asked for; ``restart_s`` at each new turn.

    Source: the suspend-resume of Gandiva (OSDI'18), without packing and migration.
    """
    given = {"name": "time-slicing", "rates": rates, "share": "turns", "sizes": "asked"}
    return Deadlines(spare=False, **given | options)


@checked
def most_deadlines(trace: Trace, cluster: Cluster, rates: Rates | None = None) -> float:
    """The share of deadlines that no policy can beat: a fractional flow, as a linear program.

    Time is cut at arrivals and deadlines. A job's work in a stretch is at most its fastest rate
    times the stretch, and costs the GPU-seconds of its most frugal size. With y the part of a job
    that is done in time and w its work in a stretch::

        max Σ y   Σ_stretch w = y · work,  w ≤ y · rate · stretch,  Σ_job w / frugality ≤ GPUs ·
        stretch,  y ≤ 1

    A schedule's jobs in time are a solution with y = 1; the number is therefore rounded down.

    Args:
        trace: jobs, some with deadlines.
        cluster: the machines.
        rates: how fast each kind of job is on each number of GPUs; default: on those asked for.

    Raises:
        BadValue: no job has a deadline.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    gpus, speed, _ = speeds_by_size(trace, cluster, rates)
    due = trace.column("deadline_s")
    arrival = trace.column("arrival_s")
    work = trace.column("duration_s")
    can_be_in_time = speed.max(1) * (due - arrival) >= work * (1 - 1e-9)
    jobs = np.flatnonzero(np.isfinite(due) & can_be_in_time)
    num_due = int(np.isfinite(due).sum())
    if not num_due:
        raise BadValue(f"most_deadlines: no job of {trace.name} has a deadline")
    if not jobs.size:
        return 0.0
    cuts = np.unique(np.concatenate([arrival[jobs], due[jobs]]))
    stretch = np.diff(cuts)
    fastest = speed[jobs].max(1)
    frugal = (speed[jobs, 1:] / gpus[1:]).max(1)
    first = np.searchsorted(cuts, arrival[jobs])
    last = np.searchsorted(cuts, due[jobs])
    # Columns: w of every (job, stretch), then y of every job; work in units of its job's whole.
    job = np.repeat(np.arange(jobs.size), last - first)
    spans = [np.arange(begin, end) for begin, end in zip(first, last, strict=True)]
    place = np.concatenate(spans)
    num = job.size
    column = np.arange(num)
    used = sparse.coo_array((work[jobs][job] / frugal[job], (place, column)), (stretch.size, num))
    rate = fastest[job] * stretch[place] / work[jobs][job]
    limit = sparse.coo_array((-rate, (column, job)), (num, jobs.size))
    whole = sparse.coo_array((np.ones(num), (job, column)), (jobs.size, num))
    answer = linprog(
        np.repeat([0.0, -1.0], [num, jobs.size]),
        method="highs",
        A_ub=sparse.block_array([[used, None], [sparse.eye_array(num), limit]], format="csr"),
        b_ub=np.append(cluster.num_gpus * stretch, np.zeros(num)),
        A_eq=sparse.block_array([[whole, -sparse.eye_array(jobs.size)]], format="csr"),
        b_eq=np.zeros(jobs.size),
        bounds=[(0, None)] * num + [(0, 1)] * jobs.size,
    )
    return float(np.floor(-answer.fun + 1e-6)) / num_due
