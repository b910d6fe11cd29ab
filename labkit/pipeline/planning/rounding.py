"""Relaxed plans rounded to measured clocks, many at once, by sweeps that choose every clock anew.

A sweep visits every instruction in topological order, forward or backward, and gives each the
choice that is cheapest at a price for its time, among those that fit between the longest path
before it and the longest path after it. So every plan on the way keeps the deadline.

Prices start at the relaxation's, where only what the best mixture would do is worth its time, and
fall to zero, where any slack left is spent. Several variants of each plan are made so, at prices
shaken at random; the best is kept. Plans are columns ("lanes") of arrays of shape (n, lanes):
deadlines of a frontier, and variants of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.kit.compiled import njit
from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE, Task
from labkit.pipeline.scheduling.graph import longest_to

if TYPE_CHECKING:
    from labkit.pipeline.planning.relaxation import Options, Relaxation

_DEADLINE_NOISE = 1e-12
"""Share of the deadline that counts as floating-point noise: it may not cost a clock."""
_STEP = 0.01
_GRADES = 1024
"""Prices are tabulated in steps of their logarithm; 1024 steps of 1 % span a factor of 28,000."""

# How hard rounding searches. Tuned by trial for CPU time; tests hold that plans for the published
# profiles stay within 0.2 % (A100) and 0.5 % (A40) of the bound.
_SHARES = (0.97, 0.8, 0.5, 0.2, 0.0)
"""The price of time in each sweep of an annealing, as a share of the relaxation's price."""
_SWEPT_TOGETHER = 240_000
"""Instructions times lanes in one sweep: about as many numbers as a processor's cache holds."""
_FEWEST_VARIANTS = 4
_MOST_VARIANTS = 64
"""Variants of each plan: the more the shorter the schedule and the fewer the deadlines."""
_SPREADS = (0.0, 0.1, 0.3, 0.05)
"""Standard deviations of the logarithm of a variant's prices, used in turn."""
_SOLVER_NOISE = 1e-6
"""Share of a duration by which the linear program's solution may be wrong."""
_ROUNDED_UP = (1e-6, 2e-3)
"""Share by which the first plan may lengthen a duration to reach the next clock; tried in turn."""
_GOOD_GAP = 7e-4
"""Gap to the bound, as a share of it, at which a plan is improved no further."""


