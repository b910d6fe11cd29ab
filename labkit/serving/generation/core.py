"""Event loops of one replica that generates tokens, compiled: by iteration and by request.

A moment's events have one order: a batch returns, requests arrive, the next batch is selected.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from labkit.kit.compiled import njit

WAITING = 0
IDLE = 1
RUNNING = 2
DONE = 3
NOTHING = 0
BATCH = 1
MEMORY = 2  # what a request waited for when it was last passed over
REQUEST = np.dtype(
    [
        ("status", "i8"),
        ("need", "i8"),
        ("cached", "i8"),
        ("taken", "i8"),
        ("blocks", "i8"),
        ("made", "i8"),
        ("output", "i8"),
        ("last", "f8"),
        ("stall", "f8"),  # of every iteration
        ("arrival", "f8"),
        ("prompt", "i8"),
        ("reserve", "i8"),
        ("start", "f8"),
        ("first", "f8"),
        ("end", "f8"),
        ("cause", "i8"),
        ("preempted", "i8"),
        ("wasted", "i8"),
    ]
)
"""need: tokens to process before the next output; made: outputs so far; taken: tokens of the
iteration that runs; blocks: held in the cache; stall: the longest gap between two outputs."""
STATE = np.dtype(
    [
        ("active", "i8"),
        ("head", "i8"),
        ("used", "i8"),
        ("in_flight", "i8"),
        ("finished", "i8"),
        ("iterations", "i8"),
        ("busy", "f8"),
        ("sequences", "f8"),
        ("most", "i8"),
        ("count", "i8"),
        ("tokens", "i8"),
        ("cached", "i8"),
        ("prefill", "i8"),
    ]
)
"""head: the first request that waits; used: slots, ``most`` at once; busy: seconds of all stages;
sequences: of all iterations; the last row: of the batch that is selected, ``prefill`` being the
tokens of prompts that it may still take."""
Costs = namedtuple("Costs", "fixed_s weights_s token_s sequence_s cached_token_s stages slots")
"""A profile, for the loops."""
Rule = namedtuple("Rule", "max_batch chunk block microbatches longest")
"""A batcher, for the loops; ``chunk`` and ``block`` are 0 where there are none."""


class World(NamedTuple):
    """The requests, those that have begun and not ended in order of arrival, and the counts.

    ``state`` is an array of one: a record alone would not keep its memory alive.
    """

    requests: Any
    active: Any
    state: Any


@njit(cache=True)
def _seconds(c: Costs, tokens: int, sequences: int, cached: int) -> float:
    work = max(c.weights_s, tokens * c.token_s)
    return c.fixed_s + work + sequences * c.sequence_s + cached * c.cached_token_s


@njit(cache=True)
def _room(rule: Rule, r: Any, take: int) -> int:
    """Further slots a request must be given for ``take`` more tokens."""
    if rule.block == 0:
        return r.reserve if r.blocks == 0 else 0
    return max(0, -(-(r.cached + take) // rule.block) - r.blocks) * rule.block


@njit(cache=True)
def _held(rule: Rule, r: Any) -> int:
    return r.blocks * rule.block if rule.block else (r.reserve if r.blocks else 0)


@njit(cache=True)
def _make_room(w: World, rule: Rule, slots: int, place: int, extra: int) -> bool:
    """Evict the latest idle requests after ``place`` until ``extra`` slots are free."""
    s = w.state[0]
    last = s.active - 1
    while s.used + extra > slots and last > place:
        j = w.active[last]
        r = w.requests[j]
        if r.status == IDLE:
            s.used -= _held(rule, r)
            r.status = WAITING
            r.blocks = 0
            r.cached = 0
            r.need = r.prompt + r.made
            r.preempted += 1
            w.active[last : s.active - 1] = w.active[last + 1 : s.active]
            s.active -= 1
            s.head = min(s.head, j)
        last -= 1
    return s.used + extra <= slots


@njit(cache=True)
def _join(w: World, rule: Rule, batch: Any, j: int, take: int, extra: int) -> None:
    """Put a request into the batch that is being selected."""
    s = w.state[0]
    r = w.requests[j]
    r.blocks += extra // rule.block if rule.block else (1 if extra else 0)
    r.taken = take
    r.status = RUNNING
    s.used += extra
    s.tokens += take
    s.cached += r.cached
    s.prefill -= take if r.need - r.cached > 1 else 0
    batch[s.count] = j
    s.count += 1


@njit(cache=True)
def _go_on(w: World, rule: Rule, slots: int, batch: Any) -> None:
    """Select among the requests that have begun, first come first."""
    s = w.state[0]
    place = 0
    requests = w.requests
    active = w.active
    while place < s.active and s.count < rule.max_batch:
        r = requests[active[place]]
        if r.status == IDLE:
            left = r.need - r.cached
            take = min(left, s.prefill) if left > 1 else 1
            extra = _room(rule, r, take)
            if take > 0 and (s.used + extra <= slots or _make_room(w, rule, slots, place, extra)):
                _join(w, rule, batch, active[place], take, extra)
        place += 1


@njit(cache=True)
def _begin(w: World, rule: Rule, slots: int, batch: Any, now: float) -> bool:
    """Add waiting requests, first come first; whether the first of them lacks memory."""
    s = w.state[0]
    while s.head < w.requests.size:
        r = w.requests[s.head]
        if r.status != WAITING:
            s.head += 1
            continue
        if r.arrival > now or s.prefill <= 0:
            return False
        if s.count == rule.max_batch:
            r.cause = BATCH
            return False
        extra = _room(rule, r, r.need)
        if s.used + extra > slots:
            r.cause = MEMORY
            return True
        _join(w, rule, batch, s.head, min(r.need, s.prefill), extra)
        if np.isnan(r.start):
            r.start = now
        place = s.active
        while place > 0 and w.active[place - 1] > s.head:
            w.active[place] = w.active[place - 1]
            place -= 1
        w.active[place] = s.head
        s.active += 1
        s.head += 1
    return False


@njit(cache=True)
def _run(w: World, c: Costs, free: Any, now: float) -> float:
    """Send the batch through the stages; when it returns."""
    s = w.state[0]
    step = _seconds(c, s.tokens, s.count, s.cached)
    at = now
    for stage in range(c.stages):
        at = max(at, free[stage]) + step
        free[stage] = at
    s.iterations += 1
    s.in_flight += 1
    s.most = max(s.most, s.used)
    s.busy += step * c.stages
    s.sequences += s.count
    return at


@njit(cache=True)
def _return(w: World, rule: Rule, batch: Any, count: int, now: float) -> None:
    """A batch's iteration is over: outputs appear, the finished leave and give memory back."""
    s = w.state[0]
    ended = False
    requests = w.requests
    active = w.active
    for m in range(count):
        r = requests[batch[m]]
        r.cached += r.taken
        r.taken = 0
        r.status = IDLE
        if r.cached < r.need:
            continue  # more of its prompt is to come
        r.made += 1
        r.need = r.cached + 1
        if r.made == 1:
            r.first = now
        else:
            r.stall = max(r.stall, now - r.last)
        r.last = now
        if r.made == r.output:
            r.end = now
            r.status = DONE
            ended = True
            s.used -= _held(rule, r)
            s.finished += 1
    s.in_flight -= 1
    if ended:
        kept = 0
        for place in range(s.active):
            if requests[active[place]].status != DONE:
                active[kept] = active[place]
                kept += 1
        s.active = kept


