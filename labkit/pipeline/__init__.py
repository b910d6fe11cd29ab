"""Pipeline parallelism: schedules, timelines, and the clocks that make them cheap in energy.

>>> from labkit import pipeline
>>> schedule = pipeline.build("1f1b", num_stages=4, num_microbatches=8)
>>> costs = pipeline.Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
>>> line = pipeline.simulate(schedule, costs)
>>> line.makespan_s, round(line.bubble_ratio, 4)
(33.0, 0.2727)
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "choice.joint": ("JointChoice", "choose"),
    "figures.plan_figures": ("figure_frontier", "figure_plans", "figure_tradeoff"),
    "figures.timeline_figures": ("figure_idle", "figure_memory", "figure_timeline"),
    "planning.envpipe": ("early_forwards", "outer_envelope"),
    "planning.fitted": ("build_for", "fitted"),
    "planning.plans": ("Plan", "frontier", "plan"),
    "planning.study": ("compare", "straggler_savings", "stress", "sweep"),
    "profiles.profile": ("EnergyProfile",),
    "scheduling.graph": ("DeadlockError",),
    "scheduling.orders": ("load_order", "save_order"),
    "scheduling.policies": ("build", "closed_form_bubble_ratio", "schedules"),
    "scheduling.schedule": ("Instruction", "Schedule"),
    "simulation.costs": ("Costs", "Network"),
    "simulation.timeline": ("Timeline", "simulate"),
}  # fmt: skip
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
