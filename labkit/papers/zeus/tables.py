"""Zeus's tables: recorded trainings in hindsight, regret, and what changes with default and drift.

The policy itself, the outcomes that it chooses among and the replay stand in ``labkit.tuning``.

Source: You et al., "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training",
NSDI'23, §2.2, §6.2 and §6.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import pandas as pd
from annotated_types import Ge, Gt

from labkit.kit.describe import AnyNumber, NonNegative, Share, checked
from labkit.tuning import (
    Job,
    Runs,
    best_power_limits,
    convergence,
    default_choice,
    epoch_cost_j,
    optimum,
    outcomes,
)
from labkit.tuning.simulation.runs import with_interval

SAVED = ("energy_reduction", "time_reduction")


@checked
def batch_curves(jobs: Iterable[Job], *, eta: Share = 0.5) -> pd.DataFrame:
    """Each batch size at its best power limit: what is left to choose once the limit is.

    Args:
        eta: weight of energy against time, 1 to 0.

    Returns:
        Columns: workload, relative_batch_size (b/b0), cost_j, relative_cost (to the cheapest).

    Source: Zeus, Fig. 5.
    """
    tables = []
    for job in jobs:
        _, epochs = convergence(job)
        limits = best_power_limits(job, eta)
        cost = epochs * epoch_cost_j(job, eta)[np.arange(len(limits)), limits]
        columns = {
            "workload": job.title,
            "relative_batch_size": np.array(job.batch_sizes) / job.default_batch_size,
            "cost_j": cost,
            "relative_cost": cost / cost.min(),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables or [pd.DataFrame()], ignore_index=True)


@checked
def reach_shares(jobs: Iterable[Job]) -> pd.DataFrame:
    """Share of recorded runs that reach each job's target in time: batch sizes × targets."""
    shares = {
        f"{job.target_metric:g}": pd.Series(convergence(job)[0], index=job.batch_sizes)
        for job in jobs
    }
    return pd.DataFrame(shares).rename_axis(index="batch_size")


@checked
def eta_sweep(job: Job, etas: Iterable[Share]) -> pd.DataFrame:
    """The optimum for each η: eta, batch_size, power_limit_w, time_…_s, energy_…_j."""
    columns = ["eta", "batch_size", "power_limit_w", "time_to_accuracy_s", "energy_to_accuracy_j"]
    return pd.DataFrame([{**optimum(job, eta=eta), "eta": eta} for eta in etas], columns=columns)


@checked
def potential_savings(
    jobs: Iterable[Job], *, max_slowdown: Annotated[AnyNumber, Ge(0)] = np.inf
) -> pd.DataFrame:
    """Energy that could be saved in hindsight against (b0, highest power), per workload.

    Args:
        max_slowdown: only configurations count that take at most 1 + max_slowdown times the
            default's time (0: no slower than it).

    Returns:
        A row a job: the saved fractions when only the power limit, only the batch size, or both
        may be chosen, and the pair that saves most. What is not chosen stays as in the default.

    Source: Zeus §2.2, Fig. 1.
    """
    rows = []
    for job in jobs:
        table = outcomes(job)
        base = table[table["is_default"]].iloc[0]
        slowest_s = (1 + max_slowdown) * base["time_to_accuracy_s"]
        allowed = table[table["time_to_accuracy_s"] <= slowest_s]
        saved = 1 - allowed["energy_to_accuracy_j"] / base["energy_to_accuracy_j"]
        best = allowed.iloc[int(saved.argmax())]
        same_size = allowed["batch_size"] == base["batch_size"]
        same_limit = allowed["power_limit_w"] == base["power_limit_w"]
        rows.append(
            {
                "workload": job.title,
                "power_only_fraction": saved[same_size].max(),
                "batch_only_fraction": saved[same_limit].max(),
                "both_fraction": saved.max(),
                "batch_size": int(best["batch_size"]),
                "power_limit_w": float(best["power_limit_w"]),
            }
        )
    return pd.DataFrame(rows)


@checked
def hindsight(jobs: Iterable[Job]) -> pd.DataFrame:
    """The configuration of least energy against the default, one row a job.

    Columns: workload, default_batch_size, default_reach_probability, batch_size, relative_default
    (the default over the best batch size), energy_saving_fraction. Savings are missing where the
    default never reaches the target; the optimum too where nothing does.
    """
    rows = []
    for job in jobs:
        base = default_choice(job)
        size = job.default_batch_size
        reach = base.reach_probability
        row = {
            "workload": job.title,
            "default_batch_size": size,
            "default_reach_probability": reach,
        }
        if convergence(job)[0].any():
            best = optimum(job, eta=1.0)
            row["batch_size"] = best.batch_size
            row["relative_default"] = size / best.batch_size
            if reach:
                left = best.energy_to_accuracy_j / base.energy_to_accuracy_j
                row["energy_saving_fraction"] = 1 - left
        rows.append(row)
    return pd.DataFrame(rows)


