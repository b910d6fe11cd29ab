"""Gavel's programs as policies of the engine, and AlloX.

A policy says what share of its time each job spends on each GPU type; the engine's rounds realise
the shares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.throughputs import packed
from labkit.cluster.policies import shares as engine
from labkit.cluster.policies.shares import Active, SharePolicy, Shares, whole_shares
from labkit.errors import not_among
from labkit.kit.describe import checked, description

LEAST_SHARE = 1e-9
"""Shares of time below this are none: what a program's solution leaves by rounding."""
TINY_WORTH = 1e-5
"""Of a second of GPU time, beside the least speed: it decides among equal optima alone."""


class MaxMin:
    """max t, where each group of alike jobs gets the speed t times its weight, or more (HiGHS).

    Variables: GPU time of each group on each pool, and of each pair of groups that gets more done
    together than one after the other; then t. Rows:

    1. speed of each group − weight × t ≥ 0;
    2. time of each group ≤ its jobs;
    3. GPUs of each pool ≤ those there are.

    The program is solved again from the last basis.

    Args:
        gain: group × pool: speed of a job.
        gpus: that a job of each group holds.
        room: GPUs of each pool.
        shared: group × other × pool: speed of a job beside another on the same GPUs.
        worth: group × pool: of time there, so little that it decides among equal optima alone;
            default: nothing.

    Source: Gavel (OSDI'20) §4.1.
    """

    def __init__(
        self,
        gain: NDArray[np.float64],
        gpus: NDArray[np.int64],
        room: NDArray[np.int64],
        shared: NDArray[np.float64] | None = None,
        worth: NDArray[np.float64] | None = None,
    ) -> None:
        import highspy

        groups, pools = gain.shape
        self.shape = (groups, pools)
        self.infinite = highspy.kHighsInf
        self.pairs = np.zeros((0, 3), np.int64)
        if shared is not None:
            self.pairs = useful_pairs(gain, shared, gpus)
        self.weight = np.zeros(groups)
        self.jobs = np.full(groups, np.inf)
        self.solver = highspy.Highs()
        self.solver.silent()
        for _ in range(groups):
            self.solver.addRow(0.0, self.infinite, 0, [], [])
        for most in [*[0.0] * groups, *room.astype(float).tolist()]:
            self.solver.addRow(-self.infinite, most, 0, [], [])
        cost = np.zeros(gain.shape) if worth is None else -worth
        for group, pool in np.ndindex(gain.shape):
            rows = [group, groups + group, 2 * groups + pool]
            self._add_column(float(cost[group, pool]), rows, [gain[group, pool], 1.0, gpus[group]])
        for a, b, pool in self.pairs:
            self._add_pair(shared, gpus, a, b, pool)
        self._add_column(-1.0, list(range(groups)), [0.0] * groups)

    def _add_pair(self, shared: Any, gpus: Any, a: int, b: int, pool: int) -> None:
        """The column of a pair: speeds of its groups, the time of each, and the GPUs held."""
        groups = self.shape[0]
        gpu_row = 2 * groups + pool
        if a == b:  # two jobs of one group
            rows = [a, groups + a, gpu_row]
            values = [2 * shared[a, a, pool], 2.0, gpus[a]]
        else:
            rows = [a, b, groups + a, groups + b, gpu_row]
            values = [shared[a, b, pool], shared[b, a, pool], 1.0, 1.0, gpus[a]]
        self._add_column(0.0, rows, values)

    def _add_column(self, cost: float, rows: list[Any], values: list[Any]) -> None:
        places = np.array(rows, np.int32)
        numbers = np.array(values, float)
        self.solver.addCol(cost, 0.0, self.infinite, len(rows), places, numbers)

    def solve(self, jobs: Any, weight: Any = None) -> tuple[float, NDArray[np.float64], Any]:
        """The program for so many jobs of each group.

        Args:
            jobs: of each group.
            weight: of each group's speed; default: the jobs.

        Returns:
            The least speed t, GPU time by group and pool, and GPU time by pair.
        """
        groups, pools = self.shape
        weight = jobs if weight is None else weight
        least_column = groups * pools + len(self.pairs)
        for group in np.flatnonzero(weight != self.weight):
            self.solver.changeCoeff(int(group), least_column, -float(weight[group]))
        for group in np.flatnonzero(jobs != self.jobs):
            row = int(groups + group)
            self.solver.changeRowBounds(row, -self.infinite, float(jobs[group]))
        both = self.pairs[:, 0]  # one job is no pair
        changed = (jobs[both] > 1) != (self.jobs[both] > 1)
        for pair in np.flatnonzero(changed & (both == self.pairs[:, 1])):
            most = self.infinite if jobs[both[pair]] > 1 else 0.0
            self.solver.changeColBounds(groups * pools + int(pair), 0.0, most)
        self.jobs = jobs.copy()
        self.weight = weight.copy()
        self.solver.run()
        value = np.clip(np.array(self.solver.getSolution().col_value), 0.0, None).round(9)
        times = value[: groups * pools].reshape(groups, pools)
        return float(value[-1]), times, value[groups * pools : -1]


