"""Clock plans on one interface: which clock each instruction runs at, and at what cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from labkit.errors import BadValue, UsageError, not_among, shown
from labkit.kit.describe import Positive, checked, description
from labkit.pipeline.planning.baselines import (
    choose_max_clock,
    choose_uniform,
    choose_zeus_global,
    choose_zeus_local,
)
from labkit.pipeline.planning.envpipe import choose_envpipe
from labkit.pipeline.planning.perseus import choose_perseus, perseus_frontier
from labkit.pipeline.planning.relaxation import OptimalPlanner, choose_optimal
from labkit.pipeline.profiles.clocks import Choice, Task
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.schedule import Schedule
from labkit.pipeline.simulation.costs import Network, lags
from labkit.pipeline.simulation.timeline import Timeline, simulate

if TYPE_CHECKING:
    import pandas as pd

METHODS: dict[str, Callable[..., Choice]] = {
    "max-clock": choose_max_clock,
    "uniform": choose_uniform,
    "zeus-global": choose_zeus_global,
    "zeus-local": choose_zeus_local,
    "envpipe": choose_envpipe,
    "perseus": choose_perseus,
    "optimal": choose_optimal,
}
TIMED_METHODS = ("optimal", "zeus-global")  # as fast as at the highest clock, unless told
MOST_POINTS = 10_000
"""Of a frontier: a plan each."""
WITH_FRONTIER = (*TIMED_METHODS, "perseus")  # those that answer every deadline


@description(eq=False)
class Plan:
    """A clock for every instruction, and what follows from it.

    Attributes:
        method: the planner that made it.
        row: for each instruction, in the order of ``schedule.frame()``, its row of ``profile``.
        deadline_s: what the planner had to keep; None where it had no deadline.
        known_bound_j: ``bound_j``, where the planner computed it along the way.
    """

    schedule: Schedule
    profile: EnergyProfile
    method: str
    row: np.ndarray
    deadline_s: Positive | None = None
    known_bound_j: float | None = None
    network: Network | None = None

    def __post_init__(self) -> None:
        row = np.asarray(self.row)
        count = len(self.profile.kept)
        if row.shape != (len(self.schedule),) or row.dtype.kind not in "iu":
            raise BadValue(f"Plan.row must hold {len(self.schedule)} whole numbers; got {row!r}")
        if len(row) and not 0 <= row.min() <= row.max() < count:
            raise BadValue(f"Plan.row must name rows 0 to {count - 1} of the profile; got {row!r}")

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.schedule, self.profile.time_s[self.row], network=self.network)

    @property
    def makespan_s(self) -> float:
        return self.timeline.makespan_s

    @property
    def energy_j(self) -> float:
        """Of one iteration, over all GPUs, waiting included."""
        return float(self.profile.net_energy_j[self.row].sum() + self.waiting_w * self.makespan_s)

    @property
    def waiting_w(self) -> float:
        """What all GPUs together draw while they wait."""
        return self.profile.blocking_power_w * self.schedule.num_devices

    @cached_property
    def bound_j(self) -> float:
        """The least energy of any plan that ends by ``horizon_s``.

        Over the profile's ``kept`` clocks, which under ``dominance="net"`` are all that can help.
        """
        if self.known_bound_j is not None:
            return self.known_bound_j
        task = Task(self.schedule, self.profile, lag_s=self.timeline.lag_s)
        return OptimalPlanner(task).bounds_j([self.horizon_s])[0]

    @property
    def horizon_s(self) -> float:
        """The later of deadline and makespan."""
        return max(self.deadline_s or 0.0, self.makespan_s)

    @property
    def gap(self) -> float:
        """How far above the bound: 0.01 means at most 1 % more energy than the best plan."""
        return self.energy_j / self.bound_j - 1

    def frame(self) -> pd.DataFrame:
        """One row per instruction: the timeline's columns, clock_mhz, energy_j, power_w."""
        table = self.timeline.frame()
        names = ("clock_mhz", "energy_j", "time_s")
        clock_mhz, energy_j, time_s = (getattr(self.profile, name)[self.row] for name in names)
        return table.assign(clock_mhz=clock_mhz, energy_j=energy_j, power_w=energy_j / time_s)

    def stages_frame(self) -> pd.DataFrame:
        """One row for each stage's kinds of work, waiting left out.

        Columns: stage, kind, instructions_by_clock_mhz (how many run at which clock, the highest
        first), mean_clock_mhz, time_s, energy_j.
        """

        def counted(clock_mhz: pd.Series) -> dict[str, int]:
            counts = clock_mhz.value_counts().sort_index(ascending=False)
            return {f"{mhz:g}": count for mhz, count in counts.items()}

        table = self.frame().assign(time_s=self.timeline.duration_s)
        return table.groupby(["stage", "kind"], as_index=False).agg(
            instructions_by_clock_mhz=("clock_mhz", counted),
            mean_clock_mhz=("clock_mhz", "mean"),
            time_s=("time_s", "sum"),
            energy_j=("energy_j", "sum"),
        )

    @checked
    def data(self, fastest: Plan) -> dict[str, Any]:
        """What it comes to beside the plan of the highest clocks, for JSON."""
        names = ("method", "deadline_s", "makespan_s", "energy_j", "bound_j")
        return {
            "schedule": self.schedule.data,
            **{name: getattr(self, name) for name in names},
            "gap_fraction": self.gap,
            "max_clock": {"makespan_s": fastest.makespan_s, "energy_j": fastest.energy_j},
            "saving_fraction": 1 - self.energy_j / fastest.energy_j,
            "slowdown_fraction": self.makespan_s / fastest.makespan_s - 1,
            "stages": self.stages_frame().to_dict("records"),
            "assumptions": self.profile.assumptions,
        }

    @checked
    def save_trace(self, path: Path | str) -> Path:
        """Write the plan as trace events, clocks and power included, for ui.perfetto.dev."""
        from labkit.pipeline.simulation.trace import save_events, trace_events

        waiting_w = self.profile.blocking_power_w
        events = trace_events(self.timeline, self.frame(), waiting_power_w=waiting_w)
        return save_events(path, f"{self.schedule.name}, {self.method}", events)


