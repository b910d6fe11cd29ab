"""Compiled: the event loop of priority policies, a few functions of arrays of records.

At each time at which something happens, in this order:

1. jobs whose work is done end, by place in the trace, and free their GPUs;
2. jobs that arrive join the end of the queue, in the order of the trace;
3. running jobs whose attained service has reached a threshold fall to the end of the next queue,
   by place in the trace;
4. the queue is sorted (stable: equal jobs keep their order) and gone through once.

A node is where GPUs are counted. Under ``any`` placement a whole pool counts as one node.
Complexity: O(running + waiting jobs) an event, two events or more a job.

All compiled functions and their constants stand in this module, since numba's cache looks at a
function's own file only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from labkit.kit.compiled import hear, njit

# What the queue is ordered by, as ``policies.orders.ORDERS`` names it.
KEY, REMAINING, REMAINING_SERVICE, ATTAINED, ATTAINED_SERVICE = range(5)
# The status of a job. EVICTED: its GPUs were taken in this pass; it may still keep its own.
AHEAD, WAITING, RUNNING, EVICTED, DONE, NEVER = range(6)
# What a job waits for: columns of ``Run.waits_s``, as ``results.CAUSES`` names them.
CAPACITY, ORDER, FRAGMENTATION, PREEMPTED, ROUND = range(5)
# Slots of ``World.count``.
HEAD = 0  # where the queue begins in ``World.order``
TAIL = 1  # and where it ends
SORTED = 2  # up to where it is in order, if keys stand still
REMOVED = 3  # jobs in the queue that have left it
NUM_RUNNING = 4
NUM_EVICTED = 5  # in this pass
NUM_SEGMENTS = 6  # in the log
NUM_HELD = 7  # nodes of segments in the log
PASS = 8  # how often the queue was gone through
NUM_COUNTS = 9
TOLERANCE_S = 1e-6
"""Moments this near are one: far above what adding up times loses, far below any job's time."""


class World(NamedTuple):
    """Everything that changes, and the speeds. Records are those of ``loops.priorities``."""

    jobs: Any  # records of jobs, by place in the trace
    pools: Any  # records of pools
    nodes: Any  # records of nodes, pool after pool
    speed: Any  # row × pool; 0: such a job may not run there
    preference: Any  # row × pool: the pools, fastest first
    waited: Any  # job × cause: seconds
    order: Any  # the queue, from HEAD to before TAIL
    running: Any  # jobs that run, in no order
    ends: Any  # when each of them will be done
    falls: Any  # when each of them reaches its threshold
    held: Any  # (node, GPUs) of each job, from its ``held`` on
    scratch: Any  # (node, GPUs) chosen for a job
    misfit: Any  # row × GPUs: the last pass in which such a job did not fit
    count: Any  # numbers, at the slots HEAD to PASS


class Rule(NamedTuple):
    """A policy, for the loop."""

    order: int  # KEY to ATTAINED_SERVICE
    preemptive: bool  # a running job is stopped for one that comes before it
    blocks: bool  # the first job that does not fit keeps those behind it waiting
    thresholds: Any  # of attained time or service, rising
    ranks: Any  # of each queue, the least first; one more than thresholds
    late_demotion: bool  # jobs fall when Tiresias's simulator notices
    restart_s: float  # how long a job that was stopped holds GPUs without progress
    nodes_matter: bool  # placement is more than counting


class Log(NamedTuple):
    """Runs of jobs on GPUs, in order of their end; both arrays grow."""

    segments: Any  # records of runs
    held: Any  # (node, GPUs) of each run, from its ``held`` on


@njit(cache=True, nogil=True)
def _grown(array: Any, size: int) -> Any:
    if size <= array.size:
        return array
    larger = np.zeros(2 * size + 16, array.dtype)
    larger[: array.size] = array
    return larger


