"""Our own planner: the linear relaxation's plan, rounded to measured clocks, and its frontier.

Rounding sweeps along the schedule and spends its slack at a price. Prices start at the
relaxation's, where only what the best mixture would do is worth its time, and fall to zero, where
any slack left is spent. Several variants of each plan are made so, at prices shaken at random;
the best is kept. Many plans are swept at once, one a column ("lane"): deadlines of a frontier, and
variants of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from labkit.pipeline.planning.relaxation import Model, Relaxation, options
from labkit.pipeline.planning.sweeps import STEP, Sweeper, Swept
from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE, Choice, Task

# With up to this many deadlines the interior-point method is used from _MEDIUM instructions on (see
# ``relaxation``): the simplex method's first solution costs as much as all of these together.
_FEW_DEADLINES = 3

# How hard rounding searches. Tuned by trial for CPU time; tests hold that plans for the published
# profiles stay within 0.2 % (A100) and 0.5 % (A40) of the bound.
_SHARES = (0.97, 0.8, 0.5, 0.2, 0.0)
"""The price of time in each sweep of an annealing, as a share of the relaxation's price."""
_SWEPT_TOGETHER = 240_000
"""Instructions times lanes in one sweep: about as many numbers as a processor's cache holds."""
_FEWEST_VARIANTS, _MOST_VARIANTS = 4, 64
"""Variants of each plan: the more the shorter the schedule and the fewer the deadlines."""
_SPREADS = (0.0, 0.1, 0.3, 0.05)
"""Standard deviations of the logarithm of a variant's prices, used in turn."""
_SOLVER_NOISE = 1e-6
"""Share of a duration by which the linear program's solution may be wrong."""
_ROUNDED_UP = (1e-6, 2e-3)
"""Share by which the first plan may lengthen a duration to reach the next clock; tried in turn."""
_GOOD_GAP = 7e-4
"""Gap to the bound, as a share of it, at which a plan is improved no further."""


class OptimalPlanner:
    """Plans of one task for any number of deadlines (its own aside), from one linear program."""

    def __init__(self, task: Task) -> None:
        self._task, self._choices = task, options(task)
        self._model = Model(task, self._choices)

    @cached_property
    def range_s(self) -> tuple[float, float]:
        """The shortest deadline that can be met, and the one beyond which nothing is saved."""
        first_s = self._model.floor_s
        return first_s, max(first_s, self._model.solve(self._model.horizon_s).makespan_s)

    def bounds_j(self, deadlines_s: Sequence[float]) -> list[float]:
        """For each deadline, energy that no plan ending by it can undercut."""
        return [relaxed.bound_j for relaxed in self._relaxed(deadlines_s)]

    def choose(self, deadlines_s: Sequence[float]) -> list[Choice]:
        """A plan for each deadline, in the order given."""
        relaxed = self._relaxed(deadlines_s)
        sweeper = Sweeper(self._task.schedule.graph, self._choices, self._task.lag_s)
        chosen = _realise(sweeper, relaxed, deadlines_s, self._task.waiting_w)
        rows = self._choices.row[self._choices.of, chosen]
        return [Choice(row, solution.bound_j) for row, solution in zip(rows, relaxed, strict=True)]

    def _relaxed(self, deadlines_s: Sequence[float]) -> list[Relaxation]:
        """Solutions in the order given, solved from the slowest deadline down."""
        order = np.argsort([-deadline_s for deadline_s in deadlines_s], kind="stable").tolist()
        alone = len(order) <= _FEW_DEADLINES
        solved = {i: self._model.solve(float(deadlines_s[i]), alone=alone) for i in order}
        return [solved[i] for i in range(len(deadlines_s))]


def choose_optimal(task: Task) -> Choice:
    """Near the least energy by the deadline; the bound certifies how near."""
    assert task.deadline_s is not None
    return OptimalPlanner(task).choose([task.deadline_s])[0]


