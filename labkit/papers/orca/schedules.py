"""Who is in a batch: Orca's schedule and its nearest rivals, on one engine.

Source: Yu et al., Orca (OSDI'22), §3.1 and §6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from labkit.serving.generation.batcher import Asked, Batcher, Batching

RESERVED_TOKENS = 2048
"""What the paper's baseline reserves for each request (§6.1)."""


class Schedule(StrEnum):
    """Who may be in a batch, and when that may change."""

    ORCA = "Orca"
    NOBODY_JOINS = "Orca without joining"
    ALONE = "one by one"
    BY_REQUEST = "by request"

    def batcher(self, max_batch: int) -> Batcher | Batching:
        """The schedule with batches of up to so many requests.

        ``ALONE`` has one in any case, and a batch of one is joined by nobody under any schedule.

        >>> Schedule.ALONE.batcher(32).max_batch
        1
        """
        if self is Schedule.BY_REQUEST:
            return by_request(max_batch)
        if self is Schedule.ALONE or max_batch == 1:
            return Batcher(max_batch=1)
        return (
            NobodyJoins(max_batch)
            if self is Schedule.NOBODY_JOINS
            else Batcher(max_batch=max_batch)
        )


def by_request(max_batch: int, *, microbatches: int = 1) -> Batcher:
    """The paper's baseline: a batch of FasterTransformer stays together (§6.1).

    Args:
        max_batch: most requests of a batch.
        microbatches: parts of it that share the pipeline's stages.
    """
    return Batcher(
        level="request",
        max_batch=max_batch,
        reserve_tokens=RESERVED_TOKENS,
        microbatches=microbatches,
    )


class NobodyJoins:
    """Orca's engine and memory, with a schedule by request: a batch takes nobody in.

    Requests leave as soon as they are done. Those that wait form the next batch once all of this
    one are done.

    Args:
        max_batch: most requests of a batch.
    """

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch

    def slots(self, request: Asked, tokens: int) -> int:
        """Slots for the request's whole length, from its first iteration on."""
        return request.prompt_tokens + request.output_tokens

    def select(self, pool: Sequence[Asked], free_slots: int) -> Sequence[tuple[Asked, int]]:
        """The batch that has begun; where none has, the first that wait and fit in memory."""
        begun = [request for request in pool if request.outputs]
        if begun:
            return [(request, request.left_tokens) for request in begun]
        batch = []
        for request in pool[: self.max_batch]:
            free_slots -= self.slots(request, request.left_tokens)
            if free_slots < 0:
                break
            batch.append((request, request.left_tokens))
        return batch


class ShortestFirst:
    """Orca's rule with another order: who has the least left to generate goes first.

    It knows lengths beforehand, which a server does not.

    Args:
        max_batch: most requests of a batch.
    """

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch

    def slots(self, request: Asked, tokens: int) -> int:
        """Slots for the request's whole length, from its first iteration on."""
        return request.prompt_tokens + request.output_tokens

    def select(self, pool: Sequence[Asked], free_slots: int) -> Sequence[tuple[Asked, int]]:
        """The requests with the least left that fit in memory."""

        def left_outputs(request: Asked) -> int:
            return request.output_tokens - request.outputs

        batch = []
        for request in sorted(pool, key=left_outputs)[: self.max_batch]:
            free_slots -= self.slots(request, request.left_tokens) - request.held_slots
            if free_slots < 0:
                break
            batch.append((request, request.left_tokens))
        return batch
