"""Perseus (SOSP 2024): the whole time-energy frontier of a schedule, by repeated minimum cuts.

Perseus counts time in units, each measured duration rounded down. Every kind of work gets a
smooth cost, ``a exp(-b q) + c`` joules above waiting at ``q`` units, fitted to its measured
clocks. From the plan in which everything runs as slowly as it may, minimum cuts shorten the
iteration unit by unit at the least cost (see ``cuts``). Each instruction then gets the slowest
measured clock whose rounded time fits its planned duration.

Two things follow from the rounding. Measured clocks take longer than planned, so that even the
fastest plan ends a little later than the highest clock throughout; and planned energy is neither
a bound nor what the plan takes. :func:`perseus_frontier` gives both times and both energies.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training", SOSP 2024; behaviour of
the authors' public implementation and of their published frontiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from annotated_types import Ge

from labkit.errors import UsageError
from labkit.kit.describe import Positive, checked
from labkit.pipeline.planning.cuts import Menus, hurried, span
from labkit.pipeline.profiles.clocks import Choice, Task
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import Lag
from labkit.pipeline.scheduling.schedule import KINDS, Schedule

if TYPE_CHECKING:
    import pandas as pd

UNIT_S = 1e-3
"""Seconds that one cut saves by default: the published planner's unit."""
MOST_CUTS = 1_000_000
"""Cuts of one frontier above which the unit of time is taken for a mistake."""


@checked
def choose_perseus(task: Task, *, unit_s: Positive = UNIT_S) -> Choice:
    """The slowest of Perseus's plans that ends by the deadline at its measured clocks.

    Without a deadline the fastest plan, which Perseus runs while no straggler holds the iteration
    up. Lags are planned with in whole units, rounded down.

    Args:
        unit_s: what one cut saves; times are rounded down to it.

    Raises:
        UsageError: no plan ends by the deadline; a unit that is not > 0, or one so coarse that a
            kind of work has fewer than three durations; stages that differ.
    """
    problem = _Problem(task, unit_s)
    if task.deadline_s is None:
        *_, fastest = problem.plans()
        return Choice(problem.realise(fastest))
    if not task.in_time(problem.fastest_s):
        raise UsageError(
            f"deadline_s = {task.deadline_s!r} cannot be met: the fastest clocks need "
            f"{problem.fastest_s:.9g} s"
        )
    reached_s = np.inf
    for duration in problem.plans():
        row = problem.realise(duration)
        makespan_s, _ = task.cost(row)
        if task.in_time(makespan_s):
            return Choice(row)
        reached_s = min(reached_s, makespan_s)
    raise UsageError(
        f"deadline_s = {task.deadline_s!r} cannot be met by Perseus's plans, which need at least "
        f"{reached_s:.9g} s: it rounds times down to unit_s = {unit_s!r}, and a smaller unit "
        f"comes nearer to the {problem.fastest_s:.9g} s of the fastest clocks"
    )


@checked
def perseus_frontier(
    schedule: Schedule,
    profile: EnergyProfile,
    *,
    unit_s: Positive = UNIT_S,
    num_points: Annotated[int, Ge(2)] | None = None,
    lag_s: Lag | None = None,
) -> pd.DataFrame:
    """Perseus's plans from the slowest to the fastest, a row for each cut, as it publishes them.

    Published tables leave out the plan before the first cut, in which everything runs as slowly
    as it may; so does this.

    Args:
        num_points: how many of the plans to return, spread evenly, ends included; None for all.

    Returns:
        deadline_s and planned_energy_j: time in whole units and energy by the fitted costs, the
        published tables' two columns; makespan_s and energy_j with the measured clocks chosen.
    """
    import pandas as pd

    task = Task(schedule, profile, lag_s=lag_s)
    problem = _Problem(task, unit_s)
    count = problem.num_cuts if num_points is None else num_points
    wanted = set(np.rint(np.linspace(1, problem.num_cuts, count)).astype(int).tolist())
    table = []
    for saved, duration in enumerate(problem.plans()):
        if saved in wanted:
            planned_s = (problem.slowest - saved) * unit_s
            planned_j = problem.net_j(duration) + task.waiting_w * planned_s
            table.append((planned_s, *task.cost(problem.realise(duration)), planned_j))
    names = ["deadline_s", "makespan_s", "energy_j", "planned_energy_j"]
    return pd.DataFrame(table, columns=names)


def menus(schedule: Schedule, profile: EnergyProfile, *, unit_s: float = UNIT_S) -> Menus:
    """What every instruction may take, in units, and its fitted cost: what the cuts walk on."""
    return _Problem(Task(schedule, profile), unit_s).menus


