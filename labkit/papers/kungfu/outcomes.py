"""Runs under policies beside each other: time to an error, and what monitoring costs.

Steps, examples and errors come from runs of :func:`~labkit.papers.kungfu.training.train`; seconds
are modelled, as a function from batch sizes to seconds of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.kit.describe import Count, Whole, checked
from labkit.papers.kungfu.training import AdaptiveRun, train
from labkit.tuning.goodput import GoodputModel, Tables
from labkit.tuning.recording.training import load_digits

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from labkit.papers.kungfu.training import Policy
    from labkit.tuning.recording.training import Data

    StepSeconds = Callable[[NDArray[Any]], ArrayLike]

LAST_LOOKS = 5
"""A policy's final error is the mean of so many looks at the validation images."""
KEYS = ["policy", "seed"]


def compare(
    policy: Callable[..., Policy],
    cases: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[Whole],
    data: Data | None = None,
    **fields: Any,
) -> pd.DataFrame:
    """:func:`train` for every seed under ``policy`` with each case's arguments.

    Args:
        policy: makes a policy from a case's arguments.
        cases: those arguments by the case's name.
        seeds: a run each.
        fields: those of :class:`AdaptiveRun` but ``rng``.

    Returns:
        Columns: policy (the case's name), seed, then those of :func:`train`.
    """
    data = data or load_digits()
    tables = []
    for name, case in cases.items():
        for seed in seeds:
            table = train(AdaptiveRun(rng=seed, **fields), policy(**case), data)
            tables.append(table.assign(policy=name, seed=seed))
    return pd.concat(tables, ignore_index=True)


