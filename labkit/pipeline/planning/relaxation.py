"""The least energy any clock plan can need, from a linear program, and where its solution lies.

Every instruction may mix its clocks: its duration moves along the lower convex hull of its
(time, net energy) points, net meaning above waiting. Each real choice is one of those mixtures,
so the optimum bounds every plan from below:

    min  sum_i net_i(d_i) + G P_b T   s.t.  s_j >= s_i + d_i + lag on every dependency,
                                            s_i + d_i <= T

with G GPUs, blocking power P_b and T at most the deadline. The hull enters as one bounded
variable per segment; being convex, its segments fill in order without being told to. Only T's
bound differs between deadlines, so one model serves a whole frontier, each solution starting the
next. Our own planner rounds its solutions to measured clocks (see ``rounding``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.errors import LabkitError, UsageError
from labkit.kit.describe import Positive, checked
from labkit.pipeline.planning.interior import Interior
from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE, Choice, Task
from labkit.pipeline.scheduling.graph import longest_from, longest_to
from labkit.pipeline.scheduling.schedule import KINDS

_LARGE = 3000
_MEDIUM = 400
"""Instructions from which the interior-point method is used: for many deadlines, and for a few,
where the simplex method's slow first solution counts. Found by timing both."""
_FEW_DEADLINES = 3
"""Up to so many deadlines are a few: that first solution costs as much as all of these together."""
_TILT = 3e-5
"""Relative random change of every segment's slope. It makes the optimum unique, so that the
interior-point method ends near a vertex; the bound is computed with the true slopes."""
_INSIDE = 1e-7
"""Share by which a deadline must exceed the shortest one: else the problem has no interior."""
_ENOUGH = 1e-5
"""Largest duality gap, as a share of all costs, with which an interior-point solution is used."""


