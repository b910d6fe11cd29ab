"""Compiled: jobs in rounds, each on nodes that hold its GPUs, CPUs and memory.

In each round, in this order: jobs that arrived join the queue; the queue is put in order; jobs get
nodes, CPUs and memory, all anew; work advances; jobs whose work is done give their GPUs back at the
next round. Amounts of CPUs and GB are a GPU's, except what is free, which is a node's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from labkit.cluster.loops.records import LIFE
from labkit.kit.compiled import hear, njit

PROPORTIONAL, GREEDY, TUNE = range(3)  # what a job is given: Rule.give
FIRST, BEST, SPREAD = range(3)  # with room: the first node, of fewest free GPUs, of most free CPUs
FIXED, LEFT, ATTAINED = range(3)  # what the queue's key follows: Rule.key
GPUS, CPUS, GB = range(3)  # columns of what is free
NODES = 3  # column of a grant: on how many nodes
TOLERANCE = 1e-9  # of CPUs and GB
TOLERANCE_S = 1e-6  # work of less time is none
JOB = np.dtype(
    [
        *LIFE,
        ("cpus", "f8"),  # a GPU: all that it can use
        ("memory", "f8"),  # GB a GPU: all that it can use
        ("full", "f8"),  # its speed with both
        ("speed", "f8"),  # that it runs at; 0 while it waits
        ("weight", "f8"),  # of its key
        ("attained", "f8"),  # GPU-seconds that it has had
        ("key", "f8"),  # the queue is sorted by it, then by arrival
        ("runs", "i8"),  # 1: it ran in the last round
    ]
)


class Rule(NamedTuple):
    """A policy, for the loop."""

    share: Any  # of a node that belongs to a GPU: 1, CPUs, GB
    give: int  # PROPORTIONAL, GREEDY or TUNE
    key: int  # FIXED, LEFT or ATTAINED
    fit: int  # FIRST, in order and GPU by GPU; else largest first, whole where possible
    round_s: float
    restart_s: float  # without progress, of a job that ran before
    within: bool  # a job ends within a round, not at its end


class Floor(NamedTuple):
    """The nodes in a round, and what the jobs that run hold: rows in order of placement."""

    free: Any  # node × (GPUs, CPUs, GB)
    held: Any  # row × node: GPUs
    grant: Any  # row × (GPUs, CPUs a GPU, GB a GPU, nodes)
    job: Any  # of each row


@njit(cache=True)
def _node(free: Any, gpus: int, cpus: float, memory: float, fit: int) -> int:
    """The node with room that the fit asks for; -1: none has room."""
    at = -1
    for n in range(free.shape[0]):
        has = free[n, CPUS] >= gpus * cpus - TOLERANCE and free[n, GB] >= gpus * memory - TOLERANCE
        if has and free[n, GPUS] >= gpus:
            if fit == FIRST:
                return n
            fewer = free[n, GPUS] < free[at, GPUS]
            more = free[n, CPUS] > free[at, CPUS]
            if at < 0 or (fewer if fit == BEST else more):
                at = n
    return at


@njit(cache=True)
def _take(floor: Floor, row: int, node: int, gpus: int, cpus: float, memory: float) -> None:
    """Count GPUs of a node, with CPUs and GB each, as held; a negative number gives them back."""
    floor.free[node, GPUS] -= gpus
    floor.free[node, CPUS] -= gpus * cpus
    floor.free[node, GB] -= gpus * memory
    floor.held[row, node] += gpus


@njit(cache=True)
def _put(floor: Floor, row: int, gpus: int, cpus: float, memory: float, fit: int) -> bool:
    """On one node, or GPU by GPU; whether there was room."""
    floor.held[row] = 0
    node = _node(floor.free, gpus, cpus, memory, fit) if fit != FIRST and gpus > 1 else -1
    if node >= 0:
        _take(floor, row, node, gpus, cpus, memory)
    for _ in range(gpus if node < 0 else 0):
        node = _node(floor.free, 1, cpus, memory, fit)
        if node < 0:
            for n in range(floor.free.shape[0]):
                if floor.held[row, n] > 0:
                    _take(floor, row, n, -floor.held[row, n], cpus, memory)
            return False
        _take(floor, row, node, 1, cpus, memory)
    floor.grant[row, GPUS] = gpus
    floor.grant[row, CPUS] = cpus
    floor.grant[row, GB] = memory
    floor.grant[row, NODES] = (floor.held[row] > 0).sum()
    return True


@njit(cache=True)
def _before(grant: Any, a: int, b: int) -> bool:
    """Who gives back first: jobs on fewer nodes, of more CPUs, of more memory a GPU."""
    mine = grant[a]
    other = grant[b]
    return bool((mine[NODES], other[CPUS], other[GB]) < (other[NODES], mine[CPUS], mine[GB]))


@njit(cache=True)
def _shrink(
    rule: Rule, jobs: Any, floor: Floor, rows: int, node: int, cpus: float, gb: float
) -> None:
    """Jobs of a node back to their shares, one by one, until so much is free there."""
    free = floor.free
    grant = floor.grant
    share = rule.share
    while free[node, CPUS] < cpus - TOLERANCE or free[node, GB] < gb - TOLERANCE:
        at = -1
        for row in range(rows):
            over = (
                grant[row, CPUS] > share[CPUS] + TOLERANCE or grant[row, GB] > share[GB] + TOLERANCE
            )
            if over and floor.held[row, node] > 0 and (at < 0 or _before(grant, row, at)):
                at = row
        if at < 0:
            return
        for n in range(free.shape[0]):
            free[n, CPUS] += floor.held[at, n] * (grant[at, CPUS] - share[CPUS])
            free[n, GB] += floor.held[at, n] * (grant[at, GB] - share[GB])
        grant[at, CPUS] = share[CPUS]
        grant[at, GB] = share[GB]
        jobs[floor.job[at]].speed = 1.0


@njit(cache=True)
def _make_room(
    rule: Rule, jobs: Any, floor: Floor, rows: int, gpus: int, cpus: float, gb: float
) -> None:
    """On the first node with all the GPUs, or else on those of fewest free GPUs."""
    free = floor.free.copy()
    for n in range(free.shape[0]):
        if gpus > 1 and free[n, GPUS] >= gpus:
            _shrink(rule, jobs, floor, rows, n, gpus * cpus, gpus * gb)
            return
    while gpus > 0:
        node = _node(free, 1, -1e18, -1e18, BEST)
        part = min(gpus, int(free[node, GPUS]))
        _shrink(rule, jobs, floor, rows, node, part * cpus, part * gb)
        gpus = gpus - part
        free[node, GPUS] = 0


@njit(cache=True)
def _grant(rule: Rule, jobs: Any, floor: Floor, rows: int, j: int) -> bool:
    """Nodes, CPUs and memory for a job whose GPUs are free, and its speed; False: it waits."""
    job = jobs[j]
    share = rule.share
    gpus = int(job.gpus)
    cpus = job.cpus
    gb = job.memory
    is_more = cpus > share[CPUS] + TOLERANCE or gb > share[GB] + TOLERANCE
    floor.job[rows] = j
    if rule.give != PROPORTIONAL and _put(floor, rows, gpus, cpus, gb, rule.fit):
        job.speed = job.full
        return True
    if rule.give == GREEDY:
        return False
    if is_more or rule.give == PROPORTIONAL:
        cpus = share[CPUS]
        gb = share[GB]
    job.speed = 1.0 if is_more or rule.give == PROPORTIONAL else job.full
    if _put(floor, rows, gpus, cpus, gb, rule.fit):
        return True
    _make_room(rule, jobs, floor, rows, gpus, cpus, gb)
    return _put(floor, rows, gpus, cpus, gb, rule.fit)


@njit(cache=True)
def place(rule: Rule, jobs: Any, queue: Any, floor: Floor) -> int:
    """Jobs in order, while their GPUs are free, get what the rule gives; how many run."""
    idle = int(floor.free[:, GPUS].sum())
    rows = 0
    chosen = np.zeros(queue.size, np.int64)
    for i in range(queue.size):
        jobs[queue[i]].speed = 0.0
    for i in range(queue.size):
        gpus = int(jobs[queue[i]].gpus)
        if idle >= gpus:
            if rule.give == GREEDY and not _grant(rule, jobs, floor, rows, queue[i]):
                continue
            chosen[rows] = queue[i]
            idle = idle - gpus
            rows = rows + 1
        if idle < 1:
            break
    if rule.give == GREEDY:
        return rows
    if rule.fit != FIRST:  # largest first: by GPUs, then CPUs, then memory; stable
        chosen = chosen[:rows]
        chosen = chosen[np.argsort(-jobs.memory[chosen], kind="mergesort")]
        chosen = chosen[np.argsort(-jobs.cpus[chosen], kind="mergesort")]
        chosen = chosen[np.argsort(-jobs.gpus[chosen], kind="mergesort")]
    for row in range(rows):
        _grant(rule, jobs, floor, row, chosen[row])
    return rows


@njit(cache=True)
def _later(jobs: Any, a: int, b: int) -> bool:
    """Whether a job comes after another in the queue."""
    return bool(jobs[a].key > jobs[b].key or (jobs[a].key == jobs[b].key and a > b))


@njit(cache=True)
def _sort(rule: Rule, jobs: Any, queue: Any) -> None:
    """By key, then by arrival; quick where little has changed."""
    for i in range(queue.size):
        job = jobs[queue[i]]
        if rule.key == LEFT:  # seconds at the speed it has, or hopes for
            job.key = job.left * job.weight / (job.speed if job.speed > 0 else job.full)
        else:
            job.key = job.weight if rule.key == FIXED else job.attained
    for i in range(1, queue.size):
        k = i
        j = queue[i]
        while k > 0 and _later(jobs, queue[k - 1], j):
            queue[k] = queue[k - 1]
            k -= 1
        queue[k] = j


@njit(cache=True)
def _advance(rule: Rule, job: Any, j: int, now: float, log: Any) -> bool:
    """One job's round; whether it is done."""
    runs = job.speed > 0
    after = now + rule.round_s
    if job.runs and not runs:
        log.append((float(j), job.since, now, float(job.gpus)))
        job.stops += 1
    elif runs and not job.runs:
        job.since = job.warm = now
        if np.isnan(job.start):
            job.start = now
        else:
            job.warm = now + rule.restart_s
    job.runs = runs
    if not runs:
        return False
    begin = min(max(now, job.warm), after)
    job.lost += begin - now
    job.attained += job.gpus * rule.round_s
    job.left -= job.speed * (after - begin)
    if job.left > job.speed * TOLERANCE_S:
        return False
    job.end = after + min(job.left / job.speed, 0.0) if rule.within else after
    log.append((float(j), job.since, job.end, float(job.gpus)))
    return True


