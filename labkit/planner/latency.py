"""Stages of a synchronous pipeline: the end of an iteration of M microbatches, all weights equal.

For stage s of layers k to j on r replicas that split each microbatch: compute c = C / r, a
transfer of what crosses each of its cuts, exchange e = all-reduce of its weights over r replicas.

    latency: sum of (c + transfers) + (M - 1) b + max over s of max(0, e_s - s b),
             b the largest of all c and of all transfers there and back
    flush:   the same with b the largest (c + transfers), and no e_s hidden

``latency`` is the estimate of DAPPLE's published planner, warm-up, steady and ending phase, with
each stage's compute divided among its replicas: stage s's last backward ends about s blocks before
the iteration does, and its all-reduce may run meanwhile. ``flush`` overlaps nothing.

The optimum needs the largest block b: with b at most some value, the rest is a shortest path over
(stages, devices, layers). The largest exchange is a second criterion, lowered step by step until
nothing is gained. Intervals of b are split, best bound first, until none can hold a better plan.

Source: DAPPLE §IV, and ``sync_pipeline_speedup_analytical`` of its planner.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.planner.costing import StageCosts
from labkit.planner.throughput import Stage

_STEP = 1e-9
"""By how much, as a share, the next allowed exchange lies below the last."""


@dataclass(frozen=True, kw_only=True)
class Flush:
    """The parts of every possible stage's seconds, as ``[replicas - 1, k, j]``.

    Attributes:
        hidden: whether all-reduces run while earlier stages still work.
    """

    work_s: np.ndarray
    block_s: np.ndarray
    exchange_s: np.ndarray
    num_microbatches: int
    hidden: bool

    @classmethod
    def of(cls, costs: StageCosts, num_microbatches: int, *, hidden: bool, straight: bool) -> Flush:
        """The parts of every possible stage, from the costs of one level.

        Args:
            num_microbatches: of an iteration.
            hidden: whether all-reduces run while earlier stages still work.
            straight: one device a stage.
        """
        compute = costs.compute_s / costs.replicas[:, None, None]
        there_and_back = costs.transfers_s * costs.costing.activations
        before = there_and_back[:, :, None]
        after = there_and_back[:, None, :]
        work = compute + before / 2 + after / 2
        size = compute.shape[-1]
        possible = np.arange(size)[:, None] < np.arange(size)[None, :]
        if straight:
            possible = possible & (costs.replicas == 1)[:, None, None]
        block = np.maximum(compute, np.maximum(before, after)) if hidden else work
        return cls(
            work_s=np.where(possible, work, np.inf),
            block_s=np.where(possible, block, np.inf),
            exchange_s=costs.gradients_s(costs.synced_bytes),
            num_microbatches=num_microbatches,
            hidden=hidden,
        )

    def cost_s(self, stages: Sequence[Stage]) -> float:
        """Seconds of an iteration."""
        rows = [(stage.replicas - 1, stage.first, stage.end) for stage in stages]
        largest = max(self.block_s[row] for row in rows)
        ending = self.ending_s(stages, largest)
        steady = (self.num_microbatches - 1) * largest
        return float(sum(self.work_s[row] for row in rows) + steady + ending)

    def ending_s(self, stages: Sequence[Stage], block_s: float) -> float:
        """What the all-reduces add at the end, with blocks that take so long."""
        left = [
            self.exchange_s[stage.replicas - 1, stage.first, stage.end]
            - self._hidden_s(number, block_s)
            for number, stage in enumerate(stages)
        ]
        return max(0.0, *map(float, left))

    def _hidden_s(self, stage: int, block_s: float) -> float:
        return stage * block_s if self.hidden else 0.0

    @cached_property
    def rest_s(self) -> np.ndarray:
        """No stages of layers k to the end take less work; shape (n + 1,)."""
        least = self.work_s.min(0)
        rest = np.zeros(len(least))
        for first in range(len(least) - 2, -1, -1):
            rest[first] = (least[first, first + 1 :] + rest[first + 1 :]).min()
        return rest

    def shortest(
        self, block_s: float, ending_s: float, most_s: float = np.inf
    ) -> tuple[float, list[Stage]]:
        """The stages that take the least work, and that work.

        Infinite, without stages, where there is no such plan.

        Args:
            block_s: no block may be longer.
            ending_s: no all-reduce may add more at the end.
            most_s: only less work is looked for.
        """
        reached = [np.full((len(self.work_s) + 1, self.work_s.shape[-1]), np.inf)]
        reached[0][0, 0] = 0.0
        allowed = np.where(self.block_s <= block_s, self.work_s, np.inf)
        steps: list[np.ndarray] = []
        for stage in range(min(self.work_s.shape[0], self.work_s.shape[-1] - 1)):
            budget = ending_s + self._hidden_s(stage, block_s)
            steps.append(np.where(self.exchange_s <= budget, allowed, np.inf))
            reached.append(_extended(reached[-1], steps[-1]))
            reached[-1][reached[-1] + self.rest_s > most_s] = np.inf
            if not np.isfinite(reached[-1]).any():
                break
        ends = np.array([table[:, -1].min() for table in reached])
        count = int(ends.argmin())
        if not np.isfinite(ends[count]):
            return np.inf, []
        return float(ends[count]), _path(reached, steps, count)


def _extended(reached: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The least work with one more stage, by devices and by layers."""
    further = np.full_like(reached, np.inf)
    finite = np.isfinite(reached)
    finite[:, -1] = False  # no layer is left for another stage
    used = np.flatnonzero(finite.any(1))
    layers = np.flatnonzero(finite.any(0))
    if not used.size:
        return further
    fewest = used[0]
    left = layers[0]
    right = layers[-1] + 1
    for devices in range(fewest + 1, len(reached)):
        most = min(used[-1], devices - 1)  # before this stage, which has the rest
        before = reached[fewest : most + 1, left:right][::-1]
        stage = step[devices - most - 1 : devices - fewest, left:right, left + 1 :]
        total = before[:, :, None] + stage
        further[devices, left + 1 :] = total.reshape(-1, total.shape[-1]).min(0)
    return further