@njit(cache=True, nogil=True)
def _settle(w: World, log: Log, j: int, now: float, left: float) -> Log:
    """Close the run of a job that ends, stops or moves now; one of no length leaves no segment."""
    job = w.jobs[j]
    if now > job.since:
        row = w.count[NUM_SEGMENTS]
        at = w.count[NUM_HELD]
        log = Log(_grown(log.segments, row + 1), _grown(log.held, at + job.num_held))
        segment = log.segments[row]
        segment.job = j
        segment.start = job.since
        segment.end = now
        segment.pool = job.pool
        segment.held = at
        log.held[at : at + job.num_held] = w.held[job.held : job.held + job.num_held]
        w.count[NUM_SEGMENTS] += 1
        w.count[NUM_HELD] += job.num_held
    job.left = left
    job.attained += now - job.since
    job.lost += min(now, job.warm) - job.since
    job.since = now
    return log


@njit(cache=True, nogil=True)
def _give_back(w: World, j: int) -> None:
    """Free a job's GPUs; ``avail`` counts them already, or is filled before it is next read."""
    job = w.jobs[j]
    for k in range(job.held, job.held + job.num_held):
        w.nodes[w.held[k].node].free += w.held[k].gpus
    w.pools[job.pool].free += job.gpus
    w.count[NUM_RUNNING] -= 1
    last = w.running[w.count[NUM_RUNNING]]
    w.running[job.place] = last
    w.ends[job.place] = w.ends[w.count[NUM_RUNNING]]
    w.falls[job.place] = w.falls[w.count[NUM_RUNNING]]
    w.jobs[last].place = job.place


@njit(cache=True, nogil=True)
def _falls(rule: Rule, job: Any) -> float:
    """When a running job reaches its threshold."""
    if job.level >= rule.thresholds.size:
        return np.inf
    wide = job.gpus if rule.order == ATTAINED_SERVICE else 1
    return job.since + rule.thresholds[job.level] / wide - job.attained


@njit(cache=True, nogil=True)
def _take(w: World, rule: Rule, j: int) -> None:
    """Count a job's nodes as held by it."""
    job = w.jobs[j]
    for k in range(job.held, job.held + job.num_held):
        w.nodes[w.held[k].node].free -= w.held[k].gpus
    w.pools[job.pool].free -= job.gpus
    job.status = RUNNING
    job.waits = 0
    job.place = w.count[NUM_RUNNING]
    w.running[job.place] = j
    w.ends[job.place] = job.end
    w.falls[job.place] = _falls(rule, job)
    w.count[NUM_RUNNING] += 1


@njit(cache=True, nogil=True)
def _left(w: World, j: int, now: float) -> float:
    """Seconds of work a job has left, at speed 1."""
    job = w.jobs[j]
    if job.status == WAITING:
        return job.left
    return (job.end - max(now, job.warm)) * w.speed[job.row, job.pool]


@njit(cache=True, nogil=True)
def _end_runs(w: World, rule: Rule, log: Log, now: float) -> Log:
    """Event 1. Few jobs end at a time: the first in the trace, until none is left."""
    while True:
        j = -1
        for k in range(w.count[NUM_RUNNING]):
            if w.ends[k] <= now + TOLERANCE_S and (j < 0 or w.running[k] < j):
                j = w.running[k]
        if j < 0:
            return log
        w.jobs[j].end = now
        log = _settle(w, log, j, now, 0.0)
        _give_back(w, j)
        w.jobs[j].status = DONE
        w.count[REMOVED] += rule.preemptive


@njit(cache=True, nogil=True)
def _demote(w: World, rule: Rule, now: float) -> None:
    """Event 3: running jobs that reached their threshold go to the end of their next queue."""
    last = -1
    while True:
        j = -1
        for k in range(w.count[NUM_RUNNING]):
            other = w.running[k]
            if w.falls[k] <= now + TOLERANCE_S and other > last and (j < 0 or other < j):
                j = other
        if j < 0:
            return
        last = j
        job = w.jobs[j]
        job.level += 1
        job.waits = 1
        job.key = rule.ranks[job.level]
        w.falls[job.place] = _falls(rule, job)
        at = w.count[HEAD]
        while w.order[at] != j:
            at += 1
        tail = w.count[TAIL]
        w.order[at : tail - 1] = w.order[at + 1 : tail]
        w.order[tail - 1] = j


