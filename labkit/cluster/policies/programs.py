"""Linear programs of shares: the least speed of any job made as large as can be (HiGHS)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class MaxMin:
    """max t, where each group of alike jobs gets the speed t times its weight, or more.

    Variables: GPU time of each group on each pool, and of each pair of groups that gets more done
    together than one after the other. Rows: speed of each group − weight × t ≥ 0; time of each
    group ≤ its jobs; GPUs of each pool. Solved again from the last basis.
    """

    def __init__(
        self, gain: NDArray[np.float64], gpus: NDArray[np.int64], room: NDArray[np.int64],
        shared: NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        import highspy

        groups, pools = gain.shape
        self.shape, self.infinite = (groups, pools), highspy.kHighsInf
        self.pairs = np.zeros((0, 3), np.int64) if shared is None else useful(gain, shared, gpus)
        self.solver, self.weight = highspy.Highs(), np.zeros(groups)
        self.jobs = np.full(groups, np.inf)
        self.solver.silent()
        tops = [0.0] * groups + room.astype(float).tolist()
        for low, high in [(0.0, self.infinite)] * groups + [(-self.infinite, top) for top in tops]:
            self.solver.addRow(low, high, 0, [], [])
        for k, p in np.ndindex(gain.shape):
            self._column(0.0, [k, groups + k, 2 * groups + p], [gain[k, p], 1.0, gpus[k]])
        for a, b, p in self.pairs:
            each = {a: 2 * shared[a, a, p]} if a == b else {a: shared[a, b, p], b: shared[b, a, p]}  # type: ignore[index]
            rows = [*each, *(groups + k for k in each), 2 * groups + p]
            self._column(0.0, rows, [*each.values(), *[2.0 / len(each)] * len(each), gpus[a]])
        self._column(-1.0, list(range(groups)), [0.0] * groups)

    def _column(self, cost: float, rows: list[Any], values: list[Any]) -> None:
        at, numbers = np.array(rows, np.int32), np.array(values, float)
        self.solver.addCol(cost, 0.0, self.infinite, len(rows), at, numbers)

    def solve(self, jobs: Any, weight: Any = None) -> tuple[float, NDArray[np.float64], Any]:
        """The least speed, GPU time by group and pool, and by pair; the weight is the jobs."""
        groups, pools = self.shape
        weight = jobs if weight is None else weight
        last = groups * pools + len(self.pairs)
        for k in np.flatnonzero(weight != self.weight):
            self.solver.changeCoeff(int(k), last, -float(weight[k]))
        for k in np.flatnonzero(jobs != self.jobs):
            self.solver.changeRowBounds(int(groups + k), -self.infinite, float(jobs[k]))
        both = self.pairs[:, 0]  # one job is no pair
        changed = (jobs[both] > 1) != (self.jobs[both] > 1)
        for column in np.flatnonzero(changed & (both == self.pairs[:, 1])):
            top = self.infinite if jobs[both[column]] > 1 else 0.0
            self.solver.changeColBounds(groups * pools + int(column), 0.0, top)
        self.jobs, self.weight = jobs.copy(), weight.copy()
        self.solver.run()
        value = np.clip(np.array(self.solver.getSolution().col_value), 0.0, None).round(9)
        times = value[: groups * pools].reshape(groups, pools)
        return float(value[-1]), times, value[groups * pools : -1]


def useful(gain: Any, shared: Any, gpus: Any) -> NDArray[np.int64]:
    """Pairs of groups (a ≤ b) and the pool where both together do more than one after the other."""
    part = shared / np.where(gain > 0, gain, np.inf)[:, None, :]
    other = part.transpose(1, 0, 2)
    alike = (gpus[:, None] == gpus[None, :])[:, :, None]
    pairs = np.argwhere(alike & (part + other > 1.0 + 1e-9) & (part > 0) & (other > 0))
    return pairs[pairs[:, 0] <= pairs[:, 1]]
