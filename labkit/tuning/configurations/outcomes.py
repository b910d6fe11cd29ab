"""Energy and time to a target, the cost that trades them off, and what is best in hindsight.

Everything here is an expectation over the recorded runs; nothing is random and nothing learns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import UsageError
from labkit.kit.describe import NonNegative, Share, checked
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


def undominated(time_s: NDArray[np.float64], energy_j: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points no other point beats or equals in one and beats in the other. O(n log n)."""
    order = np.lexsort((energy_j, time_s))
    least_before = np.minimum.accumulate(np.r_[np.inf, energy_j[order]])[:-1]
    keep = np.zeros(len(order), dtype=bool)
    keep[order] = energy_j[order] < least_before
    return keep
