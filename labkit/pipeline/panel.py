"""The pipeline planner's panel: a plan on its schedule, the frontier, activations in flight."""

from __future__ import annotations

from functools import lru_cache
from shlex import quote
from typing import Any

import pandas as pd

from labkit import pipeline
from labkit.kit.panel import Panel
from labkit.pipeline.profiles.published import open_profile

DEFAULT_PROFILE = "a100/gpt3-175b"
NUM_FRONTIER_POINTS = 6


def panel(profile: str = "") -> Panel:
    """The plan of a stage profile on a schedule, for a deadline that a control moves.

    Args:
        profile: a CSV file of stages, or the name of a published profile.

    Raises:
        UsageError: there is no such profile.
    """
    name = profile or DEFAULT_PROFILE
    source = open_profile(name)

    @lru_cache(maxsize=64)
    def plan_at(schedule: str, num_microbatches: int, slower: float, method: str) -> Any:
        """Build schedule and profile, and plan for ``slower`` than at the highest clocks."""
        built, fitted = pipeline.fitted(source.profile, schedule, num_microbatches)
        first_s = pipeline.plan(built, fitted, "max-clock").makespan_s
        return built, fitted, pipeline.plan(built, fitted, method, first_s * (1 + slower))

    @lru_cache(maxsize=32)
    def frontier_of(schedule: str, num_microbatches: int) -> Any:
        built, fitted, _ = plan_at(schedule, num_microbatches, 0.0, "max-clock")
        return pipeline.frontier(built, fitted, NUM_FRONTIER_POINTS)

    def timeline(**controls: Any) -> Any:
        plan = plan_at(**controls)[2]
        title = f"{plan.schedule.name}: {plan.energy_j:,.0f} J in {plan.makespan_s:.3f} s"
        return pipeline.figure_timeline(plan.frame(), colour="clock", title=title)

    def frontier(**controls: Any) -> Any:
        plan = plan_at(**controls)[2]
        row = (controls["method"], plan.makespan_s, plan.energy_j)
        chosen = pd.DataFrame([row], columns=["plan", "makespan_s", "energy_j"])
        table = frontier_of(controls["schedule"], controls["num_microbatches"])
        return pipeline.figure_frontier(table, plans=chosen, title="Frontier")

    def activations(**controls: Any) -> Any:
        return pipeline.figure_memory(plan_at(**controls)[2].timeline.memory_frame())

    def command(schedule: str, num_microbatches: int, slower: float, method: str) -> str:
        return (
            f"labkit pipeline plan {schedule} -p {quote(name)} -m {num_microbatches} "
            f"--slowdown {slower:g} --method {method}"
        )

    return Panel(
        title=f"Pipeline planner: {source.origin} {source.standin_reason}",
        figures=(timeline, frontier, activations),
        axes={
            "schedule": ["1f1b", "gpipe", "zb-h1"],
            "num_microbatches": (4, 16),
            "slower": (0.0, 0.4),
            "method": ["max-clock", "optimal"],
        },
        call=command,
        label={"num_microbatches": "microbatches", "slower": "deadline later by"},
        start={"num_microbatches": 8, "method": "optimal"},
    )
