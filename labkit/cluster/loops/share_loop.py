"""Compiled: rounds that turn shares of time into jobs on GPUs.

Before each round, on every pool the entries (a job, or two jobs on one GPU) are sorted by the share
they are due over the time they had since the shares were computed; those first in order run for
the round. Equal entries go by their deficit, then by arrival. Entries that are due nothing fill
what is left, unless the policy is strict. At one moment: jobs that are done leave, arrivals join,
then shares are asked for where they are due, then the round is filled.

Complexity: O(entries + GPUs × log entries) a round and pool, as an average.
Source: Gavel (OSDI'20) §5, Algorithm 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.kit.compiled import hear, njit

# Layers of the table of entries: layer × entry × pool.
SHARE = 0  # of its time that the entry is due on the pool
TIME = 1  # seconds that it had there since shares were computed, and its head start
DEFICIT = 2  # seconds that it was owed there when shares were computed
FIRST = 3  # speed of its first job
SECOND = 4  # and of its second
NUM_LAYERS = 5
# Slots of ``clock``, in seconds.
NOW = 0
SINCE = 1  # when shares were last computed
CHANGED = 2  # 1 if jobs came or went since; else 0
ROUND_S = 3  # of a round
RESTART_S = 4  # without progress of a job that was stopped or moved
RESET_S = 5  # between two computations of shares, at least
NUM_CLOCKS = 6
# Slots of ``count``.
ARRIVED = 0  # jobs that have come
ENTRIES = 1  # rows of pairs in use
SEGMENTS = 2  # runs written down
ROUNDS = 3
WANTED = 4  # jobs still waited for
FROM = 5  # the first of them, by place in the trace
TO = 6  # and the job behind the last
NUM_COUNTS = 7
HEAD_START_ROUNDS = 0.5
"""Rounds that count as had when shares are computed, so that share over time had is defined."""
TOLERANCE_S = 1e-6
"""A job that needs no longer than this after a round's end has ended in it."""


@njit(cache=True, nogil=True)
def _admit(jobs: Any, speed: Any, pairs: Any, table: Any, clock: Any, count: Any) -> None:
    """Jobs that are there become entries of one job, due nothing until shares are next computed."""
    while (
        count[ARRIVED] < jobs.size
        and count[ENTRIES] < len(pairs)
        and jobs[count[ARRIVED]].arrival <= clock[NOW]
    ):
        job = count[ARRIVED]
        entry = count[ENTRIES]
        pairs[entry, 0] = job
        pairs[entry, 1] = -1
        table[:, entry, :] = 0.0
        table[TIME, entry, :] = HEAD_START_ROUNDS * clock[ROUND_S]
        table[FIRST, entry, :] = speed[job]
        jobs[job].waited = clock[NOW] - jobs[job].arrival
        count[ARRIVED] += 1
        count[ENTRIES] += 1
        clock[CHANGED] = 1.0


@njit(cache=True, nogil=True)
def _is_ahead(a: int, b: int, due: Any, owed: Any) -> bool:
    """Whether one entry runs before another: by share due over time had, deficit, arrival."""
    is_alike = due[a] == due[b]  # no branches: which comparison decides cannot be predicted
    by_deficit = (owed[a] > owed[b]) | ((owed[a] == owed[b]) & (a < b))
    return (due[a] > due[b]) | (is_alike & by_deficit)


@njit(cache=True, nogil=True)
def _settle(rows: Any, first: int, ends: Any, depth: int, due: Any, owed: Any) -> int:
    """Put the foremost of the rows from ``first`` on in its place (incremental quicksort).

    Rows before each of ``ends``, down to ``depth``, are ahead of those after it; returns the depth.
    """
    while ends[depth] <= first:
        depth -= 1
    while ends[depth] > first + 1:
        ahead = first
        last = ends[depth] - 1
        middle = (ahead + last) // 2
        pivot = rows[middle]
        rows[middle] = rows[last]
        rows[last] = pivot
        for at in range(first, last):
            row = rows[at]
            rows[at] = rows[ahead]
            rows[ahead] = row
            ahead += _is_ahead(row, pivot, due, owed)
        rows[ahead], rows[last] = pivot, rows[ahead]
        depth += 1
        ends[depth] = max(ahead, first + 1)
    return depth