def realise(
    task: Task, choices: Options, relaxed: Sequence[Relaxation], deadlines_s: Sequence[float]
) -> np.ndarray:
    """A choice for every instruction, near each relaxed plan, that ends by its deadline.

    ``relaxed``: solutions, one for each deadline. Returns rows of the profile, (deadlines, n).
    """
    sweeper = _Sweeper(task, choices)
    n = len(choices.of)
    deadline = np.array(deadlines_s, dtype=float)
    lanes = _SWEPT_TOGETHER // (n * len(relaxed))
    variants = int(np.clip(lanes, _FEWEST_VARIANTS, _MOST_VARIANTS))
    width = max(1, _SWEPT_TOGETHER // (n * variants))
    parts = [slice(low, low + width) for low in range(0, len(relaxed), width)]
    plans = [_Plans(sweeper, relaxed[p], deadline[p], variants) for p in parts]
    best = np.concatenate([part.chosen for part in plans], axis=1)
    need_j = np.concatenate([part.energy_j for part in plans])
    order = np.argsort(deadline, kind="stable").tolist()
    for earlier, later in itertools.pairwise(order):  # in time for one, in time for all later
        if need_j[earlier] < need_j[later]:
            need_j[later] = need_j[earlier]
            best[:, later] = best[:, earlier]
    return choices.row.take(best).T


class _Swept(NamedTuple):
    """Plans and how far each instruction reaches in them.

    ``chosen`` holds a choice's number among all kinds of work. ``reach`` has shape (n + 1, lanes):
    after a forward sweep the earliest ends, after a backward one the longest paths from each start
    to the end; its last row is zero.
    """

    chosen: np.ndarray
    reach: np.ndarray
    forward: bool

    @property
    def makespan_s(self) -> np.ndarray:
        """When each plan ends, shape (lanes,)."""
        return self.reach.max(axis=0)

    def repeated(self, times: int) -> _Swept:
        """Each plan that many times, side by side."""
        chosen, reach = (np.repeat(part, times, axis=1) for part in (self.chosen, self.reach))
        return _Swept(chosen, reach, self.forward)


class _Sweeper:
    """Sweeps over one schedule and its choices."""

    def __init__(self, task: Task, choices: Options) -> None:
        graph = task.schedule.graph
        self._waiting_w = task.waiting_w
        n = len(graph)
        depth = longest_to(graph, np.ones(n))  # how many it waits for in a row
        self.order = np.argsort(depth, kind="stable")
        self.choices = choices
        lags = np.zeros((2, n)) if task.lag_s is None else task.lag_s
        self._waits = (graph.before, graph.needs, *lags)
        slopes = [slope for _, slope in choices.segments if len(slope)]
        steepest_w = max((float(-slope.min()) for slope in slopes), default=1.0)
        self._lowest_w = 1.1 * steepest_w * np.exp(-_STEP * (_GRADES - 1))
        self._price_w = self._lowest_w * np.exp(_STEP * np.arange(_GRADES))
        self._price_w[0] = 0.0

    def need_j(self, swept: _Swept) -> np.ndarray:
        """Energy of each plan, shape (lanes,)."""
        net_j = self.choices.net_j.take(swept.chosen[self.order]).sum(axis=0)
        return net_j + self._waiting_w * swept.makespan_s

    def fastest(self, lanes: int) -> _Swept:
        """That many times the plan in which every instruction is at its fastest."""
        return self.slowest_within(np.zeros((len(self.order), lanes)))

    def slowest_within(self, longest_s: np.ndarray, *, forward: bool = True) -> _Swept:
        """Every instruction at its slowest choice no longer than given, or at its fastest."""
        free = np.full(longest_s.shape, np.inf)
        return self._swept(free, longest_s, np.zeros(free.shape, dtype=np.int64), forward)

    def grade(self, price_w: np.ndarray) -> np.ndarray:
        """Prices of instructions' time, shape (n, lanes), as steps of their logarithms.

        Adding a logarithm over :data:`_STEP` multiplies the price.
        """
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(price_w, 0.0) / self._lowest_w) / _STEP

    def sweep(
        self,
        plan: _Swept,
        deadline: np.ndarray,
        *,
        forward: bool,
        price: np.ndarray | None = None,
        longest_s: np.ndarray | None = None,
    ) -> _Swept:
        """Choose anew for every instruction in turn, in plans that end by their deadlines.

        Args:
            deadline: of each lane, shape (lanes,).
            price: grades of :meth:`grade`, shape (n, lanes); None for time that costs nothing.
            longest_s: what no duration may exceed, shape (n, lanes); None for no limit.
        """
        duration_s = self.choices.time_s.take(plan.chosen)
        if plan.forward == forward:  # the same plan, its paths seen from the other end
            plan = self.slowest_within(duration_s, forward=not forward)
        room_s = deadline * (1 + _DEADLINE_NOISE) - (plan.reach[:-1] - duration_s)
        grade = np.clip(np.zeros(room_s.shape) if price is None else price, 0, _GRADES - 1)
        longest_s = np.full(room_s.shape, np.inf) if longest_s is None else longest_s
        return self._swept(room_s, longest_s, grade.astype(np.int64), forward)

    def _swept(
        self, room_s: np.ndarray, longest_s: np.ndarray, grade: np.ndarray, forward: bool
    ) -> _Swept:
        n, lanes = room_s.shape
        chosen = np.zeros((n, lanes), dtype=np.int64)
        reach = np.zeros((n + 1, lanes))
        limits = (room_s, longest_s, grade)
        menus = (self.choices.time_s, self.choices.net_j)
        order = self.order if forward else self.order[::-1].copy()
        _visit(
            order,
            forward,
            *self._waits,
            *limits,
            self._price_w,
            self.choices.of,
            *menus,
            chosen,
            reach,
        )
        return _Swept(chosen, reach, forward)