class _Problem:
    """A schedule's instructions, what each may take, and what that means at measured clocks."""

    def __init__(self, task: Task, unit_s: float) -> None:
        schedule = task.schedule
        profile = task.profile
        self.task = task
        self.graph = schedule.graph
        pareto = profile.with_dominance("raw")
        stages = profile.num_stages
        codes, of = np.unique(schedule.kind * stages + schedule.stage, return_inverse=True)
        curves = [_curve(pareto, *divmod(int(code), stages), unit_s) for code in codes]
        width = np.array([len(curve.row) for curve in curves])
        least = np.array([curve.least for curve in curves])
        self.menus = Menus(
            least=least[of],
            most=(least + width - 1)[of],
            cost=np.concatenate([curve.net_j for curve in curves]),
            offset=(np.cumsum(width) - width - least)[of],
        )
        self.row = np.concatenate([curve.row for curve in curves])  # for each entry of the costs
        self.lag = task.lag_s and (task.lag_s[0] // unit_s, task.lag_s[1] // unit_s)
        if self.num_cuts > MOST_CUTS:
            raise UsageError(
                f"unit_s = {unit_s!r} makes {self.num_cuts} plans; choose a larger one"
            )

    @cached_property
    def slowest(self) -> int:
        """Units that the iteration takes before any cut."""
        return span(self.graph, self.menus.most, self.lag)

    @property
    def num_cuts(self) -> int:
        return self.slowest - span(self.graph, self.menus.least, self.lag)

    @cached_property
    def fastest_s(self) -> float:
        """Makespan with everything at its fastest clock."""
        return self.task.cost(self.realise(self.menus.least))[0]

    def plans(self) -> Iterator[np.ndarray]:
        """Planned durations in units, the slowest plan first, each a unit shorter."""
        return hurried(self.graph, self.menus, self.lag)

    def realise(self, duration: np.ndarray) -> np.ndarray:
        """The profile row of each instruction."""
        return self.row[self.menus.offset + duration]

    def net_j(self, duration: np.ndarray) -> float:
        """Energy above waiting by the fitted costs."""
        return float(self.menus.cost[self.menus.offset + duration].sum())


class _Curve(NamedTuple):
    """One kind of work at ``least`` units, one more, and so on: fitted energy, profile row."""

    least: int
    net_j: np.ndarray
    row: np.ndarray


def _curve(pareto: EnergyProfile, kind: int, stage: int, unit_s: float) -> _Curve:
    """Of clocks that round to one duration the fastest counts, whose time is nearest to it."""
    rows = pareto.rows(stage, KINDS[kind], kept_only=True)
    rows = rows[np.argsort(pareto.time_s[rows], kind="stable")]
    whole = (pareto.time_s[rows] // unit_s).astype(np.int64)
    units, first = np.unique(whole, return_index=True)
    if len(units) < 3:
        raise UsageError(
            f"stage {stage} {KINDS[kind]}: its {len(rows)} undominated clocks make "
            f"{len(units)} distinct durations in units of {unit_s!r} s, and a cost curve needs "
            "3: choose a smaller unit_s, or measure more clocks"
        )
    if units[-1] - units[0] > MOST_CUTS:
        raise UsageError(f"unit_s = {unit_s!r} is too small for stage {stage} {KINDS[kind]}")
    rows = rows[first]
    net_j = pareto.energy_j[rows] - pareto.blocking_power_w * unit_s * units
    at = np.arange(units[0], units[-1] + 1)
    slowest_fitting = rows[np.searchsorted(units, at, side="right") - 1]
    return _Curve(int(units[0]), _fitted(units, net_j, at), slowest_fitting)


def _fitted(units: np.ndarray, net_j: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The falling exponential plus constant nearest to the points in least squares, at ``at``.

    For a given rate the other two parameters are a linear regression, so only the rate is
    searched, between a straight line and a fall that is over within a unit: the curve is convex
    whatever the points.
    """
    from scipy.optimize import minimize_scalar

    since = units - units[0]
    rates = np.geomspace(1e-3 / since[-1], 10.0, 400)
    best = int(np.argmin(_regress(since, net_j, rates)[0]))
    low = rates[max(best - 1, 0)]
    high = rates[min(best + 1, len(rates) - 1)]
    rate = minimize_scalar(
        lambda x: _regress(since, net_j, np.array([x]))[0][0],
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-12 * high},
    ).x
    _, height, level = _regress(since, net_j, np.array([rate]))
    return level[0] + height[0] * np.exp(-rate * (at - units[0]))


def _regress(
    since: np.ndarray, net_j: np.ndarray, rates: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Squared error, height and level of the best ``height exp(-rate since) + level`` of each."""
    shape = np.exp(-np.outer(rates, since))
    middle = shape.mean(axis=1)
    mean_j = net_j.mean()
    centred = shape - middle[:, None]
    height = centred @ net_j / (centred**2).sum(axis=1)
    error = net_j - mean_j - height[:, None] * centred
    return (error**2).sum(axis=1), height, mean_j - height * middle
