"""What an iteration costs under stated assumptions, beyond the clocks' own energy.

A plan's ``energy_j`` counts one GPU a device from the first instruction to the last, waiting at the
profile's blocking power. What else is counted differs from paper to paper, and savings with it;
here each such choice is a named number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.planning.plans import Plan
from labkit.pipeline.scheduling.schedule import check_sizes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """What is counted as an iteration's energy. The default is what ``Plan.energy_j`` counts.

    Attributes:
        waiting_power_w: what a GPU draws while it waits for another stage; None for the profile's
            blocking power, which the plan was made for.
        static_power_w: what a device draws all the time beside what the profile measured of its
            GPU: its share of board, memory and fans, say.
        host_power_w: what a host (processors, network cards, fans) draws all the time.
        devices_per_host: how many devices share a host; a host that is partly used draws as much.
        other_s: how long the iteration goes on after the pipeline: gradient all-reduce, optimizer.
        other_power_w: what a GPU draws meanwhile; None for as much as while it waits.
        dp_degree: how many such pipelines run side by side.
        exempt_last_stage: leave out what the last stage's device draws while it waits inside the
            pipeline, as though it never waited. That is EnvPipe's picture of a pipeline: its
            planner takes the last stage for the critical path, keeps it at the highest clock and
            does not even profile it. It is not how the Perseus artifact counts: its file of
            EnvPipe results includes the waiting of every stage.

    Raises:
        UsageError: a power or time is negative or not finite, or a number of things below 1.

    Source: EnvPipe (USENIX ATC 2023) public implementation, energy profiler; Perseus (SOSP 2024)
    artifact, ``envpipe_result.csv``.
    """

    waiting_power_w: float | None = None
    static_power_w: float = 0.0
    host_power_w: float = 0.0
    devices_per_host: int = 8
    other_s: float = 0.0
    other_power_w: float | None = None
    dp_degree: int = 1
    exempt_last_stage: bool = False

    def __post_init__(self) -> None:
        check_sizes(devices_per_host=self.devices_per_host, dp_degree=self.dp_degree)
        for field in fields(self):
            value = getattr(self, field.name)
            bad = value is not None and not (math.isfinite(value) and value >= 0)
            if field.name.endswith(("_w", "_s")) and bad:
                raise UsageError(f"{field.name} must be finite and >= 0, found {value!r}")


def account(made: Plan, assumptions: Accounting | None = None) -> pd.DataFrame:
    """Where an iteration's joules go, device by device and in all.

    Returns:
        One row for each device of one pipeline, and a last row, device ``"all"``, that sums them
        over all ``dp_degree`` pipelines. Columns: device, computing_s, waiting_s, other_s (device
        seconds), computing_j, waiting_j, other_j, static_j, host_j, energy_j (their sum).
    """
    import pandas as pd

    how = Accounting() if assumptions is None else assumptions
    schedule, profile = made.schedule, made.profile
    num_devices = schedule.num_devices

    def per_device(values: np.ndarray) -> np.ndarray:
        return np.bincount(schedule.device, values[made.row], minlength=num_devices)

    wait_w = profile.blocking_power_w if how.waiting_power_w is None else how.waiting_power_w
    other_w = wait_w if how.other_power_w is None else how.other_power_w
    iteration_s = made.makespan_s + how.other_s
    hosts = math.ceil(num_devices * how.dp_degree / how.devices_per_host)
    host_w = hosts * how.host_power_w / (num_devices * how.dp_degree)
    computing_s = per_device(profile.time_s)
    waiting_s = made.makespan_s - computing_s
    counted_s = waiting_s.copy()
    if how.exempt_last_stage:
        counted_s[schedule.device[schedule.stage == schedule.num_stages - 1]] = 0.0
    table = pd.DataFrame(
        {
            "device": pd.Series(range(num_devices), dtype=object),
            "computing_s": computing_s,
            "waiting_s": waiting_s,
            "other_s": how.other_s,
            "computing_j": per_device(profile.energy_j),
            "waiting_j": wait_w * counted_s,
            "other_j": other_w * how.other_s,
            "static_j": how.static_power_w * iteration_s,
            "host_j": host_w * iteration_s,
        }
    )
    joules = [column for column in table.columns if column.endswith("_j")]
    table["energy_j"] = table[joules].sum(axis=1)
    total = how.dp_degree * table.drop(columns="device").sum()
    return pd.concat([table, pd.DataFrame([{"device": "all", **total}])], ignore_index=True)


def compare_assumptions(
    plans: Mapping[str, Plan],
    assumptions: Mapping[str, Accounting],
    *,
    baseline: str | None = None,
) -> pd.DataFrame:
    """How much each plan saves under each way of counting.

    Args:
        baseline: the plan that savings and slowdowns are counted from (default: the first).

    Returns:
        One row per assumption and plan: assumption, plan, iteration_s, energy_j (over all
        pipelines), slowdown_fraction, saving_fraction.

    Raises:
        UsageError: nothing to compare, or no plan of the baseline's name.
    """
    import pandas as pd

    if not plans or (baseline is not None and baseline not in plans):
        raise UsageError(f"no plan {baseline!r} to compare with; there are: {', '.join(plans)}")
    if not assumptions:
        raise UsageError("no assumptions to compare plans under")
    first = next(iter(plans)) if baseline is None else baseline
    rows = []
    for name, how in assumptions.items():
        energy = {
            one: float(account(made, how)["energy_j"].iloc[-1]) for one, made in plans.items()
        }
        time = {one: made.makespan_s + how.other_s for one, made in plans.items()}
        for one in plans:
            slowdown, saving = time[one] / time[first] - 1, 1 - energy[one] / energy[first]
            rows.append((name, one, time[one], energy[one], slowdown, saving))
    names = ["assumption", "plan", "iteration_s", "energy_j", "slowdown_fraction"]
    return pd.DataFrame(rows, columns=[*names, "saving_fraction"])