@njit(cache=True, nogil=True)
def _visit(
    order: Any,
    forward: bool,
    before: Any,
    needs: Any,
    before_lag: Any,
    needs_lag: Any,
    room_s: Any,
    longest_s: Any,
    grade: Any,
    price_w: Any,
    of: Any,
    time_s: Any,
    net_j: Any,
    chosen: Any,
    reach: Any,
) -> None:
    """One sweep: fills ``chosen``, and ``reach`` with longest paths to or from each instruction."""
    for i in order:
        a = before[i]
        b = needs[i]
        times = time_s[of[i]]
        nets = net_j[of[i]]
        for lane in range(reach.shape[1]):
            begin_s = reach[i, lane]  # of a backward sweep: so far came those that wait for it
            if forward:
                begin_s = max(reach[a, lane] + before_lag[i], reach[b, lane] + needs_lag[i])
            limit_s = min(room_s[i, lane] - begin_s, longest_s[i, lane])
            price = price_w[grade[i, lane]]
            least = np.inf
            pick = 0  # if nothing fits, the fastest
            for k in range(times.size):
                if times[k] > limit_s:
                    break
                cost = nets[k] + price * times[k]
                if cost <= least:
                    least = cost
                    pick = k
            chosen[i, lane] = of[i] * times.size + pick
            end_s = reach[i, lane] = begin_s + times[pick]
            if not forward:
                reach[a, lane] = max(reach[a, lane], end_s + before_lag[i])
                reach[b, lane] = max(reach[b, lane], end_s + needs_lag[i])
    reach[-1] = 0.0


class _Plans:
    """The best plan of every deadline, one a lane, made in a few annealings of many variants."""

    def __init__(
        self,
        sweeper: _Sweeper,
        relaxed: Sequence[Relaxation],
        deadline: np.ndarray,
        variants: int,
    ) -> None:
        self.sweeper = sweeper
        self.deadline = deadline
        fastest = sweeper.fastest(len(relaxed))
        self.chosen = fastest.chosen.copy()
        self.energy_j = np.full(len(relaxed), np.inf)
        first_s = fastest.makespan_s
        last_s = [solution.makespan_s for solution in relaxed]
        # where clocks are few and far apart, ending later may not pay
        every = np.arange(len(relaxed))
        self._offer(every, sweeper.sweep(fastest, first_s, forward=False))
        horizon = np.maximum(np.minimum(deadline, last_s), first_s)
        bound_j = np.array([solution.bound_j for solution in relaxed])
        price, duration = (
            np.stack([getattr(each, name) for each in relaxed], axis=1)
            for name in ("price_w", "duration_s")
        )
        price = sweeper.grade(price)
        rng = np.random.default_rng(0)
        spread = np.resize(_SPREADS, variants) / _STEP
        for near in _ROUNDED_UP:
            far = np.flatnonzero(self.energy_j - bound_j > _GOOD_GAP * np.abs(bound_j))
            if not len(far):
                break
            start = _start_plan(sweeper, duration[:, far], horizon[far], near)
            start = start.repeated(variants)
            shaken = np.repeat(price[:, far], variants, axis=1)
            shaken[sweeper.order] += rng.normal(size=shaken.shape) * np.tile(spread, len(far))
            latest = np.repeat(horizon[far], variants)
            for forward in (True, False):
                self._offer(far, _anneal(sweeper, start, latest, shaken, forward=forward))

    def _offer(self, lanes: np.ndarray, swept: _Swept) -> None:
        """Take plans that end in time and need less energy, as many for each lane as for others."""
        makespan_s = swept.makespan_s.reshape(len(lanes), -1)
        late = makespan_s > self.deadline[lanes, None] * (1 + DEADLINE_TOLERANCE / 2)
        need_j = self.sweeper.need_j(swept).reshape(makespan_s.shape)
        need_j = np.where(late, np.inf, need_j)
        best = need_j.argmin(axis=1) + np.arange(len(lanes)) * makespan_s.shape[1]
        need_j = need_j.min(axis=1)
        better = need_j < self.energy_j[lanes]
        self.energy_j[lanes[better]] = need_j[better]
        self.chosen[:, lanes[better]] = swept.chosen[:, best[better]]


def _start_plan(
    sweeper: _Sweeper, duration: np.ndarray, horizon: np.ndarray, near: float
) -> _Swept:
    """The relaxed plan rounded down, but up where that lengthens by no more than ``near``."""
    safe = sweeper.slowest_within(duration * (1 - _SOLVER_NOISE))
    if (safe.makespan_s > horizon).any():
        safe = sweeper.fastest(len(horizon))
    return sweeper.sweep(safe, horizon, forward=True, longest_s=duration * (1 + near))


def _anneal(
    sweeper: _Sweeper, plan: _Swept, horizon: np.ndarray, price: np.ndarray, *, forward: bool
) -> _Swept:
    """Sweeps to and fro while the price of time falls to nothing."""
    for share in _SHARES:
        asked = price + np.log(share) / _STEP if share else None
        plan = sweeper.sweep(plan, horizon, price=asked, forward=forward)
        forward = not forward
    return plan
