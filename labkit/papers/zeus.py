"""Zeus (NSDI'23): what its figures show of recorded trainings, in hindsight and under its policy.

The policy itself, the outcomes that it chooses among and the replay stand in ``labkit.tuning``.

Source: You et al., "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training",
NSDI'23, §2.2, §6.2 and §6.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
import pandas as pd
from annotated_types import Ge

from labkit.kit.describe import AnyNumber, Share, checked
from labkit.kit.draw import PALETTE, finish, go
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
from labkit.tuning.figures import figure_lines
from labkit.tuning.figures.configuration_figures import wrapped
from labkit.tuning.figures.policy_figures import regret_lines
from labkit.tuning.simulation.runs import with_interval

LEAST_REGRET = 0.1  # runs of the optimum; less is drawn as this on a logarithmic axis

# ---------------------------------------------------------------- tables


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


# ---------------------------------------------------------------- figures


def figure_potential(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Energy left of the default when one knob or both are set in hindsight.

    ``table`` is :func:`potential_savings`'s.
    """
    series = {
        "power limit only": ("power_only_fraction", PALETTE["power"]),
        "batch size only": ("batch_only_fraction", PALETTE["time"]),
        "both": ("both_fraction", PALETTE["energy"]),
    }
    fig = go.Figure()
    for name, (column, colour) in series.items():
        left = 1 - table[column]
        fig.add_bar(
            x=wrapped(table["workload"]),
            y=left,
            name=name,
            marker_color=colour,
            text=[f"{v:.2f}" for v in left],
            textposition="inside",
            insidetextanchor="end",
            textangle=0,
            textfont={"size": 13, "color": "white"},
        )
    fig.add_hline(y=1, line={"dash": "dash", "color": PALETTE["baseline"], "width": 1.5})
    fig.update_layout(barmode="group", bargap=0.25)
    fig.update_yaxes(range=[0, 1.05])
    return finish(fig, title=title, y="energy to accuracy (default = 1)", height=440)


def figure_batch_curves(curves: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Cost of each batch size at its best limit, relative to the least (:func:`batch_curves`)."""
    return figure_lines(
        curves,
        x="relative_batch_size",
        y="relative_cost",
        by="workload",
        x_title="batch size ÷ b0",
        y_title="cost ÷ least cost",
        title=title,
        powers_of_two=True,
        y_range=(0.8, 4),
    )


def figure_regret_bands(bands: pd.DataFrame, *, title: str = "") -> go.Figure:
    """Mean cumulative regret with its 95 % interval over seeds, one band a policy.

    Regret is in runs of the optimum: 5 means that learning has cost what five runs at the best
    configuration cost. The scale is logarithmic.

    Args:
        bands: :func:`regret_bands` of one workload.
    """
    bands = bands.assign(**bands.filter(like="regret").clip(lower=LEAST_REGRET))
    tables = {str(name): rows for name, rows in bands.groupby("policy", sort=False)}
    ticks = [digit * 10.0**k for k in range(-1, 5) for digit in (1, 3)]
    axis = {"type": "log", "tickvals": ticks}
    return regret_lines(tables, title=title, y_title="regret (runs of the optimum)", **axis)
