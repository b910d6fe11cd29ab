"""Plans side by side, and plans where reality differs from the profile they were made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.energy import Plan
from labkit.pipeline.timeline import longest_to

if TYPE_CHECKING:
    import pandas as pd


def compare(
    plans: Mapping[str, Plan], *, baseline: str | None = None, bounds: bool = True
) -> pd.DataFrame:
    """One row per plan, beside a baseline.

    Args:
        baseline: the plan that savings and slowdowns are counted from (default: the first).
        bounds: whether to compute each plan's lower bound, one linear program a plan.

    Returns:
        Columns plan, schedule, peak_in_flight (most over the stages), makespan_s, energy_j,
        slowdown_fraction, saving_fraction; with ``bounds`` also best_saving_fraction (no plan
        for that schedule that ends as early saves more) and gap_fraction (energy above the
        bound).

    Raises:
        UsageError: no plans, or no plan of the baseline's name.
    """
    import pandas as pd

    if not plans or (baseline is not None and baseline not in plans):
        raise UsageError(f"no plan {baseline!r} to compare with; there are: {', '.join(plans)}")
    base = plans[baseline if baseline is not None else next(iter(plans))]
    rows = []
    for name, made in plans.items():
        row = {
            "plan": name,
            "schedule": made.schedule.name,
            "peak_in_flight": max(made.schedule.peak_in_flight),
            "makespan_s": made.makespan_s,
            "energy_j": made.energy_j,
            "slowdown_fraction": made.makespan_s / base.makespan_s - 1,
            "saving_fraction": 1 - made.energy_j / base.energy_j,
        }
        if bounds:
            row["best_saving_fraction"] = 1 - made.bound_j / base.energy_j
            row["gap_fraction"] = made.gap
        rows.append(row)
    return pd.DataFrame(rows)


def replay(
    made: Plan,
    *,
    jitter: float = 0.0,
    switch_s: float = 0.0,
    rng: np.random.Generator | None = None,
) -> tuple[float, float]:
    """Run a plan where reality differs from the profile: (makespan in s, energy in J).

    Args:
        jitter: standard deviation of the logarithm of each instruction's duration, mean kept;
            its power stays, so its energy varies with its duration.
        switch_s: seconds a GPU stands still, at blocking power, whenever the next instruction
            runs at another clock than the last.
        rng: needed where jitter > 0.

    Raises:
        UsageError: a negative value, or jitter without ``rng``.
    """
    if jitter < 0 or switch_s < 0:
        raise UsageError(f"jitter and switch_s must be >= 0, found {jitter!r} and {switch_s!r}")
    if jitter and rng is None:
        raise UsageError("jitter needs rng, such as numpy.random.default_rng(0)")
    graph, profile = made.schedule.graph, made.profile
    factor = np.ones(len(graph))
    if rng is not None and jitter:
        factor = np.exp(rng.normal(-(jitter**2) / 2, jitter, len(graph)))
    clock = np.append(profile.clock_mhz[made.row], np.nan)
    switched = (graph.before < len(graph)) & (clock[:-1] != clock[graph.before])
    duration = profile.time_s[made.row] * factor + switch_s * switched
    makespan_s = float(longest_to(graph, duration).max())
    net_j = float((profile.net_energy_j[made.row] * factor).sum())
    return makespan_s, net_j + made.waiting_w * makespan_s
