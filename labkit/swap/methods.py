"""Ways to choose what a chain keeps: segments, recursion, a search, and the exact optimum.

All are trees of one kind. A run of blocks from ``start`` to ``end`` either keeps its first block
and goes on with the rest, or splits: it passes through the blocks before ``at`` without keeping
them, does the run from ``at``, and comes back for the run before it. A method says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from labkit.errors import BadValue, not_among
from labkit.kit.describe import Count, Positive, checked
from labkit.swap.chain import BACKWARD, CHECKPOINT, FORWARD, KEEP, Action, Chain, Plan

Slots = Annotated[int, Ge(1), Le(10**5)]
Choose = Callable[[int, int, int], int]
"""Of a run and its level (or memory in slots): where it splits, or 0 to keep its first block."""


class _Run(NamedTuple):
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
    return run.level, run.level, run.level + 1


def _plan(chain: Chain, choose: Choose, method: str) -> Plan:
    operations = tuple(_operations(chain.num_blocks, choose, _same_level, 0))
    return Plan(chain=chain, operations=operations, method=method)


@checked
def all_kept(chain: Chain) -> Plan:
    """Nothing is recomputed."""
    return _plan(chain, lambda start, end, level: 0, "all kept")


@checked
def segments(chain: Chain, starts: Sequence[int] | Count) -> Plan:
    """Segments that keep their first input and are recomputed whole, but for the last.

    ``starts`` are the blocks where they begin, 0 left out, or how many segments of (nearly) equal
    length there are. Source: Chen et al. 2016, Algorithm 1.
    """
    if isinstance(starts, int):
        if starts > chain.num_blocks:
            raise BadValue(f"starts must be at most {chain.num_blocks} segments, got {starts}")
        starts = [round(k * chain.num_blocks / starts) for k in range(1, starts)]
    after = sorted(set(starts))
    if outside := [at for at in after if not 0 < at < chain.num_blocks]:
        raise BadValue(f"starts must lie in 1..{chain.num_blocks - 1}, got {outside[0]}")

    def choose(start: int, end: int, level: int) -> int:
        return 0 if level else next((at for at in after if start < at < end), 0)

    return _plan(chain, choose, f"{len(after) + 1} segments")


@checked
def recursive(chain: Chain) -> Plan:
    """Every run is cut in half down to single blocks: O(log n) memory.

    Source: Chen et al. 2016, §4.4 (k = 1).
    """

    def choose(start: int, end: int, level: int) -> int:
        return 0 if end - start == 1 else start + -(-(end - start) // 2)

    return _plan(chain, choose, "recursion in 2")


@checked
def searched(chain: Chain, *, tries: Slots = 60) -> Plan:
    """Segments that end once their blocks exceed a budget, at the budget with the least peak.

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
        extra = (chain.forward_extra_bytes, chain.keep_extra_bytes, chain.backward_extra_bytes)
        self.extra = [self._rounded(np.array(sizes)) for sizes in extra]
        n = chain.num_blocks
        self.cost = np.full((n + 1, n + 1, slots + 1), np.inf, dtype=np.float32)
        self.split = np.zeros((n + 1, n + 1, slots + 1), dtype=np.int16)
        for length in range(1, n + 1):
            for start in range(n - length + 1):
                self._solve(start, start + length)

    def _rounded(self, sizes: np.ndarray) -> np.ndarray:
        return np.ceil(sizes / self.slot_bytes - 1e-9).astype(int)

    def _solve(self, s: int, t: int) -> None:
        chain = self.chain
        a = self.between
        memory = np.arange(self.slots + 1)
        late = a[t] if t < chain.num_blocks else 0  # the gradient that waits
        own = chain.forward_cost[s] + chain.backward_cost[s]
        rest = own if t == s + 1 else own + self._shifted(self.cost[s + 1, t], a[s] + self.kept[s])
        forward, keep, backward = self.extra
        own_bytes = a[s] + self.kept[s] + a[s + 1]
        need = max(own_bytes + late + keep[s], own_bytes + a[s] + a[s + 1] + backward[s])
        cost = np.where(memory >= need, rest, np.inf)
        split = np.zeros(self.slots + 1, int)
        if t > s + 1:
            passed = np.cumsum(chain.forward_cost[s : t - 1])
            # x_s stays; passing block k needs its input and output beside it
            through = [a[s] + (k > s) * a[k] + a[k + 1] + forward[k] for k in range(s, t - 1)]
            fits = memory >= np.maximum.accumulate(through)[:, None] + late
            after = self._shifted(self.cost[s + 1 : t, t], a[s])
            table = passed[:, None] + after + self.cost[s, s + 1 : t]
            table = np.where(fits, table, np.inf)
            best = table.argmin(axis=0)
            least = table[best, memory]
            split = np.where(least < cost, best + s + 1, 0)
            cost = np.minimum(cost, least)
        self.cost[s, t] = cost
        self.split[s, t] = split

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

    def plan(self, memory_bytes: float) -> Plan:
        """The cheapest plan within ``memory_bytes``.

        Raises:
            BadValue: none fits.
        """
        have = min(int(memory_bytes / self.slot_bytes + 1e-9), self.slots)
        n = self.chain.num_blocks
        a = self.between
        if not np.isfinite(self.cost[0, n, have]):
            least = self.frontier()[0][:1]
            raise BadValue(f"memory_bytes must be at least {least}, got {memory_bytes:g}")

        def choose(start: int, end: int, level: int) -> int:
            return int(self.split[start, end, level])

        def step(run: _Run, at: int) -> tuple[int, int, int]:
            less = a[run.start]
            return run.level - less - self.kept[run.start], run.level - less, run.level

        operations = tuple(_operations(n, choose, step, have))
        return Plan(chain=self.chain, operations=operations, method="optimal")


@checked
def optimum(chain: Chain, memory_bytes: Positive | None = None, *, slots: Slots = 200) -> Optimum:
    """The exact program up to ``memory_bytes`` (default: what keeping all needs).

    Eight equal blocks take 24 forward and backward; with only the input kept, 7 + 6 + … + 1 more.

    >>> least = optimum(Chain.even(8), slots=19)
    >>> [round(value) for value in least.frontier()[1][[0, -1]]]
    [52, 24]
    """
    return Optimum(chain, memory_bytes or all_kept(chain).replay().peak_bytes, slots)


METHODS: dict[str, Callable[[Chain], Plan]] = {
    "all-kept": all_kept,
    "square-root": lambda chain: segments(chain, max(1, round(chain.num_blocks**0.5))),
    "searched": searched,
    "recursive": recursive,
    "each-block": lambda chain: segments(chain, chain.num_blocks),
}


@checked
def plan(chain: Chain, method: str) -> Plan:
    """The plan of one of :data:`METHODS`.

    Raises:
        UsageError: there is no such method.
    """
    if method not in METHODS:
        raise not_among("method", method, METHODS)
    return METHODS[method](chain)
