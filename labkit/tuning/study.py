"""Studies over workloads: what policies save, how they compare, and what that leans on.

tuning.savings([trace_v100, trace_a40], peer_seeds=range(1, 6))   # beside paper and peer
tuning.compare(trace.jobs(), ["cost-curve", "halving"])           # cumulative cost, paired
tuning.regret_bands(job, ["zeus", "cost-curve"])                  # what a figure draws
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.errors import UsageError
from labkit.tuning.bandit import Runs, simulate, with_interval
from labkit.tuning.peer import against_peer
from labkit.tuning.power import optimum

if TYPE_CHECKING:
    from labkit.tuning.cost_curve import CostCurve
    from labkit.tuning.player import Policy
    from labkit.tuning.trace import Job, TrainingTrace

PAPER_RANGE = (0.153, 0.758)
"""Energy saved by Zeus on the V100, least and most of the six workloads. Source: abstract."""


def savings(
    traces: Iterable[TrainingTrace],
    *,
    policies: Iterable[str] = ("zeus",),
    eta: float = 0.5,
    seeds: Iterable[int] = range(100),
    recurrences: int | None = None,
    peer_seeds: Iterable[int] = (),
) -> pd.DataFrame:
    """Energy and time saved in steady state per GPU, workload and policy, with 95 % intervals.

    Columns: gpu, those of ``Runs.summary``, in_paper_range (the energy saved lies in
    :data:`PAPER_RANGE`); with ``peer_seeds``, for the published policy, also what zeus-ml's own
    simulator gives over them: peer_energy_reduction and peer_time_reduction.
    """
    policies, seeds, peer_seeds = tuple(policies), tuple(seeds), tuple(peer_seeds)
    rows = []
    for trace in traces:
        for job in trace.jobs():
            beside = _peer_columns(job, eta, recurrences, peer_seeds) if peer_seeds else {}
            for policy in policies:
                runs = simulate(job, policy=policy, eta=eta, seeds=seeds, recurrences=recurrences)
                summary = runs.summary()
                row: dict[Any, Any] = {"gpu": trace.gpu} | summary.to_dict()
                low, high = PAPER_RANGE
                row["in_paper_range"] = bool(low <= float(summary["energy_reduction"]) <= high)
                rows.append(row | (beside if policy == "zeus" else {}))
    return pd.DataFrame(rows)


def _peer_columns(
    job: Job, eta: float, recurrences: int | None, peer_seeds: tuple[int, ...]
) -> dict[str, float]:
    table = against_peer(
        [job], seeds=(0, 1), peer_seeds=peer_seeds, eta=eta, recurrences=recurrences
    )
    pairs = zip(table["quantity"], table["peer"], strict=True)
    return {f"peer_{quantity}_reduction": float(mean) for quantity, mean in pairs}


def compare(
    jobs: Iterable[Job],
    policies: Iterable[str] | Mapping[str, Policy],
    *,
    baseline: str = "zeus",
    eta: float = 0.5,
    seeds: Iterable[int] = range(100),
    recurrences: int | None = None,
) -> pd.DataFrame:
    """Cumulative cost of policies over all recurrences, relative to a baseline, seed by seed.

    One row a job and policy: workload, policy, cost_ratio (mean over seeds of the policy's
    cumulative cost, over the baseline's mean) with cost_ratio_low and _high, the 95 % interval of
    the paired difference (Student's t over seeds, which both share), regret_ratio (the same of
    regret), wins (the interval lies below 1).
    """
    named = policies if isinstance(policies, Mapping) else {name: name for name in policies}
    seeds = tuple(seeds)
    if len(seeds) < 2:
        raise UsageError("compare needs two seeds or more: its interval is over seeds")
    rows = []
    for job in jobs:

        def total_j(policy: str | Policy, job: Job = job) -> np.ndarray:
            runs = simulate(job, policy=policy, eta=eta, seeds=seeds, recurrences=recurrences)
            return runs.per_recurrence("cost_j").sum(axis=1)

        base = total_j(baseline)
        count = recurrences or job.num_recurrences
        best = count * optimum(job, eta=eta).cost_j
        for name, policy in named.items():
            cost = total_j(policy)
            row: dict[str, Any] = {"workload": job.title, "policy": name}
            row |= with_interval("cost_ratio", 1 + (cost - base) / base.mean())
            row["regret_ratio"] = (cost.mean() - best) / (base.mean() - best)
            row["wins"] = bool(row["cost_ratio_high"] < 1)
            rows.append(row)
    return pd.DataFrame(rows)


def variations(policy: CostCurve, factor: float = 2.0) -> dict[str, Policy]:
    """``policy`` itself and with each constant in turn divided and multiplied by ``factor``.

    For :func:`compare`, to see what its constants matter; of ``patience_factor``, what exceeds 1.
    """
    if not factor > 1:
        raise UsageError(f"factor must be above 1, got {factor}")
    varied: dict[str, Policy] = {"as set": policy}
    names = ("scale_octaves", "small_octaves", "roughness", "smoothness_octaves", "run_spread")
    for name in (*names, "spread_weight", "patience_factor"):
        floor = 1.0 if name == "patience_factor" else 0.0
        for times in (1 / factor, factor):
            value = floor + (getattr(policy, name) - floor) * times
            varied[f"{name} {value:g}"] = replace(policy, **{name: value})
    return varied


def held_out(table: pd.DataFrame) -> pd.DataFrame:
    """Settings chosen without a workload, judged on it: does choosing constants explain a win?

    ``table``: :func:`compare` of several settings of one policy (named in ``policy``), on one GPU
    or several. For each workload, the setting with the least mean log cost ratio over the *other*
    workloads is taken. Columns: workload, policy (the setting), cost_ratio, the mean on the
    workload left out, and regret_ratio.
    """
    wide = table.pivot_table(index="workload", columns="policy", values="cost_ratio")
    if len(wide) < 2:
        raise UsageError("held_out needs two workloads or more, one to leave out")
    regrets = table.pivot_table(index="workload", columns="policy", values="regret_ratio")
    rows = []
    for workload in wide.index:
        chosen = np.log(wide.drop(index=workload)).mean().idxmin()
        rows.append(
            {
                "workload": workload,
                "policy": chosen,
                "cost_ratio": wide.loc[workload, chosen],
                "regret_ratio": regrets.loc[workload, chosen],
            }
        )
    return pd.DataFrame(rows)


def regret_bands(runs: Iterable[Runs]) -> pd.DataFrame:
    """Cumulative regret of several experiments over recurrences, with 95 % intervals of the mean.

    Columns: workload, policy, recurrence, regret (mean over seeds, in runs of the optimum's
    expected cost), regret_low, regret_high (Student's t over seeds).
    """
    from scipy.special import stdtrit

    tables = []
    for run in runs:
        setup = run.experiment
        regret = run.regret_j() / optimum(setup.job, eta=setup.eta_knob).cost_j
        mean, half = regret.mean(axis=0), np.full(regret.shape[1], np.nan)
        if len(regret) > 1:
            quantile = stdtrit(len(regret) - 1, 0.975)
            half = quantile * regret.std(axis=0, ddof=1) / np.sqrt(len(regret))
        columns = {
            "workload": setup.job.title,
            "policy": setup.policy,
            "recurrence": np.arange(1, len(mean) + 1),
            "regret": mean,
            "regret_low": mean - half,
            "regret_high": mean + half,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)
