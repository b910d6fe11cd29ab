"""What every loop knows of a job, and how its records become a :class:`labkit.cluster.Run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops.event_loop import ORDER, PREEMPTED
from labkit.cluster.results import CAUSES, Named, Placement, Run

LIFE = [
    ("gpus", "i8"),  # that it holds while it runs
    ("arrival", "f8"),
    ("left", "f8"),  # seconds of work at speed 1, when it last stopped
    ("since", "f8"),  # start of this run, or of waiting
    ("warm", "f8"),  # from when on this run makes progress
    ("start", "f8"),  # of its first run; NaN: not yet, or never
    ("end", "f8"),  # of its last run; NaN: not yet, or never
    ("stops", "i8"),  # how often it was stopped
    ("lost", "f8"),  # seconds that it held GPUs without progress
]
"""Fields that every loop's records of jobs have."""

JOB, START, END, GPUS = range(4)
"""Columns of the rows that :func:`replayed` takes."""


def jobs_of(trace: Trace, kind: np.dtype[np.void]) -> Any:
    """Records of a trace's jobs before anything has happened."""
    jobs = np.zeros(len(trace), kind)
    jobs["gpus"] = trace.gpus
    jobs["left"] = trace.duration_s
    jobs["arrival"] = trace.arrival_s
    jobs["since"] = trace.arrival_s
    jobs["start"] = np.nan
    jobs["end"] = np.nan
    return jobs


def run_of(
    trace: Trace,
    cluster: Cluster,
    policy: Named,
    jobs: NDArray[Any],
    waits_s: NDArray[np.float64],
    columns: Sequence[NDArray[Any]],
    *,
    nodes: Sequence[NDArray[np.int64]] = (),
    placement: Placement = "any",
    refused: NDArray[np.bool_] | None = None,
    stops_early: bool = False,
) -> Run:
    """The run that a loop's records of jobs say.

    Args:
        trace, cluster, policy, placement, refused, stops_early: as :class:`Run` has them.
        jobs: records with the fields :data:`LIFE`, after the loop.
        waits_s: job × cause.
        columns: of ``Run.segments``: job, start, end, pool and GPUs.
        nodes: of ``Run.held``: segment, node and GPUs; default: every pool counts as one node.
    """
    job, _, _, pool, gpus = columns
    nodes = nodes or (np.arange(job.size), pool, gpus)
    return Run(
        trace=trace,
        cluster=cluster,
        policy=policy,
        placement=placement,
        start_s=jobs["start"].copy(),
        end_s=jobs["end"].copy(),
        preemptions=jobs["stops"].copy(),
        waits_s=waits_s,
        restart_s=jobs["lost"].copy(),
        refused=refused,
        stops_early=stops_early,
        segments=dict(zip(("job", "start_s", "end_s", "pool", "gpus"), columns, strict=True)),
        held=dict(zip(("segment", "node", "gpus"), nodes, strict=True)),
    )


def replayed(
    policy: Named,
    trace: Trace,
    cluster: Cluster,
    jobs: NDArray[np.void],
    rows: NDArray[np.float64],
    refused: NDArray[np.bool_] | None = None,
) -> Run:
    """What a compiled loop on one pool has done.

    Args:
        policy, trace, cluster, refused: as :class:`Run` has them.
        jobs: records with the fields :data:`LIFE`, after the loop.
        rows: job, start, end and GPUs of each stretch; those of no length are left out.
    """
    rows = rows[rows[:, END] > rows[:, START]]
    rows = rows[np.argsort(rows[:, END], kind="stable")]
    job = rows[:, JOB].astype(np.int64)
    gpus = rows[:, GPUS].astype(np.int64)
    held_s = np.bincount(job, rows[:, END] - rows[:, START], jobs.size)
    waits_s = np.zeros((jobs.size, len(CAUSES)))
    waits_s[:, ORDER] = np.nan_to_num(jobs["start"] - jobs["arrival"])
    waits_s[:, PREEMPTED] = np.nan_to_num(jobs["end"] - jobs["start"] - held_s).clip(0)
    columns = job, rows[:, START], rows[:, END], np.zeros_like(job), gpus
    return run_of(trace, cluster, policy, jobs, waits_s, columns, refused=refused)
