"""Policies that give each job a number of GPUs, perhaps another one at each decision.

An allocator is asked every so often (:mod:`labkit.cluster.loops.rounds`) and answers with a table:
GPUs by job and node. To write one takes one method::

    @description(eq=False)
    class OneEach(cluster.Allocator):
        name: str = "one each"

        def decide(self, state):
            given = np.zeros((state.jobs.size, state.capacity.size), int)
            ...
            return given
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue, shown
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

if TYPE_CHECKING:
    from labkit.cluster.results import Run

_LARGEST = 10**8
"""Numbers in a table that is held in memory at most."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(kw_only=True, eq=False)
class State:
    """A run at a boundary of rounds, as an allocator sees it. Columns are by job of the trace.

    Attributes:
        trace: all jobs of the run, also those that are still to come.
        now_s: the moment.
        jobs: the jobs in the system, in order of arrival: rows of a decision.
        capacity: GPUs of each node, those of all pools in order: columns of a decision.
        held: job × node: GPUs held until now.
        attained_gpu_s: GPU-seconds held so far, restarts included.
        stops: how often each job's GPUs were changed or taken.
        progress: of the jobs; ``progress.left`` is their work left.
        memory: what the allocator notes for itself; empty when a run begins.
    """

    trace: Trace
    now_s: float = 0.0
    jobs: Ints
    capacity: Ints
    held: Ints
    attained_gpu_s: Floats
    stops: Ints
    progress: Any
    memory: dict[str, Any] = field(default_factory=dict)


@description(eq=False)
class Allocator:
    """Who holds how many GPUs. Subclasses write :meth:`decide`.

    Attributes:
        name: as tables show it.
        round_s: seconds between decisions.
        restart_s: how long a job holds new GPUs, the first included, before it makes progress.
        rates: a function of trace and cluster that makes a run's progress (as
            :class:`labkit.cluster.loops.rounds.Steady`), or a function of ``(jobs, held)``, GPUs
            by job and node: work a second. Default: the speed of a pool for the GPUs asked for.
    """

    name: str
    round_s: Positive = 60.0
    restart_s: NonNegative = 0.0
    rates: Callable[..., Any] | None = None

    def decide(self, state: State) -> Ints:
        """GPUs from now on: one row for each of ``state.jobs``, one column a node."""
        raise NotImplementedError


@description(eq=False)
class OwnLoop:
    """A policy that comes with a loop of its own. Subclasses write :meth:`run`.

    Attributes:
        name: as tables show it.
        round_s: seconds between decisions, at least.
        restart_s: how long a job that was stopped holds its GPUs before it makes progress again.
    """

    name: str
    round_s: Positive = 60.0
    restart_s: NonNegative = 0.0

    def run(self, trace: Trace, cluster: Cluster) -> Run:
        """A trace to its end."""
        raise NotImplementedError


def on_freest(held: Ints, wanted: Ints, capacity: Ints, order: Ints) -> Ints:
    """Jobs whose number stays keep their GPUs; others, in order, take the freest node first.

    Args:
        held: job × node: GPUs until now.
        wanted: GPUs of each job from now on, in sum at most all there are.
        capacity: GPUs of each node.
        order: of the jobs: who chooses first.

    Returns:
        Job × node: GPUs from now on.

    >>> held = np.array([[2, 0], [0, 0]])
    >>> on_freest(held, np.array([2, 3]), np.array([4, 4]), np.array([0, 1])).tolist()
    [[2, 0], [0, 3]]
    """
    stays = held.sum(1) == wanted
    given = np.where(stays[:, None], held, 0)
    free = (capacity - given.sum(0)).tolist()
    for row in order[~stays[order]]:
        short = int(wanted[row])
        while short > 0:
            most = max(free)
            node = free.index(most)
            taken = min(short, most)
            given[row, node] += taken
            free[node] -= taken
            short -= taken
    return np.asarray(given)


Room = Annotated[int, Ge(0), Le(10**6)]


@checked
def divide(values: Floats, room: Room, sizes: Ints) -> Ints:
    """How many GPUs each job gets so that the summed value is least, exactly.

    Dynamic programming over jobs: least[r] is the least sum with r GPUs handed out at most.
    O(jobs × GPUs × sizes).

    Args:
        values: job × size: what counts against each size.
        room: GPUs there are.
        sizes: numbers of GPUs that a job may have, from 0 on, rising.

    Raises:
        BadValue: a value is NaN, there are not as many values a job as sizes, sizes do not rise, or
            there is no room for the least of them for every job.

    >>> divide(np.array([[9.0, 4.0, 3.0], [9.0, 5.0, 1.0]]), 3, np.arange(3)).tolist()
    [1, 2]
    """
    table = np.asarray(values, dtype=float)
    numbers = np.asarray(sizes)
    right = numbers.ndim == 1 and numbers.size and numbers.dtype.kind in "iu" and numbers[0] >= 0
    if not right or not (np.diff(numbers) > 0).all():
        raise BadValue(f"divide: sizes must be whole numbers from 0, rising; got {shown(sizes)}")
    if table.ndim != 2 or table.shape[1] != numbers.size or np.isnan(table).any():
        raise BadValue(
            f"divide: values must be a row a job, of {numbers.size} numbers, one a size; got an "
            f"array of shape {table.shape}"
        )
    if len(table) * int(numbers[0]) > room:
        raise BadValue(
            f"divide: room must be {len(table) * int(numbers[0])} or more, the least of sizes for "
            f"each job; got {room}"
        )
    if len(table) * (room + 1) > _LARGEST:
        raise BadValue(
            f"divide: room {room} and {len(table)} jobs need a table of more than {_LARGEST:.0e}; "
            "valid: fewer GPUs, or fewer jobs"
        )
    return np.asarray(_divide(table, room, numbers.astype(np.int64)))


