"""Jobs in whole slots of time: what the notebook's mechanism is written in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.rates import Rates
from labkit.cluster.inputs.traces import Trace
from labkit.kit.describe import Count, Positive, Whole, checked
from labkit.papers.elasticflow.deadlines import speeds_by_size


@dataclass(frozen=True, eq=False)
class SlotJob:
    """A job whose work and deadline are counted in slots from now.

    Attributes:
        deadline: slots until then.
        work: what is to be done; the unit is a second at the speed 1 of its rates.
        uses: by number of free GPUs, from 0 on, how many of them the job can use.
        speed: work a slot, by number of free GPUs.
    """

    deadline: int
    work: float
    uses: NDArray[np.int64]
    speed: NDArray[np.float64]

    @property
    def sizes(self) -> list[int]:
        """Numbers of GPUs that the job can use, rising, without 0."""
        return [int(size) for size in np.unique(self.uses) if size > 0]


@checked
def in_slots(trace: Trace, rates: Rates, num_gpus: Count, slot_s: Positive) -> list[SlotJob]:
    """The jobs of a trace, each as if it had arrived now; deadlines are rounded down to slots.

    A job uses no more GPUs than the number on which it is fastest. Its work is stated a billionth
    too small, so that rounding makes no job late that ends with its deadline.

    Args:
        trace: jobs with deadlines.
        rates: how fast each kind of job is on each number of GPUs.
        num_gpus: of the cluster.
        slot_s: seconds of a slot.

    >>> jobs = Trace(arrival_s=[0], duration_s=[240], gpus=[1], kind=("a",), deadline_s=[200])
    >>> rates = Rates(kinds=("a",), gpus=(1, 2), work_per_s=[[1.0, 1.5]])
    >>> job = in_slots(jobs, rates, num_gpus=3, slot_s=60)[0]
    >>> job.deadline, job.uses.tolist(), job.speed.tolist()
    (3, [0, 1, 2, 2], [0.0, 60.0, 90.0, 90.0])
    """
    cluster = Cluster.nodes(1, gpus=num_gpus)
    sizes, speeds, levels = speeds_by_size(trace, cluster, rates)
    window_s = trace.column("deadline_s") - trace.column("arrival_s")
    duration_s = trace.column("duration_s")
    jobs = []
    for job, best in enumerate(levels["best"].tolist()):
        uses = np.zeros(num_gpus + 1, np.int64)
        speed = np.zeros(num_gpus + 1)
        for level in range(1, best + 1):
            if speeds[job, level] > 0:
                uses[sizes[level] :] = sizes[level]
                speed[sizes[level] :] = speeds[job, level] * slot_s
        work = float(duration_s[job]) * (1 - 1e-9)
        jobs.append(SlotJob(int(window_s[job] // slot_s), work, uses, speed))
    return jobs


@checked
def in_any_order(trace: Trace, *, rng: np.random.Generator | Whole) -> Trace:
    """The same jobs in random order; all must arrive at one time."""
    order = np.random.default_rng(rng).permutation(len(trace)).tolist()
    columns = {}
    for name in trace.COLUMNS:
        values = getattr(trace, name)
        if len(values):
            columns[name] = tuple(values[job] for job in order)
    return trace.changed(**columns)