def modelled_step_s(model: GoodputModel, gpus: Count, images_an_example: Count) -> StepSeconds:
    """Seconds of a step of the model's training, where an example stands for several images.

    Args:
        model: fitted to step times of servers with four GPUs.
        gpus: GPUs that share a batch.
        images_an_example: so many of the model's images take as long as one example.
    """

    def seconds(batch: ArrayLike) -> ArrayLike:
        per_gpu = np.maximum(images_an_example * np.asarray(batch) / gpus, 1)
        return model.step_times.step_time_s(-(-gpus // 4), gpus, per_gpu)

    return seconds


def _first_s(runs: pd.DataFrame, step_s: StepSeconds, error: float) -> pd.Series:
    """When each run first looks at an error of ``error`` or less, by policy and seed."""
    taken = runs.groupby(KEYS)["step"].diff().fillna(runs["step"])
    spent_s = taken * np.asarray(step_s(runs["batch_size"].to_numpy()))
    time_s = spent_s.groupby([runs[key] for key in KEYS]).cumsum()
    reached = runs[KEYS].assign(time_s=time_s)[runs["error"] <= error]
    every = pd.MultiIndex.from_frame(runs[KEYS].drop_duplicates())
    return reached.groupby(KEYS)["time_s"].first().reindex(every)


def times_to(runs: pd.DataFrame, step_s: StepSeconds, targets: Sequence[float]) -> pd.DataFrame:
    """When runs of :func:`compare` first look at an error of each target or less.

    Args:
        step_s: gives the seconds of a step at each batch size.
        targets: validation errors, as fractions.

    Returns:
        Columns: policy, error, time_s, the mean over seeds; NaN where a seed never gets there.
    """
    first = pd.DataFrame({error: _first_s(runs, step_s, error) for error in targets})
    means = first.groupby("policy", sort=False).mean(skipna=False).reset_index()
    return means.melt("policy", var_name="error", value_name="time_s")


def times_by_seed(runs: pd.DataFrame, step_s: StepSeconds, target: float) -> pd.DataFrame:
    """Seconds to the target error, a row a seed and a column a policy; NaN where it is not met."""
    names = runs["policy"].unique()
    return _first_s(runs, step_s, target).unstack("policy")[names]


def summary(runs: pd.DataFrame, step_s: StepSeconds, target: float) -> pd.DataFrame:
    """What each policy of :func:`compare` took to the target error.

    Columns, means over seeds: steps, examples and time_s (as :func:`times_to`); and largest_batch
    of any seed.
    """
    costs: dict[str, StepSeconds] = {
        "steps": np.ones_like,
        "examples": np.asarray,
        "time_s": step_s,
    }
    columns = {}
    for name, cost in costs.items():
        columns[name] = times_by_seed(runs, cost, target).mean(skipna=False)
    table = pd.DataFrame(columns).rename_axis("policy")
    return table.assign(largest_batch=runs.groupby("policy")["batch_size"].max())


def final_error(runs: pd.DataFrame, num_examples: int | None = None) -> pd.Series:
    """Each policy's error over the last :data:`LAST_LOOKS` looks, a mean over seeds.

    Args:
        num_examples: looks after so many examples do not count; None counts all.
    """
    if num_examples is not None:
        runs = runs[runs["examples"] <= num_examples]
    ends: pd.Series = runs.groupby(KEYS).tail(LAST_LOOKS).groupby("policy")["error"].mean()
    return ends


def monitored_rates(printed: pd.DataFrame, batch_size: int) -> pd.DataFrame:
    """Rates with monitoring, if it costs the same seconds a monitored step whatever the batch.

    Args:
        printed: columns batch_size, metric ("none" for no monitoring), interval, images_per_s.
        batch_size: its rows at interval 1 give the seconds; all others are predicted.

    Returns:
        The rows that are predicted, with ``predicted_per_s`` and ``plain_per_s``, the rate of that
        batch size without monitoring.
    """
    plain = printed[printed["metric"] == "none"].set_index("batch_size")["images_per_s"]
    is_known = (printed["batch_size"] == batch_size) & (printed["interval"] == 1)
    known = printed[is_known].set_index("metric")["images_per_s"]
    extra_s = batch_size / known - batch_size / plain[batch_size]
    rest = printed[~is_known & (printed["metric"] != "none")].reset_index(drop=True)
    rest["plain_per_s"] = rest["batch_size"].map(plain)
    step_s = rest["batch_size"] / rest["plain_per_s"]
    step_s += rest["metric"].map(extra_s) / rest["interval"]
    rest["predicted_per_s"] = rest["batch_size"] / step_s
    return rest


@checked
def replay(
    model: GoodputModel,
    tables: Tables,
    choices: Mapping[str, float | Callable[[GoodputModel], float]],
    num_nodes: Count,
    num_gpus: Count,
) -> pd.DataFrame:
    """How long a published run would take if the batch size of every epoch were chosen so.

    What an epoch of the run at the initial batch size achieved takes init · steps / goodput
    seconds. Epochs whose noise scale is infinite are left out.

    Args:
        tables: a workload of Pollux's artifact, with its run at the initial batch size.
        choices: by name a batch size, or a function from the model at the epoch's noise scale.
        num_nodes, num_gpus: the allocation that it would run on.

    Returns:
        Columns: choice, time_s, last_batch_size.
    """
    epochs = tables.initial_run()
    init = tables.init_batch_size
    epochs = epochs.assign(worth=np.diff(epochs["progress"], prepend=0.0))
    epochs = epochs[np.isfinite(epochs["noise_scale"])]
    rows = []
    for name, choice in choices.items():
        time_s = 0.0
        batch = float(init)
        for noise_scale, worth in zip(epochs["noise_scale"], epochs["worth"], strict=True):
            now = replace(model, init_batch_size=init, noise_scale=float(noise_scale))
            batch = float(choice(now) if callable(choice) else choice)
            time_s += worth * init / float(now.goodput(num_nodes, num_gpus, batch / num_gpus))
        rows.append({"choice": name, "time_s": time_s, "last_batch_size": batch})
    return pd.DataFrame(rows)
