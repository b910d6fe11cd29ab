"""Schedules of rounds: relaxed, where a fast GPU may run several tasks in turn, or as gangs.

A gang runs the tasks of a round at once on as many GPUs.

Source: Hare (HPDC'22), relaxed fixed-scale synchronisation; the code and the order are our own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue
from labkit.kit.compiled import hear, njit
from labkit.kit.describe import NonNegative, checked
from labkit.papers.hare.rounds import Rounds

if TYPE_CHECKING:
    import pandas as pd

Order = Literal["midpoint", "area", "arrival"]


class Tasks(NamedTuple):
    """A schedule; simulated."""

    end_s: NDArray[np.float64]
    """When each job ends."""
    log: NDArray[np.float64]
    """A row a task: its job, its GPU, its start and its end."""

    def weighted_jct_s(self, jobs: Rounds) -> float:
        """Mean completion time by weight."""
        weight = jobs.column("weight")
        return float(weight @ (self.end_s - jobs.column("arrival_s")) / weight.sum())


GANGS: dict[str, dict[str, Any]] = {
    "first come": {"how": "whole", "order": "arrival", "blocks": True},
    "shortest by weight": {"how": "whole", "order": "area"},
    "the same, one type": {"how": "whole", "order": "area", "one_type": True},
}
"""Settings of :func:`schedule` for gangs that keep a job's GPUs until it ends."""
WAYS: dict[str, dict[str, Any]] = {
    **GANGS,
    "gangs by round": {"how": "gang", "order": "area", "one_type": True},
    "gangs by round, Hare's order": {"how": "gang", "one_type": True},
    "relaxed": {},
    "relaxed, by area": {"order": "area"},
}
"""Settings of :func:`schedule` for every way of running rounds; ``relaxed`` is Hare's."""


@checked
def schedule(
    jobs: Rounds,
    how: Literal["relaxed", "gang", "whole"] = "relaxed",
    *,
    order: Order = "midpoint",
    one_type: bool = False,
    believed_s: ArrayLike = (),
    switch_s: NonNegative = 0.0,
    blocks: bool = False,
) -> Tasks:
    """Go through the jobs in order whenever a GPU or a round is ready, and start what can start.

    Args:
        jobs: in rounds of tasks.
        how: ``relaxed``: each task takes the GPU where it ends first, even if it must wait for
            that GPU, while tasks behind it may use the others; ``gang``: the tasks of a round at
            once, each on a GPU of its own, the fastest that are free; ``whole``: the same GPUs
            for all rounds of a job.
        order: who comes first: of the least midpoint (:meth:`Rounds.midpoints_s`), the least area
            by weight, or the first arrival.
        one_type: whether a gang's GPUs are of one type.
        believed_s: task seconds that decisions rest on; default: the true ones.
        switch_s: what a GPU loses when it takes a task of another job than its last.
        blocks: whether a gang that does not fit keeps those behind it waiting.

    Raises:
        BadValue: a gang has more tasks than there are GPUs for it, or ``believed_s`` is no table
            like ``task_s``.
    """
    true_s = jobs.column("task_s")
    width = jobs.column("tasks").astype(np.int64)
    rounds = jobs.column("rounds").astype(np.int64)
    sync_s = jobs.column("sync_s")
    believed = np.asarray(believed_s, dtype=float) if np.size(believed_s) else true_s
    if believed.shape != true_s.shape or not (np.isfinite(believed) & (believed > 0)).all():
        raise BadValue(f"schedule: believed_s must be seconds above 0, of shape {true_s.shape}")
    group = np.asarray(jobs.types) * one_type
    most = np.bincount(group).max()
    if how != "relaxed" and width.max() > most:
        raise BadValue(f"schedule: a gang of {width.max()} tasks; valid: at most {most} GPUs")
    rank = _rank(replace(jobs, task_s=believed), order)
    if how == "whole":  # a job is one round, as long as all of them
        true_s = (true_s + sync_s[:, None]) * rounds[:, None]
        believed = (believed + sync_s[:, None]) * rounds[:, None]
        rounds = np.ones_like(rounds)
        sync_s = np.zeros_like(sync_s)
    end_s, log = _run(
        jobs.column("arrival_s"),
        rounds,
        width,
        true_s,
        believed,
        sync_s,
        np.argsort(rank, kind="stable"),
        how != "relaxed",
        group,
        float(switch_s),
        blocks,
    )
    return Tasks(end_s, log)


def _rank(believed: Rounds, order: Order) -> NDArray[np.float64]:
    """A number a job; the least comes first."""
    if order == "arrival":
        return believed.column("arrival_s")
    if order == "area":
        return believed.area_s / believed.column("weight")
    return believed.midpoints_s()


