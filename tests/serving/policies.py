"""Batchers of one's own: the rules of :class:`labkit.serving.Batcher` for the plain loop."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.serving import Asked

Batch = list[tuple[Asked, int]]


class Reserved:
    """First come, first served; a request reserves its whole length; prompts whole or in chunks."""

    def __init__(self, max_batch: int, chunk_tokens: int | None = None) -> None:
        self.max_batch = max_batch
        self.chunk_tokens = chunk_tokens or 10**9

    def slots(self, request: Asked, tokens: int) -> int:
        return request.prompt_tokens + request.output_tokens

    def select(self, pool: Sequence[Asked], free_slots: int) -> Batch:
        batch: Batch = []
        prompts_left = self.chunk_tokens
        for request in pool:
            has_begun = request.held_slots > 0
            needed = self.slots(request, 1) - request.held_slots
            nothing_left = prompts_left == 0 and not has_begun
            if len(batch) == self.max_batch or needed > free_slots or nothing_left:
                break  # who comes later begins later
            tokens = request.left_tokens
            if tokens > 1:
                tokens = min(tokens, prompts_left)
                prompts_left -= tokens
            if tokens:
                free_slots -= needed
                batch.append((request, tokens))
        return batch


class Paged:
    """Memory in blocks as requests grow; where none is left, the latest gives its own back."""

    def __init__(self, max_batch: int, block_tokens: int) -> None:
        self.max_batch = max_batch
        self.block_tokens = block_tokens

    def slots(self, request: Asked, tokens: int) -> int:
        blocks = -(-(request.cached_tokens + tokens) // self.block_tokens)
        return max(blocks * self.block_tokens, request.held_slots)

    def select(self, pool: Sequence[Asked], free_slots: int) -> Batch:
        batch: Batch = []
        evicted: Batch = []
        begun = [request for request in pool if request.held_slots]
        while begun and len(batch) < self.max_batch:  # who has begun goes on
            request = begun.pop(0)
            needed = self.slots(request, 1) - request.held_slots
            while needed > free_slots and begun:
                victim = begun.pop()
                evicted.append((victim, 0))
                free_slots += victim.held_slots
            if needed <= free_slots:
                free_slots -= needed
                batch.append((request, 1))
        waiting = [request for request in pool if not request.held_slots]
        for request in waiting[: self.max_batch - len(batch)]:  # then who waits begins
            needed = self.slots(request, request.left_tokens)
            if needed > free_slots or evicted:
                break
            free_slots -= needed
            batch.append((request, request.left_tokens))
        return evicted + batch