@checked
def plan(
    schedule: Schedule,
    profile: EnergyProfile,
    method: str = "optimal",
    deadline_s: Positive | None = None,
    *,
    network: Network | None = None,
    **settings: Any,
) -> Plan:
    """Choose a clock for every instruction.

    Args:
        method: ``"max-clock"``: the highest measured clock throughout; ``"uniform"``: every stage
            at its energy-valley clock (the slow end of EnvPipe's ablation); ``"zeus-global"``,
            ``"zeus-local"``, ``"envpipe"``, ``"perseus"``: see :func:`.choose_zeus_global` and so
            on, which also describe their settings; ``"optimal"``: the linear relaxation, rounded
            to measured clocks, where ``gap`` certifies how near to the best it is.
        deadline_s: latest end of the iteration. None means the all-max-clock makespan for
            planners that need one, and no constraint for the others.

    Raises:
        UsageError: an unknown method or setting, stages that differ, or a deadline that cannot
            be met (by this method).
    """
    task = Task(schedule, profile, deadline_s, lags(schedule, network))
    if method not in METHODS:
        raise not_among("planner", method, METHODS)
    if unknown := sorted(set(settings) - (set(signature(METHODS[method]).parameters) - {"task"})):
        raise UsageError(f"planner {method!r} has no setting {unknown[0]!r}")
    if deadline_s is None and method in TIMED_METHODS:
        task = replace(task, deadline_s=max_clock_s(task))
    choice = METHODS[method](task, **settings)
    chosen = Plan(
        schedule=schedule,
        profile=profile,
        method=method,
        row=choice.row,
        deadline_s=task.deadline_s,
        known_bound_j=choice.bound_j,
        network=network,
    )
    if not task.in_time(chosen.makespan_s):
        raise UsageError(
            f"deadline_s = {task.deadline_s!r} cannot be met by planner {method!r}: "
            f"its plan needs {chosen.makespan_s:.9g} s"
        )
    return chosen


def max_clock_s(task: Task) -> float:
    """Seconds of an iteration with every instruction at its highest clock."""
    return task.cost(choose_max_clock(task).row)[0]


@checked
def frontier(
    schedule: Schedule,
    profile: EnergyProfile,
    num_points: Annotated[int, Ge(2), Le(MOST_POINTS)] = 40,
    method: str = "optimal",
    *,
    network: Network | None = None,
) -> pd.DataFrame:
    """Plans for deadlines from the fastest possible to the one beyond which nothing is saved.

    For ``"perseus"`` they are ``num_points`` of the plans its cuts make, each at its own makespan.

    Returns:
        One row per deadline: deadline_s, makespan_s, energy_j, bound_j.

    Raises:
        UsageError: the method takes no deadline.
    """
    import pandas as pd

    if method not in WITH_FRONTIER:
        raise UsageError(
            f"planner {shown(method)} has no frontier; {', '.join(WITH_FRONTIER)} have"
        )
    task = Task(schedule, profile, lag_s=lags(schedule, network))
    planner = OptimalPlanner(task)
    if method == "perseus":
        table = perseus_frontier(schedule, profile, num_points=num_points, lag_s=task.lag_s)
        table = table.sort_values("makespan_s", ignore_index=True)
        table["deadline_s"] = table["makespan_s"]
    else:
        first_s, last_s = planner.range_s
        if method != "optimal":  # that of the measured maximum clock
            first_s = max_clock_s(task)
        times_s = np.linspace(first_s, max(first_s, last_s), num_points).tolist()
        if method == "optimal":
            choices = planner.choose(times_s)
        else:
            choices = [METHODS[method](replace(task, deadline_s=t)) for t in times_s]
        costs = [task.cost(choice.row) for choice in choices]
        table = pd.DataFrame(costs, columns=["makespan_s", "energy_j"])
        bounds_j = np.array([choice.bound_j for choice in choices], dtype=float)
        table = table.assign(deadline_s=times_s, bound_j=bounds_j)
    if method != "optimal":
        table["bound_j"] = planner.bounds_j(table["deadline_s"].tolist())
    return table[["deadline_s", "makespan_s", "energy_j", "bound_j"]]