@njit(cache=True, nogil=True)
def _has_left(w: World, rule: Rule, j: int) -> bool:
    """Whether a job has left the queue: it is done, or runs and cannot be stopped."""
    status = w.jobs[j].status
    return status == DONE or (status == RUNNING and not rule.preemptive)


@njit(cache=True, nogil=True)
def _drop(w: World, rule: Rule) -> None:
    """Take out of the queue who has left it, at the head without moving the others."""
    while w.count[HEAD] < w.count[TAIL] and _has_left(w, rule, w.order[w.count[HEAD]]):
        w.count[HEAD] += 1
        w.count[REMOVED] -= 1
    if w.count[REMOVED] > 0:
        kept = w.count[HEAD]
        ordered = w.count[HEAD]
        for k in range(w.count[HEAD], w.count[TAIL]):
            if not _has_left(w, rule, w.order[k]):
                w.order[kept] = w.order[k]
                kept += 1
                ordered += k < w.count[SORTED]
        w.count[TAIL] = kept
        w.count[SORTED] = ordered
        w.count[REMOVED] = 0
    w.count[SORTED] = max(w.count[SORTED], w.count[HEAD])


@njit(cache=True, nogil=True)
def _sort(w: World, rule: Rule, now: float) -> None:
    """Put the queue in order: each job behind its equals. Only new jobs, where keys stand still."""
    head = w.count[HEAD]
    tail = w.count[TAIL]
    start = w.count[SORTED] if rule.order == KEY else head
    if rule.order == REMAINING or rule.order == REMAINING_SERVICE:
        for k in range(head, tail):
            job = w.jobs[w.order[k]]
            wide = job.gpus if rule.order == REMAINING_SERVICE else 1
            job.key = _left(w, w.order[k], now) * wide
    for k in range(max(start, head + 1), tail):
        j = w.order[k]
        key = w.jobs[j].key
        waits = w.jobs[j].waits
        at = k
        while at > head:
            other = w.jobs[w.order[at - 1]]
            if other.key < key or (
                other.key == key and (rule.thresholds.size == 0 or other.waits <= waits)
            ):
                break
            w.order[at] = w.order[at - 1]
            at -= 1
        w.order[at] = j
    w.count[SORTED] = tail


@njit(cache=True, nogil=True)
def _choose(w: World, of_avail: bool, p: int, gpus: int) -> int:
    """Nodes of a pool for so many GPUs, into the scratch: how many nodes, or 0 where none do.

    Whole nodes first, then the fullest node that holds the rest: as few nodes as can be.
    """
    pool = w.pools[p]
    whole = gpus // pool.size
    rest = gpus % pool.size
    num = 0
    best = -1
    least = pool.size + 1
    for n in range(pool.first, pool.last):
        capacity = w.nodes[n].avail if of_avail else w.nodes[n].free
        if num < whole and capacity == pool.size:
            w.scratch[num].node = n
            w.scratch[num].gpus = pool.size
            num += 1
        elif rest > 0 and rest <= capacity < least:
            best = n
            least = capacity
        if num == whole and (rest == 0 or least == rest):
            break
    if num < whole or (rest > 0 and best < 0):
        return 0
    if rest > 0:
        w.scratch[num].node = best
        w.scratch[num].gpus = rest
        num += 1
    return num


@njit(cache=True, nogil=True)
def _evict(w: World, node: int, gpus: int, after: int) -> None:
    """Take GPUs of a node from the running jobs that come last in the order."""
    at = w.count[TAIL] - 1
    while w.nodes[node].free < gpus and at > after:
        j = w.order[at]
        job = w.jobs[j]
        at -= 1
        if job.status != RUNNING:
            continue
        for slot in w.held[job.held : job.held + job.num_held]:
            if slot.node == node:
                job.status = EVICTED
                w.count[NUM_EVICTED] += 1
                _give_back(w, j)
                break


