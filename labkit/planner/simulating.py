"""A plan as tasks on devices and links, simulated to its end; and again after a change.

A task takes some seconds on a resource, a device or a link, and needs other tasks. It is *ready*
when all that it needs have ended. A resource takes its tasks in the order in which they are ready,
those of earlier parts first where several are at once, and runs each to its end. A *part* is what
is replaced as a whole: the tasks of an operator under one layout, or the transfers of an edge.

After a change of some parts, the timeline goes on from the first moment that can have changed:

1. Where a part is replaced, the tasks that it had and has are *changed*, and so are those whose
   needs it names.
2. Until the first changed task is ready, in the old timeline or in the new one, nothing differs:
   what was ready earlier keeps its times.
3. The rest is simulated by the loop that simulates a whole plan, so that the times are the same to
   the last bit.
4. With a limit, the simulation stops as soon as what is left to do on some resource would end
   after the limit even without a gap.

Source: the task graph and first-in-first-out devices of FlexFlow (Jia et al. 2019, §5). Its delta
simulation follows the tasks whose times change; 2 and 4 are ours.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import BadValue, UsageError, did_you_mean
from labkit.kit.compiled import hear, njit
from labkit.kit.describe import checked, description

if TYPE_CHECKING:
    import pandas as pd

_ABSENT = -2
"""Resource of a place that holds no task."""
_MOST_TASKS = 1 << 24
"""Tasks of a part at most."""
_MOST_RESOURCES = 1 << 20
"""Numbers of resources are below this: each has a place in the tables of a simulation."""
_ROUNDING = 1e-9
"""Share by which sums in two orders may differ: a limit is passed by more than that."""


@description(eq=False)
class Part:
    """Tasks that come and go together.

    Attributes:
        resources: the number, from 0, of the resource that each task takes; -1 for a task that
            takes none. Shape (tasks,).
        seconds: how long each task takes; shape (tasks,).
        needs: which tasks come before which: ``(earlier, later, pairs)`` has the names of two
            parts, and pairs of places, one of a task in either part; shape (pairs, 2). Any parts
            may be named, this one too.

    Raises:
        BadValue: shapes do not fit, a resource is below -1, or seconds are negative or no numbers.
    """

    resources: np.ndarray
    seconds: np.ndarray
    needs: tuple[tuple[str, str, np.ndarray], ...] = ()

    def __post_init__(self) -> None:
        resources = np.asarray(self.resources)
        seconds = np.asarray(self.seconds, dtype=float)
        if resources.shape != seconds.shape or resources.ndim != 1:
            raise BadValue(
                "planner.Part: resources and seconds must have one value a task; got the shapes "
                f"{resources.shape} and {seconds.shape}"
            )
        if len(resources) > _MOST_TASKS:
            raise BadValue(f"planner.Part: {len(resources)} tasks; at most {_MOST_TASKS:,}")
        whole = resources.dtype.kind in "iu" or not resources.size
        if not whole or ((resources < -1) | (resources >= _MOST_RESOURCES)).any():
            raise BadValue(
                f"planner.Part: resources must be whole numbers from -1 below {_MOST_RESOURCES:,}"
            )
        if not (np.isfinite(seconds) & (seconds >= 0)).all():
            raise BadValue("planner.Part: seconds must be finite numbers from 0")
        for earlier, later, pairs in self.needs:
            if np.ndim(pairs) != 2 or np.shape(pairs)[1] != 2:
                raise BadValue(
                    f"planner.Part: needs of {later!r} on {earlier!r} must be pairs of places, "
                    f"shape (pairs, 2); got {np.shape(pairs)}"
                )


@njit(cache=True)
def _first_change(
    changed: np.ndarray,
    ready: np.ndarray,
    end: np.ndarray,
    earlier: np.ndarray,
    later: np.ndarray,
    removed_s: float,
) -> float:
    """The first moment at which the new timeline can differ from the old one.

    It is the earliest of three:

    1. The moment at which the first removed task was ready.
    2. The moments at which changed tasks were ready in the old timeline.
    3. The moments at which they are ready in the new one. These are known for tasks that need no
       other changed task: when the last that they need ends. That is enough, since the changed
       task that is ready first is one of them.

    Args:
        changed: whether a task is new, or needs others than before.
        ready: in the old timeline; infinite for new tasks.
        removed_s: when the first of the removed tasks was ready; infinite where none was removed.
    """
    newly_ready = np.zeros(len(changed))
    for need in range(len(earlier)):
        if earlier[need] >= 0 and changed[later[need]]:
            if changed[earlier[need]]:
                newly_ready[later[need]] = np.inf
            else:
                newly_ready[later[need]] = max(newly_ready[later[need]], end[earlier[need]])
    since = removed_s  # 1
    for task in range(len(changed)):
        if changed[task]:
            since = min(since, ready[task], newly_ready[task])  # 2 and 3
    return since


@njit(cache=True)
def _keep(
    resource: np.ndarray,
    seconds: np.ndarray,
    ready: np.ndarray,
    end: np.ndarray,
    since: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keep the times of what was ready before ``since``, and forget those of the rest.

    Returns:
        Which tasks are kept; when each resource is free of those; and for how many seconds the
        other tasks take it.
    """
    num_resources = 0
    for task in range(len(resource)):
        num_resources = max(num_resources, int(resource[task]) + 1)
    free = np.zeros(num_resources)
    left = np.zeros(len(free))
    kept = np.zeros(len(resource), dtype=np.bool_)
    for task in range(len(resource)):
        where = resource[task]
        if where == _ABSENT:
            continue
        if ready[task] < since:
            kept[task] = True
            if where >= 0:
                free[where] = max(free[where], end[task])
        else:
            ready[task] = 0.0
            if where >= 0:
                left[where] += seconds[task]
    return kept, free, left


