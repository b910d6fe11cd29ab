"""What a fit is worth: the batch sizes it picks on allocations it has not seen, as measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from labkit.errors import UsageError
from labkit.tuning.goodput.large_batch import efficiency
from labkit.tuning.goodput.step_fit import cross_validate, measurements
from labkit.tuning.goodput.tables import WORKLOADS, Tables

_MOST_ACCUMULATION = 3


def picks(
    frame: pd.DataFrame,
    noise_scales: Iterable[float],
    *,
    init_batch_size: int,
    max_batch_size: int,
    accumulation: bool = False,
    by: str = "allocation",
    **settings: Any,
) -> pd.DataFrame:
    """The batch size that the model picks for allocations it has not seen, as measured there.

    For each allocation of ``frame`` and noise scale, the sizes measured on it are ranked by a fit
    that left it out (``cross_validate(frame, by=by, **settings)``); goodput of the pick and of
    the best come from measured times. ``accumulation`` adds batches of up to four gradients,
    whose further gradients are as long as the measured compute time (needs sync_time).

    ``by="repeat"`` ranks them by measurements instead: those of the same nodes in another order
    (1224 by 2124, say), which is the same allocation measured again. How far that pick falls
    short is what noise in single measurements costs anyone; of allocations without a repeat there
    are no rows.

    Columns: allocation, num_nodes, num_gpus, noise_scale, num_choices, atomic_bsz, accum_steps,
    best_atomic_bsz, best_accum_steps, goodput, best_goodput, shortfall_fraction.
    """
    if by == "repeat":
        table = _by_repeat(measurements(frame))
    else:
        table = cross_validate(frame, by=by, **settings)
    table = table.assign(accum_steps=0)
    if accumulation:
        table = _with_accumulation(table)
    table["batch_size"] = table["num_gpus"] * table["atomic_bsz"] * (table["accum_steps"] + 1)
    table = table[table["batch_size"].between(init_batch_size, max_batch_size)]
    if table.empty:
        raise UsageError(f"no measured batch lies in [{init_batch_size}, {max_batch_size}]")
    rows = []
    for (name, nodes, gpus), group in table.groupby(["allocation", "num_nodes", "num_gpus"]):
        batch = group["batch_size"].to_numpy()
        for scale in noise_scales:
            worth = batch * efficiency(batch, init_batch_size=init_batch_size, noise_scale=scale)
            measured = worth / group["step_time_s"].to_numpy()
            pick = (worth / group["predicted_s"].to_numpy()).argmax()
            best = measured.argmax()
            rows.append(
                {
                    "allocation": name,
                    "num_nodes": nodes,
                    "num_gpus": gpus,
                    "noise_scale": scale,
                    "num_choices": len(group),
                    "atomic_bsz": group["atomic_bsz"].iloc[pick],
                    "accum_steps": group["accum_steps"].iloc[pick],
                    "best_atomic_bsz": group["atomic_bsz"].iloc[best],
                    "best_accum_steps": group["accum_steps"].iloc[best],
                    "goodput": measured[pick],
                    "best_goodput": measured[best],
                    "shortfall_fraction": 1 - measured[pick] / measured[best],
                }
            )
    return pd.DataFrame(rows)


def _by_repeat(table: pd.DataFrame) -> pd.DataFrame:
    """Steps of allocations measured twice, each predicted by the next repeat of it."""
    named = table[table["allocation"].str.fullmatch("[1-9]+")]
    nodes = named["allocation"].map(lambda digits: "".join(sorted(digits)))
    following: dict[str, str] = {}
    for _, names in named.groupby(nodes)["allocation"].unique().items():
        ordered = sorted(names)
        if len(ordered) > 1:
            following |= dict(zip(ordered, [*ordered[1:], ordered[0]], strict=True))
    if not following:
        raise UsageError("no allocation was measured again with its nodes in another order")
    times = {"step_time_s": "predicted_s", "compute_time_s": "predicted_grad_s"}
    again = named[["allocation", "atomic_bsz", *(c for c in times if c in named)]]
    pairs = named[named["allocation"].isin(following)].assign(
        repeat=lambda rows: rows["allocation"].map(following)
    )
    again = again.rename(columns={"allocation": "repeat"} | times)
    return pairs.merge(again, on=["repeat", "atomic_bsz"])


def _with_accumulation(table: pd.DataFrame) -> pd.DataFrame:
    """The rows again with up to three further gradients, measured and predicted."""
    if "compute_time_s" not in table:
        raise UsageError("accumulation cannot be told from steps measured without sync_time")
    parts = [
        table.assign(
            accum_steps=steps,
            step_time_s=table["step_time_s"] + steps * table["compute_time_s"],
            predicted_s=table["predicted_s"] + steps * table["predicted_grad_s"],
        )
        for steps in range(_MOST_ACCUMULATION + 1)
    ]
    return pd.concat(parts, ignore_index=True)


def examples_to(tables: Tables, metric: float) -> pd.DataFrame:
    """Examples until the metric is first reached, by batch size, and what they were worth.

    Columns: batch_size, examples, efficiency (examples at the initial size over these, as
    measured), predicted_efficiency (mean over the run, from its gradient statistics). Sizes
    that never reach it are left out; of an epoch, the end counts.
    """
    rows = []
    for batch_size in sorted(tables.runs["batch_size"].unique()):
        run = tables.runs[tables.runs["batch_size"] == batch_size]
        rises = WORKLOADS[tables.workload][1]
        there = run["metric"] >= metric if rises else run["metric"] <= metric
        if there.any():
            end = run[there].iloc[0]
            scale = batch_size / tables.init_batch_size
            rows.append(
                {
                    "batch_size": batch_size,
                    "examples": end["iteration"] * batch_size,
                    "predicted_efficiency": end["progress"] / (end["iteration"] * scale),
                }
            )
    table = pd.DataFrame(rows)
    if table.empty or table["batch_size"].iloc[0] != tables.init_batch_size:
        raise UsageError(
            f"{tables.workload}: metric {metric:g} was not reached with the initial batch size"
        )
    table.insert(2, "efficiency", table["examples"].iloc[0] / table["examples"])
    return table