@njit(cache=True)
def _divide(values: Floats, room: int, sizes: Ints) -> Ints:
    """As :func:`divide`, compiled."""
    # 1. The jobs so far with so many GPUs: the least sum, and the size of the last of them.
    least = np.zeros(room + 1)
    choice = np.zeros((len(values), room + 1), np.int64)
    for row in range(len(values)):
        before = least.copy()
        for gpus in range(room + 1):
            least[gpus] = np.inf
            for k in range(sizes.size):
                if sizes[k] <= gpus and before[gpus - sizes[k]] + values[row, k] < least[gpus]:
                    least[gpus] = before[gpus - sizes[k]] + values[row, k]
                    choice[row, gpus] = k
    # 2. Back from the last job, what was chosen.
    wanted = np.zeros(len(values), np.int64)
    for row in range(len(values) - 1, -1, -1):
        wanted[row] = sizes[choice[row, room]]
        room -= wanted[row]
    return wanted


@description(eq=False)
class MarginalGains(Allocator):
    """``first`` GPUs for every job, then each next one where it shortens a remaining time most.

    Attributes:
        step_s: seconds of a step by job of the trace and number of GPUs from 1 on, NaN beyond the
            most it may have.
        steps_left: a function of (progress, job): steps that the job has left.
        jumps: whether several GPUs may be offered at once, at their mean gain, so that a job gets
            past a number at which one more GPU does not help.
        first: GPUs that every job gets before any gets more.

    Source: Optimus (EuroSys'18) §4.1.
    """

    name: str = "optimus"
    step_s: Floats
    steps_left: Callable[..., Any]
    jumps: bool = False
    first: Count = 1

    def decide(self, state: State) -> Ints:
        jobs = state.jobs
        room = int(state.capacity.sum())
        wanted = np.zeros(jobs.size, dtype=np.int64)
        wanted[: room // self.first] = self.first
        rest = np.array([self.steps_left(state.progress, job) for job in jobs.tolist()])
        table = self.step_s[jobs] * rest[:, None]
        free = room - int(wanted.sum())
        begun = np.flatnonzero(wanted).tolist()
        queue = [(*self._next(table[row], self.first, free), row) for row in begun]
        heapify(queue)
        while free > 0 and queue and queue[0][0] < 0:
            _, more, row = queue[0]
            if more <= free:
                wanted[row] = wanted[row] + more
                free = free - more
            heapreplace(queue, (*self._next(table[row], int(wanted[row]), free), row))
        order = np.argsort(wanted, kind="stable")
        return on_freest(state.held[jobs], wanted, state.capacity, order)

    def _next(self, times: Floats, gpus: int, free: int) -> tuple[float, int]:
        """The next offer to a job: minus the seconds saved by each further GPU, and how many."""
        after = times[gpus : gpus + (free if self.jumps else 1)]
        if not after.size:
            return 0.0, 1
        if not self.jumps:
            saved_s = float(times[gpus - 1] - after[0])
            return (-saved_s if saved_s > 0 else 0.0), 1  # NaN beyond the most it may have
        saved = (times[gpus - 1] - after) / np.arange(1, after.size + 1)
        saved = np.where(saved == saved, saved, 0.0)
        best = int(saved.argmax())
        return -float(saved[best]), best + 1


@description(eq=False)
class FairShares(Allocator):
    """As many GPUs for one as for another: max-min, which dominant shares are with one resource.

    Attributes:
        most: by job of the trace: the most GPUs that it may have.
        bundle: GPUs that are handed out together.
    """

    name: str = "fair"
    most: Floats
    bundle: Count = 1

    def decide(self, state: State) -> Ints:
        room = int(state.capacity.sum()) // self.bundle
        most = self.most[state.jobs]
        wanted = np.zeros(state.jobs.size, dtype=np.int64)
        while room > 0 and (short := np.flatnonzero(wanted < most)[:room]).size:
            wanted[short] += self.bundle
            room -= short.size
        return on_freest(state.held[state.jobs], wanted, state.capacity, np.arange(wanted.size))
