"""What compiled loops work on: records of jobs, and the event loop's of pools, nodes and runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from labkit.cluster.jobs.jobs import Trace

CAUSES = ("capacity", "order", "fragmentation", "preemption", "round")
"""What a job waits for: too few GPUs free; jobs ahead of it in a queue that blocks, or a policy
that leaves GPUs free; enough free GPUs, on too many nodes; GPUs again, after it was stopped; the
next round of a policy that decides in rounds. The event loop counts the first four, in order."""
LIFE = [
    ("gpus", "i8"), ("arrival", "f8"), ("left", "f8"),  # left: work, when it last stopped
    ("since", "f8"), ("warm", "f8"),  # start of this run (or of waiting), and of its progress
    ("start", "f8"), ("end", "f8"),  # of all; NaN: not yet, or never
    ("stops", "i8"), ("lost", "f8"),  # how often it was stopped; seconds held without progress
]  # fmt: skip
"""What every loop knows of a job."""
JOB = np.dtype([  # what every pass reads comes first, in one line of the cache
    ("status", "i8"), ("pool", "i8"),  # pool: where it runs
    ("key", "f8"), ("waits", "i8"),  # sorted by both; waits: 0 where it ran after the last pass
    ("held", "i8"), ("num_held", "i8"),  # its nodes, in World.held
    ("row", "i8"), *LIFE,  # row: of World.speed
    ("attained", "f8"), ("place", "i8"), ("level", "i8"), ("cause", "i8"),  # place: among running
])  # fmt: skip
POOL = np.dtype([("first", "i8"), ("last", "i8"), ("size", "i8"), ("free", "i8"), ("avail", "i8")])
"""Nodes from first to before last, of size GPUs each; free: of no job; avail: or of later ones."""
NODE = np.dtype([("free", "i8"), ("avail", "i8")])
SLOT = np.dtype([("node", "i8"), ("gpus", "i8")])
SEGMENT = np.dtype([("job", "i8"), ("start", "f8"), ("end", "f8"), ("pool", "i8"), ("held", "i8")])
"""A run of a job; ``held`` is where its nodes begin among the held of the log."""


class World(NamedTuple):
    """Everything that changes, and the speeds."""

    jobs: Any
    pools: Any
    nodes: Any
    speed: Any  # row x pool; 0: such a job may not run there
    preference: Any  # row x pool: the pools, fastest first
    waited: Any  # job x cause: seconds
    order: Any  # the queue, from HEAD to before TAIL
    running: Any  # jobs that run, in no order
    ends: Any  # when each of them will be done
    falls: Any  # when each of them reaches its threshold
    held: Any
    scratch: Any  # nodes chosen for a job
    misfit: Any  # row x GPUs: the last pass in which such a job did not fit
    count: Any


class Rule(NamedTuple):
    """A policy, for the loop; ``nodes_matter``: placement is more than counting."""

    order: int
    preemptive: bool
    blocks: bool
    thresholds: Any
    ranks: Any  # of each queue, the least first; one more than thresholds
    late_demotion: bool
    restart_s: float
    nodes_matter: bool


class Log(NamedTuple):
    """Runs of jobs on GPUs, in order of their end, and the nodes of each; both grow."""

    segments: Any
    held: Any


def jobs_of(trace: Trace, kind: np.dtype[np.void]) -> Any:
    """Records of a trace's jobs before anything has happened."""
    jobs = np.zeros(len(trace), kind)
    jobs["gpus"], jobs["left"] = trace.gpus, trace.duration_s
    jobs["arrival"] = jobs["since"] = trace.arrival_s
    jobs["start"] = jobs["end"] = np.nan
    return jobs
