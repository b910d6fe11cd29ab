"""The loop by iteration in plain Python, for batchers of one's own.

It does what :func:`labkit.serving.generation.loops.by_iteration` does, in the same order and to
the same bit, some two hundred times slower, and asks a :class:`Batching` for every batch.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from math import inf, isnan
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.serving.generation.batcher import Asked, Batching
from labkit.serving.generation.loops import BATCH, MEMORY, STATE
from labkit.serving.generation.tokens import TokenProfile

Batch = Sequence[tuple[Asked, int]]
"""Requests, and how many tokens of each an iteration processes."""


class Replica:
    """A model that generates tokens for the requests of a table.

    Attributes:
        table: rows of :data:`labkit.serving.generation.loops.REQUEST`; what becomes of each request
            is written there.
        pool: requests that have arrived, have not ended and are in no batch, by arrival.
        in_flight: batches in the pipeline, the oldest first, and when each returns.
    """

    def __init__(self, table: NDArray[Any], profile: TokenProfile, batching: Batching) -> None:
        self.table = table
        self.profile = profile
        self.batching = batching
        self.coming = deque(
            Asked(
                number=number,
                arrival_s=row["arrival"].item(),
                prompt_tokens=row["prompt"].item(),
                output_tokens=row["output"].item(),
                cached_tokens=row["prefix"].item(),
            )
            for number, row in enumerate(table)
        )
        self.pool: list[Asked] = []
        self.in_flight: deque[tuple[float, Batch]] = deque()
        self.free_s = [0.0] * profile.stages
        self.free_slots = profile.slots
        self.state = np.zeros(1, STATE)

    def run(self) -> NDArray[Any]:
        """Serve all requests; gives the counts of the run, a row of ``STATE``."""
        now = self.coming[0].arrival_s
        while self.coming or self.pool or self.in_flight:
            # 1. Who has arrived by now stands in the pool.
            while self.coming and self.coming[0].arrival_s <= now:
                insort(self.pool, self.coming.popleft(), key=attrgetter("number"))
            # 2. Send batches into the pipeline as long as it has room.
            if len(self.in_flight) < self.profile.stages and (batch := self.select()):
                self.send(batch, now)
                continue
            # 3. Go to the next arrival, or to the return of the oldest batch.
            arrives_s = self.coming[0].arrival_s if self.coming else inf
            returns_s = self.in_flight[0][0] if self.in_flight else inf
            if arrives_s == returns_s == inf:
                raise BadValue(
                    f"{type(self.batching).__name__}.select chose no request although nothing runs "
                    f"and {len(self.pool)} wait; valid: one of them or more, within the "
                    f"{self.profile.slots} slots of the profile"
                )
            if arrives_s < returns_s:
                now = arrives_s
            else:
                now = max(now, returns_s)
                self.take_back(self.in_flight.popleft()[1], now)
        return self.state

    def select(self) -> Batch:
        """The next batch, of requests that hold the memory they need for it."""
        if not self.pool:
            return []
        chosen = self.batching.select(tuple(self.pool), self.free_slots)
        batch = [(request, tokens) for request, tokens in chosen if tokens]
        self.check(chosen)
        for request, tokens in chosen:
            if not tokens:
                self.evict(request)
        for request, tokens in batch:
            needed = self.batching.slots(request, tokens)
            self.free_slots -= needed - request.held_slots
            request.held_slots = needed
        if self.free_slots < 0:
            raise BadValue(
                f"{type(self.batching).__name__}.select chose requests that need "
                f"{-self.free_slots} slots more than are free; valid: at most free_slots"
            )
        self.note_cause(batch)
        return batch

    def check(self, chosen: Batch) -> None:
        """Refuse a batch that cannot be, with a BadValue."""
        name = type(self.batching).__name__
        numbers = [request.number for request, _ in chosen]
        waiting = {request.number for request in self.pool}
        if len(set(numbers)) < len(numbers) or not waiting.issuperset(numbers):
            raise BadValue(
                f"{name}.select chose the requests {numbers}; valid: each of the pool's at most "
                "once"
            )
        for request, tokens in chosen:
            least = 0 if request.held_slots else 1
            if not least <= tokens <= request.left_tokens:
                raise BadValue(
                    f"{name}.select chose {tokens} tokens of request {request.number}; valid: "
                    f"from {least} to its left_tokens, {request.left_tokens}"
                )
        if sum(tokens > 0 for _, tokens in chosen) > self.batching.max_batch:
            raise BadValue(
                f"{name}.select chose {len(chosen)} requests; valid: at most max_batch, "
                f"{self.batching.max_batch}"
            )

    def evict(self, request: Asked) -> None:
        """A request gives its memory back, and will process its prompt and outputs again."""
        self.free_slots += request.held_slots
        request.held_slots = 0
        request.cached_tokens = self.table["prefix"][request.number].item()
        self.table["preempted"][request.number] += 1

    def note_cause(self, batch: Batch) -> None:
        """What the first request that waits was passed over for."""
        chosen = {request.number for request, _ in batch}
        for request in self.pool:
            if request.held_slots == 0 and request.number not in chosen:
                if len(batch) == self.batching.max_batch:
                    self.table["cause"][request.number] = BATCH
                elif self.batching.slots(request, request.left_tokens) > self.free_slots:
                    self.table["cause"][request.number] = MEMORY
                return

    def send(self, batch: Batch, now: float) -> None:
        """Send a batch through the stages, each when it is free."""
        state = self.state[0]
        step_s = self.profile.seconds(
            tokens=sum(tokens for _, tokens in batch),
            sequences=len(batch),
            cached=sum(request.cached_tokens for request, _ in batch),
        )
        moment = now
        for stage, free_s in enumerate(self.free_s):
            moment = max(moment, free_s) + step_s
            self.free_s[stage] = moment
        self.in_flight.append((moment, batch))
        for request, _ in batch:
            self.pool.remove(request)
            if isnan(self.table["start"][request.number]):
                self.table["start"][request.number] = now
        state["iterations"] += 1
        state["sequences"] += len(batch)
        state["busy"] += step_s * self.profile.stages
        state["most"] = max(state["most"], self.profile.slots - self.free_slots)

    def take_back(self, batch: Batch, now: float) -> None:
        """A batch's iteration is over: outputs appear, the finished give their memory back."""
        for request, tokens in batch:
            request.cached_tokens += tokens
            if request.left_tokens == 0:  # otherwise more of its prompt is to come
                self.put_out(request, now)
            if request.outputs < request.output_tokens:
                insort(self.pool, request, key=attrgetter("number"))
            else:
                self.free_slots += request.held_slots

    def put_out(self, request: Asked, now: float) -> None:
        """One output more of a request."""
        row = self.table[request.number]
        request.outputs += 1
        if request.outputs == 1:
            row["first"] = now
        else:
            row["stall"] = max(row["stall"], now - row["last"])
        row["last"] = now
        row["end"] = now
