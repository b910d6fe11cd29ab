"""Event loops of one replica that generates tokens, compiled: by iteration and by request.

:func:`by_iteration` is Algorithm 1 of Orca, with chunks of prompts and pages of memory as options;
:mod:`labkit.serving.generation.plain` is the same loop in plain Python, for batchers of one's own.
A moment's events have one order: a batch returns, requests arrive, the next batch is selected.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.kit.compiled import hear, njit

# What a request does now.
WAITING = 0
IDLE = 1  # it has begun, and is in no batch
RUNNING = 2
DONE = 3

# What a request waited for when it was last passed over.
NOTHING = 0
BATCH = 1
MEMORY = 2

ENDLESS = 1 << 40
"""More tokens than any prompt has."""

REQUEST = np.dtype(
    [
        ("status", "i8"),  # WAITING, IDLE, RUNNING or DONE
        ("arrival", "f8"),
        ("prompt", "i8"),  # tokens it brings
        ("output", "i8"),  # tokens to generate for it
        ("reserve", "i8"),  # slots it takes when it begins, where memory is reserved
        ("need", "i8"),  # tokens to process before its next output
        ("cached", "i8"),  # tokens processed so far, whose keys and values are kept
        ("taken", "i8"),  # tokens of the iteration that runs
        ("blocks", "i8"),  # blocks held in the cache; where memory is reserved: whether it is
        ("made", "i8"),  # outputs so far
        ("last", "f8"),  # when its last output came
        ("stall", "f8"),  # the longest gap between two outputs
        ("start", "f8"),  # its first iteration
        ("first", "f8"),  # its first output
        ("end", "f8"),  # its last output
        ("cause", "i8"),  # NOTHING, BATCH or MEMORY
        ("preempted", "i8"),  # how often it lost its keys and values
        ("wasted", "i8"),  # iterations that gave it nothing
    ]
)
STATE = np.dtype(
    [
        ("active", "i8"),  # requests that have begun and not ended
        ("head", "i8"),  # the first request that waits
        ("used", "i8"),  # slots of keys and values that are held
        ("most", "i8"),  # slots held at once, at most
        ("in_flight", "i8"),  # batches in the pipeline
        ("finished", "i8"),  # requests that have ended
        ("iterations", "i8"),  # of the whole run
        ("sequences", "f8"),  # of all iterations
        ("busy", "f8"),  # seconds of all stages
        # Of the batch that is selected now:
        ("count", "i8"),  # its requests
        ("tokens", "i8"),  # tokens to process
        ("cached", "i8"),  # tokens cached for its requests
        ("prefill", "i8"),  # tokens of prompts that it may still take
    ]
)

Requests: TypeAlias = NDArray[Any]
"""Rows of :data:`REQUEST`, by arrival."""
Request: TypeAlias = Any
"""A row of :data:`REQUEST`; compiled code reads and writes its fields as attributes."""
State: TypeAlias = NDArray[Any]
"""An array of one :data:`STATE`: a record alone would not keep its memory alive."""
Places: TypeAlias = NDArray[np.int64]
"""Places of requests in :data:`Requests`."""
Seconds: TypeAlias = NDArray[np.float64]


class Costs(NamedTuple):
    """A :class:`~labkit.serving.generation.tokens.TokenProfile`, for the loops."""

    fixed_s: float
    weights_s: float
    token_s: float
    sequence_s: float
    cached_token_s: float
    stages: int
    slots: int


class Rule(NamedTuple):
    """A :class:`~labkit.serving.generation.batcher.Batcher`, for the loops."""

    max_batch: int
    chunk: int
    """Tokens of prompts in an iteration; 0: no limit."""
    block: int
    """Slots of a page; 0: memory is reserved."""
    microbatches: int
    longest: bool
    """Whether a batch's prompts are padded to the longest."""


class World(NamedTuple):
    """What the steps of :func:`by_iteration` share."""

    requests: Any
    active: Any
    """Places of the requests that have begun and not ended, in order of arrival."""
    state: Any


@njit(cache=True)
def _seconds(costs: Costs, tokens: int, sequences: int, cached: int) -> float:
    """Seconds of an iteration on one stage, as :meth:`TokenProfile.seconds` has them."""
    work = max(costs.weights_s, tokens * costs.token_s)
    rest = sequences * costs.sequence_s
    return costs.fixed_s + work + rest + cached * costs.cached_token_s