def _realise(
    sweeper: Sweeper, relaxed: Sequence[Relaxation], deadline_s: Sequence[float], waiting_w: float
) -> np.ndarray:
    """A choice for every instruction, near each relaxed plan, that ends by its deadline.

    Args:
        relaxed: solutions, one for each deadline.
        waiting_w: what a longer makespan costs: the blocking power of all GPUs together.

    Returns:
        Shape (deadlines, n).
    """
    deadline = np.array(deadline_s, dtype=float)
    lanes = _SWEPT_TOGETHER // (len(sweeper) * len(relaxed))
    variants = int(np.clip(lanes, _FEWEST_VARIANTS, _MOST_VARIANTS))
    width = max(1, _SWEPT_TOGETHER // (len(sweeper) * variants))
    parts = [slice(low, low + width) for low in range(0, len(relaxed), width)]
    plans = [_Plans(sweeper, relaxed[p], deadline[p], waiting_w, variants) for p in parts]
    best = np.concatenate([part.chosen for part in plans], axis=1)
    need_j = np.concatenate([part.energy_j for part in plans])
    order = np.argsort(deadline, kind="stable").tolist()
    for earlier, later in itertools.pairwise(order):  # in time for one, in time for all later
        if need_j[earlier] < need_j[later]:
            need_j[later], best[:, later] = need_j[earlier], best[:, earlier]
    return sweeper.choices(best).T


class _Plans:
    """The best plan of every deadline, one a lane, made in a few annealings of many variants."""

    def __init__(
        self,
        sweeper: Sweeper,
        relaxed: Sequence[Relaxation],
        deadline: np.ndarray,
        waiting_w: float,
        variants: int,
    ) -> None:
        self.sweeper, self.deadline, self.waiting_w = sweeper, deadline, waiting_w
        fastest = sweeper.fastest(len(relaxed))
        self.chosen, self.energy_j = fastest.chosen.copy(), np.full(len(relaxed), np.inf)
        first_s, last_s = fastest.makespan_s, [solution.makespan_s for solution in relaxed]
        # where clocks are few and far apart, ending later may not pay
        every = np.arange(len(relaxed))
        self._offer(every, sweeper.sweep(fastest, first_s, forward=False))
        horizon = np.maximum(np.minimum(deadline, last_s), first_s)
        bound_j = np.array([solution.bound_j for solution in relaxed])
        price, duration = (
            sweeper.inside(np.stack([getattr(each, name) for each in relaxed], axis=1))
            for name in ("price_w", "duration_s")
        )
        price, rng = sweeper.grade(price), np.random.default_rng(0)
        spread = np.resize(_SPREADS, variants) / STEP
        for near in _ROUNDED_UP:
            far = np.flatnonzero(self.energy_j - bound_j > _GOOD_GAP * np.abs(bound_j))
            if not len(far):
                break
            start = _start_plan(sweeper, duration[:, far], horizon[far], near)
            start, shaken = start.repeated(variants), np.repeat(price[:, far], variants, axis=1)
            shaken += rng.normal(size=shaken.shape) * np.tile(spread, len(far))
            latest = np.repeat(horizon[far], variants)
            for forward in (True, False):
                self._offer(far, _anneal(sweeper, start, latest, shaken, forward=forward))

    def _offer(self, lanes: np.ndarray, swept: Swept) -> None:
        """Take plans that end in time and need less energy, as many for each lane as for others."""
        makespan_s = swept.makespan_s.reshape(len(lanes), -1)
        late = makespan_s > self.deadline[lanes, None] * (1 + DEADLINE_TOLERANCE / 2)
        need_j = self.sweeper.net_j(swept.chosen).reshape(makespan_s.shape)
        need_j = np.where(late, np.inf, need_j + self.waiting_w * makespan_s)
        best = need_j.argmin(axis=1) + np.arange(len(lanes)) * makespan_s.shape[1]
        need_j = need_j.min(axis=1)
        better = need_j < self.energy_j[lanes]
        self.energy_j[lanes[better]] = need_j[better]
        self.chosen[:, lanes[better]] = swept.chosen[:, best[better]]


def _start_plan(sweeper: Sweeper, duration: np.ndarray, horizon: np.ndarray, near: float) -> Swept:
    """The relaxed plan rounded down, but up where that lengthens by no more than ``near``."""
    safe = sweeper.of_counts(sweeper.num_within(duration * (1 - _SOLVER_NOISE)))
    if (safe.makespan_s > horizon).any():
        safe = sweeper.fastest(len(horizon))
    most = sweeper.num_within(duration * (1 + near))
    return sweeper.sweep(safe, horizon, forward=True, most=most)


def _anneal(
    sweeper: Sweeper, plan: Swept, horizon: np.ndarray, price: np.ndarray, *, forward: bool
) -> Swept:
    """Sweeps to and fro while the price of time falls to nothing."""
    for share in _SHARES:
        asked = price + np.log(share) / STEP if share else None
        plan = sweeper.sweep(plan, horizon, price=asked, forward=forward)
        forward = not forward
    return plan
