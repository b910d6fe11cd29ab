"""Energy from the slack that a straggler gives: one slow pipeline makes all others wait.

Pipelines that train side by side end an iteration together, for their gradients are summed. Where
one of them is slower, throttled by heat, say, or short of an input, the others would only wait:
until then they may as well compute more slowly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from labkit.errors import not_among
from labkit.kit.describe import checked
from labkit.pipeline.planning.plans import WITH_FRONTIER, Plan, max_clock_s, plan
from labkit.pipeline.profiles.clocks import check_stages, slowest_rows
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.scheduling.schedule import Schedule
from labkit.pipeline.simulation.costs import Network, lags

Slowdown = Annotated[float, Ge(1)]


@dataclass(frozen=True, eq=False, kw_only=True)
class StragglerPlan:
    """Clocks for a pipeline that waits for a slower one.

    Attributes:
        plan: the clocks; ``plan.deadline_s`` is when the straggler ends, or T* if that is earlier
            (see :func:`slowest_worthwhile_s`).
        straggler_s: when the straggler ends; until then every GPU computes or waits.
        bound_j: no plan needs less energy until then.
    """

    plan: Plan
    straggler_s: float
    bound_j: float

    @property
    def energy_j(self) -> float:
        """Of one iteration of one pipeline until the straggler ends."""
        return self.plan.energy_j + self.plan.waiting_w * (self.straggler_s - self.plan.makespan_s)


def slowest_worthwhile_s(
    schedule: Schedule, profile: EnergyProfile, *, network: Network | None = None
) -> float:
    """T*, the makespan beyond which a waiting pipeline saves nothing more.

    Every instruction then runs at the slowest clock that is not dominated. Under ``"net"``
    dominance that is the clock of least energy above waiting; under ``"raw"`` dominance it is the
    energy valley, which makes T* the last point of Perseus's frontier.
    """
    check_stages(schedule, profile)
    row = slowest_rows(profile)[schedule.kind, schedule.stage]
    return float(longest_to(schedule.graph, profile.time_s[row], lags(schedule, network)).max())


@checked
def plan_for_straggler(
    schedule: Schedule,
    profile: EnergyProfile,
    slowdown: Slowdown,
    *,
    method: str = "optimal",
    network: Network | None = None,
) -> StragglerPlan:
    """Clocks for the pipelines that wait for a straggler.

    Waiting for the straggler is paid anyway, so a plan is judged by its energy above waiting
    alone: it is made with a profile in which waiting costs nothing.

    Args:
        slowdown: the straggler's iteration time over that at the highest clock; at 1 there is no
            straggler, and the energy is that of pipelines that do not react to one.
        method: a planner that takes a deadline.

    Raises:
        BadValue: the slowdown is below 1 or not finite.
        UsageError: the planner takes no deadline, or stages differ.

    Source: Perseus (SOSP 2024), extrinsic energy bloat.
    """
    if method not in WITH_FRONTIER:
        raise not_among("planner that takes a deadline", method, WITH_FRONTIER)
    fastest_s = max_clock_s(schedule, profile, lags(schedule, network))
    last_s = slowest_worthwhile_s(schedule, profile, network=network)
    straggler_s = slowdown * fastest_s
    deadline_s = min(straggler_s, max(fastest_s, last_s))
    net = replace(profile, blocking_power_w=0.0, energy_j=profile.net_energy_j)
    best = plan(schedule, net, method, deadline_s, network=network)
    chosen = replace(best, profile=profile, known_bound_j=None)
    bound_j = best.bound_j + chosen.waiting_w * straggler_s
    return StragglerPlan(plan=chosen, straggler_s=straggler_s, bound_j=bound_j)
