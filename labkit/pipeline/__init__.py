"""Pipeline parallelism: schedules, timelines, and the clocks that make them cheap in energy.

>>> from labkit import pipeline
>>> schedule = pipeline.build("1f1b", num_stages=4, num_microbatches=8)
>>> costs = pipeline.Costs.uniform(forward_s=1.0, backward_s=1.0, weight_s=1.0)
>>> line = pipeline.simulate(schedule, costs)
>>> line.makespan_s, round(line.bubble_ratio, 4)
(33.0, 0.2727)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.pipeline.choice.joint import JointChoice, choose
from labkit.pipeline.planning.envpipe import early_forwards, outer_envelope
from labkit.pipeline.planning.fitted import build_for, fitted
from labkit.pipeline.planning.optimal import lower_bound_j
from labkit.pipeline.planning.plans import Plan, frontier, plan
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import DeadlockError
from labkit.pipeline.scheduling.orders import load_order, save_order
from labkit.pipeline.scheduling.policies import build, closed_form_bubble_ratio, schedules
from labkit.pipeline.scheduling.schedule import Instruction, Schedule
from labkit.pipeline.simulation.costs import Costs, Network
from labkit.pipeline.simulation.timeline import Timeline, simulate
from labkit.pipeline.simulation.trace import save_trace, trace_events
from labkit.pipeline.studies.stragglers import (
    StragglerPlan,
    plan_for_straggler,
    straggler_deadline_s,
)
from labkit.pipeline.studies.study import compare, replay, stress, sweep

if TYPE_CHECKING:
    from labkit.pipeline.figures.plan_figures import (
        figure_frontier,
        figure_plans,
        figure_tradeoff,
        figure_valley,
    )
    from labkit.pipeline.figures.timeline_figures import (
        figure_idle,
        figure_memory,
        figure_timeline,
    )

__all__ = [
    "Costs",
    "DeadlockError",
    "EnergyProfile",
    "Instruction",
    "JointChoice",
    "Network",
    "Plan",
    "Schedule",
    "StragglerPlan",
    "Timeline",
    "build",
    "build_for",
    "choose",
    "closed_form_bubble_ratio",
    "compare",
    "early_forwards",
    "figure_frontier",
    "figure_idle",
    "figure_memory",
    "figure_plans",
    "figure_timeline",
    "figure_tradeoff",
    "figure_valley",
    "fitted",
    "frontier",
    "load_order",
    "lower_bound_j",
    "outer_envelope",
    "plan",
    "plan_for_straggler",
    "replay",
    "save_order",
    "save_trace",
    "schedules",
    "simulate",
    "straggler_deadline_s",
    "stress",
    "sweep",
    "trace_events",
]

_FIGURES = {
    "figure_frontier": "figures.plan_figures",
    "figure_idle": "figures.timeline_figures",
    "figure_memory": "figures.timeline_figures",
    "figure_plans": "figures.plan_figures",
    "figure_timeline": "figures.timeline_figures",
    "figure_tradeoff": "figures.plan_figures",
    "figure_valley": "figures.plan_figures",
}


def __getattr__(name: str) -> Any:
    if name in _FIGURES:  # Plotly is loaded with the first figure, not with the engine
        return getattr(import_module(f"labkit.pipeline.{_FIGURES[name]}"), name)
    raise AttributeError(f"module 'labkit.pipeline' has no attribute {name!r}")