@njit(cache=True)
def _extra_slots(rule: Rule, request: Request, take: int) -> int:
    """Further slots a request must be given for ``take`` more tokens."""
    if rule.block == 0:
        return request.reserve if request.blocks == 0 else 0
    pages = -(-(request.cached + take) // rule.block)
    return max(0, pages - request.blocks) * rule.block


@njit(cache=True)
def _held_slots(rule: Rule, request: Request) -> int:
    if rule.block:
        return request.blocks * rule.block
    return request.reserve if request.blocks else 0


@njit(cache=True)
def _make_room(world: World, rule: Rule, slots: int, place: int, extra: int) -> bool:
    """Evict the latest idle requests after ``place`` until ``extra`` slots are free."""
    state = world.state[0]
    last = state.active - 1
    while state.used + extra > slots and last > place:
        victim = world.active[last]
        request = world.requests[victim]
        if request.status == IDLE:
            # 1. It gives its memory back, and will process its prompt and outputs again.
            state.used -= _held_slots(rule, request)
            request.status = WAITING
            request.blocks = 0
            request.cached = 0
            request.need = request.prompt + request.made
            request.preempted += 1
            # 2. It waits in its old place.
            world.active[last : state.active - 1] = world.active[last + 1 : state.active]
            state.active -= 1
            state.head = min(state.head, victim)
        last -= 1
    return state.used + extra <= slots


@njit(cache=True)
def _join(world: World, rule: Rule, batch: Places, number: int, take: int, extra: int) -> None:
    """Put a request into the batch that is being selected."""
    state = world.state[0]
    request = world.requests[number]
    if rule.block:
        request.blocks += extra // rule.block
    elif extra:
        request.blocks += 1
    request.taken = take
    request.status = RUNNING
    state.used += extra
    state.tokens += take
    state.cached += request.cached
    if request.need - request.cached > 1:  # it processes its prompt, not its last output alone
        state.prefill -= take
    batch[state.count] = number
    state.count += 1


@njit(cache=True)
def _go_on(world: World, rule: Rule, slots: int, batch: Places) -> None:
    """Select among the requests that have begun, first come first."""
    state = world.state[0]
    requests = world.requests
    active = world.active
    place = 0
    while place < state.active and state.count < rule.max_batch:
        request = requests[active[place]]
        if request.status == IDLE:
            left = request.need - request.cached
            take = min(left, state.prefill) if left > 1 else 1
            extra = _extra_slots(rule, request, take)
            if take > 0 and (
                state.used + extra <= slots or _make_room(world, rule, slots, place, extra)
            ):
                _join(world, rule, batch, active[place], take, extra)
        place += 1


@njit(cache=True)
def _begin(world: World, rule: Rule, slots: int, batch: Places, now: float) -> bool:
    """Add waiting requests, first come first; whether the first of them lacks memory."""
    state = world.state[0]
    while state.head < world.requests.size:
        request = world.requests[state.head]
        if request.status != WAITING:
            state.head += 1
            continue
        # 1. Nobody overtakes: the first that cannot begin ends the selection.
        if request.arrival > now or state.prefill <= 0:
            return False
        if state.count == rule.max_batch:
            request.cause = BATCH
            return False
        extra = _extra_slots(rule, request, request.need)
        if state.used + extra > slots:
            request.cause = MEMORY
            return True
        # 2. It joins the batch, and the active requests in its order of arrival.
        _join(world, rule, batch, state.head, min(request.need, state.prefill), extra)
        if np.isnan(request.start):
            request.start = now
        place = state.active
        while place > 0 and world.active[place - 1] > state.head:
            world.active[place] = world.active[place - 1]
            place -= 1
        world.active[place] = state.head
        state.active += 1
        state.head += 1
    return False


@njit(cache=True)
def _run(world: World, costs: Costs, free: Seconds, now: float) -> float:
    """Send the batch through the stages, which are ``free`` then; when it returns."""
    state = world.state[0]
    step = _seconds(costs, state.tokens, state.count, state.cached)
    moment = now
    for stage in range(costs.stages):
        moment = max(moment, free[stage]) + step
        free[stage] = moment
    state.iterations += 1
    state.in_flight += 1
    state.most = max(state.most, state.used)
    state.busy += step * costs.stages
    state.sequences += state.count
    return moment


@njit(cache=True)
def _return(world: World, rule: Rule, batch: Places, count: int, now: float) -> None:
    """A batch's iteration is over: outputs appear, the finished leave and give memory back."""
    state = world.state[0]
    requests = world.requests
    active = world.active
    ended = False
    for member in range(count):
        request = requests[batch[member]]
        request.cached += request.taken
        request.taken = 0
        request.status = IDLE
        if request.cached < request.need:
            continue  # more of its prompt is to come
        # 1. One output more, which the next iteration takes in.
        request.made += 1
        request.need = request.cached + 1
        if request.made == 1:
            request.first = now
        else:
            request.stall = max(request.stall, now - request.last)
        request.last = now
        # 2. The last output ends it.
        if request.made == request.output:
            request.end = now
            request.status = DONE
            ended = True
            state.used -= _held_slots(rule, request)
            state.finished += 1
    state.in_flight -= 1
    if ended:
        kept = 0
        for place in range(state.active):
            if requests[active[place]].status != DONE:
                active[kept] = active[place]
                kept += 1
        state.active = kept


@njit(cache=True)
def by_iteration(requests: Requests, costs: Costs, rule: Rule) -> State:
    """First come, first served by iteration; at most a batch a stage is in flight.

    Source: Algorithm 1 of Orca (OSDI'22).
    """
    world = World(requests, np.empty(requests.size, np.int64), np.zeros(1, STATE))
    state = world.state[0]
    oldest = 0
    now = requests[0].arrival
    batches = np.empty((costs.stages, rule.max_batch), np.int64)
    sizes = np.zeros(costs.stages, np.int64)
    returns = np.zeros(costs.stages)
    free = np.zeros(costs.stages)
    moments = 0
    while state.finished < requests.size:
        moments += 1
        hear(moments, 4096)
        coming = np.inf
        if state.in_flight < costs.stages:
            # 1. Select the next batch: who has begun goes on, then who waits begins.
            slot = (oldest + state.in_flight) % costs.stages
            state.count = 0
            state.tokens = 0
            state.cached = 0
            state.prefill = rule.chunk if rule.chunk else ENDLESS
            _go_on(world, rule, costs.slots, batches[slot])
            blocked = _begin(world, rule, costs.slots, batches[slot], now)
            # 2. Send it into the pipeline, and select again at the same moment.
            if state.count:
                sizes[slot] = state.count
                returns[slot] = _run(world, costs, free, now)
                continue
            # 3. No batch: the next request to arrive may change that, unless memory lacks.
            if not blocked and state.head < requests.size and requests[state.head].arrival > now:
                coming = requests[state.head].arrival
        # 4. Go to the next arrival, or to the return of the oldest batch.
        if state.in_flight == 0 or coming < returns[oldest]:
            now = coming
            continue
        now = max(now, returns[oldest])
        _return(world, rule, batches[oldest], sizes[oldest], now)
        oldest = (oldest + 1) % costs.stages
    return world.state


@njit(cache=True)
def by_request(requests: Requests, costs: Costs, rule: Rule) -> State:
    """A batch starts when the engine is idle, and all of it returns when its last request is done.

    The first iteration takes as many tokens of each prompt as the shortest has, and the rest one
    by one, or (``longest``) all prompts, padded. Microbatches share the stages; the padding and
    the finished requests are computed.
    """
    states = np.zeros(1, STATE)
    state = states[0]
    now = 0.0
    head = 0
    while head < requests.size:
        # 1. The batch: whoever waits when the engine is idle, as far as memory goes.
        now = max(now, requests[head].arrival)
        shortest = ENDLESS
        longest = 0
        size = 0
        used = 0
        while head + size < requests.size and size < rule.max_batch:
            request = requests[head + size]
            if request.arrival > now or used + request.reserve > costs.slots:
                break
            used += request.reserve
            shortest = min(shortest, request.prompt)
            longest = max(longest, request.prompt)
            size += 1
        # 2. Its iterations after the first: until the last request has all its outputs.
        base = longest if rule.longest else shortest
        steps = 0
        for request in requests[head : head + size]:
            prompt_steps = 0 if rule.longest else request.prompt - base
            steps = max(steps, request.output - 1 + prompt_steps)
        # 3. Its seconds: the microbatches go through the stages one after another.
        share = -(-size // min(rule.microbatches, size))
        parts = -(-size // share)
        first = _seconds(costs, share * max(base, 1), share, 0)
        cached = share * (steps * base + steps * (steps - 1) // 2)
        rest = steps * _seconds(costs, share, share, 0) + cached * costs.cached_token_s
        last = _seconds(costs, share, share, share * (base + steps)) if steps else first
        filled = max(parts, costs.stages) * (first + rest)
        end = now + filled + (min(parts, costs.stages) - 1) * last
        # 4. All of it returns at once.
        for request in requests[head : head + size]:
            request.start = now
            request.first = end
            request.end = end
            request.status = DONE
            request.wasted = steps + 1 - request.output
        state.iterations += (steps + 1) * parts
        state.sequences += (steps + 1) * size
        state.busy += parts * costs.stages * (first + rest)
        state.most = max(state.most, used)
        now = end
        head = head + size
    return states
