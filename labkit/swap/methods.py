"""Ways to choose what a chain keeps: segments, recursion, a search, and the exact optimum.

All are trees of one kind. A run of blocks from ``start`` to ``end`` either keeps its first block
and goes on with the rest, or splits: it passes through the blocks before ``at`` without keeping
them, does the run from ``at``, and comes back for the run before it. A method says which.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from labkit.errors import BadValue, not_among
from labkit.kit.describe import Count, NonNegative, Positive, checked
from labkit.swap.chain import BACKWARD, CHECKPOINT, FORWARD, KEEP, Action, Chain, Plan

Slots = Annotated[int, Ge(1), Le(10**5)]
_LARGEST = 10**8
"""Numbers in the exact program's table; more would fill the memory of whoever asks."""
Choose = Callable[[int, int, int], int]
"""Of a run and its level (or memory in slots): where it splits, or 0 to keep its first block."""


class _Run(NamedTuple):
    """Blocks ``start`` to ``end`` - 1, at a level of the tree (or with a memory in slots)."""

    start: int
    end: int
    level: int


def _operations(
    num_blocks: int, choose: Choose, step: Callable[[_Run, int], tuple[int, int, int]], level: int
) -> Iterator[tuple[Action, int]]:
    """The tree as operations; ``step`` gives the levels after keeping, after and before a split."""
    todo: list[_Run | tuple[Action, int]] = [_Run(0, num_blocks, level)]
    while todo:
        item = todo.pop()
        if not isinstance(item, _Run):
            yield item
            continue
        at = choose(*item)
        kept, after, before = step(item, at)
        if not at:
            todo.append((BACKWARD, item.start))
            if item.start + 1 < item.end:
                todo.append(_Run(item.start + 1, item.end, kept))
            yield KEEP, item.start
            continue
        yield CHECKPOINT, item.start
        yield from ((FORWARD, block) for block in range(item.start + 1, at))
        todo += [_Run(item.start, at, before), _Run(at, item.end, after)]


def _same_level(run: _Run, _: int) -> tuple[int, int, int]:
    """What is run again lies a level deeper."""
    return run.level, run.level, run.level + 1


def _plan(chain: Chain, choose: Choose, method: str) -> Plan:
    """The plan of a method that looks at levels alone."""
    operations = tuple(_operations(chain.num_blocks, choose, _same_level, 0))
    return Plan(chain=chain, operations=operations, method=method)


@checked
def all_kept(chain: Chain) -> Plan:
    """Nothing is recomputed."""

    def choose(start: int, end: int, level: int) -> int:
        return 0

    return _plan(chain, choose, "all kept")


@checked
def segments(chain: Chain, starts: Sequence[int] | Count) -> Plan:
    """Segments that keep their first input and are recomputed whole, but for the last.

    Args:
        starts: the blocks where they begin, 0 left out, or how many segments of (nearly) equal
            length there are.

    Raises:
        BadValue: there are more segments than blocks, or one begins outside the chain.

    Source: Chen et al. 2016, Algorithm 1.

    >>> plan = segments(Chain.even(4), 2)  # blocks 0 and 1 run again, 2 and 3 do not
    >>> plan.replay().added_fraction  # two forward passes more, of 4 + 8
    0.16666666666666674
    """
    if isinstance(starts, int):
        if starts > chain.num_blocks:
            raise BadValue(f"starts must be at most {chain.num_blocks} segments, got {starts}")
        starts = [round(k * chain.num_blocks / starts) for k in range(1, starts)]
    after = sorted(set(starts))
    if outside := [at for at in after if not 0 < at < chain.num_blocks]:
        raise BadValue(f"starts must lie in 1..{chain.num_blocks - 1}, got {outside[0]}")

    def choose(start: int, end: int, level: int) -> int:
        if level:
            return 0
        place = bisect_right(after, start)
        return after[place] if place < len(after) and after[place] < end else 0

    return _plan(chain, choose, f"{len(after) + 1} segments")