@njit(cache=True, nogil=True)
def _find(w: World, rule: Rule, j: int, at: int) -> tuple[int, int]:
    """The pool, and how many nodes of it are in the scratch, for a job; (-1, 0): it must wait.

    First GPUs that nobody holds; then, for a preemptive policy, those of jobs later in the order.
    """
    job = w.jobs[j]
    for stops_others in range(1 + rule.preemptive):
        for rank in range(w.pools.size):
            p = w.preference[job.row, rank]
            room = w.pools[p].avail if stops_others else w.pools[p].free
            if w.speed[job.row, p] > 0 and room >= job.gpus:
                num = _choose(w, stops_others == 1, p, job.gpus)
                if num > 0:
                    for k in range(num * stops_others):
                        _evict(w, w.scratch[k].node, w.scratch[k].gpus, at)
                    return p, num
    return -1, 0


@njit(cache=True, nogil=True)
def _start(w: World, rule: Rule, j: int, pool: int, num: int, now: float) -> None:
    """Begin a run on the nodes in the scratch."""
    job = w.jobs[j]
    w.held[job.held : job.held + num] = w.scratch[:num]
    w.waited[j, job.cause] += now - job.since
    job.num_held = num
    job.pool = pool
    job.since = now
    job.warm = now + (rule.restart_s if job.stops > 0 else 0.0)
    job.end = job.warm + job.left / w.speed[job.row, pool]
    if np.isnan(job.start):
        job.start = now
    _take(w, rule, j)
    w.count[REMOVED] += not rule.preemptive


@njit(cache=True, nogil=True)
def _stop(w: World, log: Log, j: int, now: float) -> Log:
    """Write down that the run of an evicted job is over."""
    log = _settle(w, log, j, now, _left(w, j, now))
    job = w.jobs[j]
    job.stops += 1
    job.status = WAITING
    job.waits = 1
    job.cause = PREEMPTED
    return log


@njit(cache=True, nogil=True)
def _blame(w: World, j: int, now: float) -> None:
    """Say why a job that does not fit waits, where it was for another reason until now."""
    job = w.jobs[j]
    cause = CAPACITY
    for p in range(w.pools.size):
        if w.speed[job.row, p] > 0 and w.pools[p].avail >= job.gpus:
            cause = FRAGMENTATION
    if job.cause != PREEMPTED and job.cause != cause:
        w.waited[j, job.cause] += now - job.since
        job.since = now
        job.cause = cause


@njit(cache=True, nogil=True)
def _fits_again(w: World, j: int) -> bool:
    """Whether a job evicted in this pass can keep its own nodes after all."""
    job = w.jobs[j]
    for slot in w.held[job.held : job.held + job.num_held]:
        if w.nodes[slot.node].free < slot.gpus:
            return False
    return True


@njit(cache=True, nogil=True)
def _offer_all(w: World, rule: Rule) -> int:
    """Before a pass, every GPU is to be had that no job holds, or that may be taken from one."""
    total = 0
    for pool in w.pools:
        nodes = w.nodes[pool.first : pool.last]
        pool.avail = nodes.size * pool.size if rule.preemptive else pool.free
        total += pool.avail
        for node in nodes:
            node.avail = pool.size if rule.preemptive else node.free
    return total


