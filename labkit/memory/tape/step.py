"""The moments of a training step, the phase each belongs to, and the part of the model at work.

One vocabulary for the tape, the plans and torch's tracker. A member prints as its text and equals
it, so that tables, JSON and lookups by text read on.

>>> Moment.BACKWARD_FIRST.phase, Moment.BACKWARD_FIRST.part
(<Phase.BACKWARD: 'backward'>, <Part.LAYERS: 'layers'>)
>>> print(Moment.of_layers(Phase.FORWARD, Stretch.LAST_FULL))
forward, last full
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a step is doing; a collective that recomputation repeats is of a phase of its own."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    STEP = "step"


class Part(StrEnum):
    """The part of the model at work."""

    EMBEDDING = "embedding"
    LAYERS = "layers"
    HEAD = "head"


class Stretch(StrEnum):
    """Which layers of a stack: those at its ends, and those between, which are all alike.

    Where layers are recomputed in groups, ``LAST`` is the last group, which may be a smaller one,
    and ``LAST_FULL`` the one before it.
    """

    FIRST = "first"
    MIDDLE = "middle"
    LAST_FULL = "last full"
    LAST = "last"


class Moment(StrEnum):
    """A moment of a step, in the order in which they come; where two tie, the first is named.

    Attributes:
        phase: of the step; None before the first.
        part: of the model that is at work; None where none is.
    """

    phase: Phase | None
    part: Part | None

    def __new__(cls, text: str, phase: Phase | None = None, part: Part | None = None) -> Moment:
        member = str.__new__(cls, text)
        member._value_ = text
        member.phase = phase
        member.part = part
        return member

    ALL_AT_ONCE = "all at once"
    """The papers' arithmetic, in which everything is held together."""
    INIT = "after init"
    FORWARD = "forward", Phase.FORWARD
    """All of a forward pass that was traced as a whole, the loss with it."""
    EMBEDDING = "embedding", Phase.FORWARD, Part.EMBEDDING
    FORWARD_FIRST = "forward, first", Phase.FORWARD, Part.LAYERS
    FORWARD_MIDDLE = "forward, middle", Phase.FORWARD, Part.LAYERS
    FORWARD_LAST_FULL = "forward, last full", Phase.FORWARD, Part.LAYERS
    FORWARD_LAST = "forward, last", Phase.FORWARD, Part.LAYERS
    LOSS_FORWARD = "loss forward", Phase.FORWARD, Part.HEAD
    LOSS_BACKWARD = "loss backward", Phase.BACKWARD, Part.HEAD
    HEAD_BACKWARD = "head backward", Phase.BACKWARD, Part.HEAD
    """The end of the loss's backward pass, which makes the head's own gradient."""
    BACKWARD_LAST = "backward, last", Phase.BACKWARD, Part.LAYERS
    BACKWARD_LAST_FULL = "backward, last full", Phase.BACKWARD, Part.LAYERS
    BACKWARD_MIDDLE = "backward, middle", Phase.BACKWARD, Part.LAYERS
    BACKWARD_FIRST = "backward, first", Phase.BACKWARD, Part.LAYERS
    EMBEDDING_BACKWARD = "embedding backward", Phase.BACKWARD, Part.EMBEDDING
    PREFETCH = "all-gather prefetch", Phase.BACKWARD, Part.LAYERS
    """Inside the backward pass at stage 3: the next layer arrives while the last one's gradients
    go."""
    LAST_REDUCE = "last reduce-scatter", Phase.BACKWARD, Part.EMBEDDING
    """The first unit's gradients on their way at stage 3, with nothing left to compute."""
    BACKWARD = "backward", Phase.BACKWARD
    """All of a backward pass that was traced as a whole."""
    STEP = "optimizer step", Phase.STEP

    @classmethod
    def of_layers(cls, phase: Phase, which: Stretch) -> Moment:
        """The moment at which these layers are at work."""
        return cls(f"{phase}, {which}")


BY_SHARDING = (Moment.PREFETCH, Moment.LAST_REDUCE)
"""Moments that one rank alone does not have."""
ON_TAPE = tuple(
    moment
    for moment in Moment
    if moment.part is not None
    and moment not in (*BY_SHARDING, Moment.FORWARD_MIDDLE, Moment.BACKWARD_MIDDLE)
)
"""Moments that a step on the tape records, in order: what lies inside the stack is never fuller
than its ends."""
