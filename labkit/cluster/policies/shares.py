"""Policies that give every job a share of its time on each GPU type.

    table = cluster.load_throughputs()
    trace = cluster.continuous(6000, jobs_per_hour=5.6)
    policy = cluster.share_policy("max-min")
    run = cluster.simulate_shares(trace, table.cluster(36, 36, 36), policy, table)

A policy sees the jobs that are there and answers with shares; ``turns`` realises them in rounds.
Jobs of one kind and number of GPUs are alike, so a program has a row a group and not a row a job.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.jobs.throughputs import Throughputs, packed
from labkit.errors import not_among
from labkit.kit.describe import Whole, checked, description


class Active(NamedTuple):
    """What a policy sees: the jobs in the system, in order of arrival; pools in the last axis."""

    jobs: NDArray[np.int64]  # places in the trace
    group: NDArray[np.int64]  # of alike jobs: rows of ``speed`` and ``gpus``
    left_s: NDArray[np.float64]  # of work at speed 1
    speed: NDArray[np.float64]  # group × pool
    gpus: NDArray[np.int64]  # GPUs that a job of each group holds
    shared: NDArray[np.float64]  # group × other × pool: speed beside the other on the same GPUs
    room: NDArray[np.int64]  # GPUs of each pool
    memory: dict[str, Any]  # the policy's own, of one run


class Shares(NamedTuple):
    """Share of its time that each job runs alone on each pool, and each pair of jobs together."""

    alone: NDArray[np.float64]  # job × pool
    pairs: NDArray[np.int64] = np.zeros((0, 2), np.int64)  # pair × 2: places among the active jobs
    together: NDArray[np.float64] | None = None  # pair × pool


class MaxMin:
    """max t, where each group of alike jobs gets the speed t times its weight, or more (HiGHS).

    Variables: GPU time of each group on each pool, and of each pair of groups that gets more done
    together than one after the other. Rows: speed of each group − weight × t ≥ 0; time of each
    group ≤ its jobs; GPUs of each pool. Solved again from the last basis.
    """

    def __init__(
        self,
        gain: NDArray[np.float64],
        gpus: NDArray[np.int64],
        room: NDArray[np.int64],
        shared: NDArray[np.float64] | None = None,
    ) -> None:
        import highspy

        groups, pools = gain.shape
        self.shape = (groups, pools)
        self.infinite = highspy.kHighsInf
        self.pairs = np.zeros((0, 3), np.int64) if shared is None else useful(gain, shared, gpus)
        self.solver = highspy.Highs()
        self.weight = np.zeros(groups)
        self.jobs = np.full(groups, np.inf)
        self.solver.silent()
        tops = [0.0] * groups + room.astype(float).tolist()
        for low, high in [(0.0, self.infinite)] * groups + [(-self.infinite, top) for top in tops]:
            self.solver.addRow(low, high, 0, [], [])
        for k, p in np.ndindex(gain.shape):
            self._column(0.0, [k, groups + k, 2 * groups + p], [gain[k, p], 1.0, gpus[k]])
        for a, b, p in self.pairs:
            each = {a: 2 * shared[a, a, p]} if a == b else {a: shared[a, b, p], b: shared[b, a, p]}  # type: ignore[index]
            rows = [*each, *(groups + k for k in each), 2 * groups + p]
            self._column(0.0, rows, [*each.values(), *[2.0 / len(each)] * len(each), gpus[a]])
        self._column(-1.0, list(range(groups)), [0.0] * groups)

    def _column(self, cost: float, rows: list[Any], values: list[Any]) -> None:
        at = np.array(rows, np.int32)
        numbers = np.array(values, float)
        self.solver.addCol(cost, 0.0, self.infinite, len(rows), at, numbers)

    def solve(self, jobs: Any, weight: Any = None) -> tuple[float, NDArray[np.float64], Any]:
        """The least speed, GPU time by group and pool, and by pair; the weight is the jobs."""
        groups, pools = self.shape
        weight = jobs if weight is None else weight
        last = groups * pools + len(self.pairs)
        for k in np.flatnonzero(weight != self.weight):
            self.solver.changeCoeff(int(k), last, -float(weight[k]))
        for k in np.flatnonzero(jobs != self.jobs):
            self.solver.changeRowBounds(int(groups + k), -self.infinite, float(jobs[k]))
        both = self.pairs[:, 0]  # one job is no pair
        changed = (jobs[both] > 1) != (self.jobs[both] > 1)
        for column in np.flatnonzero(changed & (both == self.pairs[:, 1])):
            top = self.infinite if jobs[both[column]] > 1 else 0.0
            self.solver.changeColBounds(groups * pools + int(column), 0.0, top)
        self.jobs = jobs.copy()
        self.weight = weight.copy()
        self.solver.run()
        value = np.clip(np.array(self.solver.getSolution().col_value), 0.0, None).round(9)
        times = value[: groups * pools].reshape(groups, pools)
        return float(value[-1]), times, value[groups * pools : -1]


def useful(gain: Any, shared: Any, gpus: Any) -> NDArray[np.int64]:
    """Pairs of groups (a ≤ b) and the pool where both together do more than one after the other."""
    alike = (gpus[:, None] == gpus[None, :])[:, :, None]
    pairs = np.argwhere(alike & (packed(gain, shared) > 1.0 + 1e-9))
    return pairs[pairs[:, 0] <= pairs[:, 1]]


@description
class SharePolicy:
    """Shares of time, computed anew where jobs came or went.

    Attributes:
        name: one of :data:`SHARE_POLICIES`.
        seed: of what it draws.
        believes: the speeds it computes with; default: the true ones.
    """

    name: str
    seed: Whole = 0
    believes: Throughputs | None = None

    def __post_init__(self) -> None:
        if self.name not in SHARE_POLICIES:
            raise not_among("share policy", self.name, SHARE_POLICIES)

    @property
    def strict(self) -> bool:
        """Whether jobs that are due nothing leave free GPUs idle."""
        return self.name.startswith("fifo")

    @property
    def aware(self) -> bool:
        """Whether it knows speeds; one that does not fills the pools in a random order."""
        return self.name not in ("las", "fifo")

    def decide(self, active: Active) -> Shares:
        """The shares of the jobs that are there."""
        return SHARE_POLICIES[self.name](active, self.seed)


def _max_min(active: Active, seed: int, sharing: bool = False) -> Shares:
    """Least attained service that knows speeds (Gavel §4.1), without or with space sharing.

    The least normalised speed of any job is maximised: over its speed under an equal split of all
    GPUs, times its GPUs.
    """
    memory = active.memory
    if "program" not in memory:
        weight = active.gpus * active.room.sum() / (active.speed * active.room).sum(axis=1)
        shared = active.shared * weight[:, None, None] if sharing else None
        gain = active.speed * weight[:, None]
        memory["program"] = MaxMin(gain, active.gpus, active.room, shared)
    jobs = np.bincount(active.group, minlength=len(active.gpus))
    _, times, of_pairs = memory["program"].solve(jobs)
    alone = (times / np.maximum(jobs, 1)[:, None])[active.group]
    return Shares(alone, *_spread(memory["program"].pairs, of_pairs, active))


def _spread(program_pairs: Any, times: Any, active: Active) -> tuple[Any, Any]:
    """Time of each pair of groups, evenly over its pairs of jobs."""
    size = active.group.size
    kept = program_pairs[times > 1e-9]
    if not len(kept):
        return np.zeros((0, 2), np.int64), np.zeros((0, active.room.size))
    both, row = np.unique(kept[:, :2], axis=0, return_inverse=True)
    order = np.argsort(active.group, kind="stable")
    jobs = np.bincount(active.group, minlength=len(active.gpus))
    first = np.cumsum(jobs) - jobs
    (a, b) = both.T
    block = np.repeat(np.arange(len(both)), jobs[a] * jobs[b])  # of a pair of jobs, in any order
    place = np.arange(block.size) - (np.cumsum(jobs[a] * jobs[b]) - jobs[a] * jobs[b])[block]
    i, j = np.divmod(place, jobs[b][block])
    one_way = (a != b)[block] | (i < j)
    i = i[one_way]
    j = j[one_way]
    block = block[one_way]
    ends = np.sort([order[first[a][block] + i], order[first[b][block] + j]], axis=0)
    share = np.zeros((len(both), active.room.size))
    share[row, kept[:, 2]] = times[times > 1e-9]
    by_place = np.argsort(ends[0] * size + ends[1])
    together = share[block] / np.bincount(block, minlength=len(both))[block, None]
    return ends.T[by_place], together[by_place]


def _las(active: Active, seed: int) -> Shares:
    """Least attained service that knows no speeds: the same GPU time to every job.

    A job of g GPUs gets the share min(1, t / g), at the level t at which all GPUs are busy, spread
    over the pools by their GPUs. It is the program's fairest answer where all speeds are equal.
    """
    gpus = np.sort(active.gpus[active.group])
    total = int(active.room.sum())
    below = np.concatenate([[0], np.cumsum(gpus)[:-1]])  # GPU time of jobs that never wait
    level = (total - below) / np.arange(gpus.size, 0, -1)
    high = np.flatnonzero(level <= gpus)
    most = level[high[0]] if high.size else gpus[-1]
    return Shares(np.outer(np.minimum(1, most / active.gpus[active.group]), active.room / total))


def _makespan(active: Active, seed: int) -> Shares:
    """All jobs done as early as can be (Gavel §4.2): least speed over work left is maximised."""
    memory = active.memory
    known = active.memory.get("jobs", np.zeros(0, np.int64))
    if not np.isin(active.jobs, known).all():
        gain = active.speed[active.group] * 1e4
        gpus = active.gpus[active.group]
        memory["program"] = MaxMin(gain, gpus, active.room)
        memory["jobs"] = active.jobs.copy()
    places = np.searchsorted(memory["jobs"], active.jobs)
    there, left = np.zeros((2, memory["jobs"].size))
    there[places] = 1.0
    left[places] = active.left_s
    return Shares(memory["program"].solve(there, left)[1][places])


def _whole(active: Active, stays: dict[int, int]) -> Shares:
    """All of its time for each job that has a pool."""
    active.memory["stays"] = stays
    alone = np.zeros((active.jobs.size, active.room.size))
    alone[np.searchsorted(active.jobs, list(stays)), list(stays.values())] = 1.0
    return Shares(alone)


def _fifo(active: Active, seed: int, aware: bool = False) -> Shares:
    """First come, first served, a whole pool's GPUs each: the fastest free one, or a random one."""
    draw = active.memory.setdefault("draw", random.Random(seed))
    there = dict(zip(active.jobs.tolist(), active.group.tolist(), strict=True))
    stays: dict[int, int] = {}
    kept = {} if aware else active.memory.get("stays", {})
    queue = [job for job in there if job not in kept]
    for job, pool in sorted(kept.items()):
        if job in there:
            stays[job] = pool
        elif queue and active.speed[there[queue[0]], pool] > 0:  # the next takes the freed GPU
            stays[queue.pop(0)] = pool
    left = active.room.tolist()
    gpus = active.gpus.tolist()
    for job, pool in stays.items():
        left[pool] -= gpus[there[job]]
    speed = active.speed.tolist()
    for job, group in there.items():
        if job not in stays:
            free = [p for p, v in enumerate(speed[group]) if v > 0 and left[p] >= gpus[group]]
            if not free:
                break
            stays[job] = (
                max(free, key=speed[group].__getitem__) if aware else draw.choice(free[::-1])
            )
            left[stays[job]] -= gpus[group]
    return _whole(active, stays)


