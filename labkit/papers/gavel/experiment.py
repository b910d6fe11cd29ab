"""The two experiments of Gavel's notebook: completion times over load, and the makespan of a crowd.

Both run on 36 V100, 36 P100 and 36 K80, as the authors' own simulations do (§7.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.cluster.inputs.throughputs import Throughputs, generate_continuous
from labkit.cluster.simulation import simulate, sweep
from labkit.errors import not_among
from labkit.papers.gavel.policies import share_policy

if TYPE_CHECKING:
    import pandas as pd

GPUS_OF_EACH_TYPE = 36
NUM_JOBS = 16_000
"""Drawn: enough that jobs still arrive when the last counted one ends."""
WINDOW = 1_000
"""Jobs that are counted, from a first one on."""

NAMES = {
    "las": "LAS",
    "max-min": "Gavel",
    "max-min-shared": "Gavel, sharing",
    "allox": "AlloX",
    "packed-by-sum": "Gandiva",
    "fifo": "FIFO",
    "fifo-aware": "Gavel's FIFO",
    "makespan": "Gavel's makespan policy",
}
"""What tables and figures call the policies."""


def completion_times(
    table: Throughputs,
    policies: Iterable[str],
    jobs_per_hour: float,
    *,
    seeds: Sequence[int] = (0,),
    first_jobs: Sequence[int] = (4000,),
    settings: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Completion times of a thousand jobs of one GPU each, by policy, draw and window.

    Args:
        table: speeds of kinds of jobs.
        policies: names, as of :data:`labkit.papers.gavel.SHARE_POLICIES`.
        jobs_per_hour: that arrive.
        seeds: of the draws of jobs.
        first_jobs: where windows of :data:`WINDOW` jobs begin; earlier jobs are warm-up.
        settings: fields of the policies, such as ``round_s`` or ``restart_s``.

    Returns:
        Columns ``policy`` (as :data:`NAMES` has it), ``jobs_per_hour``, ``seed``, ``first_job``,
        ``offered_fraction`` (work that arrives over what the GPUs could do if all were V100),
        ``mean_h``, ``median_h``, ``p90_h``, ``p99_h``, ``worst_slowdown`` (over the job alone on
        its fastest GPU) and ``stops`` of a job.

    Raises:
        BadValue: the policy cannot carry the load: counted jobs end after the last arrival.

    Source: §7.3, Fig. 8.
    """
    traces = {}
    for seed in seeds:
        traces[seed] = generate_continuous(NUM_JOBS, jobs_per_hour=jobs_per_hour, rng=seed)
    chosen = [share_policy(name, pairs=table, **(settings or {})) for name in policies]
    gpus = table.cluster(*[GPUS_OF_EACH_TYPE] * len(table.gpu_types))
    windows = [(first, first + WINDOW) for first in first_jobs]
    rows = sweep(traces, [gpus], chosen, windows=windows)
    hours = {"mean_h": "mean_jct_s", "median_h": "median_jct_s"}
    hours |= {"p90_h": "p90_jct_s", "p99_h": "p99_jct_s"}
    shown = rows[["policy"]].assign(jobs_per_hour=jobs_per_hour)
    shown["policy"] = shown["policy"].map(NAMES)
    shown["seed"] = rows["trace"]
    shown["first_job"] = rows["first"]
    shown["offered_fraction"] = rows["offered_load"]
    for column, seconds in hours.items():
        shown[column] = rows[seconds] / 3600
    shown["worst_slowdown"] = rows["worst_slowdown_ratio"]
    shown["stops"] = rows["preemptions"] / rows["jobs"]
    return shown


def alone_h(
    table: Throughputs, *, seed: int = 0, first_job: int = 4000, gpu: str | None = None
) -> float:
    """Mean hours of a window's jobs if each ran at once, alone: no policy beats the fastest GPU.

    Args:
        table: speeds of kinds of jobs.
        seed: of the draw.
        first_job: where the window of :data:`WINDOW` jobs begins.
        gpu: the type that all run on; default: each job's fastest.

    Raises:
        BadValue: the table has no such type.
    """
    if gpu is not None and gpu not in table.gpu_types:
        raise not_among("GPU type", gpu, table.gpu_types)
    trace = generate_continuous(first_job + WINDOW, jobs_per_hour=1.0, rng=seed)
    speeds = table.of(trace.kind[first_job:])[0]
    speed = speeds.max(axis=1) if gpu is None else speeds[:, table.gpu_types.index(gpu)]
    return float(np.mean(trace.column("duration_s")[first_job:] / speed)) / 3600


def makespans(
    table: Throughputs,
    policies: Iterable[str],
    *,
    num_jobs: int = 700,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Hours until all of a crowd's jobs are done that were there at the start, by policy.

    Args:
        table: speeds on 1, 2, 4 and 8 GPUs (``load_throughputs(wide=True)``).
        policies: names, as of :data:`labkit.papers.gavel.SHARE_POLICIES`.
        num_jobs: of 1, 2, 4 or 8 GPUs.
        settings: fields of the policies, such as ``round_s``.

    Source: §7.3, makespan; ``makespan.ipynb`` of the authors' program.
    """
    crowd = generate_continuous(num_jobs, jobs_per_hour=None, wide=True)
    gpus = table.cluster(*[GPUS_OF_EACH_TYPE] * len(table.gpu_types))
    hours = {}
    for name in policies:
        run = simulate(crowd, gpus, share_policy(name, pairs=table, **(settings or {})))
        hours[NAMES[name]] = float(run.end_s.max()) / 3600
    return hours