@checked
def regret_bands(runs: Iterable[Runs]) -> pd.DataFrame:
    """Cumulative regret of several experiments over recurrences, with 95 % intervals of the mean.

    Columns: workload, policy, recurrence, regret (mean over seeds, in runs of the optimum's
    expected cost), regret_low, regret_high (Student's t over seeds).

    Source: Zeus §6.3, Fig. 7.
    """
    tables = [pd.DataFrame()]
    for run in runs:
        setup = run.experiment
        regret = run.regret_j() / optimum(setup.job, eta=setup.eta_knob).cost_j
        columns = {
            "workload": setup.job.title,
            "policy": setup.policy,
            "recurrence": np.arange(1, setup.num_recurrences + 1),
        }
        bands = pd.DataFrame([with_interval("regret", column) for column in regret.T])
        tables.append(pd.DataFrame(columns).join(bands))
    return pd.concat(tables, ignore_index=True)


@checked
def least_energy(jobs: Iterable[Job]) -> pd.DataFrame:
    """What the configuration of least energy saves against (b0, highest power): the bound.

    No policy saves more energy in expectation.

    Returns:
        A row a job: workload, energy_reduction, time_reduction (fractions; negative: it is slower).
    """
    rows = []
    for job in jobs:
        base = default_choice(job)
        best = optimum(job, eta=1.0)
        rows.append(
            {
                "workload": job.title,
                "energy_reduction": 1 - best.energy_to_accuracy_j / base.energy_to_accuracy_j,
                "time_reduction": 1 - best.time_to_accuracy_s / base.time_to_accuracy_s,
            }
        )
    return pd.DataFrame(rows)


@checked
def single_simulations(runs: Iterable[Runs]) -> pd.DataFrame:
    """What each seed alone would have reported: the ends of the range over workloads.

    Args:
        runs: of one policy, an experiment a workload, all with the same seeds.

    Returns:
        A row a seed: least and most energy saved and most time saved, of the last five recurrences.
    """
    energy = []
    time = []
    for run in runs:
        base = default_choice(run.experiment.job)
        used_j = run.per_recurrence("energy_j")[:, -5:].mean(axis=1)
        used_s = run.per_recurrence("time_s")[:, -5:].mean(axis=1)
        energy.append(1 - used_j / base.energy_to_accuracy_j)
        time.append(1 - used_s / base.time_to_accuracy_s)
    return pd.DataFrame(
        {
            "least energy saved": np.min(energy, axis=0),
            "most energy saved": np.max(energy, axis=0),
            "most time saved": np.max(time, axis=0),
        }
    )


@checked
def share_that_ends(
    job: Job, growth: Annotated[float, Gt(0)], *, beta: Annotated[float, Gt(1)], eta: Share = 0.5
) -> float:
    """Share of recorded runs that end below the bound of early stopping after all costs grew.

    The bound was set before, by the cheapest run at its best limit; the share is that of the batch
    size where it is largest.

    Args:
        job: as it was recorded.
        growth: by what factor every run costs more than recorded.
        beta: a run is stopped at this many times the cheapest success.
        eta: weight of energy against time.
    """
    epoch_j = np.nanmin(epoch_cost_j(job, eta), axis=1)
    runs_j = [
        np.multiply(runs, cost) for runs, cost in zip(job.epochs_to_target, epoch_j, strict=True)
    ]
    bound_j = beta * min(runs.min() for runs in runs_j)
    return max(float(np.mean(growth * runs <= bound_j)) for runs in runs_j)


@checked
def favour_larger(job: Job, *, best_grows: NonNegative = 1.0, eta: Share = 0.5) -> Job:
    """The job changed so that batch sizes above its best one need fewer epochs.

    Epochs are multiplied by ``best_grows`` times the inverse root of the batch size over the best
    one, so that the best batch size costs what it did where ``best_grows`` is 1.

    Args:
        job: before the change.
        best_grows: by what factor the epochs at the old best batch size grow.
        eta: weight of energy against time, which says what is best.
    """
    best = optimum(job, eta=eta).batch_size
    factors = best_grows * (np.array(job.batch_sizes) / best) ** -0.5
    epochs = []
    for runs, factor in zip(job.epochs_to_target, factors, strict=True):
        epochs.append(tuple(np.multiply(runs, factor).tolist()))
    return replace(job, epochs_to_target=tuple(epochs))


@checked
def measured_against(
    saved: pd.DataFrame, jobs: Sequence[Job], *, step: int, host_w: NonNegative
) -> pd.DataFrame:
    """Savings of one policy against another baseline than the default batch size.

    Args:
        saved: a row a job, with energy_reduction and time_reduction against the default.
        jobs: in the same order.
        step: how many batch sizes the baseline lies above the default (below, where negative), at
            most to the ends of what was recorded.
        host_w: drawn by the rest of the server, on both sides.

    Returns:
        The same columns; rows whose baseline never reaches the target are left out.
    """
    rows = []
    for job, (_, row) in zip(jobs, saved.iterrows(), strict=True):
        own = default_choice(job)
        place = int(np.clip(job.default_index + step, 0, len(job.batch_sizes) - 1))
        base = default_choice(replace(job, default_batch_size=job.batch_sizes[place]))
        time_s = (1 - row["time_reduction"]) * own.time_to_accuracy_s
        energy_j = (1 - row["energy_reduction"]) * own.energy_to_accuracy_j + host_w * time_s
        base_j = base.energy_to_accuracy_j + host_w * base.time_to_accuracy_s
        if np.isfinite(base_j):
            rows.append((job.title, 1 - energy_j / base_j, 1 - time_s / base.time_to_accuracy_s))
    return pd.DataFrame(rows, columns=["workload", *SAVED])