def _allox(active: Active, seed: int) -> Shares:
    """AlloX: match waiting jobs with places of free GPUs' queues, counted from the last.

    A job that runs k-th from the end of a GPU's queue delays k jobs, itself among them, by its time
    there; the cheapest matching has the least mean completion time. The first of each queue starts
    and stays. Jobs of one GPU.
    """
    from scipy.optimize import linear_sum_assignment

    there = set(active.jobs.tolist())
    stays = {job: p for job, p in active.memory.get("stays", {}).items() if job in there}
    held = np.bincount(list(stays.values()), minlength=active.room.size)
    types = np.repeat(np.arange(active.room.size), active.room - held)
    waiting = np.flatnonzero([job not in stays for job in active.jobs.tolist()])
    if types.size and waiting.size:
        speed = np.maximum(active.speed[active.group[waiting]], 1e-10)[:, types]
        cost = active.left_s[waiting, None] / speed
        matched = linear_sum_assignment(np.hstack([k * cost for k in range(1, waiting.size + 1)]))
        first: dict[int, tuple[int, int]] = {}
        for row, column in zip(*(side.tolist() for side in matched), strict=True):
            k, gpu = divmod(column, types.size)
            first[gpu] = max(first.get(gpu, (-1, -1)), (k, int(active.jobs[waiting[row]])))
        stays |= {job: int(types[gpu]) for gpu, (_, job) in first.items()}
    return _whole(active, stays)


