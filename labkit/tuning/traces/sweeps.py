"""A sweep of somebody's own: two tables without a word on what their workloads start from.

Zeus's published traces come with defaults of each workload (:data:`job.PUBLISHED`), and what
``labkit tuning record`` writes has them in ``meta.json``. Here they are derived from the tables, in
a way that can be said in a sentence and overridden one by one.
"""

from __future__ import annotations

import math

import pandas as pd

from labkit.tuning.traces import checks
from labkit.tuning.traces.job import Workload

TRAIN_TEXT = "columns " + ", ".join(checks.TRAIN_COLUMNS)
POWER_TEXT = "columns " + ", ".join(checks.POWER_COLUMNS)
DERIVED = (
    "derived from the sweep: batch size {b0:,} (its largest), target {target:g} (the hardest that "
    "a run reached), {epochs:,} epochs at most (the longest way to a target); --b0, --target and "
    "--max-epochs say otherwise"
)


def workloads(train: pd.DataFrame, power: pd.DataFrame) -> dict[str, Workload]:
    """Derive a workload of each dataset, network and optimizer that both tables have.

    It is called as its dataset, and where two share a dataset by all three. It starts from the
    largest batch size that was both trained and profiled, aims at the hardest target that a run
    reached, and may take as many epochs as the longest run that reached a target took. A target is
    harder where runs reach it later.

    Args:
        train, power: as :class:`TrainingTrace` has them.
    """
    trained = _groups(train)
    profiled = {key: set(rows["batch_size"]) for key, rows in _groups(power).items()}
    groups = {
        key: rows
        for key, rows in trained.items()
        if {*rows["batch_size"]} & profiled.get(key, set())
    }
    datasets = [key[0] for key in groups]
    found = {}
    for key, rows in groups.items():
        dataset, network, optimizer = key
        higher = _higher_is_better(rows)
        reached = rows[rows["target_epoch"] < math.inf]
        targets = (reached if len(reached) else rows)["target_metric"]
        name = dataset if datasets.count(dataset) == 1 else "/".join(key)
        found[name] = Workload(
            title=f"{network}, {dataset}",
            network=network,
            optimizer=optimizer,
            default_batch_size=max({*rows["batch_size"]} & profiled[key]),
            target_metric=float(targets.max() if higher else targets.min()),
            metric_name="target_metric",
            max_epochs=math.ceil(reached["target_epoch"].max()) if len(reached) else 1,
            higher_is_better=higher,
            dataset=dataset,
        )
    return found


def _groups(table: pd.DataFrame) -> dict[tuple[str, ...], pd.DataFrame]:
    """Put the rows of each dataset, network and optimizer together."""
    return {
        tuple(map(str, rows.iloc[0][checks.WORKLOAD])): rows
        for _, rows in table.groupby(checks.WORKLOAD)
    }


def _higher_is_better(rows: pd.DataFrame) -> bool:
    """Tell whether runs reach higher targets later; so it is too where nothing tells."""
    runs = rows.sort_values("target_metric").groupby(["batch_size", "run"], sort=False)
    steps = rows["target_epoch"] - runs["target_epoch"].shift()
    return bool((steps > 0).sum() >= (steps < 0).sum())
