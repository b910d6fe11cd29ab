"""Jobs of rounds of tasks, drawn at random, and what no schedule of them beats.

A job trains in rounds. The tasks of a round do not depend on each other; the next round waits for
all of them.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.bounds import fluid
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, Whole, checked, description


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