@checked
def recursive(chain: Chain) -> Plan:
    """Every run is cut in half down to single blocks: O(log n) memory.

    Source: Chen et al. 2016, §4.4 (k = 1).

    >>> recursive(Chain.even(2)).operations
    (('checkpoint', 0), ('keep', 1), ('backward', 1), ('keep', 0), ('backward', 0))
    """

    def choose(start: int, end: int, level: int) -> int:
        return 0 if end - start == 1 else start + -(-(end - start) // 2)

    return _plan(chain, choose, "recursion in 2")


@checked
def searched(chain: Chain, *, tries: Slots = 60) -> Plan:
    """Segments that end once their blocks exceed a budget, at the budget with the least peak.

    Args:
        tries: budgets, from the largest block to all blocks.

    Source: Chen et al. 2016, Algorithm 3, with the search over its budget.
    """
    sizes = np.array(chain.output_bytes) + chain.kept_bytes
    plans = []
    for budget in np.geomspace(sizes.max(), sizes.sum(), tries):
        starts = []
        size = 0.0
        for block in range(chain.num_blocks - 1):
            size += sizes[block]
            if size > budget:
                starts.append(block + 1)
                size = 0.0
        plans.append(segments(chain, starts) if starts else all_kept(chain))
    best = min(plans, key=lambda plan: plan.replay().peak_bytes)
    return Plan(chain=chain, operations=best.operations, method="searched segments")


class Optimum:
    """The least cost of a chain at every memory, over all trees: the exact dynamic program.

    With M the memory of a run, its input and the gradient of its output included,

        C(s, t, M) = min(f_s + C(s + 1, t, M − a_s − k_s) + b_s,
                         min over s < i < t of f_s + … + f_{i−1} + C(i, t, M − a_s) + C(s, i, M)),

    where each term needs its own operations to fit. Memory is counted in ``slots`` of equal size,
    sizes rounded up, so a plan never exceeds its memory; with a slot that divides all sizes the
    optimum is exact. O(n³·slots), vectorised over splits and memories.

    Source: the recurrence of Griewank and Walther 2000 for blocks of any size, as Beaumont et al.
    2019 state it (rotor), with the memory of :func:`labkit.swap.chain.replay`.
    """

    def __init__(self, chain: Chain, memory_bytes: float, slots: int) -> None:
        self.chain = chain
        self.slots = slots
        self.slot_bytes = memory_bytes / slots
        self.between = self._rounded(chain.between_bytes)
        self.kept = self._rounded(np.array(chain.kept_bytes))
        self.forward_extra = self._rounded(np.array(chain.forward_extra_bytes))
        self.keep_extra = self._rounded(np.array(chain.keep_extra_bytes))
        self.backward_extra = self._rounded(np.array(chain.backward_extra_bytes))
        n = chain.num_blocks
        self.cost = np.full((n + 1, n + 1, slots + 1), np.inf, dtype=np.float32)
        self.split = np.zeros((n + 1, n + 1, slots + 1), dtype=np.int16)
        for length in range(1, n + 1):
            for start in range(n - length + 1):
                self._solve(start, start + length)

    def _rounded(self, sizes: np.ndarray) -> np.ndarray:
        """Sizes in slots, rounded up but for what rounding itself adds.

        What needs more than there are fits nowhere, however large it is.
        """
        slots = np.ceil(sizes / self.slot_bytes - 1e-9)
        return np.minimum(slots, self.slots + 1).astype(int)

    def _solve(self, start: int, end: int) -> None:
        """The least cost of a run at every memory, where those of shorter runs are known."""
        memory = np.arange(self.slots + 1)
        cost = np.where(memory >= self._slots_to_keep(start, end), self._kept(start, end), np.inf)
        split = np.zeros(self.slots + 1, int)
        if end > start + 1:
            by_split = self._splits(start, end, memory)
            best = by_split.argmin(axis=0)
            least = by_split[best, memory]
            split = np.where(least < cost, best + start + 1, 0)
            cost = np.minimum(cost, least)
        self.cost[start, end] = cost
        self.split[start, end] = split

    def _waiting(self, end: int) -> int:
        """Slots of the gradient that waits for a run's last block."""
        return int(self.between[end]) if end < self.chain.num_blocks else 0

    def _slots_to_keep(self, start: int, end: int) -> int:
        """What a run's first block needs to be kept now, and to go back over later."""
        before = self.between[start]
        after = self.between[start + 1]
        own = before + self.kept[start] + after
        to_keep = own + self._waiting(end) + self.keep_extra[start]
        to_go_back = own + before + after + self.backward_extra[start]
        return int(max(to_keep, to_go_back))

    def _kept(self, start: int, end: int) -> np.ndarray | float:
        """The cost at every memory where the first block is kept and the rest goes on."""
        own = self.chain.forward_cost[start] + self.chain.backward_cost[start]
        if end == start + 1:
            return own
        held = self.between[start] + self.kept[start]
        return own + self._shifted(self.cost[start + 1, end], held)

    def _splits(self, start: int, end: int, memory: np.ndarray) -> np.ndarray:
        """The cost of a run at every memory (columns) and every split of it (rows)."""
        first = self.between[start]  # stays; passing a block needs its input and output beside it
        needs = []
        for block in range(start, end - 1):
            before = self.between[block] if block > start else 0
            needs.append(first + before + self.between[block + 1] + self.forward_extra[block])
        fits = memory >= np.maximum.accumulate(needs)[:, None] + self._waiting(end)
        passed = np.cumsum(self.chain.forward_cost[start : end - 1])
        after = self._shifted(self.cost[start + 1 : end, end], first)
        cost = passed[:, None] + after + self.cost[start, start + 1 : end]
        return np.where(fits, cost, np.inf)

    @staticmethod
    def _shifted(cost: np.ndarray, by: int) -> np.ndarray:
        """The cost at so much less memory."""
        out = np.full_like(cost, np.inf)
        if by < cost.shape[-1]:
            out[..., by:] = cost[..., : cost.shape[-1] - by]
        return out

    def frontier(self) -> tuple[np.ndarray, np.ndarray]:
        """Memory in bytes and the least cost with it, where anything fits."""
        cost = self.cost[0, self.chain.num_blocks]
        fits = np.isfinite(cost)
        return np.flatnonzero(fits) * self.slot_bytes, cost[fits]

    @checked
    def plan(self, memory_bytes: NonNegative) -> Plan:
        """The cheapest plan within ``memory_bytes``.

        Raises:
            BadValue: none fits.
        """
        have = int(min(memory_bytes / self.slot_bytes + 1e-9, self.slots))
        n = self.chain.num_blocks
        a = self.between
        if not np.isfinite(self.cost[0, n, have]):
            fits = self.frontier()[0]
            least = f"at least {fits[0]:g}" if fits.size else "beyond the limit of this program"
            raise BadValue(f"plan: memory_bytes must be {least}; got {memory_bytes:g}")

        def choose(start: int, end: int, level: int) -> int:
            return int(self.split[start, end, level])

        def step(run: _Run, at: int) -> tuple[int, int, int]:
            less = a[run.start]
            return run.level - less - self.kept[run.start], run.level - less, run.level

        operations = tuple(_operations(n, choose, step, have))
        return Plan(chain=self.chain, operations=operations, method="optimal")


@checked
def optimum(chain: Chain, memory_bytes: Positive | None = None, *, slots: Slots = 200) -> Optimum:
    """The exact program for every memory up to a limit: no plan of the kind costs less.

    Args:
        memory_bytes: the limit; None: what keeping all needs.
        slots: sizes of memory that are distinguished.

    Raises:
        BadValue: the table of the program would fill the memory.

    Eight equal blocks take 24 forward and backward; with only the input kept, 7 + 6 + … + 1 more.

    >>> least = optimum(Chain.even(8), slots=19)
    >>> [round(value) for value in least.frontier()[1][[0, -1]]]
    [52, 24]
    """
    size = (chain.num_blocks + 1) ** 2 * (slots + 1)
    if size > _LARGEST:
        raise BadValue(
            f"optimum: chain and slots need a table of {size:.2g} numbers, (blocks + 1)² × "
            f"(slots + 1); valid: at most {_LARGEST:.0e}; got {chain.num_blocks} blocks, "
            f"{slots} slots"
        )
    memory = memory_bytes or all_kept(chain).replay().peak_bytes
    if not memory:
        raise BadValue("optimum: chain holds no bytes at all; valid: one whose blocks hold some")
    return Optimum(chain, memory, slots)


def _square_root(chain: Chain) -> Plan:
    return segments(chain, max(1, round(chain.num_blocks**0.5)))


def _each_block(chain: Chain) -> Plan:
    return segments(chain, chain.num_blocks)


METHODS: dict[str, Callable[[Chain], Plan]] = {
    "all-kept": all_kept,
    "square-root": _square_root,
    "searched": searched,
    "recursive": recursive,
    "each-block": _each_block,
}
"""Ways to choose a plan, by name: as many equal segments as the root of the blocks, or of one block
each, beside the functions of this module."""


@checked
def plan(chain: Chain, method: str) -> Plan:
    """The plan of one of :data:`METHODS`.

    Raises:
        UsageError: there is no such method.
    """
    if method not in METHODS:
        raise not_among("method", method, METHODS)
    return METHODS[method](chain)
