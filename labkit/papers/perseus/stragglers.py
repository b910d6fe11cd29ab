"""What a pipeline saves until a straggler ends, by Perseus and by what Perseus is compared with.

Pipelines that train side by side end an iteration together. Where one of them is slower, the
others may take any of their plans that ends with it. All ways are judged by one rule: of the plans
that end with the straggler, the one that takes least energy until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pandas as pd

from labkit import pipeline
from labkit.pipeline.planning.baselines import global_settings, local_settings
from labkit.pipeline.planning.perseus import perseus_frontier
from labkit.pipeline.profiles.clocks import Task
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.schedule import Schedule


class Way(StrEnum):
    """How clocks are chosen: Perseus's way, then those that §6 compares it with."""

    PERSEUS = "Perseus"
    ONE_CLOCK = "one clock for all GPUs"
    CLOCK_A_GPU = "one clock for each GPU"
    ENVPIPE = "EnvPipe"


def plans_of(way: Way, schedule: Schedule, profile: EnergyProfile) -> pd.DataFrame:
    """The plans that a way has to choose from.

    Perseus has its frontier, one clock has a plan for each clock, EnvPipe has a single plan.

    Args:
        way: how clocks are chosen.
        schedule: of an iteration.
        profile: what each clock takes, in time and energy.

    Returns:
        A row a plan: makespan_s and energy_j of an iteration at measured clocks, with the power
        that GPUs draw while they wait.
    """
    task = Task(schedule, profile)
    columns = ["makespan_s", "energy_j"]
    if way is Way.PERSEUS:
        return perseus_frontier(schedule, profile)[columns]
    if way is Way.ENVPIPE:
        plan = pipeline.plan(schedule, profile, "envpipe")
        return pd.DataFrame([(plan.makespan_s, plan.energy_j)], columns=columns)
    settings = global_settings if way is Way.ONE_CLOCK else local_settings
    return pd.DataFrame([task.cost(row) for row in settings(task)], columns=columns)


def savings(
    way: Way, schedule: Schedule, profile: EnergyProfile, slowdowns: Sequence[float]
) -> pd.DataFrame:
    """Energy that a pipeline saves until a straggler ends, against the highest clock throughout.

    Where none of a way's plans ends with the straggler, its fastest plan is taken, and it is late.

    Args:
        way: how clocks are chosen.
        schedule: of an iteration.
        profile: what each clock takes, in time and energy.
        slowdowns: the straggler's iteration time over that at the highest clock; 1 for none.

    Returns:
        A row a slowdown: slowdown; saving_fraction; late_fraction, by how much the plan ends after
        the straggler.
    """
    top = pipeline.plan(schedule, profile, "max-clock")
    plans = plans_of(way, schedule, profile)
    plan_s = plans["makespan_s"].to_numpy()
    net_j = plans["energy_j"].to_numpy() - top.waiting_w * plan_s
    rows = []
    for slowdown in slowdowns:
        end_s = slowdown * top.makespan_s
        in_time = plan_s <= max(end_s * (1 + 1e-9), plan_s.min())
        taken = int(np.where(in_time, net_j, np.inf).argmin())
        last_s = max(float(plan_s[taken]), end_s)
        highest_j = top.energy_j + top.waiting_w * (end_s - top.makespan_s)
        saved = 1 - (net_j[taken] + top.waiting_w * last_s) / highest_j
        rows.append((slowdown, round(saved, 12) + 0.0, round(last_s / end_s - 1, 9) + 0.0))
    return pd.DataFrame(rows, columns=["slowdown", "saving_fraction", "late_fraction"])