@njit(cache=True, nogil=True)
def _fill(jobs: Any, pairs: Any, table: Any, room: Any, order: Any, num: int, strict: bool) -> Any:
    """Which pool each entry runs in for the coming round, -1 for none; sets the jobs' pools."""
    where = np.full(num, -1)
    rows = np.empty(num, np.int64)
    due = np.empty(num)
    ends = np.empty(num + 1, np.int64)
    owed = np.empty(num)
    for entry in range(num):
        jobs[pairs[entry, 0]].pool = -1
    for p in order:
        # 1. The entries that can run on the pool, and whose jobs have no pool yet.
        size = 0
        for entry in range(num):
            is_able = table[FIRST, entry, p] > 0 and jobs[pairs[entry, 0]].pool < 0
            if pairs[entry, 1] >= 0:
                is_able &= table[SECOND, entry, p] > 0 and jobs[pairs[entry, 1]].pool < 0
            due[entry] = table[SHARE, entry, p] / table[TIME, entry, p]
            owed[entry] = table[DEFICIT, entry, p]
            if is_able and not (strict and due[entry] <= 0):
                rows[size] = entry
                size += 1
        # 2. The foremost of them run while there are GPUs; only those are ever sorted.
        free = room[p]
        first = 0
        depth = 0
        ends[0] = size
        while free > 0 and first < size:
            depth = _settle(rows, first, ends, depth, due, owed)
            best = rows[first]
            a = pairs[best, 0]
            b = pairs[best, 1]
            first += 1
            if jobs[a].pool >= 0 or (b >= 0 and jobs[b].pool >= 0) or jobs[a].gpus > free:
                continue
            free -= jobs[a].gpus
            where[best] = jobs[a].pool = p
            if b >= 0:
                jobs[b].pool = p
    return where


@njit(cache=True, nogil=True)
def _close(jobs: Any, segments: Any, count: Any, j: int, end: float) -> Any:
    """Write down the run of a job that stops, moves or ends, unless there is no place for any."""
    if segments.size == 0:
        return segments
    job = jobs[j]
    if count[SEGMENTS] == segments.size:
        larger = np.zeros(2 * segments.size, segments.dtype)
        larger[: segments.size] = segments
        segments = larger
    row = segments[count[SEGMENTS]]
    row.job = j
    row.start = job.since
    row.end = end
    row.pool = job.was
    row.gpus = job.gpus
    count[SEGMENTS] += 1
    return segments


@njit(cache=True, nogil=True)
def _work(jobs: Any, j: int, speed: float, now: float, round_s: float, restart_s: float) -> float:
    """Let a job work for a round; returns the seconds it held its GPUs."""
    job = jobs[j]
    lost = restart_s if job.since == now and job.stops > 0 else 0.0
    lost = min(lost, round_s)
    job.lost += lost
    held = lost + job.left / speed
    if held <= round_s + TOLERANCE_S:
        job.left = 0.0
        job.end = now + held
        return held
    job.left -= speed * (round_s - lost)
    return round_s


@njit(cache=True, nogil=True)
def _change_pools(jobs: Any, pairs: Any, clock: Any, count: Any, log: Any) -> Any:
    """Close the runs of jobs that stop or move, and begin those of jobs that start or move."""
    now = clock[NOW]
    for entry in range(count[ENTRIES]):
        j = pairs[entry, 0]
        job = jobs[j]
        if pairs[entry, 1] >= 0 or job.pool == job.was:
            continue
        if job.was >= 0:
            log = _close(jobs, log, count, j, now)
            job.stops += 1
        if job.pool >= 0:
            job.since = now
            if np.isnan(job.start):
                job.start = now
        job.was = job.pool
    return log