@njit(cache=True, nogil=True)
def replay(rule: Rule, jobs: Any, nodes: Any) -> Any:
    """Run all jobs, in order of arrival: (job, start, end, GPUs) of their runs."""
    log = [(0.0, 0.0, 0.0, 0.0)]  # says what rows are
    most = int(nodes[:, GPUS].sum())
    held = np.zeros((most, nodes.shape[0]), np.int64)
    grant = np.zeros((most, 4))
    holder = np.zeros(most, np.int64)
    queue = np.zeros(jobs.size, np.int64)
    size = 0
    coming = 0
    now = 0.0
    rounds = 0
    while coming < jobs.size or size > 0:
        rounds += 1
        hear(rounds, 64)
        # 1. Skip to the round after the next arrival if nobody is there; who has come joins.
        if size == 0:
            now = max(now, np.ceil(jobs[coming].arrival / rule.round_s) * rule.round_s)
        while coming < jobs.size and jobs[coming].arrival <= now:
            queue[size] = coming
            size = size + 1
            coming = coming + 1
        # 2. All get nodes, CPUs and memory anew, in order of the queue.
        _sort(rule, jobs, queue[:size])
        place(rule, jobs, queue[:size], Floor(nodes.copy(), held, grant, holder))
        # 3. Work advances; jobs that are done leave.
        stay = 0
        for i in range(size):
            if not _advance(rule, jobs[queue[i]], queue[i], now, log):
                queue[stay] = queue[i]
                stay += 1
        size = stay
        now = now + rule.round_s
    return np.array(log)[1:]
