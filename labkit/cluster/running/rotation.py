"""The compiled loop of rounds that turns shares of time into jobs on GPUs.

Before each round, on every pool the entries (a job, or two jobs on one GPU) are sorted by the share
they are due over the time they had since the shares were computed; those first in order run for
the round. Equal entries go by their deficit, then by arrival. Entries that are due nothing fill
what is left, unless the policy is strict. At one moment: jobs that are done leave, arrivals join,
then shares are asked for where they are due, then the round is filled.

Complexity: O(entries + GPUs × log² entries) a round and pool.
Source: Gavel (OSDI'20) §5, Algorithm 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.kit.compiled import njit

JOB = np.dtype([
    ("arrival", "f8"), ("left", "f8"), ("gpus", "i8"), ("pool", "i8"), ("was", "i8"),
    ("since", "f8"), ("start", "f8"), ("end", "f8"), ("stops", "i8"),
    ("restart", "f8"), ("waited", "f8"), ("stopped", "f8"),  # seconds lost, and by cause of waiting
])  # fmt: skip
"""``pool`` of this round and ``was`` of the last one: -1 for none; ``left`` at speed 1."""
SEGMENT = np.dtype([("job", "i8"), ("start", "f8"), ("end", "f8"), ("pool", "i8"), ("gpus", "i8")])
SHARE, TIME, DEFICIT, FIRST, SECOND = range(5)
"""Layers of the table of entries: due share, seconds had, seconds owed, speeds of its two jobs."""
NOW, SINCE, CHANGED = range(3)
ARRIVED, ENTRIES, SEGMENTS, ROUNDS, WANTED, FROM, TO = range(7)


@njit(cache=True, nogil=True)
def _admit(jobs: Any, speed: Any, pairs: Any, table: Any, clock: Any, count: Any) -> None:
    """Jobs that are there become entries of one job, due nothing until shares are next computed."""
    while (
        count[ARRIVED] < jobs.size
        and count[ENTRIES] < len(pairs)
        and jobs[count[ARRIVED]].arrival <= clock[NOW]
    ):
        job, entry = count[ARRIVED], count[ENTRIES]
        pairs[entry, 0], pairs[entry, 1] = job, -1
        table[:, entry, :] = 0.0
        table[TIME, entry, :] = clock[3] / 2
        table[FIRST, entry, :] = speed[job]
        jobs[job].waited = clock[NOW] - jobs[job].arrival
        count[ARRIVED] += 1
        count[ENTRIES] += 1
        clock[CHANGED] = 1.0


@njit(cache=True, nogil=True)
def _is_ahead(a: int, b: int, due: Any, owed: Any) -> bool:
    """Whether one entry runs before another: by share due over time had, deficit, arrival."""
    if due[a] != due[b]:
        return due[a] > due[b]
    return owed[a] > owed[b] or (owed[a] == owed[b] and a < b)


@njit(cache=True, nogil=True)
def _sink(heap: Any, size: int, at: int, due: Any, owed: Any) -> None:
    """Move the entry at a place of a heap down until its children are ahead of it."""
    entry = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _is_ahead(heap[child], heap[child + 1], due, owed):
            child += 1
        if _is_ahead(heap[child], entry, due, owed):
            break
        heap[at], at = heap[child], child
    heap[at] = entry


@njit(cache=True, nogil=True)
def _next(heap: Any, most: int, behind: int, can: Any, due: Any, owed: Any) -> int:
    """Put the next entries in order that can run into ``heap``; returns how many, at most so many.

    The last of those kept so far is the heap's root: most of the others need one comparison.
    """
    size = 0
    for entry in range(can.size):
        if not can[entry] or (behind >= 0 and not _is_ahead(behind, entry, due, owed)):
            continue
        if size < most:
            heap[size] = entry
            size += 1
            if size == most:
                for at in range(size // 2 - 1, -1, -1):
                    _sink(heap, size, at, due, owed)
        elif _is_ahead(entry, heap[0], due, owed):
            heap[0] = entry
            _sink(heap, size, 0, due, owed)
    if size < most:
        for at in range(size // 2 - 1, -1, -1):
            _sink(heap, size, at, due, owed)
    for end in range(size - 1, 0, -1):
        heap[0], heap[end] = heap[end], heap[0]
        _sink(heap, end, 0, due, owed)
    return size


@njit(cache=True, nogil=True)
def _fill(jobs: Any, pairs: Any, table: Any, room: Any, order: Any, num: int, strict: bool) -> Any:
    """Which pool each entry runs in for the coming round, -1 for none; sets the jobs' pools."""
    where, heap, can = np.full(num, -1), np.empty(num + 1, np.int64), np.zeros(num, np.bool_)
    for entry in range(num):
        jobs[pairs[entry, 0]].pool = -1
    for p in order:
        due, owed = table[SHARE, :num, p] / table[TIME, :num, p], table[DEFICIT, :num, p].copy()
        for entry in range(num):
            is_able = table[FIRST, entry, p] > 0 and jobs[pairs[entry, 0]].pool < 0
            if pairs[entry, 1] >= 0:
                is_able &= table[SECOND, entry, p] > 0 and jobs[pairs[entry, 1]].pool < 0
            can[entry] = is_able and not (strict and due[entry] <= 0)
        free, last = room[p], -1
        while free > 0:
            size = _next(heap, min(2 * free, num), last, can, due, owed)
            for best in heap[:size]:
                a, b = pairs[best, 0], pairs[best, 1]
                if jobs[a].pool >= 0 or (b >= 0 and jobs[b].pool >= 0) or jobs[a].gpus > free:
                    continue
                free -= jobs[a].gpus
                where[best] = jobs[a].pool = p
                if b >= 0:
                    jobs[b].pool = p
            if size == 0:
                break
            last = heap[size - 1]
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
    row.job, row.start, row.end, row.pool, row.gpus = j, job.since, end, job.was, job.gpus
    count[SEGMENTS] += 1
    return segments