@njit(cache=True)
def _waiting(
    kept: np.ndarray, earlier: np.ndarray, later: np.ndarray, ready: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many tasks each one waits for, and which needs each one ends, as lists in two arrays.

    Tasks that are kept have ended: who waits for them is ``ready`` no sooner.

    Returns:
        Of each task the number that it waits for, and its first need; of each need the next one.
    """
    waits_for = np.zeros(len(kept), dtype=np.int64)
    first_waiting = np.full(len(kept), -1)
    next_waiting = np.full(len(earlier), -1)
    for need in range(len(earlier)):
        if earlier[need] < 0 or kept[later[need]]:
            continue
        if kept[earlier[need]]:
            ready[later[need]] = max(ready[later[need]], end[earlier[need]])
        else:
            waits_for[later[need]] += 1
            next_waiting[need] = first_waiting[earlier[need]]
            first_waiting[earlier[need]] = need
    return waits_for, first_waiting, next_waiting


@njit(cache=True)
def _run(
    resource: np.ndarray,
    seconds: np.ndarray,
    rank: np.ndarray,
    earlier: np.ndarray,
    later: np.ndarray,
    ready: np.ndarray,
    end: np.ndarray,
    since: float,
    limit: float,
) -> tuple[bool, int]:
    """Simulate all tasks that were not ready before ``since``; writes ``ready`` and ``end``.

    1. What was ready earlier keeps its times, and takes its resources until it ends.
    2. Count what each other task waits for, and list which tasks wait for it.
    3. Run the task that is ready first, from then on, or once its resource is free.
    4. Those that waited for nothing else are now ready.
    5. Stop where what is left to do on a resource would end after the limit even without a gap.

    Args:
        resource: of each task; -1 for none, -2 where there is no task.
        rank: of two tasks that are ready at once, the one with the lower rank goes first.
        earlier, later: the two tasks of each need; -1 where there is no need.

    Returns:
        Whether all ended by the limit, and how many tasks were simulated.
    """
    kept, free, left = _keep(resource, seconds, ready, end, since)  # 1
    if len(free) and (free + left).max() > limit:  # 5
        return False, 0
    waits_for, first_waiting, next_waiting = _waiting(kept, earlier, later, ready, end)  # 2
    queue = [(0.0, np.int64(0), np.int64(0))]  # numba takes the list's type from its first entry
    queue.pop()
    for task in range(len(resource)):
        if resource[task] != _ABSENT and not kept[task] and waits_for[task] == 0:
            queue.append((ready[task], rank[task], np.int64(task)))
    heapq.heapify(queue)
    simulated = 0
    while len(queue):
        simulated += 1
        hear(simulated, 1 << 16)
        start, _, popped = heapq.heappop(queue)  # 3
        task = int(popped)
        where = int(resource[task])
        if where >= 0:
            start = max(start, free[where])
            left[where] -= seconds[task]
        end[task] = start + seconds[task]
        left_there = 0.0
        if where >= 0:
            free[where] = end[task]
            left_there = left[where]
        if end[task] + left_there > limit:  # 5
            return False, simulated
        need = int(first_waiting[task])  # 4
        while need >= 0:
            waiting = later[need]
            ready[waiting] = max(ready[waiting], end[task])
            waits_for[waiting] -= 1
            if waits_for[waiting] == 0:
                heapq.heappush(queue, (ready[waiting], rank[waiting], np.int64(waiting)))
            need = int(next_waiting[need])
    return True, simulated


@dataclass(kw_only=True, eq=False)
class _Tasks:
    """Tasks and needs as rows of arrays; rows of what was removed are used again.

    Attributes:
        order: number of each part, which decides between tasks that are ready at once.
        task_rows: of each part's tasks.
        need_rows: of the needs that each part names.
        resource, seconds, rank, ready, end: one row a task.
        earlier, later: the rows of the two tasks of a need; one row a need.
        spare_task_rows: rows without a task.
        spare_need_rows: rows without a need.
    """

    order: Mapping[str, int]
    parts: dict[str, Part]
    task_rows: dict[str, np.ndarray]
    need_rows: dict[str, np.ndarray]
    resource: np.ndarray
    seconds: np.ndarray
    rank: np.ndarray
    ready: np.ndarray
    end: np.ndarray
    earlier: np.ndarray
    later: np.ndarray
    spare_task_rows: np.ndarray
    spare_need_rows: np.ndarray

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> _Tasks:
        """All tasks of a plan, not yet simulated."""
        num_tasks = sum(len(part.seconds) for part in parts.values())
        num_needs = sum(len(pairs) for part in parts.values() for _, _, pairs in part.needs)
        tasks = cls(
            order={name: number for number, name in enumerate(parts)},
            parts=dict(parts),
            task_rows={},
            need_rows={},
            resource=np.full(num_tasks, _ABSENT),
            seconds=np.zeros(num_tasks),
            rank=np.zeros(num_tasks, dtype=np.int64),
            ready=np.full(num_tasks, math.inf),
            end=np.zeros(num_tasks),
            earlier=np.full(num_needs, -1),
            later=np.full(num_needs, -1),
            spare_task_rows=np.arange(num_tasks),
            spare_need_rows=np.arange(num_needs),
        )
        tasks.put_in(parts)
        return tasks

    def copy(self) -> _Tasks:
        """A copy, which can be changed while this one stays."""
        return _Tasks(
            order=self.order,
            parts=dict(self.parts),
            task_rows=dict(self.task_rows),
            need_rows=dict(self.need_rows),
            resource=self.resource.copy(),
            seconds=self.seconds.copy(),
            rank=self.rank.copy(),
            ready=self.ready.copy(),
            end=self.end.copy(),
            earlier=self.earlier.copy(),
            later=self.later.copy(),
            spare_task_rows=self.spare_task_rows,
            spare_need_rows=self.spare_need_rows,
        )

    def take_out(self, names: Sequence[str]) -> tuple[float, np.ndarray]:
        """Remove parts and the needs that they name.

        Returns:
            When the first of their tasks was ready; and the rows of the tasks that lose a need.
        """
        rows = np.concatenate([self.task_rows[name] for name in names])
        needs = np.concatenate([self.need_rows[name] for name in names])
        first = float(self.ready[rows].min(initial=math.inf))
        touched = self.later[needs]
        self.resource[rows] = _ABSENT
        self.ready[rows] = math.inf
        self.earlier[needs] = -1
        self.later[needs] = -1
        self.spare_task_rows = np.concatenate([self.spare_task_rows, rows])
        self.spare_need_rows = np.concatenate([self.spare_need_rows, needs])
        return first, touched

    def put_in(self, parts: Mapping[str, Part]) -> np.ndarray:
        """Add parts; returns the rows of their tasks, and of those whose needs they name."""
        num_needs = 0
        for name, part in parts.items():
            count = len(part.seconds)
            self._grow_tasks(count)
            rows = self.spare_task_rows[:count]
            self.spare_task_rows = self.spare_task_rows[count:]
            self.task_rows[name] = rows
            self.parts[name] = part
            self.resource[rows] = part.resources
            self.seconds[rows] = part.seconds
            self.rank[rows] = self.order[name] * _MOST_TASKS + np.arange(count)
            num_needs += sum(len(pairs) for _, _, pairs in part.needs)
        self._grow_needs(num_needs)
        changed = [np.zeros(0, dtype=np.int64), *(self.task_rows[name] for name in parts)]
        for name, part in parts.items():
            ends = [self._rows_of_needs(name, *need) for need in part.needs if len(need[2])]
            count = sum(len(later) for _, later in ends)
            needs = self.spare_need_rows[:count]
            self.spare_need_rows = self.spare_need_rows[count:]
            self.need_rows[name] = needs
            if ends:
                later = np.concatenate([each for _, each in ends])
                self.earlier[needs] = np.concatenate([each for each, _ in ends])
                self.later[needs] = later
                changed.append(later)
        return np.concatenate(changed)

    def _rows_of_needs(
        self, name: str, earlier: str, later: str, pairs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the earlier and of the later tasks of needs that a part names."""
        ends = []
        for side, other in enumerate((earlier, later)):
            if other not in self.task_rows:
                hint = did_you_mean(other, self.order) or f"there are {len(self.order)} parts"
                raise BadValue(f"planner.Part {name!r} names an unknown part {other!r}; {hint}")
            rows = self.task_rows[other]
            column = np.asarray(pairs)[:, side]
            if column.min() < 0 or column.max() >= len(rows):
                raise BadValue(
                    f"planner.Part {name!r} names a task of {other!r} that is not there; it has "
                    f"{len(rows)}"
                )
            ends.append(rows[column])
        return ends[0], ends[1]

    def _grow_tasks(self, count: int) -> None:
        """Have spare rows for so many tasks."""
        more = max(count - len(self.spare_task_rows), 0)
        if more:
            more = max(more, len(self.resource) // 8)
            begin = len(self.resource)
            self.resource = np.concatenate([self.resource, np.full(more, _ABSENT)])
            self.ready = np.concatenate([self.ready, np.full(more, math.inf)])
            self.rank = np.concatenate([self.rank, np.zeros(more, dtype=np.int64)])
            self.seconds = np.concatenate([self.seconds, np.zeros(more)])
            self.end = np.concatenate([self.end, np.zeros(more)])
            self.spare_task_rows = np.concatenate([self.spare_task_rows, begin + np.arange(more)])

    def _grow_needs(self, count: int) -> None:
        """Have spare rows for so many needs."""
        more = max(count - len(self.spare_need_rows), 0)
        if more:
            more = max(more, len(self.earlier) // 8)
            begin = len(self.earlier)
            self.earlier = np.concatenate([self.earlier, np.full(more, -1)])
            self.later = np.concatenate([self.later, np.full(more, -1)])
            self.spare_need_rows = np.concatenate([self.spare_need_rows, begin + np.arange(more)])

    def check_needs(self) -> None:
        """Refuse needs whose tasks were removed."""
        there = self.earlier >= 0
        gone = (self.resource[self.earlier] == _ABSENT) | (self.resource[self.later] == _ABSENT)
        if (there & gone).any():
            raise UsageError(
                "planner.Timeline.changed: a part that stays names tasks of one that changes; "
                "change both"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """When each task of a plan is ready, starts and ends.

    Attributes:
        end_s: of the last task; infinite where a limit was passed, and then no task has a time.
        num_simulated: tasks that were simulated for it.
        since_s: tasks that were ready earlier kept their times.
    """

    end_s: float
    num_simulated: int
    since_s: float
    _tasks: _Tasks

    @property
    def num_tasks(self) -> int:
        """Tasks of the plan."""
        return sum(len(part.seconds) for part in self._tasks.parts.values())

    @property
    def parts(self) -> Mapping[str, Part]:
        """The plan's parts by their names."""
        return self._tasks.parts

    def changed(self, parts: Mapping[str, Part], *, limit_s: float = math.inf) -> Timeline:
        """The timeline with some parts replaced, simulated from where it can differ.

        Args:
            parts: each takes the place of the part with its name; this timeline stays as it is.
            limit_s: where the plan cannot end by then, ``end_s`` is infinite, and the simulation
                stops as soon as that is known.

        Raises:
            BadValue: there is no part of that name, or one names a task that is not there.
            UsageError: a part that stays names tasks of one that changes; tasks wait for each
                other; or this timeline was stopped by a limit itself.
        """
        for name in parts:
            if name not in self._tasks.order:
                hint = did_you_mean(name, self._tasks.order) or "parts are changed, not added"
                raise BadValue(f"planner.Timeline.changed: there is no part {name!r}; {hint}")
        if math.isnan(limit_s):
            raise BadValue("planner.Timeline.changed: limit_s must be a number of seconds, got NaN")
        if not math.isfinite(self.end_s):
            raise UsageError("planner.Timeline.changed: this timeline was stopped by its limit")
        if not parts:
            return self
        tasks = self._tasks.copy()
        removed_s, touched = tasks.take_out(list(parts))
        tasks.check_needs()
        added = tasks.put_in(parts)
        changed = np.zeros(len(tasks.resource), dtype=bool)
        changed[touched] = True
        changed[added] = True
        changed &= tasks.resource != _ABSENT
        since_s = _first_change(
            changed, tasks.ready, tasks.end, tasks.earlier, tasks.later, removed_s
        )
        return _simulated(tasks, since_s, limit_s)

    def times_s(self, part: str) -> np.ndarray:
        """When each task of a part is ready and ends; shape (tasks, 2).

        Raises:
            BadValue: there is no such part.
        """
        if part not in self._tasks.task_rows:
            hint = did_you_mean(part, self._tasks.order) or f"there are {len(self.parts)} parts"
            raise BadValue(f"planner.Timeline: there is no part {part!r}; {hint}")
        rows = self._tasks.task_rows[part]
        return np.stack([self._tasks.ready[rows], self._tasks.end[rows]], axis=1)

    def frame(self) -> pd.DataFrame:
        """One row a task: part, place in it, resource, when it is ready, starts and ends."""
        import pandas as pd

        tasks = self._tasks
        names = [name for name in tasks.order for _ in tasks.task_rows[name]]
        numbers = [number for name in tasks.order for number in range(len(tasks.task_rows[name]))]
        rows = np.concatenate([np.zeros(0, dtype=int), *(tasks.task_rows[n] for n in tasks.order)])
        return pd.DataFrame(
            {
                "part": names,
                "task": numbers,
                "resource": tasks.resource[rows],
                "ready_s": tasks.ready[rows],
                "start_s": tasks.end[rows] - tasks.seconds[rows],
                "end_s": tasks.end[rows],
            }
        )

    @cached_property
    def busy_s(self) -> np.ndarray:
        """Seconds that each resource works; shape (resources,)."""
        tasks = self._tasks
        used = tasks.resource >= 0
        return np.bincount(tasks.resource[used], weights=tasks.seconds[used])

    @property
    def bound_s(self) -> float:
        """Seconds that the busiest resource works: no order of the tasks ends earlier."""
        return float(self.busy_s.max(initial=0.0))

    def why(self) -> str:
        """One sentence: what ends last, and how long the busiest resource works."""
        last = self.frame().sort_values("end_s").iloc[-1]
        share = self.bound_s / self.end_s if self.end_s else 0.0
        return (
            f"{last['part']} ends last, after {self.end_s:.4g} s; the busiest resource, "
            f"{int(self.busy_s.argmax())}, works {100 * share:.0f} % of them"
        )


def _simulated(tasks: _Tasks, since_s: float, limit_s: float) -> Timeline:
    """Simulate what was not ready before a moment."""
    there = tasks.resource != _ABSENT
    num_to_do = int(np.count_nonzero(tasks.ready[there] >= since_s))
    within, num_simulated = _run(
        tasks.resource,
        tasks.seconds,
        tasks.rank,
        tasks.earlier,
        tasks.later,
        tasks.ready,
        tasks.end,
        since_s,
        limit_s * (1 + _ROUNDING),
    )
    if within and num_simulated < num_to_do:
        raise UsageError(f"planner.simulate: {num_to_do - num_simulated} tasks wait for each other")
    end_s = float(tasks.end[there].max(initial=0.0)) if within else math.inf
    return Timeline(
        end_s=end_s if end_s <= limit_s else math.inf,
        num_simulated=num_simulated,
        since_s=since_s,
        _tasks=tasks,
    )


@checked
def simulate(parts: Mapping[str, Part]) -> Timeline:
    """Simulate a plan to its end.

    Args:
        parts: by their names; of tasks that are ready at once, those of earlier parts go first.

    Raises:
        BadValue: a part names a part or a task that is not there.
        UsageError: tasks wait for each other.

    Two layers on two devices, and a link for what the second reads of the first; then a faster
    second layer. The link is replaced with it, since its needs name tasks of ``second``:

    >>> first = Part(resources=np.array([0]), seconds=np.array([2.0]))
    >>> second = Part(resources=np.array([1]), seconds=np.array([3.0]))
    >>> needs = [("first", "link", np.array([[0, 0]])), ("link", "second", np.array([[0, 0]]))]
    >>> link = Part(resources=np.array([2]), seconds=np.array([0.5]), needs=needs)
    >>> timeline = simulate({"first": first, "second": second, "link": link})
    >>> timeline.end_s
    5.5
    >>> faster = Part(resources=np.array([1]), seconds=np.array([1.0]))
    >>> timeline.changed({"second": faster, "link": link}).end_s
    3.5
    """
    tasks = _Tasks.of(parts)
    return _simulated(tasks, 0.0, math.inf)
