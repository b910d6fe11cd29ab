"""Allocators that more than one paper uses: marginal gains, equal shares, and the best division."""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from labkit.cluster.running.rounds import Allocator, Floats, Ints, State
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, description


def on_freest(held: Ints, wanted: Ints, capacity: Ints, order: Ints) -> Ints:
    """Jobs whose number stays keep their GPUs; others, in order, take the freest node first.

    ``held``: job × node, until now; ``wanted``: GPUs of each job, at most all there are.
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


@description(eq=False)
class MarginalGains(Allocator):
    """``first`` GPUs for every job, then each next one where it shortens a remaining time most.

    ``step_s``: seconds of a step by job of the trace and number of GPUs, NaN beyond the most it
    may have; ``steps_left``: of (progress, job). ``jumps``: several GPUs may be offered at once, at
    their mean gain, so that a job gets past a number at which one more GPU does not help.

    Source: Optimus (EuroSys'18) §4.1.
    """

    name: str = "optimus"
    step_s: Any
    steps_left: Any
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


@njit(cache=True)
def divide(values: Floats, room: int, sizes: Ints) -> Ints:
    """How many GPUs each job gets so that the summed value is least, exactly.

    ``values``: job × size. Dynamic programming over jobs: least[r] is the least sum with r GPUs
    handed out at most. O(jobs × GPUs × sizes).
    """
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
    wanted = np.zeros(len(values), np.int64)
    for row in range(len(values) - 1, -1, -1):
        wanted[row] = sizes[choice[row, room]]
        room -= wanted[row]
    return wanted


@description(eq=False)
class FairShares(Allocator):
    """As many GPUs for one as for another: max-min, which dominant shares are with one resource."""

    name: str = "fair"
    most: Any
    """By job of the trace: the most GPUs its batch can be split over."""
    bundle: Count = 1
    """GPUs that are handed out together."""

    def decide(self, state: State) -> Ints:
        room = int(state.capacity.sum()) // self.bundle
        most = self.most[state.jobs]
        wanted = np.zeros(state.jobs.size, dtype=np.int64)
        while room > 0 and (short := np.flatnonzero(wanted < most)[:room]).size:
            wanted[short] += self.bundle
            room -= short.size
        return on_freest(state.held[state.jobs], wanted, state.capacity, np.arange(wanted.size))