@njit(cache=True, nogil=True)
def _work(jobs: Any, j: int, speed: float, now: float, round_s: float, restart_s: float) -> float:
    """Let a job work for a round; returns the seconds it held its GPUs."""
    job = jobs[j]
    lost = restart_s if job.since == now and job.stops > 0 else 0.0
    lost = min(lost, round_s)
    job.restart += lost
    held = lost + job.left / speed
    if held <= round_s + 1e-6:
        job.left, job.end = 0.0, now + held
        return held
    job.left -= speed * (round_s - lost)
    return round_s


@njit(cache=True, nogil=True)
def _round(jobs: Any, pairs: Any, table: Any, where: Any, clock: Any, count: Any, log: Any) -> Any:
    """Run one round; close and open runs, count waiting, drop entries of jobs that are done."""
    now, round_s, restart_s, num = clock[NOW], clock[3], clock[4], count[ENTRIES]
    for entry in range(num):
        j = pairs[entry, 0]
        job = jobs[j]
        if pairs[entry, 1] >= 0 or job.pool == job.was:
            continue
        if job.was >= 0:
            log = _close(jobs, log, count, j, now)
            job.stops += 1
        if job.pool >= 0:
            job.since = now
            if job.start < 0:
                job.start = now
        job.was = job.pool
    longest = 0.0
    for entry in range(num):
        p = where[entry]
        if p >= 0:
            a, b = pairs[entry, 0], pairs[entry, 1]
            held = _work(jobs, a, table[FIRST, entry, p], now, round_s, restart_s)
            if b >= 0:
                second = _work(jobs, b, table[SECOND, entry, p], now, round_s, restart_s)
                held = max(held, second)
            table[TIME, entry, p] += held
            longest = max(longest, held)
    if longest == 0.0:  # a strict policy has computed no shares yet
        longest = round_s
    kept = 0
    for entry in range(num):
        a, b = pairs[entry, 0], pairs[entry, 1]
        if b < 0 and jobs[a].pool < 0:
            if jobs[a].start < 0:
                jobs[a].waited += longest
            else:
                jobs[a].stopped += longest
        if jobs[a].left > 0 and (b < 0 or jobs[b].left > 0):
            if kept < entry:
                pairs[kept] = pairs[entry]
                table[:, kept, :] = table[:, entry, :]
            kept += 1
        else:
            clock[CHANGED] = 1.0
            if b < 0:
                log = _close(jobs, log, count, a, jobs[a].end)
                count[WANTED] -= count[FROM] <= a < count[TO]
    count[ENTRIES] = kept
    count[ROUNDS] += 1
    clock[NOW] = now + longest
    return log


@njit(cache=True, nogil=True)
def run(
    jobs: Any, speed: Any, pairs: Any, table: Any, room: Any, orders: Any, clock: Any, count: Any,
    log: Any, strict: bool,
) -> tuple[Any, bool]:  # fmt: skip
    """Go on until shares must be computed (False) or the jobs waited for are done (True).

    ``count``: jobs that have come, entries, runs written down, rounds, jobs still waited for, and
    the first and last of those. ``clock``: now, when shares were last computed, whether jobs came
    or went since, seconds of a round, of a restart, and the least between two computations.
    """
    while count[WANTED] > 0:
        _admit(jobs, speed, pairs, table, clock, count)
        if count[ENTRIES] == 0:
            clock[NOW] = jobs[count[ARRIVED]].arrival
            continue
        is_full = count[ENTRIES] == len(pairs)
        if is_full or (clock[CHANGED] > 0 and clock[NOW] - clock[SINCE] >= clock[5]):
            return log, False
        order = orders[count[ROUNDS] % len(orders)]
        where = _fill(jobs, pairs, table, room, order, count[ENTRIES], strict)
        log = _round(jobs, pairs, table, where, clock, count, log)
    return log, True
