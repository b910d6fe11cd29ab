"""Our own planner: the linear relaxation's plan, rounded to measured clocks, and its frontier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from labkit.pipeline.planning.relaxation import Model, Relaxation, options
from labkit.pipeline.profiles.clocks import Choice, Task

# With up to this many deadlines the interior-point method is used from _MEDIUM instructions on (see
# ``relaxation``): the simplex method's first solution costs as much as all of these together.
_FEW_DEADLINES = 3


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
        from labkit.pipeline.planning.rounding import realise  # loads numba

        relaxed = self._relaxed(deadlines_s)
        rows = realise(self._task, self._choices, relaxed, deadlines_s)
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
