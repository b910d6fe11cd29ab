"""Plans side by side, and plans where reality differs from the profile they were made for.

Pipelines that train side by side end an iteration together, for their gradients are summed. Where
one of them is slower, throttled by heat, say, or short of an input, the others would only wait:
until then they may as well compute more slowly (:func:`straggler_savings`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import Count, NonNegative, Positive, checked
from labkit.kit.randomness import Rng, seed_of
from labkit.kit.rules import rule
from labkit.pipeline.planning.fitted import build_for
from labkit.pipeline.planning.perseus import UNIT_S, perseus_frontier
from labkit.pipeline.planning.plans import Plan
from labkit.pipeline.planning.plans import plan as choose_clocks
from labkit.pipeline.planning.relaxation import OptimalPlanner
from labkit.pipeline.profiles.clocks import Task
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.scheduling.schedule import Schedule
from labkit.pipeline.simulation.costs import Jitter, jitter_factors

if TYPE_CHECKING:
    import pandas as pd

AtLeastOne = Annotated[float, Ge(1)]
MOST_DRAWS = 10**6
MOST_REPLICAS = 10**4


@checked
def compare(
    plans: Mapping[str, Plan], *, baseline: str | None = None, bounds: bool = True
) -> pd.DataFrame:
    """One row per plan, compared with a baseline.

    Args:
        baseline: the plan that savings and slowdowns are counted from (default: the first).
        bounds: whether to compute each plan's lower bound, one linear program a plan.

    Returns:
        Columns plan, schedule, peak_in_flight (most over the stages), method, deadline_s,
        makespan_s, energy_j, slowdown_fraction, saving_fraction; with ``bounds`` also bound_j,
        best_saving_fraction (no plan for that schedule that ends as early saves more) and
        gap_fraction (energy above the bound).

    Raises:
        UsageError: no plans, or no plan of the baseline's name.
    """
    import pandas as pd

    if not plans:
        raise UsageError("plans holds no plan to compare")
    if baseline is not None and baseline not in plans:
        raise not_among("plan of the baseline's name", baseline, plans)
    base = plans[baseline if baseline is not None else next(iter(plans))]
    rows = [
        {"plan": name, "schedule": plan.schedule.name}
        | {"peak_in_flight": max(plan.schedule.peak_in_flight)}
        | {key: getattr(plan, key) for key in ("method", "deadline_s", "makespan_s", "energy_j")}
        for name, plan in plans.items()
    ]
    table = _against(pd.DataFrame(rows), base.makespan_s, base.energy_j)
    if bounds:
        first: dict[tuple[int, float], Plan] = {}  # one linear program per schedule and deadline
        keys = [(id(plan.schedule), _clean(plan.horizon_s)) for plan in plans.values()]
        table["bound_j"] = [plan.bound_j for plan in map(first.setdefault, keys, plans.values())]
        table["best_saving_fraction"] = (1 - table["bound_j"] / base.energy_j).map(_clean)
        table["gap_fraction"] = (table["energy_j"] / table["bound_j"] - 1).map(_clean)
    return table


def _against(table: pd.DataFrame, makespan_s: Any, energy_j: Any) -> pd.DataFrame:
    """With what each row loses in time and saves in energy against these."""
    slowdown = (table["makespan_s"] / makespan_s - 1).map(_clean)
    saving = (1 - table["energy_j"] / energy_j).map(_clean)
    return table.assign(slowdown_fraction=slowdown, saving_fraction=saving)


def _clean(value: float) -> float:
    """``value`` without floating-point noise, so that no change reads 0 on every machine."""
    return round(value, 12) + 0.0


@checked
def sweep(
    profiles: Annotated[Mapping[Any, EnergyProfile], MinLen(1)],
    num_microbatches: Annotated[Sequence[Count], MinLen(1)],
    cases: Mapping[str, Mapping[str, Any]],
    *,
    bounds: bool = True,
) -> pd.DataFrame:
    """Every case for every profile and number of microbatches, against 1F1B at the highest clock.

    Args:
        profiles: by what the table should call them.
        cases: for each plan's name its ``schedule``, ``method`` and, where wanted,
            ``max_in_flight`` and settings of :func:`labkit.pipeline.plan`.

    Returns:
        :func:`compare`'s columns, the baseline as plan ``"max clock"``, preceded by profile,
        num_stages and num_microbatches.
    """
    import pandas as pd

    tables = []
    described = {"max clock": {"schedule": "1f1b", "method": "max-clock"}, **cases}
    for (name, profile), size in itertools.product(profiles.items(), num_microbatches):
        schedule_of = cache(partial(build_for, profile, num_microbatches=size))
        plans = {}
        for title, case in described.items():
            try:
                plans[title] = _case_plan(schedule_of, profile, case)
            except UsageError as error:
                if title not in cases:
                    raise
                raise BadValue(f"cases[{title!r}]: {error}") from None
        table = compare(plans, bounds=bounds)
        keys = {"profile": name, "num_stages": profile.num_stages, "num_microbatches": size}
        for column, value in reversed(keys.items()):
            table.insert(0, column, [value] * len(table))
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _case_plan(
    schedule_of: Callable[..., Schedule], profile: EnergyProfile, case: Mapping[str, Any]
) -> Plan:
    """Make the plan that a case of :func:`sweep` describes."""
    settings = {"max_in_flight": None, **case}
    if "schedule" not in settings:
        raise BadValue("schedule is missing; a case has schedule, method and settings of plan")
    name = rule(str).apply("schedule", settings.pop("schedule"))
    caps = settings.pop("max_in_flight")
    caps = tuple(caps) if isinstance(caps, list) else caps  # so that orders can be remembered
    return choose_clocks(schedule_of(name, max_in_flight=caps), profile, **settings)


@checked
def stress(
    plans: Mapping[str, Plan],
    *,
    switch_s: Sequence[NonNegative] = (),
    jitter: Sequence[Jitter] = (),
    replicas: Sequence[Annotated[Count, Le(MOST_REPLICAS)]] = (1,),
    num_draws: Annotated[Count, Le(MOST_DRAWS)] = 40,
    rng: Rng = 0,
) -> pd.DataFrame:
    """Every plan under every trouble, compared with the first plan under the same one.

    Args:
        switch_s: seconds a GPU stands still, at blocking power, whenever the next instruction
            runs at another clock than the last; each value is one trouble.
        jitter: standard deviation of the logarithm of each instruction's duration, mean kept; its
            power stays, so its energy varies with its duration. Each value is one trouble.
        replicas: data-parallel pipelines that wait for the slowest one before the next iteration;
            each value is a trouble of its own with every jitter. Energy is that of one pipeline,
            with the power it draws while it waits for the slowest.
        num_draws: replays of each jitter, averaged.
        rng: of the jitter; each plan meets the same random factors.

    Returns:
        Columns trouble, plan, makespan_s, energy_j, slowdown_fraction, saving_fraction.
    """
    import pandas as pd

    troubles: dict[str, tuple[int, int, dict[str, float]]] = {
        f"{1000 * s:g} ms a clock switch": (1, 1, {"switch_s": s}) for s in switch_s
    }
    for j, count in itertools.product(jitter, replicas):
        slowest = f", slowest of {count} replicas" if count > 1 else ""
        troubles[f"{j:.1%} jitter{slowest}"] = (num_draws, count, {"jitter": j})
    seed = seed_of(rng)
    rows = []
    for trouble, (name, plan) in itertools.product(troubles, plans.items()):
        draws, count, settings = troubles[trouble]
        draws_rng = np.random.default_rng(seed)
        runs = [_replayed(plan, draws_rng, **settings) for _ in range(draws * count)]
        span_s, energy_j = np.reshape(runs, (draws, count, 2)).transpose(2, 0, 1)
        slowest_s = span_s.max(axis=1, keepdims=True)
        energy_j = energy_j + plan.waiting_w * (slowest_s - span_s)
        rows.append((trouble, name, float(slowest_s.mean()), float(energy_j.mean())))
    table = pd.DataFrame(rows, columns=["trouble", "plan", "makespan_s", "energy_j"])
    base = table.groupby("trouble")[["makespan_s", "energy_j"]].transform("first")
    return _against(table, base["makespan_s"], base["energy_j"])


def _replayed(
    plan: Plan, rng: np.random.Generator, *, jitter: float = 0.0, switch_s: float = 0.0
) -> tuple[float, float]:
    """A run where reality differs from the profile, see :func:`stress`: makespan, energy."""
    graph = plan.schedule.graph
    profile = plan.profile
    factor = jitter_factors(jitter, len(graph), rng)
    clock_mhz = np.append(profile.clock_mhz[plan.row], np.nan)
    switches = (graph.before < len(graph)) & (clock_mhz[:-1] != clock_mhz[graph.before])
    duration = profile.time_s[plan.row] * factor + switch_s * switches
    makespan_s = float(longest_to(graph, duration, plan.timeline.lag_s).max())
    net_j = float((profile.net_energy_j[plan.row] * factor).sum())
    return makespan_s, net_j + plan.waiting_w * makespan_s


@checked
def straggler_savings(
    schedule: Schedule,
    profile: EnergyProfile,
    slowdowns: Annotated[Sequence[AtLeastOne], MinLen(1)],
    *,
    expected: Sequence[AtLeastOne] | None = None,
    unit_s: Positive = UNIT_S,
) -> pd.DataFrame:
    """Energy that a pipeline saves until a straggler ends, by Perseus's plans; a row a slowdown.

    Perseus plans once, for every iteration time there is; the pipelines that wait for a straggler
    look up, of the plans that end with it, the one of least energy above waiting. All is compared
    with the highest clock throughout, waiting until the straggler ends.

    Args:
        slowdowns: the straggler's iteration time over that at the highest clock; 1 for none.
        expected: the slowdown each plan is made for; None: the one that happens.
        unit_s: see :func:`perseus_frontier`.

    Returns:
        expected, slowdown; num_plans of the frontier; late_fraction: how much later than the
        straggler the iteration ends (a plan made for a slower one, or the planner's rounding);
        saving_fraction; unreacted_fraction: saved by the fastest plan, as when nobody reacts;
        best_fraction: no plan that ends with the straggler saves more.

    Raises:
        UsageError: as :func:`perseus_frontier`; not as many expected as slowdowns.

    Source: Perseus (SOSP 2024), extrinsic energy bloat.
    """
    import pandas as pd

    if expected is not None and len(expected) != len(slowdowns):
        raise UsageError(f"{len(expected)} slowdowns expected for {len(slowdowns)} that happen")
    front = perseus_frontier(schedule, profile, unit_s=unit_s)
    top = choose_clocks(schedule, profile, "max-clock")
    makespan_s = front["makespan_s"].to_numpy()
    energy_j = front["energy_j"].to_numpy()
    net_j = energy_j - top.waiting_w * makespan_s
    rows = []
    for guess, slowdown in zip(expected or slowdowns, slowdowns, strict=True):
        end_s = slowdown * top.makespan_s
        until_s = guess * top.makespan_s
        in_time = makespan_s <= max(until_s, makespan_s[-1])  # the fastest plan is the last
        taken = int(np.where(in_time, net_j, np.inf).argmin())
        base_j = top.energy_j + top.waiting_w * (end_s - top.makespan_s)
        last_s = np.maximum(makespan_s[[taken, -1]], end_s)
        saved = 1 - (net_j[[taken, -1]] + top.waiting_w * last_s) / base_j
        rows.append((guess, slowdown, base_j, len(front), last_s[0] / end_s - 1, *saved))
    names = ["expected", "slowdown", "base_j", "num_plans", "late_fraction"]
    table = pd.DataFrame(rows, columns=[*names, "saving_fraction", "unreacted_fraction"])
    # Waiting until the straggler ends is paid anyway: only energy above it is to be bounded.
    net = replace(profile, blocking_power_w=0.0, energy_j=profile.net_energy_j)
    ends_s = (table["slowdown"] * top.makespan_s).to_numpy()
    bound_j = np.array(OptimalPlanner(Task(schedule, net)).bounds_j(ends_s.tolist()))
    bound_j += top.waiting_w * ends_s
    return table.assign(best_fraction=1 - bound_j / table.pop("base_j"))
