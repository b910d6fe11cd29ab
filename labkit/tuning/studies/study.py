"""Studies over workloads: what policies save, how they compare, and what that leans on.

tuning.savings([trace_v100, trace_a40])                           # beside the paper
tuning.regret_bands(job, ["zeus", "cost-curve"])                  # what a figure draws
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.kit.describe import Count, Share, Whole, checked
from labkit.kit.stats import mean_interval
from labkit.tuning.configurations.outcomes import optimum
from labkit.tuning.simulation.runs import Runs, simulate
from labkit.tuning.traces.workloads import PUBLISHED

if TYPE_CHECKING:
    from labkit.tuning.traces.trace import TrainingTrace

PAPER_RANGE = (0.153, 0.758)
"""Energy saved by Zeus on the V100, least and most of the six workloads. Source: abstract."""


@checked
def savings(
    traces: Iterable[TrainingTrace],
    *,
    policies: Iterable[str] = ("zeus",),
    eta: Share = 0.5,
    seeds: Iterable[Whole] = range(100),
    recurrences: Count | None = None,
) -> pd.DataFrame:
    """Energy and time saved in steady state per GPU, workload and policy, with 95 % intervals.

    Columns: gpu, those of ``Runs.summary``, in_paper_range (the energy saved lies in
    :data:`PAPER_RANGE`).
    """
    policies, seeds = tuple(policies), tuple(seeds)
    knobs: dict[str, Any] = {"eta": eta, "seeds": seeds, "recurrences": recurrences}
    rows: list[dict[Any, Any]] = [
        {"gpu": trace.gpu} | simulate(job, policy=policy, **knobs).summary().to_dict()
        for trace in traces
        for job in trace.jobs()
        for policy in policies
    ]
    low, high = PAPER_RANGE
    return pd.DataFrame(
        [row | {"in_paper_range": low <= row["energy_reduction"] <= high} for row in rows]
    )


@checked
def regret_bands(runs: Iterable[Runs]) -> pd.DataFrame:
    """Cumulative regret of several experiments over recurrences, with 95 % intervals of the mean.

    Columns: workload, policy, recurrence, regret (mean over seeds, in runs of the optimum's
    expected cost), regret_low, regret_high (Student's t over seeds).
    """
    tables = []
    for run in runs:
        setup = run.experiment
        regret = run.regret_j() / optimum(setup.job, eta=setup.eta_knob).cost_j
        mean, low, high = np.array([mean_interval(column) for column in regret.T]).T
        columns = {
            "workload": setup.job.title,
            "policy": setup.policy,
            "recurrence": np.arange(1, len(mean) + 1),
            "regret": mean,
            "regret_low": low,
            "regret_high": high,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables or [pd.DataFrame()], ignore_index=True)


SIMULATOR_ENERGY_REDUCTION: dict[str, dict[str, float]] = {
    "v100": {
        "cifar100": 0.748,
        "imagenet": 0.204,
        "squad": 0.191,
        "librispeech": 0.383,
        "movielens-1m": 0.646,
        "sentiment140": 0.209,
    },
    "a40": {
        "cifar100": 0.667,
        "imagenet": 0.134,
        "squad": 0.168,
        "librispeech": 0.663,
        "movielens-1m": 0.619,
        "sentiment140": 0.206,
    },
}
"""Mean of five seeds, last five recurrences, η = 0.5: zeus-ml's own simulator on its traces."""


def with_published(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of :func:`savings` with published_energy_reduction, the simulator's own figure.

    Missing where nobody has one: another GPU or workload, or a policy other than ``zeus``.
    """
    names = {spec.title: name for name, spec in PUBLISHED.items()}
    rows = zip(table["gpu"], table["workload"], table["policy"], strict=True)
    known = [
        SIMULATOR_ENERGY_REDUCTION.get(gpu, {}).get(names.get(workload, ""), np.nan)
        if policy == "zeus"
        else np.nan
        for gpu, workload, policy in rows
    ]
    return table.assign(published_energy_reduction=known)
