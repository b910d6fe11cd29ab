"""How waiting requests become batches: a batcher described, or one of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from labkit.errors import BadValue
from labkit.kit.describe import Count, description


@description
class Batcher:
    """How waiting requests become batches.

    Attributes:
        level: ``iteration``: the batch is chosen anew before each iteration, first come first
            served (Orca); ``request``: a batch stays together until its last request is done.
        max_batch: most requests of a batch.
        memory: of keys and values: ``reserved`` for a request's whole length when it starts, or
            ``paged``: in blocks as it grows; where none is left, the latest request gives its own
            back and starts again (iteration level only).
        reserve_tokens: what ``reserved`` keeps for each request; None: its prompt and output.
        block_tokens: of ``paged``.
        chunk_tokens: most tokens of prompts in an iteration; None: prompts stay whole.
        microbatches: parts of a request-level batch that share a pipeline's stages.
        prompts: of a request-level batch: its first iteration takes as much of each as the
            ``shortest`` has and the rest token by token (FasterTransformer), or pads them to the
            ``longest``.

    Raises:
        BadValue: an option belongs to the other level.
    """

    level: Literal["iteration", "request"] = "iteration"
    max_batch: Count = 32
    memory: Literal["reserved", "paged"] = "reserved"
    reserve_tokens: Count | None = None
    block_tokens: Count = 16
    chunk_tokens: Count | None = None
    microbatches: Count = 1
    prompts: Literal["shortest", "longest"] = "shortest"

    def __post_init__(self) -> None:
        by_iteration = self.level == "iteration"
        if not by_iteration and (self.memory == "paged" or self.chunk_tokens):
            raise BadValue("Batcher: paged memory and chunk_tokens need level 'iteration'")
        if by_iteration and self.microbatches > 1:
            raise BadValue(
                "Batcher: microbatches need level 'request'; by iteration, whole "
                "batches fill the stages"
            )


@dataclass(kw_only=True, slots=True)
class Asked:
    """A request that has arrived, as a batcher of one's own sees it."""

    number: int
    """Its place among the requests, which stand in order of arrival."""
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    outputs: int = 0
    """What it has generated so far."""
    cached_tokens: int = 0
    """Tokens processed so far, whose keys and values it keeps; at first its prefix in the cache."""
    held_slots: int = 0
    """Slots of keys and values that it holds."""

    @property
    def left_tokens(self) -> int:
        """What it must process before its next output: what is left of its prompt, or one."""
        return self.prompt_tokens + self.outputs - self.cached_tokens


class Batching(Protocol):
    """A batcher of one's own: what a batch holds, and which memory a request needs for it.

    Batches are chosen anew before each iteration. Orca's rule, which reserves a request's whole
    length, and lets nobody overtake::

        class FirstComeFirstServed:
            max_batch = 32

            def slots(self, request, tokens):
                return request.prompt_tokens + request.output_tokens

            def select(self, pool, free_slots):
                batch = []
                for request in pool[: self.max_batch]:
                    free_slots -= self.slots(request, request.left_tokens) - request.held_slots
                    if free_slots < 0:
                        break
                    batch.append((request, request.left_tokens))
                return batch

    """

    max_batch: int
    """Most requests of a batch."""

    def slots(self, request: Asked, tokens: int) -> int:
        """Slots of keys and values that a request holds while so many more tokens of it are
        processed."""
        ...

    def select(self, pool: Sequence[Asked], free_slots: int) -> Sequence[tuple[Asked, int]]:
        """The next batch: requests, and how many tokens of each it processes.

        A request with 0 tokens gives its memory back and starts again, before the others take
        theirs.

        Args:
            pool: requests that have arrived, have not ended and are in no batch, by arrival.
            free_slots: slots of keys and values that nobody holds.
        """
        ...