@njit(cache=True, nogil=True)
def _decide(w: World, rule: Rule, log: Log, now: float) -> Log:
    """Event 4: go through the queue; each job keeps, gets or waits for GPUs."""
    w.count[PASS] += 1
    total = _offer_all(w, rule)
    for at in range(w.count[HEAD], w.count[TAIL]):
        j = w.order[at]
        job = w.jobs[j]
        # a. Nothing is left to give.
        if total == 0 and not rule.nodes_matter:
            if rule.blocks:
                _blame(w, j, now)
            break
        # b. It keeps what it has; or one like it did not fit in this pass; or it gets GPUs.
        if job.status == RUNNING:
            job.waits = 0
        elif w.misfit[job.row, job.gpus] == w.count[PASS]:
            if rule.nodes_matter:
                _blame(w, j, now)
            continue
        elif job.status == EVICTED and _fits_again(w, j):
            _take(w, rule, j)
        else:
            pool, num = _find(w, rule, j, at)
            if pool < 0:
                w.misfit[job.row, job.gpus] = w.count[PASS]
                _blame(w, j, now)
                if rule.blocks:
                    break
                continue
            if job.status == EVICTED:
                log = _stop(w, log, j, now)
            _start(w, rule, j, pool, num, now)
        # c. What it holds is no longer to be had by those behind it.
        total -= job.gpus
        w.pools[job.pool].avail -= job.gpus
        for k in range(job.held, job.held + job.num_held):
            w.nodes[w.held[k].node].avail -= w.held[k].gpus
    return log


@njit(cache=True, nogil=True)
def _next(w: World, rule: Rule, arrived: int, now: float) -> tuple[float, float, float]:
    """When something happens next (infinite: never again), when a run ends, when a job falls."""
    arrival = np.inf
    if arrived < w.jobs.size:
        arrival = w.jobs[arrived].arrival
    end = np.inf
    fall = np.inf
    for k in range(w.count[NUM_RUNNING]):
        end = min(end, w.ends[k])
    if rule.thresholds.size > 0:
        for k in range(w.count[NUM_RUNNING]):
            due = w.falls[k]
            if rule.late_demotion and due < np.inf:
                job = w.jobs[w.running[k]]
                left = rule.thresholds[job.level] - (job.attained + now - job.since)
                due = now + max(np.ceil(left / job.gpus), 1.0)
            fall = min(fall, due)
    coming = min(end, fall)
    return arrival if arrival <= coming + TOLERANCE_S else coming, end, fall


@njit(cache=True, nogil=True)
def run(w: World, rule: Rule, log: Log) -> Log:
    """Run all jobs to their end; returns the log. The numbers are those of this module's events."""
    arrived = 0
    now = 0.0
    events = 0
    while True:
        events += 1
        hear(events, 256)
        now, end, fall = _next(w, rule, arrived, now)
        if now == np.inf:
            return log
        # 1. Jobs whose work is done end.
        if end <= now + TOLERANCE_S:
            log = _end_runs(w, rule, log, now)
        # 2. Jobs that arrive join the end of the queue; those that fit nowhere never do.
        while arrived < w.jobs.size and w.jobs[arrived].arrival == now:
            if w.jobs[arrived].status == AHEAD:
                w.jobs[arrived].status = WAITING
                w.order[w.count[TAIL]] = arrived
                w.count[TAIL] += 1
            arrived += 1
        # 3. Running jobs fall to their next queue.
        if fall <= now + TOLERANCE_S or rule.late_demotion:
            _demote(w, rule, now)
        # 4. The queue is sorted and gone through, unless nobody in it waits.
        _drop(w, rule)
        in_queue = w.count[TAIL] - w.count[HEAD]
        running_in_queue = w.count[NUM_RUNNING] if rule.preemptive else 0
        somebody_waits = in_queue > running_in_queue
        if somebody_waits or rule.order == REMAINING_SERVICE:  # which may change places meanwhile
            _sort(w, rule, now)
        if somebody_waits:
            log = _decide(w, rule, log, now)
        # Jobs whose GPUs were taken in this pass, and which did not get others, have stopped.
        if w.count[NUM_EVICTED] > 0:
            w.count[NUM_EVICTED] = 0
            for k in range(w.count[HEAD], w.count[TAIL]):
                if w.jobs[w.order[k]].status == EVICTED:
                    log = _stop(w, log, w.order[k], now)