@dataclass(frozen=True, eq=False)
class Options:
    """The choices of each kind of work, by ascending time: what planners and bounds pick from.

    Arrays have shape (work, choice), work = kind * num_stages + stage; short lists are padded
    with infinite times. ``row`` points into the profile.
    """

    row: np.ndarray
    time_s: np.ndarray
    net_j: np.ndarray
    of: np.ndarray  # (n,) work of each instruction

    @cached_property
    def segments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each work, length (s) and slope (W, negative) of every segment of its lower hull."""
        segments = []
        for time, net in zip(self.time_s, self.net_j, strict=True):
            hull = _lower_hull(time[np.isfinite(time)], net)
            length_s = np.diff(time[hull])
            segments.append((length_s, np.diff(net[hull]) / length_s))
        return segments

    def fastest_s(self) -> np.ndarray:
        """Shortest duration of each instruction."""
        return self.time_s[self.of, 0]

    def slowest_s(self) -> np.ndarray:
        """Longest duration of each instruction that a planner may choose."""
        return np.where(np.isfinite(self.time_s), self.time_s, 0.0).max(axis=1)[self.of]


def options(task: Task) -> Options:
    """The clocks worth choosing for every instruction of the schedule."""
    schedule = task.schedule
    profile = task.profile
    works = [(stage, kind) for kind in KINDS for stage in range(profile.num_stages)]
    rows = [profile.rows(stage, kind, kept_only=True) for stage, kind in works]
    rows = [r[np.argsort(profile.time_s[r], kind="stable")] for r in rows]
    width = max(len(r) for r in rows)
    row = np.array([np.pad(r, (0, width - len(r))) for r in rows])
    real = np.arange(width) < np.array([len(r) for r in rows])[:, None]
    return Options(
        row=row,
        time_s=np.where(real, profile.time_s[row], np.inf),
        net_j=np.where(real, profile.net_energy_j[row], np.inf),
        of=schedule.kind * profile.num_stages + schedule.stage,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Relaxation:
    """Solution of the linear program for one deadline.

    Attributes:
        bound_j: no plan that ends by the deadline needs less energy.
        makespan_s: when the relaxed plan ends.
        duration_s: of each instruction in the relaxed plan.
        price_w: what a second more of each instruction's time costs the others, joules a second.
    """

    bound_j: float
    makespan_s: float
    duration_s: np.ndarray
    price_w: np.ndarray


class Model:
    """The linear program of one task, solved for one deadline after another.

    Deadlines from the slowest down solve fastest: each solution is near the next. Time and energy
    are scaled to those of an average instruction, so that the solver's absolute tolerances mean
    the same for microseconds and minutes.
    """

    def __init__(self, task: Task, choices: Options) -> None:
        graph = task.schedule.graph
        n = len(task.schedule.graph)
        lag_s = task.lag_s
        self.fastest_s = choices.fastest_s()
        self.floor_s = float(longest_to(graph, self.fastest_s, lag_s).max())
        self.horizon_s = float(longest_to(graph, choices.slowest_s(), lag_s).max())
        lengths_s, slopes_w = zip(*(choices.segments[work] for work in choices.of), strict=True)
        length_s = np.concatenate(lengths_s)
        slope_w = np.concatenate(slopes_w)
        self._owner = np.repeat(np.arange(n), list(map(len, lengths_s)))  # of each segment
        self._base_j = float(choices.net_j[choices.of, 0].sum())
        self._second = float(self.fastest_s.mean())  # one unit of time
        watt = float(np.abs(slope_w).mean()) if len(slope_w) else 1.0
        self._joule = watt * self._second  # one unit of energy
        source, target, edge_lag = graph.edges(lag_s)
        self._source = source
        self._target = target
        self._matrix = _precedence(n, source, target, self._owner)
        self._right = (self.fastest_s[source] + edge_lag) / self._second
        self._cost = np.concatenate([np.zeros(n), [task.waiting_w], slope_w]) / watt
        self._length = length_s / self._second
        self._graph = graph
        self._lag_s = lag_s
        self._slowest_s = choices.slowest_s()
        self._solver: Any = None
        self._inner: Interior | None = None

    def _highs(self) -> Any:
        import highspy

        problem = highspy.HighsLp()
        rows, columns = self._matrix.shape
        problem.num_col_ = columns
        problem.num_row_ = rows
        problem.col_cost_ = self._cost
        problem.col_lower_ = np.zeros(columns)
        problem.col_upper_ = self._upper(self.horizon_s)
        problem.row_lower_ = self._right
        problem.row_upper_ = np.full(rows, np.inf)
        problem.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        problem.a_matrix_.start_ = self._matrix.indptr
        problem.a_matrix_.index_ = self._matrix.indices
        problem.a_matrix_.value_ = self._matrix.data
        solver = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("solver", "simplex"),
            ("presolve", "off"),  # it would discard the last solution
            ("simplex_scale_strategy", 0),  # the model is scaled already
            ("simplex_dual_edge_weight_strategy", 1),  # Devex: more steps, each of them cheaper
        ):
            solver.setOptionValue(option, value)
        solver.passModel(problem)
        return solver

    def _upper(self, deadline_s: float) -> np.ndarray:
        """Upper bounds of all columns: no start and no end lies after the deadline."""
        starts = np.full(len(self.fastest_s) + 1, deadline_s / self._second)
        return np.concatenate([starts, self._length])

    def solve(self, deadline_s: float, *, alone: bool = False) -> Relaxation:
        """Solve for one deadline; ``alone`` if hardly any other will follow.

        ``bound_j`` is evaluated from the dual multipliers over the variables' box, so it is a
        lower bound whatever the solver's tolerance.

        Raises:
            UsageError: not even the fastest clocks meet the deadline.
        """
        if not np.isfinite(deadline_s) or deadline_s < self.floor_s * (1 - DEADLINE_TOLERANCE):
            raise UsageError(
                f"deadline_s = {deadline_s!r} cannot be met: "
                f"the fastest clocks need {self.floor_s:.9g} s"
            )
        deadline_s = min(max(deadline_s, self.floor_s), self.horizon_s)
        n = len(self.fastest_s)
        large = n >= (_MEDIUM if alone and self._solver is None else _LARGE)
        run = self._interior if large else self._simplex
        values, multipliers = run(deadline_s)
        multipliers = np.maximum(multipliers, 0.0)
        reduced = self._cost - self._matrix.T @ multipliers
        upper = self._upper(deadline_s)
        dual = float(multipliers @ self._right + np.minimum(reduced * upper, 0.0).sum())
        longer = np.bincount(self._owner, weights=values[n + 1 :], minlength=n)
        price = np.bincount(self._source, weights=multipliers, minlength=n)
        return Relaxation(
            bound_j=self._base_j + dual * self._joule,
            makespan_s=float(min(values[n] * self._second, deadline_s)),
            duration_s=self.fastest_s + longer * self._second,
            price_w=price * (self._joule / self._second),
        )

    def _interior(self, deadline_s: float) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`_simplex`, but near the optimum only; for long schedules far less work."""
        n = len(self.fastest_s)
        if self._inner is None:
            # Where many mixtures cost the same the method would end in their midst, with every
            # instruction between two clocks; with tilted slopes nearly all end at one.
            tilt = 1 + np.random.default_rng(0).uniform(-_TILT, _TILT, n)[self._owner]
            edges = (self._source, self._target, self._right)
            slope = self._cost[n + 1 :] * tilt
            price = float(self._cost[n])
            self._inner = Interior(*edges, self._owner, self._length, slope, price)
        later_s = max(deadline_s, self.floor_s * (1 + _INSIDE))
        span_s = self.horizon_s - self.floor_s
        share = np.clip((later_s - self.floor_s) / (2 * span_s), 1e-4, 0.5) if span_s else 0.5
        duration_s = self.fastest_s + share * (self._slowest_s - self.fastest_s)
        early_s = longest_to(self._graph, duration_s, self._lag_s) - duration_s
        late_s = later_s - longest_from(self._graph, duration_s, self._lag_s)
        middle = (early_s + np.maximum(late_s, early_s)) / (2 * self._second)
        values, flow, left = self._inner.solve(later_s / self._second, middle, float(share))
        return self._simplex(deadline_s) if left > _ENOUGH else (values, flow)

    def _simplex(self, deadline_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Columns' values and rows' multipliers at the optimum."""
        import highspy

        if self._solver is None:
            self._solver = self._highs()
        solver = self._solver
        solver.changeColBounds(len(self.fastest_s), 0.0, deadline_s / self._second)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            solver.clearSolver()  # the last solution misled it; a cold start does not
            solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            status = solver.modelStatusToString(solver.getModelStatus())
            raise LabkitError(f"the relaxation for {deadline_s!r} s was not solved: {status}")
        solution = solver.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)


class OptimalPlanner:
    """Plans of one task for any number of deadlines (its own aside), from one linear program."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.choices = options(task)

    @cached_property
    def _model(self) -> Model:  # of all that a joint choice looks at, few are ever solved
        return Model(self._task, self.choices)

    @cached_property
    def range_s(self) -> tuple[float, float]:
        """The shortest deadline that can be met, and the one beyond which nothing is saved."""
        first_s = self._model.floor_s
        return first_s, max(first_s, self._model.solve(self._model.horizon_s).makespan_s)

    def bounds_j(self, deadlines_s: Sequence[float]) -> list[float]:
        """For each deadline, energy that no plan ending by it can undercut."""
        return [relaxed.bound_j for relaxed in self._relaxed(deadlines_s)]

    def choose(self, deadlines_s: Sequence[float], *, effort: float = 1.0) -> list[Choice]:
        """A plan for each deadline, in the order given; ``effort`` as in :func:`choose_optimal`."""
        from labkit.pipeline.planning.rounding import realise  # loads numba

        relaxed = self._relaxed(deadlines_s)
        rows = realise(self._task, self.choices, relaxed, deadlines_s, effort=effort)
        return [Choice(row, solution.bound_j) for row, solution in zip(rows, relaxed, strict=True)]

    def _relaxed(self, deadlines_s: Sequence[float]) -> list[Relaxation]:
        """Solutions in the order given, solved from the slowest deadline down."""
        order = np.argsort([-deadline_s for deadline_s in deadlines_s], kind="stable").tolist()
        alone = len(order) <= _FEW_DEADLINES
        solved = {i: self._model.solve(float(deadlines_s[i]), alone=alone) for i in order}
        return [solved[i] for i in range(len(deadlines_s))]


@checked
def choose_optimal(task: Task, *, effort: Positive = 1.0) -> Choice:
    """Near the least energy by the deadline; the bound certifies how near.

    Args:
        effort: how many times the usual number of windows are searched while the relaxed plan is
            rounded to measured clocks (see ``rounding``, which says what more of it brings).
    """
    assert task.deadline_s is not None
    return OptimalPlanner(task).choose([task.deadline_s], effort=effort)[0]


def _precedence(n: int, source: np.ndarray, target: np.ndarray, owner: np.ndarray) -> Any:
    """Rows ``s_j - s_i - (segments of i) >= fastest_i + lag``; column n, the makespan, ends all.

    Columns: n starts, the makespan T, one per segment.
    """
    from scipy.sparse import csr_matrix, hstack

    rows = np.arange(len(source))
    unit = np.ones(len(source))
    ending = csr_matrix((unit, (rows, target)), shape=(len(rows), n + 1))
    starting = csr_matrix((unit, (rows, source)), shape=(len(rows), n + 1))
    own = (np.ones(len(owner)), (owner, np.arange(len(owner))))
    segments = starting @ csr_matrix(own, shape=(n + 1, len(owner)))
    return hstack([ending - starting, -segments]).tocsr()


def _lower_hull(time: np.ndarray, net: np.ndarray) -> np.ndarray:
    """Indices of the lower convex hull of points ascending in time and descending in energy."""
    hull: list[int] = []
    for i in range(len(time)):
        while len(hull) > 1:
            a = hull[-2]
            b = hull[-1]
            before = (net[b] - net[a]) * (time[i] - time[b])
            after = (net[i] - net[b]) * (time[b] - time[a])
            if before < after:  # the slope rises at b
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=int)
