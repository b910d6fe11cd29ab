"""A chain of blocks, plans that recompute parts of it, and the replay that judges every plan.

A plan is a list of operations on blocks. ``forward`` computes a block's output and lets go of its
input; ``checkpoint`` does so and keeps the input; ``keep`` keeps all that the block's backward pass
needs; ``backward`` uses that up. The replay executes a plan on bytes alone, refuses what lacks its
inputs, and says what was held at most and what it cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Whole, checked, description

if TYPE_CHECKING:
    import pandas as pd

# More blocks are a mistake, and would fill the memory of whoever asks.
NumBlocks = Annotated[int, Ge(1), Le(10**5)]
Action = Literal["forward", "checkpoint", "keep", "backward"]
FORWARD: Action = "forward"
CHECKPOINT: Action = "checkpoint"
KEEP: Action = "keep"
BACKWARD: Action = "backward"


@description(slots=True)
class Chain:
    """Blocks that run one after the other, each on the output of the one before.

    Attributes:
        input_bytes: what the first block reads.
        output_bytes: what each block hands on; a gradient of it is as large.
        kept_bytes: what each block's backward pass needs besides its input and its output.
        forward_cost, backward_cost: of each block, in seconds, operations or any one unit.
        forward_extra_bytes, keep_extra_bytes, backward_extra_bytes: what a block needs for a moment
            beside all that, while it runs without being kept, while it is kept, and in its backward
            pass; none by default.
    """

    input_bytes: NonNegative
    output_bytes: tuple[NonNegative, ...]
    kept_bytes: tuple[NonNegative, ...]
    forward_cost: tuple[NonNegative, ...]
    backward_cost: tuple[NonNegative, ...]
    forward_extra_bytes: tuple[NonNegative, ...] = ()
    keep_extra_bytes: tuple[NonNegative, ...] = ()
    backward_extra_bytes: tuple[NonNegative, ...] = ()

    def __post_init__(self) -> None:
        none = (0.0,) * len(self.output_bytes)
        for name in ("forward_extra_bytes", "keep_extra_bytes", "backward_extra_bytes"):
            object.__setattr__(self, name, getattr(self, name) or none)
        by_block = [field.name for field in fields(self) if field.name != "input_bytes"]
        lengths = {len(getattr(self, name)) for name in by_block}
        if len(lengths) > 1 or not self.output_bytes:
            raise BadValue(
                f"{', '.join(by_block)} must have one value a block, at least one,"
                f" got {sorted(lengths)} values"
            )

    @classmethod
    @checked
    def even(cls, num_blocks: NumBlocks, *, kept_bytes: NonNegative = 1.0) -> Chain:
        """Equal blocks: outputs of 1, a backward pass that costs two forward passes.

        Args:
            kept_bytes: what each block's backward pass needs besides its input and output.

        >>> Chain.even(4).num_blocks
        4
        """
        ones = (1.0,) * num_blocks
        return cls(
            input_bytes=1.0,
            output_bytes=ones,
            kept_bytes=(kept_bytes,) * num_blocks,
            forward_cost=ones,
            backward_cost=(2.0,) * num_blocks,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the chain."""
        return len(self.output_bytes)

    @property
    def between_bytes(self) -> np.ndarray:
        """What lies before, between and after the blocks: one more than there are blocks."""
        return np.array([self.input_bytes, *self.output_bytes])

    @property
    def step_cost(self) -> float:
        """Of a forward and a backward pass, nothing recomputed."""
        return sum(self.forward_cost) + sum(self.backward_cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a plan held and cost."""

    live_bytes: tuple[float, ...]
    """During each operation."""
    cost: float
    added_fraction: float
    """Of the cost of a step without recomputation."""

    @property
    def peak_bytes(self) -> float:
        """What was held at most."""
        return max(self.live_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole step of a chain: operations in order, and what made them."""

    chain: Chain
    operations: tuple[tuple[Action, int], ...]
    method: str = ""

    def replay(self) -> Replay:
        """Execute the plan on bytes; raises as :func:`replay` does."""
        return replay(self.chain, self.operations)

    def frame(self) -> pd.DataFrame:
        """A row an operation: action, block, live bytes."""
        import pandas as pd

        table = pd.DataFrame(self.operations, columns=["action", "block"])
        return table.assign(live_bytes=self.replay().live_bytes)


@checked
def replay(chain: Chain, operations: Iterable[tuple[Action, Whole]]) -> Replay:
    """Execute operations on bytes alone.

    A kept block's output stays until the block's own backward pass. The gradient of the last output
    is there once that output is; an operation's results count while it runs.

    Args:
        operations: pairs of an action and a block, in order.

    Raises:
        BadValue: an operation lacks what it needs, or not every block had its backward pass.

    >>> chain = Chain.even(2, kept_bytes=0.0)
    >>> kept = [("keep", 0), ("keep", 1), ("backward", 1), ("backward", 0)]
    >>> replay(chain, kept).live_bytes  # at the end of the forward pass: input, outputs, gradient
    (2.0, 3.0, 5.0, 4.0)
    >>> again = [("checkpoint", 0), ("keep", 1), ("backward", 1), ("keep", 0), ("backward", 0)]
    >>> replay(chain, again).cost - replay(chain, kept).cost  # block 0 ran twice
    1.0
    """
    step = _Step(chain)
    live_bytes = []
    for number, (action, block) in enumerate(operations):
        if not step.is_ready(action, block):
            raise BadValue(
                f"replay: operations[{number}], {action} of block {block}, lacks what it needs"
            )
        if action == BACKWARD:
            live_bytes.append(float(step.go_back(block)))
        else:
            live_bytes.append(float(step.go_forward(action, block)))
    if step.gradient_of != 0 or step.kept:
        due = chain.num_blocks if step.gradient_of < 0 else step.gradient_of
        raise BadValue(
            f"replay: operations end while the backward passes of {due} of {chain.num_blocks} "
            "blocks are still due"
        )
    added = step.cost / chain.step_cost - 1
    return Replay(live_bytes=tuple(live_bytes), cost=step.cost, added_fraction=added)


class _Step:
    """A step of training that a replay has carried out in part.

    Attributes:
        inputs: blocks whose input is held; the last block's output counts as one more.
        kept: blocks that hold all that their backward pass needs.
        gradient_of: the block whose input's gradient is held; the number of blocks: the output's;
            -1: none yet.
        held_bytes: of all of these.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.between = chain.between_bytes
        self.inputs = {0}
        self.kept = set[int]()
        self.gradient_of = -1
        self.held_bytes = chain.input_bytes
        self.cost = 0.0

    def is_ready(self, action: Action, block: int) -> bool:
        """Whether an operation has what it needs, and gives what is not there yet."""
        if action == BACKWARD:
            return block in self.kept and self.gradient_of == block + 1
        return block in self.inputs and block + 1 not in self.inputs

    def go_forward(self, action: Action, block: int) -> float:
        """A forward pass of a block; gives the bytes held while it runs."""
        chain = self.chain
        keeps = action == KEEP
        self.held_bytes += self.between[block + 1] + (chain.kept_bytes[block] if keeps else 0)
        self.cost += chain.forward_cost[block]
        extra_bytes = chain.keep_extra_bytes if keeps else chain.forward_extra_bytes
        live_bytes = self.held_bytes + extra_bytes[block]
        self.inputs.add(block + 1)
        if keeps:
            self.kept.add(block)
        if action == FORWARD:
            self.let_go(block)
        if self.gradient_of < 0 and block + 1 == chain.num_blocks:
            self.gradient_of = chain.num_blocks
            self.held_bytes = self.held_bytes + self.between[block + 1]
        return live_bytes

    def go_back(self, block: int) -> float:
        """A backward pass of a block; gives the bytes held while it runs."""
        chain = self.chain
        gradient_bytes = self.between[block]
        live_bytes = self.held_bytes + gradient_bytes + chain.backward_extra_bytes[block]
        # The output goes with its gradient, and what was kept; the input's gradient comes.
        self.held_bytes += gradient_bytes - 2 * self.between[block + 1] - chain.kept_bytes[block]
        self.kept.remove(block)
        self.inputs.discard(block + 1)
        if block and block - 1 not in self.kept:  # made again where it is needed again
            self.let_go(block)
        self.gradient_of = block
        self.cost = self.cost + chain.backward_cost[block]
        return live_bytes

    def let_go(self, block: int) -> None:
        """A block's input goes."""
        self.inputs.remove(block)
        self.held_bytes -= self.between[block]