def _path(reached: list[np.ndarray], steps: list[np.ndarray], count: int) -> list[Stage]:
    """The stages behind the least value after ``count`` of them."""
    end = reached[0].shape[1] - 1
    devices = int(reached[count][:, -1].argmin())
    stages: list[Stage] = []
    for number in range(count, 0, -1):
        before = reached[number - 1][devices - 1 :: -1]
        total = before + steps[number - 1][:devices, :, end]
        row, first = np.argwhere(total == reached[number][devices, end])[0].tolist()
        stages.append(Stage(first, end, row + 1))
        devices = devices - (row + 1)
        end = first
    return stages[::-1]


class Search:
    """Intervals of the largest block, the one with the least bound first."""

    def __init__(self, flush: Flush, tolerance: float, best: Sequence[Stage]) -> None:
        self.flush = flush
        self.tolerance = tolerance
        self.evaluations = 0
        self.best = best
        self.cost_s = flush.cost_s(best)

    def run(self) -> float:
        """Find the best stages; returns a bound that no plan beats."""
        possible = np.isfinite(self.flush.block_s)
        blocks = np.unique(self.flush.block_s[possible])  # all that the largest can be, in order
        open_: list[tuple[float, int, int]] = []
        settled = np.inf
        waiting = [(0, len(blocks) - 1)]
        while waiting:
            for low, high in waiting:
                bound = self._bound(blocks[low], blocks[high])
                if low == high:
                    settled = min(settled, bound)
                else:
                    heapq.heappush(open_, (bound, low, high))
            if not open_ or open_[0][0] >= self.cost_s * (1 - self.tolerance):
                break
            _, low, high = heapq.heappop(open_)
            middle = (low + high) // 2
            waiting = [(low, middle), (middle + 1, high)]
        return min(self.cost_s, settled, open_[0][0] if open_ else np.inf)

    def _bound(self, low_s: float, high_s: float) -> float:
        """What no plan beats whose largest block lies in the interval; tries the plans it meets.

        Less and less all-reduce is allowed at the end, until nothing is gained.
        """
        steady = (self.flush.num_microbatches - 1) * low_s
        least = self.cost_s * (1 - self.tolerance) - steady
        allowed = np.inf
        while allowed > 0:
            work, stages = self.flush.shortest(high_s, allowed, least)
            self.evaluations += 1
            if not stages or work >= least:
                break
            if (cost := self.flush.cost_s(stages)) < self.cost_s:
                self.cost_s = cost
                self.best = stages
            ending = self.flush.ending_s(stages, high_s)
            least = min(least, work + ending)
            allowed = ending * (1 - _STEP)
        return float(steady + least)
