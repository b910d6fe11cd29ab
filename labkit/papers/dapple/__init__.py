"""DAPPLE (PPoPP'21): the plans of its published planner, its rivals' plans, and its figures.

The engine minimises the paper's formula for the end of an iteration exactly:
``planner.plan(chain, fabric, objective="latency", num_microbatches=16)``. The authors' planner
tries fewer plans (``published``); ``ways`` compares its iterations with those of PipeDream's plans,
``figures`` draws.

    dapple.published_plan(chain, fabric, num_microbatches=16).cost_s
"""

from labkit.papers.dapple.figures import (
    figure_gains,
    figure_held,
    figure_idea,
    figure_ratios,
    figure_steps,
)
from labkit.papers.dapple.published import published_plan
from labkit.papers.dapple.ways import (
    NETWORKS,
    Way,
    equal_memory_gain,
    pipedreams_plan,
    plan_of,
    ratios,
)

__all__ = [
    "NETWORKS",
    "Way",
    "equal_memory_gain",
    "figure_gains",
    "figure_held",
    "figure_idea",
    "figure_ratios",
    "figure_steps",
    "pipedreams_plan",
    "plan_of",
    "published_plan",
    "ratios",
]