def useful_pairs(gain: Any, shared: Any, gpus: Any) -> NDArray[np.int64]:
    """Pairs of groups (a ≤ b) and the pool where both together do more than one after the other."""
    alike = (gpus[:, None] == gpus[None, :])[:, :, None]
    pairs = np.argwhere(alike & (packed(gain, shared) > 1.0 + 1e-9))
    return pairs[pairs[:, 0] <= pairs[:, 1]]


@description
class FairSpeeds(SharePolicy):
    """Least attained service that knows speeds: the least normalised speed of a job is maximised.

    A speed is normalised by the job's speed under an equal split of all GPUs, times its GPUs.

    Attributes:
        sharing: whether two jobs may run on one GPU.
        optimum: which of several optima of a program is taken: the solver's, one drawn at random,
            or the one in which jobs above the least are fastest.

    Source: Gavel (OSDI'20) §4.1.
    """

    sharing: bool = False
    optimum: Literal["the solver's", "random", "fastest"] = "the solver's"

    def decide(self, active: Active) -> Shares:
        memory = active.memory
        if "program" not in memory:
            equal_split = (active.speed * active.room).sum(axis=1)
            weight = active.gpus * active.room.sum() / equal_split
            shared = active.shared * weight[:, None, None] if self.sharing else None
            gain = active.speed * weight[:, None]
            worth = self._worth(gain)
            memory["program"] = MaxMin(gain, active.gpus, active.room, shared, worth)
        program = memory["program"]
        jobs = np.bincount(active.group, minlength=len(active.gpus))
        _, times, times_of_pairs = program.solve(jobs)
        alone = (times / np.maximum(jobs, 1)[:, None])[active.group]
        return Shares(alone, *_spread(program.pairs, times_of_pairs, active))

    def _worth(self, gain: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """What tips the balance among equal optima; group × pool."""
        if self.optimum == "the solver's":
            return None
        if self.optimum == "fastest":
            return TINY_WORTH * gain
        return TINY_WORTH * np.random.default_rng(self.rng).uniform(-0.5, 0.5, gain.shape)


def _spread(program_pairs: Any, times: Any, active: Active) -> tuple[Any, Any]:
    """Time of each pair of groups, evenly over its pairs of jobs; in order of the jobs."""
    size = active.group.size
    kept = program_pairs[times > LEAST_SHARE]
    if not len(kept):
        return np.zeros((0, 2), np.int64), np.zeros((0, active.room.size))
    # 1. The pairs of groups, whatever the pool, and the places of each group's jobs.
    both, row = np.unique(kept[:, :2], axis=0, return_inverse=True)
    by_group = np.argsort(active.group, kind="stable")
    jobs = np.bincount(active.group, minlength=len(active.gpus))
    first = np.cumsum(jobs) - jobs
    a, b = both.T
    # 2. Every job of the one group with every job of the other: a block a pair of groups.
    num_pairs = jobs[a] * jobs[b]
    block = np.repeat(np.arange(len(both)), num_pairs)
    place = np.arange(block.size) - (np.cumsum(num_pairs) - num_pairs)[block]
    i, j = np.divmod(place, jobs[b][block])
    # 3. Within one group each pair of jobs once.
    one_way = (a != b)[block] | (i < j)
    i = i[one_way]
    j = j[one_way]
    block = block[one_way]
    # 4. The time of a block, evenly.
    left = by_group[first[a][block] + i]
    right = by_group[first[b][block] + j]
    ends = np.sort([left, right], axis=0)
    share = np.zeros((len(both), active.room.size))
    share[row, kept[:, 2]] = times[times > LEAST_SHARE]
    together = share[block] / np.bincount(block, minlength=len(both))[block, None]
    by_place = np.argsort(ends[0] * size + ends[1])
    return ends.T[by_place], together[by_place]


@description
class LeastMakespan(SharePolicy):
    """All jobs done as early as can be: the least speed over work left is maximised.

    Source: Gavel (OSDI'20) §4.2.
    """

    def decide(self, active: Active) -> Shares:
        memory = active.memory
        known = memory.get("jobs", np.zeros(0, np.int64))
        if not np.isin(active.jobs, known).all():
            gain = active.speed[active.group] * 1e4  # so that t, a rate of work, is no tiny number
            gpus = active.gpus[active.group]
            memory["program"] = MaxMin(gain, gpus, active.room)
            memory["jobs"] = active.jobs.copy()
        places = np.searchsorted(memory["jobs"], active.jobs)
        is_there = np.zeros(memory["jobs"].size)
        left_s = np.zeros(memory["jobs"].size)
        is_there[places] = 1.0
        left_s[places] = active.left_s
        _, times, _ = memory["program"].solve(is_there, left_s)
        return Shares(times[places])


@description
class Matching(SharePolicy):
    """AlloX: match waiting jobs with places of free GPUs' queues, counted from the last.

    A job that runs k-th from the end of a GPU's queue delays k jobs, itself among them, by its time
    there; the cheapest matching has the least mean completion time. The first of each queue starts
    and stays. Jobs of one GPU.

    Source: AlloX (EuroSys'20), as Gavel's program has it.
    """

    def decide(self, active: Active) -> Shares:
        from scipy.optimize import linear_sum_assignment

        jobs = active.jobs.tolist()
        there = set(jobs)
        before = active.memory.get("stays", {})
        pool_of = {job: pool for job, pool in before.items() if job in there}
        held = np.bincount(list(pool_of.values()), minlength=active.room.size)
        pool_of_gpu = np.repeat(np.arange(active.room.size), active.room - held)
        waiting = np.flatnonzero([job not in pool_of for job in jobs])
        if not (pool_of_gpu.size and waiting.size):
            return whole_shares(active, pool_of)
        # 1. The cost of running k-th from the end of a GPU's queue: columns k, then GPUs.
        speed = np.maximum(active.speed[active.group[waiting]], 1e-10)[:, pool_of_gpu]
        seconds = active.left_s[waiting, None] / speed
        cost = np.hstack([k * seconds for k in range(1, waiting.size + 1)])
        # 2. The first of each GPU's queue is the one of the largest k.
        first: dict[int, tuple[int, int]] = {}
        rows, columns = linear_sum_assignment(cost)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            k, gpu = divmod(column, pool_of_gpu.size)
            first[gpu] = max(first.get(gpu, (-1, -1)), (k, jobs[waiting[row]]))
        for gpu, (_, job) in first.items():
            pool_of[job] = int(pool_of_gpu[gpu])
        return whole_shares(active, pool_of)


SHARE_POLICIES: dict[str, Callable[..., SharePolicy]] = {
    **engine.SHARE_POLICIES,
    "max-min": FairSpeeds,
    "max-min-shared": partial(FairSpeeds, sharing=True),
    "makespan": LeastMakespan,
    "allox": Matching,
}
"""Policies by name: the engine's, Gavel's least attained service without and with two jobs on a
GPU, its makespan policy, and AlloX."""


@checked
def share_policy(name: str, **settings: Any) -> SharePolicy:
    """One of :data:`SHARE_POLICIES`, the engine's among them.

    Args:
        name: as :data:`SHARE_POLICIES` has it.
        settings: fields of :class:`labkit.cluster.SharePolicy`, such as ``rng`` or ``round_s``.

    Raises:
        UsageError: there is no such policy.

    >>> share_policy("max-min").aware
    True
    """
    if name not in SHARE_POLICIES:
        raise not_among("share policy", name, SHARE_POLICIES)
    return SHARE_POLICIES[name](**{"name": name, **settings})
