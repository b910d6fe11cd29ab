"""A network whose recomputed blocks are reentrant checkpoints, for torch's tracker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from labkit.memory.oracles.networks import Decoder
from labkit.memory.tape.step import Moment, Phase, Stretch


class Reentrant(Decoder):
    """A decoder whose recomputed blocks are reentrant checkpoints."""

    def through_blocks(self, x: Tensor, *inputs: Tensor) -> Tensor:
        size = self.group if self.mode.recompute == "full" else 1
        every = self.period if self.mode.recompute == "every" else 1
        again: Any = partial(checkpoint, self.unit, use_reentrant=True)
        for first in range(0, len(self.blocks), size):
            run = again if (first + 1) % every == 0 else self.unit
            x = run(first, size, x, *self.tables, *inputs)
            self.after(min(first + size, len(self.blocks)) - 1, x)
        return x

    def after(self, number: int, x: Tensor) -> None:
        """A block is through; :func:`tell` listens here, since hooks inside see no gradients."""


def tell(decoder: Reentrant, stretch: Callable[[int], Stretch], watch: Any) -> None:
    """Have the watch told which blocks are at work in the backward pass.

    Args:
        stretch: the part of the stack that a block is counted to, by its number.
        watch: the tracker, which keeps bytes by the moment it is told.
    """

    def after(number: int, x: Tensor) -> None:
        if watch.moment.phase is Phase.FORWARD and x.requires_grad:
            moment = Moment.of_layers(Phase.BACKWARD, stretch(number))
            x.register_hook(lambda _: setattr(watch, "moment", moment))

    decoder.after = after  # type: ignore[method-assign]
