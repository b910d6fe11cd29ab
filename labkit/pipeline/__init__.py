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

from labkit.pipeline.accounting import Accounting, account, compare_assumptions
from labkit.pipeline.baselines import zeus_global_settings, zeus_local_settings
from labkit.pipeline.envpipe import early_forwards, outer_envelope
from labkit.pipeline.fitted import build_for, fitted
from labkit.pipeline.graph import DeadlockError
from labkit.pipeline.joint import JointChoice, choose, tradeoff
from labkit.pipeline.network import AllReduce, Network
from labkit.pipeline.optimal import lower_bound_j
from labkit.pipeline.orders import from_torch, load_order, save_order
from labkit.pipeline.plans import Plan, frontier, plan
from labkit.pipeline.policies import build, closed_form_bubble_ratio, schedules
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.schedule import Instruction, Schedule
from labkit.pipeline.spans import span_table
from labkit.pipeline.stragglers import (
    StragglerPlan,
    plan_for_straggler,
    straggler_deadline_s,
    straggler_table,
)
from labkit.pipeline.study import compare, replay, stress, sweep
from labkit.pipeline.switching import SwitchPlan, plan_with_switches
from labkit.pipeline.timeline import Costs, Timeline, simulate
from labkit.pipeline.trace import save_trace, trace_events

if TYPE_CHECKING:
    from labkit.pipeline.figures import (
        figure_frontier,
        figure_idle,
        figure_memory,
        figure_savings,
        figure_timeline,
        figure_valley,
    )
    from labkit.pipeline.plan_figures import figure_plans, figure_tradeoff

__all__ = [
    "Accounting",
    "AllReduce",
    "Costs",
    "DeadlockError",
    "EnergyProfile",
    "Instruction",
    "JointChoice",
    "Network",
    "Plan",
    "Schedule",
    "StragglerPlan",
    "SwitchPlan",
    "Timeline",
    "account",
    "build",
    "build_for",
    "choose",
    "closed_form_bubble_ratio",
    "compare",
    "compare_assumptions",
    "early_forwards",
    "figure_frontier",
    "figure_idle",
    "figure_memory",
    "figure_plans",
    "figure_savings",
    "figure_timeline",
    "figure_tradeoff",
    "figure_valley",
    "fitted",
    "from_torch",
    "frontier",
    "load_order",
    "lower_bound_j",
    "outer_envelope",
    "plan",
    "plan_for_straggler",
    "plan_with_switches",
    "replay",
    "save_order",
    "save_trace",
    "schedules",
    "simulate",
    "span_table",
    "straggler_deadline_s",
    "straggler_table",
    "stress",
    "sweep",
    "trace_events",
    "tradeoff",
    "zeus_global_settings",
    "zeus_local_settings",
]

_FIGURES = {
    "figure_frontier": "figures",
    "figure_idle": "figures",
    "figure_memory": "figures",
    "figure_plans": "plan_figures",
    "figure_savings": "figures",
    "figure_timeline": "figures",
    "figure_tradeoff": "plan_figures",
    "figure_valley": "figures",
}


def __getattr__(name: str) -> Any:
    if name in _FIGURES:  # Plotly is loaded with the first figure, not with the engine
        return getattr(import_module(f"labkit.pipeline.{_FIGURES[name]}"), name)
    raise AttributeError(f"module 'labkit.pipeline' has no attribute {name!r}")
