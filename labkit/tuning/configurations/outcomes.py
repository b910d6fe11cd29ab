"""Energy and time to a target, the cost that trades them off, and what is best in hindsight.

Everything here is an expectation over the recorded runs; nothing is random and nothing learns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import Ge
from numpy.typing import NDArray

from labkit.errors import UsageError
from labkit.kit.describe import AnyNumber, NonNegative, Share, checked
from labkit.tuning.configurations.power_limits import Selector, cost_j, select_limits
from labkit.tuning.traces.job import Job


def config_text(batch_size: Any, power_limit_w: Any) -> str:
    """A configuration in a few letters.

    >>> config_text(1024, 175.0)
    '1,024 @ 175 W'
    """
    return f"{batch_size:,.0f} @ {power_limit_w:g} W"


@checked
def epoch_cost_j(job: Job, eta: Share) -> NDArray[np.float64]:
    """Cost of one epoch, batch size × power limit."""
    return cost_j(job.epoch_energy_j, job.epoch_time_s, eta=eta, max_power_w=job.max_power_w)


@checked
def best_power_limits(
    job: Job,
    eta: Share = 0.5,
    *,
    selector: Selector = "cost",
    max_slowdown: NonNegative | None = None,
) -> NDArray[np.intp]:
    """For each batch size, the index of the power limit that :func:`select_limits` chooses.

    The number of epochs multiplies every power limit's time, energy and cost alike, so this
    choice needs no training run to end: a profile of one epoch settles it.

    Source: Zeus §4.2, Eq. 7 (the just-in-time profile).
    """
    return select_limits(
        job.epoch_time_s,
        job.epoch_energy_j,
        max_power_w=job.max_power_w,
        selector=selector,
        eta=eta,
        max_slowdown=max_slowdown,
    )


@checked
def convergence(job: Job) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per batch size: share of runs that reach the target in time, and epochs until one does.

    A run that has not reached the target after ``max_epochs`` is stopped there and started anew,
    so the expected epochs until success are E[min(epochs, max)] / P(epochs ≤ max); infinite where
    no recorded run succeeds. Where every run does, this is the plain mean.
    """
    most = job.max_epochs
    runs = [np.array(epochs) for epochs in job.epochs_to_target]
    reach = np.array([np.mean(epochs <= most) for epochs in runs])
    spent = np.array([np.mean(np.minimum(epochs, most)) for epochs in runs])
    with np.errstate(divide="ignore"):
        return reach, spent / reach


@checked
def outcomes(job: Job, *, eta: Share = 0.5) -> pd.DataFrame:
    """Every profiled pair of batch size and power limit: expected epochs, time, energy and cost.

    Columns: batch_size, power_limit_w, average_power_w, reach_probability, expected_epochs,
    time_to_accuracy_s (TTA), energy_to_accuracy_j (ETA), cost_j, is_pareto (no other is better in
    time and energy both), is_default.
    Configurations that never reach the target have infinite time and energy; pairs that were not
    profiled have no row.
    """
    reach, epochs = convergence(job)
    size, limit = np.nonzero(job.profiled)
    time_s = epochs[size] * job.epoch_time_s[size, limit]
    energy_j = epochs[size] * job.epoch_energy_j[size, limit]
    return pd.DataFrame(
        {
            "batch_size": np.array(job.batch_sizes)[size],
            "power_limit_w": np.array(job.power_limits_w)[limit],
            "average_power_w": np.array(job.average_power_w)[size, limit] + job.host_power_w,
            "reach_probability": reach[size],
            "expected_epochs": epochs[size],
            "time_to_accuracy_s": time_s,
            "energy_to_accuracy_j": energy_j,
            # not from time and energy: at the ends of η's range an infinite one would meet a 0
            "cost_j": epochs[size] * epoch_cost_j(job, eta)[size, limit],
            "is_pareto": undominated(time_s, energy_j),
            "is_default": (size == job.baseline[0]) & (limit == job.baseline[1]),
        }
    )


@checked
def optimum(job: Job, *, eta: Share = 0.5) -> pd.Series:
    """The row of :func:`outcomes` of least expected cost: what an oracle would always run.

    Of equals, the largest batch size and highest limit win. Raises UsageError where no recorded
    run of any batch size reaches the target within ``max_epochs``.
    """
    table = outcomes(job, eta=eta)
    if not np.isfinite(table["cost_j"]).any():
        raise UsageError(
            f"job {job.name!r}: no recorded run reaches target {job.target_metric:g} within "
            f"{job.max_epochs} epochs"
        )
    place = len(table) - 1 - int(table["cost_j"].to_numpy()[::-1].argmin())
    return table.astype(object).iloc[place]  # Python's numbers: NumPy's warn of inf / inf


@checked
def default_choice(job: Job, *, eta: Share = 0.5) -> pd.Series:
    """The row of the paper's baseline: b0 at the highest limit it was profiled at."""
    table = outcomes(job, eta=eta)
    return table[table["is_default"]].astype(object).iloc[0]


@checked
def batch_curves(jobs: Iterable[Job], *, eta: Share = 0.5) -> pd.DataFrame:
    """Each batch size at its best power limit: what is left to choose once the limit is.

    Columns: workload, relative_batch_size (b/b0), cost_j, relative_cost (to the cheapest).
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
def potential(
    jobs: Iterable[Job], *, max_slowdown: Annotated[AnyNumber, Ge(0)] = np.inf
) -> pd.DataFrame:
    """Energy that could be saved in hindsight against (b0, highest power), per workload.

    One row a job with the saved fractions when only the power limit, only the batch size, or
    both may be chosen, and the pair that saves most; the one that is not chosen stays as in the
    default. With ``max_slowdown`` only configurations count that take at most 1 + max_slowdown
    times the default's time (0: no slower than it).

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
        same_size, same_limit = (allowed[n] == base[n] for n in ("batch_size", "power_limit_w"))
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
            row |= {"batch_size": best.batch_size, "relative_default": size / best.batch_size}
            if reach:
                left = best.energy_to_accuracy_j / base.energy_to_accuracy_j
                row["energy_saving_fraction"] = 1 - left
        rows.append(row)
    return pd.DataFrame(rows)


def undominated(time_s: NDArray[np.float64], energy_j: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points no other point beats or equals in one and beats in the other. O(n log n)."""
    order = np.lexsort((energy_j, time_s))
    least_before = np.minimum.accumulate(np.r_[np.inf, energy_j[order]])[:-1]
    keep = np.zeros(len(order), dtype=bool)
    keep[order] = energy_j[order] < least_before
    return keep