@njit(cache=True, nogil=True)
def _work_all(jobs: Any, pairs: Any, table: Any, where: Any, clock: Any, count: Any) -> float:
    """Let the entries that have a pool work; returns the longest that one held its GPUs."""
    longest = 0.0
    for entry in range(count[ENTRIES]):
        p = where[entry]
        if p < 0:
            continue
        a = pairs[entry, 0]
        b = pairs[entry, 1]
        speed = table[FIRST, entry, p]
        held = _work(jobs, a, speed, clock[NOW], clock[ROUND_S], clock[RESTART_S])
        if b >= 0:
            speed = table[SECOND, entry, p]
            second = _work(jobs, b, speed, clock[NOW], clock[ROUND_S], clock[RESTART_S])
            held = max(held, second)
        table[TIME, entry, p] += held
        longest = max(longest, held)
    return longest


@njit(cache=True, nogil=True)
def _drop_done(
    jobs: Any, pairs: Any, table: Any, clock: Any, count: Any, log: Any, longest: float
) -> Any:
    """Count who waited in the round; take out the entries of jobs that are done."""
    kept = 0
    for entry in range(count[ENTRIES]):
        a = pairs[entry, 0]
        b = pairs[entry, 1]
        if b < 0 and jobs[a].pool < 0:
            if np.isnan(jobs[a].start):
                jobs[a].waited += longest
            else:
                jobs[a].stopped += longest
        if jobs[a].left > 0 and (b < 0 or jobs[b].left > 0):
            if kept < entry:
                pairs[kept] = a, b
                for layer, pool in np.ndindex(len(table), table.shape[2]):
                    table[layer, kept, pool] = table[layer, entry, pool]
            kept += 1
        else:
            clock[CHANGED] = 1.0
            if b < 0:
                log = _close(jobs, log, count, a, jobs[a].end)
                count[WANTED] -= count[FROM] <= a < count[TO]
    count[ENTRIES] = kept
    return log


@njit(cache=True, nogil=True)
def _round(jobs: Any, pairs: Any, table: Any, where: Any, clock: Any, count: Any, log: Any) -> Any:
    """Run one round on the pools that entries were given."""
    # 1. Jobs that stop, start or move.
    log = _change_pools(jobs, pairs, clock, count, log)
    # 2. Work; a round in which all entries end is as long as the last of them needs.
    longest = _work_all(jobs, pairs, table, where, clock, count)
    if longest == 0.0:  # a strict policy has computed no shares yet
        longest = clock[ROUND_S]
    # 3. Jobs that wait, and jobs that are done.
    log = _drop_done(jobs, pairs, table, clock, count, log, longest)
    count[ROUNDS] += 1
    clock[NOW] += longest
    return log


@njit(cache=True, nogil=True)
def run(
    jobs: Any,
    speed: Any,
    pairs: Any,
    table: Any,
    room: Any,
    orders: Any,
    clock: Any,
    count: Any,
    log: Any,
    strict: bool,
) -> tuple[Any, bool]:
    """Go on until shares must be computed (False) or the jobs waited for are done (True).

    ``pairs``: the jobs of each entry, -1 for no second; ``room``: GPUs of each pool; ``orders``: of
    pools, a row a round, in a cycle. The other arrays are said above.
    """
    while count[WANTED] > 0:
        hear(count[ROUNDS], 256)
        # 1. Jobs that have come join; with nobody there, the next one's arrival is now.
        _admit(jobs, speed, pairs, table, clock, count)
        if count[ENTRIES] == 0:
            clock[NOW] = jobs[count[ARRIVED]].arrival
            continue
        # 2. Shares are due, if no entry is left or jobs came or went long enough ago.
        is_full = count[ENTRIES] == len(pairs)
        if is_full or (clock[CHANGED] > 0 and clock[NOW] - clock[SINCE] >= clock[RESET_S]):
            return log, False
        # 3. A round.
        order = orders[count[ROUNDS] % len(orders)]
        where = _fill(jobs, pairs, table, room, order, count[ENTRIES], strict)
        log = _round(jobs, pairs, table, where, clock, count, log)
    return log, True
