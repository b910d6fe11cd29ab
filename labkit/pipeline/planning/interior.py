"""An interior-point method for the relaxation of long schedules: cost grows with their length.

A simplex pivot moves all that follows an instruction, so simplex cost grows with the square of a
schedule's length. A step of this method solves one system for the starts, in which an instruction
meets only its neighbours in time: a band matrix, factored in time linear in the number of
instructions. It is the predictor-corrector method for

    min  slope . z + price T   s.t.  x_j - x_i - least_e - (sum of i's z) = w_e on every edge e,
                                     0 <= z <= length,  w >= 0,  T <= deadline

It is written out because it uses the band: at 8 x 256 it takes 0.31 s, HiGHS's own interior-point
method (HiPO) 1.62 s and its simplex method 1.99 s.

Source: S. Mehrotra, "On the implementation of a primal-dual interior point method", SIAM J.
Optim. 2(4), 1992.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_MOST_IDLE_STEPS = 2
"""Steps without progress after which the method stops: rounding errors dominate."""
_TOLERANCE = 3e-7
"""Duality gap, as a share of all costs, at which the solution counts as optimal."""
_STAY_INSIDE = 0.995
"""Share of the way to the nearest bound that a step goes, so that it stays off the bound."""


class _Point(NamedTuple):
    """Variables, slacks and multipliers; also a step between two such points."""

    start: np.ndarray  # of instructions, then makespan, origin, deadline
    slack: np.ndarray  # of each edge
    segment: np.ndarray
    flow: np.ndarray  # multiplier of each edge
    low: np.ndarray  # multiplier of segment >= 0
    high: np.ndarray  # multiplier of segment <= length

    def moved(self, step: _Point, primal: float, dual: float) -> _Point:
        lengths = (primal,) * 3 + (dual,) * 3
        return _Point(*(a + t * b for a, b, t in zip(self, step, lengths, strict=True)))


class Interior:
    """The problem, in units in which times and costs are near one.

    Nodes are the n instructions' starts, the makespan n, and two that stay where they are: the
    origin n + 1 and the deadline n + 2.

    Args:
        source, target, least: of each edge; target n is the end.
        owner, length, slope: of each segment; slopes are negative.
        price: cost of the makespan.
    """

    def __init__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        least: np.ndarray,
        owner: np.ndarray,
        length: np.ndarray,
        slope: np.ndarray,
        price: float,
    ) -> None:
        n = self._n = int(target.max())
        first = np.setdiff1d(np.arange(n), target)
        self._asked = len(source)
        self._tail = np.concatenate([source, np.full(len(first), n + 1), [n]])
        self._head = np.concatenate([target, first, [n + 2]])
        self._least = np.concatenate([least, np.zeros(len(first) + 1)])
        self._work = np.minimum(self._tail, n)  # whose segments lie on the edge: n for none
        self._owner = owner
        self._length = length
        self._slope = slope
        self._price = price
        self._pairs = _siblings(self._tail, n)
        self._place, self._band = _narrow_order(n, self._tail, self._head, self._pairs)
        self._lay_out()

    def _lay_out(self) -> None:
        """Where the system's values go: in order, edges, siblings, edges' heads, edges' tails."""
        n = self._n
        (first, second) = self._pairs
        row = np.concatenate([self._tail, self._head[first], self._head, self._tail])
        column = np.concatenate([self._head, self._head[second], self._head, self._tail])
        inner = np.flatnonzero((row < n) & (column < n))
        at = self._place[row[inner]]
        to = self._place[column[inner]]
        self._inner = inner, np.abs(at - to) * n + np.minimum(at, to)
        beside = np.flatnonzero((np.minimum(row, column) < n) & (np.maximum(row, column) == n))
        self._beside = beside, self._place[np.minimum(row, column)[beside]]
        self._corner = np.flatnonzero((row == n) & (column == n))

    def solve(
        self, deadline: float, start: np.ndarray, share: float
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Solve for one deadline, from starts (n,) and a share of every segment.

        Returns starts, makespan and segments; the multiplier of each edge; the duality gap and
        infeasibility left, of all costs at stake.
        """
        point = self._begin(deadline, start, share)
        best = point
        least = np.inf
        stalled = 0
        while least > _TOLERANCE and stalled < _MOST_IDLE_STEPS:
            left = self._left(point)
            best, least, stalled = (point, left, 0) if left < least else (best, least, stalled + 1)
            step = self._step(point)
            if step is None:  # no more digits to gain
                break
            point = step
        values = np.concatenate([best.start[: self._n + 1], best.segment])
        return values, best.flow[: self._asked], least

    def _begin(self, deadline: float, start: np.ndarray, share: float) -> _Point:
        segment = share * self._length
        nodes = np.concatenate([0.98 * start + 0.01 * deadline, [0.99 * deadline, 0.0, deadline]])
        gap = nodes[self._head] - nodes[self._tail] - self._least - self._longer(segment)
        ones = np.ones_like(self._length)
        return _Point(nodes, np.maximum(gap, 0.05), segment, np.ones(len(gap)), ones, ones)

    def _longer(self, segment: np.ndarray) -> np.ndarray:
        """What segments add to each edge."""
        return self._owned(segment)[self._work]

    def _owned(self, values: np.ndarray) -> np.ndarray:
        """Sum of the values of each instruction's segments; the last entry, n, is zero."""
        return np.bincount(self._owner, weights=values, minlength=self._n + 1)

    def _leaving(self, values: np.ndarray) -> np.ndarray:
        """Sum of the values of the edges that leave each node."""
        return np.bincount(self._tail, weights=values, minlength=self._n + 3)

    def _entering(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self._head, weights=values, minlength=self._n + 3)

    def _lost(self, flow: np.ndarray) -> np.ndarray:
        """Flow entering less leaving each start and the makespan: what a step has to take away."""
        lost = (self._entering(flow) - self._leaving(flow))[: self._n + 1]
        lost[self._n] -= self._price
        return lost

    def _products(self, point: _Point) -> float:
        """Sum of products of a variable and its multiplier: how far from the optimum."""
        total = point.slack @ point.flow + point.segment @ point.low
        return float(total + (self._length - point.segment) @ point.high)

    def _left(self, point: _Point) -> float:
        """Duality gap and what flow is lost or made, of all costs at stake."""
        stake = float(-self._slope @ self._length) + self._price * point.start[self._n + 2] + 1e-300
        lost = np.abs(self._lost(point.flow)).sum() * point.start[self._n + 2]
        return float(self._products(point) + lost) / stake

    def _step(self, point: _Point) -> _Point | None:
        """One predictor-corrector step; None where the system cannot be solved any more."""
        system = _System(self, point)
        if not system.factored():  # singular to working precision
            return None
        room = self._length - point.segment
        whole = -point.slack * point.flow, -point.segment * point.low, -room * point.high
        guess = system.step(*whole)
        total = self._products(point)
        left = self._products(point.moved(guess, *self._reach(point, guess))) / total
        target = left**3 * total / (len(point.slack) + 2 * len(point.segment))
        step = system.step(
            target + whole[0] - guess.slack * guess.flow,
            target + whole[1] - guess.segment * guess.low,
            target + whole[2] + guess.segment * guess.high,
        )
        primal, dual = (min(1.0, _STAY_INSIDE * t) for t in self._reach(point, step))
        moved = point.moved(step, primal, dual)
        return moved if all(np.isfinite(part).all() for part in moved) else None

    def _reach(self, point: _Point, step: _Point) -> tuple[float, float]:
        """How far variables and multipliers can go before one of them is negative, at most 1."""
        room = self._length - point.segment
        primal = [(point.slack, step.slack), (point.segment, step.segment), (room, -step.segment)]
        dual = [(point.flow, step.flow), (point.low, step.low), (point.high, step.high)]
        fastest = [min(float((d / x).min(initial=0.0)) for x, d in each) for each in (primal, dual)]
        first, second = (1.0 if rate >= -1 else -1 / rate for rate in fastest)
        return first, second


class _System:
    """Newton's equations at a point, reduced to the starts and factored."""

    def __init__(self, problem: Interior, point: _Point) -> None:
        self.problem = problem
        self.point = point
        flow = point.flow
        slack = point.slack
        self.room = problem._length - point.segment
        self.give = 1 / (point.low / point.segment + point.high / self.room)
        stretch = problem._owned(self.give)  # how easily an instruction's duration changes
        self.weight = flow / slack
        leaving = problem._leaving(self.weight)
        stretch = stretch[problem._work]
        self.even = 1 / (1 + stretch * leaving[problem._tail])
        self.share = stretch * self.even
        longer = problem._longer(point.segment)
        gap = point.start[problem._head] - point.start[problem._tail]
        self.edge = problem._least + longer + slack - gap
        self.lost = problem._lost(flow)
        through = problem._leaving(flow)[problem._owner]
        self.segment = point.low - point.high - problem._slope - through

    def factored(self) -> bool:
        """Factor the matrix of the starts; the makespan, which all ends meet, is set apart."""
        from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded

        problem = self.problem
        n = self.problem._n
        alone = self.weight - self.share * self.weight**2  # an edge with itself
        even = self.weight * self.even  # with its instruction's other edges
        first, second = problem._pairs
        both = -self.share[first] * self.weight[first] * self.weight[second]
        value = np.concatenate([-even, both, alone, even])
        inner, cell = problem._inner
        size = problem._band + 1
        band = np.bincount(cell, weights=value[inner], minlength=size * n).reshape(size, n)
        if not (np.isfinite(band).all() and (band[0] > 0).all()):
            return False
        try:
            self.factor = cholesky_banded(band, lower=True, check_finite=False)
        except LinAlgError:
            return False
        beside, place = problem._beside
        self.border = np.bincount(place, weights=value[beside], minlength=n)
        self.behind = cho_solve_banded((self.factor, True), self.border, check_finite=False)
        self.corner = float(value[problem._corner].sum() - self.border @ self.behind)
        return bool(np.isfinite(self.corner) and self.corner > 0)

    def _solve(self, right: np.ndarray) -> np.ndarray:
        """Steps of all nodes for right-hand sides of starts and makespan."""
        from scipy.linalg import cho_solve_banded

        problem = self.problem
        n = self.problem._n
        moved = np.empty(n)
        moved[problem._place] = right[:n]
        inner = cho_solve_banded((self.factor, True), moved, check_finite=False)
        last = (right[n] - self.border @ inner) / self.corner
        step = np.zeros(n + 3)
        step[:n] = (inner - self.behind * last)[problem._place]
        step[n] = last
        return step

    def _flows(self, gap: np.ndarray) -> np.ndarray:
        """Flow that answers a gap on each edge, an instruction's edges sharing its segments."""
        alone = self.weight * gap
        together = self.problem._leaving(alone)[self.problem._tail]
        return alone - self.share * self.weight * together

    def step(self, slack: np.ndarray, low: np.ndarray, high: np.ndarray) -> _Point:
        """The step that removes what is infeasible and changes each kind of product as asked."""
        problem = self.problem
        point = self.point
        pull = self.segment + low / point.segment - high / self.room
        gap = self.edge + problem._longer(pull * self.give) + slack / point.flow
        flow = self._flows(gap)
        right = (problem._entering(flow) - problem._leaving(flow))[: problem._n + 1] + self.lost
        start = self._solve(right)
        flow = self._flows(gap - (start[problem._head] - start[problem._tail]))
        segment = (pull - problem._leaving(flow)[problem._owner]) * self.give
        return _Point(
            start,
            (slack - point.slack * flow) / point.flow,
            segment,
            flow,
            (low - point.low * segment) / point.segment,
            (high + point.high * segment) / self.room,
        )


def _siblings(tail: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of edges that leave the same instruction."""
    order = np.argsort(tail, kind="stable")
    order = order[tail[order] < n]
    first = []
    second = []
    for apart in range(1, int(np.bincount(tail[order], minlength=1).max(initial=1))):
        same = tail[order[:-apart]] == tail[order[apart:]]
        first.append(order[:-apart][same])
        second.append(order[apart:][same])
    none = np.zeros(0, dtype=int)
    return np.concatenate([none, *first]), np.concatenate([none, *second])


def _narrow_order(
    n: int, tail: np.ndarray, head: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, int]:
    """Places of the instructions that keep those that meet in the matrix near; how far they are."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    row = np.concatenate([tail, head[pairs[0]]])
    column = np.concatenate([head, head[pairs[1]]])
    inner = (row < n) & (column < n)
    row = row[inner]
    column = column[inner]
    both = (np.concatenate([row, column]), np.concatenate([column, row]))
    meets = coo_matrix((np.ones(len(both[0])), both), shape=(n, n)).tocsr()
    place = np.empty(n, dtype=int)
    place[reverse_cuthill_mckee(meets, symmetric_mode=True)] = np.arange(n)
    return place, int(np.abs(place[row] - place[column]).max(initial=1))