@njit(cache=True)
def by_iteration(requests: Any, c: Costs, rule: Rule) -> Any:
    """Orca's Algorithm 1: FCFS by iteration; ``stages`` batches are in flight at most."""
    w = World(requests, np.empty(requests.size, np.int64), np.zeros(1, STATE))
    s = w.state[0]
    oldest = 0
    now = requests[0].arrival
    batches = np.empty((c.stages, rule.max_batch), np.int64)
    sizes = np.zeros(c.stages, np.int64)
    returns = np.zeros(c.stages)
    free = np.zeros(c.stages)
    while s.finished < requests.size:
        coming = np.inf
        if s.in_flight < c.stages:
            slot = (oldest + s.in_flight) % c.stages
            s.count = 0
            s.tokens = 0
            s.cached = 0
            s.prefill = rule.chunk if rule.chunk else 1 << 40
            _go_on(w, rule, c.slots, batches[slot])
            blocked = _begin(w, rule, c.slots, batches[slot], now)
            if s.count:
                sizes[slot] = s.count
                returns[slot] = _run(w, c, free, now)
                continue
            if not blocked and s.head < requests.size and requests[s.head].arrival > now:
                coming = requests[s.head].arrival
        if s.in_flight == 0 or coming < returns[oldest]:
            now = coming
            continue
        now = max(now, returns[oldest])
        _return(w, rule, batches[oldest], sizes[oldest], now)
        oldest = (oldest + 1) % c.stages
    return w.state


@njit(cache=True)
def by_request(requests: Any, c: Costs, rule: Rule) -> Any:
    """A batch starts when the engine is idle, and all of it returns when its last request is done.

    The first iteration takes as many tokens of each prompt as the shortest has, and the rest one
    by one, or (``longest``) all prompts, padded. Microbatches share the stages; the padding and
    the finished requests are computed.
    """
    state = np.zeros(1, STATE)
    now = 0.0
    head = 0
    s = state[0]
    while head < requests.size:
        now = max(now, requests[head].arrival)
        low = 1 << 40
        high = 0
        steps = 0
        size = 0
        used = 0
        while head + size < requests.size and size < rule.max_batch:
            r = requests[head + size]
            if r.arrival > now or used + r.reserve > c.slots:
                break
            used += r.reserve
            low = min(low, r.prompt)
            high = max(high, r.prompt)
            size += 1
        base = high if rule.longest else low
        for r in requests[head : head + size]:
            steps = max(steps, r.output - 1 + (0 if rule.longest else r.prompt - base))
        share = -(-size // min(rule.microbatches, size))
        parts = -(-size // share)
        first = _seconds(c, share * max(base, 1), share, 0)
        cached = share * (steps * base + steps * (steps - 1) // 2)
        rest = steps * _seconds(c, share, share, 0) + cached * c.cached_token_s
        last = _seconds(c, share, share, share * (base + steps)) if steps else first
        end = now + max(parts, c.stages) * (first + rest) + (min(parts, c.stages) - 1) * last
        for r in requests[head : head + size]:
            r.start = now
            r.first = end
            r.end = end
            r.status = DONE
            r.wasted = steps + 1 - r.output
        s.iterations += (steps + 1) * parts
        s.sequences += (steps + 1) * size
        s.busy += parts * c.stages * (first + rest)
        s.most = max(s.most, used)
        now = end
        head = head + size
    return state
