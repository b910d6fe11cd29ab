"""Algorithm 1 of Orca once more, as SimPy processes and plain Python: the oracle of the loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import simpy

from labkit import serving


@dataclass(eq=False)
class Request:
    """A request in the pool."""

    number: int
    prompt: int
    output: int
    cached: int = 0
    made: int = 0
    take: int = 0
    running: bool = False

    @property
    def prompt_left(self) -> int:
        return max(self.prompt - self.cached, 0)

    @property
    def slots(self) -> int:
        return self.prompt + self.output


class Orca:
    """A pool of requests, a scheduler and stages; reserved memory, prompts whole or in chunks."""

    def __init__(
        self, requests: serving.Requests, profile: serving.TokenProfile, batcher: serving.Batcher
    ) -> None:
        self.env = simpy.Environment()
        self.stages = [simpy.Resource(self.env, 1) for _ in range(profile.stages)]
        self.table = requests.frame()
        self.profile = profile
        self.batcher = batcher
        self.pool: list[Request] = []
        self.changed = self.env.event()
        self.reserved = 0
        self.scheduled = 0
        self.ends: dict[int, float] = {}

    def notify(self) -> None:
        self.changed.succeed()
        self.changed = self.env.event()

    def arrivals(self) -> Any:
        for number, row in enumerate(self.table.itertuples()):
            yield self.env.timeout(row.arrival_s - self.env.now)
            self.pool.append(Request(number, int(row.prompt_tokens), int(row.output_tokens)))
            self.notify()

    def iteration(self, batch: list[Request]) -> Any:
        """A batch goes through the stages; its outputs appear."""
        step = self.profile.seconds(
            tokens=sum(request.take for request in batch),
            sequences=len(batch),
            cached=sum(request.cached for request in batch),
        )
        for stage in self.stages:
            with stage.request() as turn:
                yield turn
                yield self.env.timeout(step)
        for request in batch:
            request.cached += request.take
            request.running = False
            request.made += request.cached >= request.prompt
            if request.made == request.output:
                self.ends[request.number] = self.env.now
                self.reserved -= request.slots
                self.pool.remove(request)
        self.scheduled -= 1
        self.notify()

    def select(self) -> list[Request]:
        """Algorithm 1's Select: by arrival, until the batch, a chunk or memory is full."""
        batch: list[Request] = []
        budget = self.batcher.chunk_tokens or 10**9
        waiting = [request for request in self.pool if not request.running]
        for request in sorted(waiting, key=lambda request: request.number):
            if len(batch) == self.batcher.max_batch:
                break
            request.take = min(max(request.prompt_left, 1), budget)
            if request.prompt_left and not request.take:
                if request.cached:
                    continue  # the rest of its prompt waits for a next chunk
                break  # who comes later begins later
            if request.prompt_left > 1:
                budget -= request.take
            if not request.cached:
                if self.reserved + request.slots > self.profile.slots:
                    break
                self.reserved += request.slots
            request.take = max(request.take, 1)
            batch.append(request)
        return batch

    def scheduler(self) -> Any:
        while len(self.ends) < len(self.table):
            batch = self.select() if self.scheduled < self.profile.stages else []
            if not batch:
                yield self.changed
                continue
            for request in batch:
                request.running = True
            self.scheduled += 1
            self.env.process(self.iteration(batch))


def by_iteration(
    requests: serving.Requests, profile: serving.TokenProfile, batcher: serving.Batcher
) -> list[float]:
    """When each request ends."""
    orca = Orca(requests, profile, batcher)
    orca.env.process(orca.arrivals())
    orca.env.run(orca.env.process(orca.scheduler()))
    return [orca.ends[number] for number in range(len(orca.table))]


def by_request(
    requests: serving.Requests, profile: serving.TokenProfile, batcher: serving.Batcher
) -> list[float]:
    """When each request ends: one microbatch, step by step."""
    rows = list(requests.frame().itertuples())
    now = 0.0
    ends = []
    while len(ends) < len(rows):
        now = max(now, rows[len(ends)].arrival_s)
        waiting = [row for row in rows[len(ends) :] if row.arrival_s <= now]
        batch = waiting[: batcher.max_batch]
        prompts = [row.prompt_tokens for row in batch]
        padded = batcher.prompts == "longest"
        length = max(prompts) if padded else min(prompts)
        left = [row.output_tokens + (0 if padded else row.prompt_tokens - length) for row in batch]
        tokens = len(batch) * length
        cached = 0
        while max(left) > 0:
            now += profile.stages * profile.seconds(
                tokens=tokens, sequences=len(batch), cached=cached
            )
            cached = len(batch) * length
            tokens = len(batch)
            length = length + 1
            left = [steps - 1 for steps in left]
        ends += [now] * len(batch)
    return ends