def _packed(active: Active, seed: int, by_sum: bool = False) -> Shares:
    """Gandiva's packing: random pairs, given up where both get less done than one after the other.

    ``by_sum``: a pair is judged by the sum over GPU types, as Gavel's program has it, under which
    three types keep pairs at a third of that; else by the mean.
    """
    memory = active.memory
    places = {job: i for i, job in enumerate(active.jobs.tolist())}
    draw = memory.setdefault("draw", random.Random(seed))
    partner = memory.setdefault("pairs", {})
    if "both" not in memory:
        part = packed(active.speed, active.shared)
        both = part.sum(axis=2) / (1 if by_sum else part.shape[2])
        memory["both"] = np.where((part > 0).all(axis=2), both, 0.0).tolist()
    both = memory["both"]
    group = active.group.tolist()
    wanted = active.gpus[active.group]
    for job, other in list(partner.items()):
        rows = [group[places[j]] for j in (job, other) if j in places]
        if len(rows) < 2 or both[rows[0]][rows[1]] < 1.0:
            partner.pop(job)
    pairs = []
    sizes = wanted.tolist()
    if wanted.sum() > active.room.sum():
        free = [job for job in places if job not in partner]
        for _ in range(len(free)):
            a, b = draw.sample(free, 2) if len(free) > 1 else (0, 0)
            if a != b and sizes[places[a]] == sizes[places[b]]:
                free.remove(a)
                free.remove(b)
                partner |= {a: b, b: a}
        pairs = [(places[a], places[b]) for a, b in partner.items() if a < b]
    chosen = np.array(pairs, np.int64).reshape(-1, 2)
    split = active.room / (len(places) - len(pairs)) / wanted[:, None]
    split = split / np.maximum(split.sum(axis=1), 1.0)[:, None]
    alone = split.copy()
    alone[chosen.ravel()] = 0.0
    return Shares(alone, chosen, split[chosen[:, 0]])


SHARE_POLICIES: dict[str, Any] = {
    "max-min": _max_min,
    "max-min-shared": partial(_max_min, sharing=True),
    "las": _las,
    "makespan": _makespan,
    "fifo": _fifo,
    "fifo-aware": partial(_fifo, aware=True),
    "allox": _allox,
    "packed": _packed,
    "packed-by-sum": partial(_packed, by_sum=True),
}
"""Policies by name: Gavel's least attained service without and with two jobs on a GPU, and without
speeds; its makespan policy; first come, first served without and with speeds; AlloX; Gandiva's
packing, and as Gavel's program has it."""


@checked
def share_policy(name: str, *, seed: Whole = 0, believes: Throughputs | None = None) -> SharePolicy:
    """One of :data:`SHARE_POLICIES`.

    >>> share_policy("las").aware
    False
    """
    return SharePolicy(name=name, seed=seed, believes=believes)