@checked
def compare(
    jobs: Rounds, *, believed_s: ArrayLike = (), switch_s: NonNegative = 0.0
) -> pd.DataFrame:
    """One row a way of :data:`WAYS`, by name: the weighted mean completion time, in seconds.

    Args:
        jobs: in rounds of tasks.
        believed_s, switch_s: as of :func:`schedule`.
    """
    import pandas as pd

    given: dict[str, Any] = {"believed_s": believed_s, "switch_s": switch_s}
    means_s = {
        name: schedule(jobs, **settings, **given).weighted_jct_s(jobs)
        for name, settings in WAYS.items()
    }
    return pd.DataFrame({"weighted_jct_s": means_s}).rename_axis("way")


JOB, GPU, START, END = range(4)  # columns of the log
NUM_COLUMNS = 4


@njit(cache=True)
def _run(  # type: ignore[no-untyped-def]
    arrival, rounds, width, true_s, believed_s, sync_s, order, gang, group, switch_s, blocks
):
    """All jobs to their end: when each ends, and a row of the log a task."""
    num_jobs, num_gpus = true_s.shape
    ready = arrival.copy()  # when each job's next round may begin
    tasks_left = width.copy()  # tasks of the round that have not started
    rounds_done = np.zeros(num_jobs, np.int64)  # rounds
    round_end = np.zeros(num_jobs)  # when the last task so far of the round ends
    free = np.zeros(num_gpus)  # when each GPU's task ends
    last = np.full(num_gpus, -1)  # the job of each GPU's last task
    chosen = np.zeros(num_gpus, np.int64)  # scratch: GPUs for a job
    log = np.zeros(((rounds * width).sum(), NUM_COLUMNS))
    row = 0
    now = arrival.min()
    turns = 0
    while now < np.inf:
        turns += 1
        hear(turns, 64)
        claimed = np.maximum(free, now)  # when each GPU has done what comes before the next task
        idle = (free <= now).sum()
        # 1. Jobs in order, while a GPU is idle: those whose next round may begin.
        for j in order:
            if idle == 0:
                break
            if rounds_done[j] == rounds[j] or ready[j] > now:
                continue
            switch = switch_s * (last != j)
            cost = believed_s[j] + switch
            takes = true_s[j] + switch
            if gang:
                num_started = _gang(cost, width[j], free, group, now, chosen)
                if num_started == 0 and blocks:
                    break
            else:
                num_started = _earliest(cost, tasks_left[j], claimed, now, chosen)
            # 2. Its tasks start on the GPUs chosen; a gang's end together.
            if gang and num_started > 0:
                takes[:] = takes[chosen[:num_started]].max()
            for g in chosen[:num_started]:
                free[g] = now + takes[g]
                last[g] = j
                round_end[j] = max(round_end[j], free[g])
                log[row, JOB] = j
                log[row, GPU] = g
                log[row, START] = now
                log[row, END] = free[g]
                row += 1
            # 3. With its last task on its way, a round's end is known.
            idle -= num_started
            tasks_left[j] -= num_started
            if tasks_left[j] == 0:
                rounds_done[j] += 1
                ready[j] = round_end[j] + sync_s[j]
                tasks_left[j] = width[j]
        # 4. On to the next moment at which a GPU or a job is ready.
        moments = np.concatenate((free, ready[rounds_done < rounds], np.array([np.inf])))
        now = moments[moments > now].min()
    return ready, log


@njit(cache=True)
def _earliest(cost, tasks, claimed, now, chosen):  # type: ignore[no-untyped-def]
    """Each task claims the GPU where it ends first; those on idle GPUs are chosen to start."""
    num = 0
    for _ in range(tasks):
        best = 0
        for g in range(cost.size):
            if claimed[g] + cost[g] < claimed[best] + cost[best]:
                best = g
        if claimed[best] <= now:
            chosen[num] = best
            num += 1
        claimed[best] += cost[best]
    return num


@njit(cache=True)
def _gang(cost, width, free, group, now, chosen):  # type: ignore[no-untyped-def]
    """The group's fastest free GPUs, in the group that is fastest so; 0: none has enough."""
    best = np.inf
    pick = np.zeros(width, np.int64)
    for k in range(group.max() + 1):
        used = np.zeros(cost.size, np.bool_)
        slowest = np.inf
        for num in range(width):
            fastest = -1
            for g in range(cost.size):
                able = group[g] == k and free[g] <= now and not used[g]
                if able and (fastest < 0 or cost[g] < cost[fastest]):
                    fastest = g
            if fastest < 0:
                slowest = np.inf
                break
            used[fastest] = True
            pick[num] = fastest
            slowest = cost[fastest]
        if slowest < best:
            best = slowest
            chosen[:width] = pick
    return width if best < np.inf else 0
