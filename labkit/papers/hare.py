"""Hare (HPDC'22): jobs of rounds of tasks on GPUs of several kinds, relaxed or as gangs.

    from labkit.papers import hare

    jobs = hare.draw_rounds([[2.0, 1.0]], (4, 4), num_jobs=20, load=2.0)
    hare.compare(jobs)  # every way; hare.schedule(jobs, "gang") is one of them

A job trains in rounds. The tasks of a round do not depend on each other; the next round waits for
all of them. A gang runs them at once on as many GPUs; relaxed, a fast GPU may run several in turn.

Source: Hare (HPDC'22), relaxed fixed-scale synchronisation; the code and the order are our own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.bounds import fluid
from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, NonNegative, Positive, Whole, checked, description

if TYPE_CHECKING:
    import pandas as pd


@description(eq=False)
class Rounds:
    """Jobs in rounds of tasks. Every array has an entry a job.

    Attributes:
        arrival_s, weight: when each is submitted, and what a second of its waiting counts.
        rounds, tasks: how many rounds, and tasks of a round.
        task_s: seconds of one task, a row a job, a column a GPU.
        sync_s: seconds from the last task of a round to the next round.
        types: a number a GPU, its type; default: one type.

    Raises:
        BadValue: arrays differ in length, or a value is not finite or out of range.
    """

    arrival_s: ArrayLike
    weight: ArrayLike
    rounds: ArrayLike
    tasks: ArrayLike
    task_s: ArrayLike
    sync_s: ArrayLike
    types: ArrayLike = ()

    def __post_init__(self) -> None:
        task_s = np.array(self.task_s, dtype=float)
        least = {"arrival_s": 0, "weight": 1e-9, "rounds": 1, "tasks": 1, "sync_s": 0}
        if task_s.ndim != 2 or not task_s.size or not (np.isfinite(task_s) & (task_s > 0)).all():
            raise BadValue("Rounds.task_s must be a table of seconds above 0, a row a job")
        for name, low in least.items():
            array = np.array(getattr(self, name), dtype=float)
            whole = name not in ("rounds", "tasks") or (array == np.floor(array)).all()
            if array.shape != task_s.shape[:1] or not (np.isfinite(array) & (array >= low)).all():
                raise BadValue(f"Rounds.{name} must be one finite number a job, {low} or more")
            if not whole:
                raise BadValue(f"Rounds.{name} must be whole numbers")
            object.__setattr__(self, name, array)
        types = np.array(self.types, dtype=float)
        types = types if types.size else np.zeros(task_s.shape[1])
        if types.shape != task_s.shape[1:] or not np.isin(types, np.arange(types.size)).all():
            raise BadValue("Rounds.types must be one whole number from 0 a GPU")
        object.__setattr__(self, "types", types.astype(np.int64))
        object.__setattr__(self, "task_s", task_s)

    def column(self, name: str) -> NDArray[np.float64]:
        return np.asarray(getattr(self, name))

    @property
    def best_s(self) -> NDArray[np.float64]:
        """Seconds of a task on the fastest GPU."""
        return self.column("task_s").min(axis=1)

    @property
    def area_s(self) -> NDArray[np.float64]:
        """GPU-seconds of each job if all its tasks ran on their fastest GPU."""
        return self.column("rounds") * self.column("tasks") * self.best_s

    @property
    def capacity(self) -> float:
        """Fastest GPUs that all GPUs are worth, at most."""
        return float((self.best_s[:, None] / self.column("task_s")).max(axis=0).sum())

    def midpoints_s(self) -> NDArray[np.float64]:
        """When each job is worked on, on average, in the relaxation to one machine.

        The machine is as fast as :attr:`capacity` and always works on the job of most weight by
        area, which makes the weighted sum of these moments least: no schedule has less.
        """
        order = np.argsort(self.column("arrival_s"), kind="stable")
        arrival = self.column("arrival_s")[order]
        area = self.area_s[order]
        rank = area / self.column("weight")[order]
        _, middle = fluid(arrival, area, self.capacity, by_remaining=False, rank=rank)
        return np.asarray(middle[np.argsort(order)])

    def bound_s(self) -> float:
        """Weighted mean completion time that no schedule beats.

        A job works on no more than its tasks at once, so it ends half of rounds × fastest task
        after its midpoint or later, and never before all rounds one after another.
        """
        arrival = self.column("arrival_s")
        weight = self.column("weight")
        alone = self.column("rounds") * (self.best_s + self.column("sync_s"))
        late = self.midpoints_s() - arrival + self.column("rounds") * self.best_s / 2
        return float(max(weight @ late, weight @ alone) / weight.sum())


@checked
def draw_rounds(
    steps_per_s: ArrayLike,
    counts: tuple[Count, ...],
    *,
    num_jobs: Count,
    load: Positive,
    tasks: Annotated[tuple[Count, ...], MinLen(1)] = (1, 2, 4),
    task_s: Positive = 60.0,
    mean_rounds: Positive = 30.0,
    sync_s: NonNegative = 6.0,
    rng: np.random.Generator | Whole = 0,
) -> Rounds:
    """Jobs of kinds whose steps a second on each type of GPU are known.

    Every kind and number of tasks is as likely; a task is as many steps as the first type does in
    ``task_s``; rounds are lognormal, weights 1 to 10. Poisson arrivals offer ``load`` of
    :attr:`Rounds.capacity`; with a large load all come at once.

    Args:
        steps_per_s: a row a kind, a column a type.
        counts: GPUs of each type.
        num_jobs: how many.
        load: work that arrives a second, over :attr:`Rounds.capacity`.
        tasks: numbers of tasks of a round, each as likely.
        task_s: of a task on the first type.
        mean_rounds: of a job.
        sync_s: from the last task of a round to the next round.
        rng: a generator or a seed.

    Raises:
        BadValue: the table has no column for each count, or holds other than speeds above 0.
    """
    speed = np.asarray(steps_per_s, dtype=float)
    draw = np.random.default_rng(rng)
    if speed.ndim != 2 or speed.shape[1] != len(counts) or not (speed > 0).all():
        raise BadValue(f"draw_rounds: steps_per_s must be speeds above 0, {len(counts)} a kind")
    kind = draw.integers(len(speed), size=num_jobs)
    rounds = np.ceil(draw.lognormal(np.log(mean_rounds) - 0.5, 1.0, num_jobs))
    given = {
        "rounds": rounds,
        "tasks": draw.choice(tasks, num_jobs),
        "weight": draw.integers(1, 11, num_jobs),
        "sync_s": np.full(num_jobs, sync_s),
        "task_s": np.repeat(task_s * speed[kind, :1] / speed[kind], counts, axis=1),
        "types": np.repeat(np.arange(len(counts)), counts),
    }
    together = Rounds(arrival_s=np.zeros(num_jobs), **given)
    gaps_s = draw.exponential(together.area_s.mean() / together.capacity / load, num_jobs)
    return Rounds(arrival_s=np.cumsum(gaps_s), **given)


Order = Literal["midpoint", "area", "arrival"]


class Tasks(NamedTuple):
    """A schedule; simulated."""

    end_s: NDArray[np.float64]  # when each job ends
    log: NDArray[np.float64]  # of every task: job, GPU, start and end

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
    "relaxed": {},
    "relaxed, by area": {"order": "area"},
}


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
    seen = np.asarray(believed_s, dtype=float) if np.size(believed_s) else true_s
    if seen.shape != true_s.shape or not (np.isfinite(seen) & (seen > 0)).all():
        raise BadValue(f"schedule: believed_s must be seconds above 0, of shape {true_s.shape}")
    group = np.asarray(jobs.types) * one_type
    most = np.bincount(group).max()
    if how != "relaxed" and width.max() > most:
        raise BadValue(f"schedule: a gang of {width.max()} tasks; valid: at most {most} GPUs")
    rank = _rank(replace(jobs, task_s=seen), order)
    if how == "whole":  # a job is one round, as long as all of them
        true_s = (true_s + sync_s[:, None]) * rounds[:, None]
        seen = (seen + sync_s[:, None]) * rounds[:, None]
        rounds = np.ones_like(rounds)
        sync_s = np.zeros_like(sync_s)
    end_s, log = _run(
        jobs.column("arrival_s"),
        rounds,
        width,
        true_s,
        seen,
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
    arrival, rounds, width, true_s, seen, sync_s, order, gang, group, switch_s, blocks
):
    """All jobs to their end: when each ends, and a row of the log a task."""
    num_jobs, num_gpus = true_s.shape
    ready = arrival.copy()  # when each job's next round may begin
    todo = width.copy()  # tasks of the round that have not started
    done = np.zeros(num_jobs, np.int64)  # rounds
    over = np.zeros(num_jobs)  # when the last task so far of the round ends
    free = np.zeros(num_gpus)  # when each GPU's task ends
    last = np.full(num_gpus, -1)  # the job of each GPU's last task
    chosen = np.zeros(num_gpus, np.int64)  # scratch: GPUs for a job
    log = np.zeros(((rounds * width).sum(), NUM_COLUMNS))
    at = 0
    now = arrival.min()
    while now < np.inf:
        claimed = np.maximum(free, now)  # when each GPU has done what comes before the next task
        idle = (free <= now).sum()
        # 1. Jobs in order, while a GPU is idle: those whose next round may begin.
        for j in order:
            if idle == 0:
                break
            if done[j] == rounds[j] or ready[j] > now:
                continue
            switch = switch_s * (last != j)
            cost = seen[j] + switch
            takes = true_s[j] + switch
            if gang:
                num = _gang(cost, width[j], free, group, now, chosen)
                if num == 0 and blocks:
                    break
            else:
                num = _earliest(cost, todo[j], claimed, now, chosen)
            # 2. Its tasks start on the GPUs chosen; a gang's end together.
            if gang and num > 0:
                takes[:] = takes[chosen[:num]].max()
            for g in chosen[:num]:
                free[g] = now + takes[g]
                last[g] = j
                over[j] = max(over[j], free[g])
                log[at, JOB] = j
                log[at, GPU] = g
                log[at, START] = now
                log[at, END] = free[g]
                at += 1
            # 3. With its last task on its way, a round's end is known.
            idle -= num
            todo[j] -= num
            if todo[j] == 0:
                done[j] += 1
                ready[j] = over[j] + sync_s[j]
                todo[j] = width[j]
        # 4. On to the next moment at which a GPU or a job is ready.
        moments = np.concatenate((free, ready[done < rounds], np.array([np.inf])))
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
