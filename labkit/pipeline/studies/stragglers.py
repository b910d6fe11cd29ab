"""Energy from the slack that a straggler gives: one slow pipeline makes all others wait.

Pipelines that train side by side end an iteration together, for their gradients are summed. Where
one of them is slower, throttled by heat, say, or short of an input, the others would only wait:
until then they may as well compute more slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.planning.baselines import choose_max_clock
from labkit.pipeline.planning.plans import Plan, max_clock_s, plan
from labkit.pipeline.profiles.clocks import check_stages
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.scheduling.schedule import KINDS, Schedule
from labkit.pipeline.simulation.network import Network, lags

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class StragglerPlan:
    """A plan for the pipelines that wait for a slower one, and what it saves on each of them.

    Attributes:
        plan: the clocks.
        slowdown: the straggler's iteration time over that at the highest clock.
        straggler_s: when the straggler ends; until then every GPU computes or waits.
        deadline_s: what the plan had to keep, see :func:`straggler_deadline_s`.
        energy_j: of one iteration of one pipeline until the straggler ends.
        unreacted_energy_j: the same for the plan made for no straggler.
        max_clock_energy_j: the same at the highest clock.
        bound_j: no plan undercuts it.
    """

    plan: Plan
    slowdown: float
    straggler_s: float
    deadline_s: float
    energy_j: float
    unreacted_energy_j: float
    max_clock_energy_j: float
    bound_j: float

    @property
    def saving_fraction(self) -> float:
        """Energy saved by reacting to the straggler."""
        return 1 - self.energy_j / self.unreacted_energy_j


def slowest_worthwhile_s(
    schedule: Schedule, profile: EnergyProfile, *, network: Network | None = None
) -> float:
    """T*, the makespan beyond which a waiting pipeline saves nothing more.

    Every instruction then runs at the slowest clock that is not dominated. Under ``"net"``
    dominance that is the clock of least energy above waiting; under ``"raw"`` dominance it is the
    energy valley, which makes T* the last point of Perseus's frontier.
    """
    check_stages(schedule, profile)
    slowest = np.full((len(KINDS), profile.num_stages), -1)
    for kind, stage in profile.works():
        rows = profile.rows(stage, KINDS[kind], kept_only=True)
        slowest[kind, stage] = rows[np.argmax(profile.time_s[rows])]
    row = slowest[schedule.kind, schedule.stage]
    return float(longest_to(schedule.graph, profile.time_s[row], lags(schedule, network)).max())


def straggler_deadline_s(
    schedule: Schedule, profile: EnergyProfile, slowdown: float, *, network: Network | None = None
) -> float:
    """The deadline that a straggler gives every other pipeline: min(T*, when it ends).

    Args:
        slowdown: the straggler's iteration time over that at the highest clock.

    Raises:
        UsageError: the slowdown is below 1 or not finite, or stages differ.

    Source: Perseus (SOSP 2024), extrinsic energy bloat.
    """
    if not (np.isfinite(slowdown) and slowdown >= 1):
        raise UsageError(f"slowdown must be finite and >= 1, found {slowdown!r}")
    check_stages(schedule, profile)
    fastest_s = max_clock_s(schedule, profile, lags(schedule, network))
    return min(
        slowdown * fastest_s,
        max(fastest_s, slowest_worthwhile_s(schedule, profile, network=network)),
    )


def plan_for_straggler(
    schedule: Schedule,
    profile: EnergyProfile,
    slowdown: float,
    *,
    method: str = "optimal",
    network: Network | None = None,
    **settings: Any,
) -> StragglerPlan:
    """Clocks for the pipelines that wait for a straggler, and what they save.

    Waiting for the straggler is paid anyway, so a plan is judged by its energy above waiting
    alone; a plan made for the same deadline by :func:`labkit.pipeline.plan` may end earlier, to
    save the waiting of its own GPUs.

    Args:
        slowdown: the straggler's iteration time over that at the highest clock.
        method, settings: a planner that takes a deadline, as for :func:`labkit.pipeline.plan`.

    Raises:
        UsageError: as :func:`straggler_deadline_s` and :func:`labkit.pipeline.plan`.
    """
    fastest_s = straggler_deadline_s(schedule, profile, 1.0, network=network)
    calm = _plan_waiting(schedule, profile, fastest_s, method, network, settings)
    return _react(calm, slowdown, method, network, settings)


def straggler_table(
    schedule: Schedule,
    profile: EnergyProfile,
    slowdowns: Iterable[float] = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5),
    *,
    method: str = "optimal",
    network: Network | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """:func:`plan_for_straggler` for several slowdowns.

    Returns:
        One row per slowdown: slowdown, straggler_s, deadline_s, makespan_s, energy_j,
        unreacted_energy_j, max_clock_energy_j, saving_fraction (beside not reacting),
        max_clock_saving_fraction, bound_j, gap_fraction.
    """
    import pandas as pd

    fastest_s = straggler_deadline_s(schedule, profile, 1.0, network=network)
    calm = _plan_waiting(schedule, profile, fastest_s, method, network, settings)
    rows = []
    for slowdown in slowdowns:
        one = _react(calm, slowdown, method, network, settings)
        rows.append(
            {
                "slowdown": slowdown,
                "straggler_s": one.straggler_s,
                "deadline_s": one.deadline_s,
                "makespan_s": one.plan.makespan_s,
                "energy_j": one.energy_j,
                "unreacted_energy_j": one.unreacted_energy_j,
                "max_clock_energy_j": one.max_clock_energy_j,
                "saving_fraction": one.saving_fraction,
                "max_clock_saving_fraction": 1 - one.energy_j / one.max_clock_energy_j,
                "bound_j": one.bound_j,
                "gap_fraction": one.energy_j / one.bound_j - 1,
            }
        )
    return pd.DataFrame(rows)


def _react(
    calm: Plan, slowdown: float, method: str, network: Network | None, settings: dict[str, Any]
) -> StragglerPlan:
    schedule, profile = calm.schedule, calm.profile
    deadline_s = straggler_deadline_s(schedule, profile, slowdown, network=network)
    fastest = choose_max_clock(schedule, profile).row
    straggler_s = slowdown * max_clock_s(schedule, profile, lags(schedule, network))
    made = _plan_waiting(schedule, profile, deadline_s, method, network, settings)
    waiting_j = calm.waiting_w * straggler_s
    net_j = [float(profile.net_energy_j[row].sum()) for row in (made.row, calm.row, fastest)]
    best = made if net_j[0] <= net_j[1] else calm  # rounding could lose what reacting wins
    return StragglerPlan(
        plan=replace(best, deadline_s=deadline_s, known_bound_j=None),
        slowdown=slowdown,
        straggler_s=straggler_s,
        deadline_s=deadline_s,
        energy_j=min(net_j[:2]) + waiting_j,
        unreacted_energy_j=net_j[1] + waiting_j,
        max_clock_energy_j=net_j[2] + waiting_j,
        bound_j=_above_waiting_bound_j(made, profile, deadline_s) + waiting_j,
    )


def _plan_waiting(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float,
    method: str,
    network: Network | None,
    settings: dict[str, Any],
) -> Plan:
    """A plan of least energy above waiting by the deadline, whenever it ends."""
    made = plan(
        schedule, _without_waiting(profile), method, deadline_s, network=network, **settings
    )
    return replace(made, profile=profile, known_bound_j=None)


def _above_waiting_bound_j(made: Plan, profile: EnergyProfile, deadline_s: float) -> float:
    free = replace(made, profile=_without_waiting(profile), deadline_s=deadline_s)
    return free.bound_j


def _without_waiting(profile: EnergyProfile) -> EnergyProfile:
    """The profile of energies above waiting, in which waiting costs nothing."""
    return replace(profile, blocking_power_w=0.0, energy_j=profile.net_energy_j)
