"""A plan as tasks on devices and links, simulated to its end; and again after a change.

Tasks come in *parts* (an operator under one layout, the transfers of an edge): what is replaced
together. A task has a resource and seconds, and needs other tasks. It is *ready* when all that it
needs have ended. A resource takes its tasks in the order in which they are ready, those of earlier
parts first where several are at once, and runs each to its end.

After a change of some parts, the timeline goes on from the first moment that can have changed:

1. A part that goes, or comes, changes its own tasks and those whose needs it names.
2. Before the first of them is ready, in the old timeline or in the new one, nothing differs: what
   was ready earlier keeps its times.
3. The rest is simulated by the loop that simulates a whole plan, so that the times are the same to
   the last bit.
4. With a limit, the simulation stops where some resource cannot end before it: what is left to do
   there is known from the beginning.

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
"""Each has a place in the tables of a simulation."""
_ROUNDING = 1e-9
"""Share by which sums in two orders may differ: a limit is passed by more than that."""


@description(eq=False)
class Part:
    """Tasks that come and go together.

    Attributes:
        resources: of each task, a number from 0; -1 is a task that waits for none. Shape (tasks,).
        seconds: that each takes; shape (tasks,).
        needs: which tasks come before which, by the parts of both: ``(earlier, later, pairs)``,
            where pairs are places of tasks in these parts, shape (pairs, 2). Any parts may be
            named, this one too.

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
    removed: float,
) -> float:
    """The first moment that can differ from the old timeline.

    1. A changed task that was there before may differ from when it was ready.
    2. One that needs no other changed task is ready when the last that it needs has ended. Of the
       changed tasks, the one that is ready first is such a task.

    Args:
        changed: whether a task is new, or needs others than before.
        ready: infinite for new tasks.
        removed: when the first of the tasks that went was ready.
    """
    first = removed
    least = np.zeros(len(changed))
    for pair in range(len(earlier)):
        if earlier[pair] >= 0 and changed[later[pair]]:
            if changed[earlier[pair]]:
                least[later[pair]] = np.inf
            else:
                least[later[pair]] = max(least[later[pair]], end[earlier[pair]])
    for task in range(len(changed)):
        if changed[task]:
            first = min(first, ready[task], least[task])
    return first


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
        Which tasks are kept; when each resource is free of them; and the seconds that the others
        take there.
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

    1. What was ready earlier keeps its times, and its resources are taken until then.
    2. Of the others, count what each waits for, and list what waits for each.
    3. The task that is ready first runs next: from then, or from when its resource is free.
    4. It makes those ready that waited for it alone.
    5. Stop where a resource cannot end before the limit with what is left to do there.

    Args:
        resource: -1 for none, -2 where there is no task.
        rank: which of two tasks goes first that are ready at once.
        earlier, later: tasks of each need; -1 where there is none.

    Returns:
        Whether all ended before the limit, and how many tasks were simulated.
    """
    kept, free, left = _keep(resource, seconds, ready, end, since)  # 1
    if len(free) and (free + left).max() > limit:  # 5
        return False, 0
    waits_for = np.zeros(len(resource), dtype=np.int64)  # 2
    first = np.full(len(resource), -1)
    following = np.full(len(earlier), -1)
    for need in range(len(earlier)):
        if earlier[need] < 0 or kept[later[need]]:
            continue
        if kept[earlier[need]]:
            ready[later[need]] = max(ready[later[need]], end[earlier[need]])
        else:
            waits_for[later[need]] += 1
            following[need] = first[earlier[need]]
            first[earlier[need]] = need
    queue = [(0.0, np.int64(0), np.int64(0))]
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
        still_s = 0.0
        if where >= 0:
            free[where] = end[task]
            still_s = left[where]
        if end[task] + still_s > limit:  # 5
            return False, simulated
        need = int(first[task])  # 4
        while need >= 0:
            reader = later[need]
            ready[reader] = max(ready[reader], end[task])
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                heapq.heappush(queue, (ready[reader], rank[reader], np.int64(reader)))
            need = int(following[need])
    return True, simulated


@dataclass(kw_only=True, eq=False)
class _Tasks:
    """Tasks and needs in places; a place that is empty is used again.

    Attributes:
        places: of each part's tasks.
        links: of the needs that each part names.
        order: of the parts, which decides between tasks that are ready at once.
        spare_places: without a task.
        spare_links: without a need.
    """

    order: Mapping[str, int]
    parts: dict[str, Part]
    places: dict[str, np.ndarray]
    links: dict[str, np.ndarray]
    resource: np.ndarray
    seconds: np.ndarray
    rank: np.ndarray
    ready: np.ndarray
    end: np.ndarray
    earlier: np.ndarray
    later: np.ndarray
    spare_places: np.ndarray
    spare_links: np.ndarray

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> _Tasks:
        """All tasks of a plan, not yet simulated."""
        num_tasks = sum(len(part.seconds) for part in parts.values())
        num_links = sum(len(pairs) for part in parts.values() for _, _, pairs in part.needs)
        tasks = cls(
            order={name: number for number, name in enumerate(parts)},
            parts=dict(parts),
            places={},
            links={},
            resource=np.full(num_tasks, _ABSENT),
            seconds=np.zeros(num_tasks),
            rank=np.zeros(num_tasks, dtype=np.int64),
            ready=np.full(num_tasks, math.inf),
            end=np.zeros(num_tasks),
            earlier=np.full(num_links, -1),
            later=np.full(num_links, -1),
            spare_places=np.arange(num_tasks),
            spare_links=np.arange(num_links),
        )
        tasks.put_in(parts)
        return tasks

    def copy(self) -> _Tasks:
        """The same, to be changed by itself."""
        return _Tasks(
            order=self.order,
            parts=dict(self.parts),
            places=dict(self.places),
            links=dict(self.links),
            resource=self.resource.copy(),
            seconds=self.seconds.copy(),
            rank=self.rank.copy(),
            ready=self.ready.copy(),
            end=self.end.copy(),
            earlier=self.earlier.copy(),
            later=self.later.copy(),
            spare_places=self.spare_places,
            spare_links=self.spare_links,
        )

    def take_out(self, names: Sequence[str]) -> tuple[float, np.ndarray]:
        """Remove parts: when the first of their tasks was ready, and the tasks that needed any."""
        places = np.concatenate([self.places[name] for name in names])
        links = np.concatenate([self.links[name] for name in names])
        first = float(self.ready[places].min(initial=math.inf))
        touched = self.later[links]
        self.resource[places] = _ABSENT
        self.ready[places] = math.inf
        self.earlier[links] = -1
        self.later[links] = -1
        self.spare_places = np.concatenate([self.spare_places, places])
        self.spare_links = np.concatenate([self.spare_links, links])
        return first, touched

    def put_in(self, parts: Mapping[str, Part]) -> np.ndarray:
        """Add parts; returns the tasks that need others than before, theirs among them."""
        num_links = 0
        for name, part in parts.items():
            count = len(part.seconds)
            self._grow_places(count)
            places = self.spare_places[:count]
            self.spare_places = self.spare_places[count:]
            self.places[name] = places
            self.parts[name] = part
            self.resource[places] = part.resources
            self.seconds[places] = part.seconds
            self.rank[places] = self.order[name] * _MOST_TASKS + np.arange(count)
            num_links += sum(len(pairs) for _, _, pairs in part.needs)
        self._grow_links(num_links)
        changed = [np.zeros(0, dtype=np.int64), *(self.places[name] for name in parts)]
        for name, part in parts.items():
            ends = [self._ends(name, *need) for need in part.needs if len(need[2])]
            count = sum(len(later) for _, later in ends)
            links = self.spare_links[:count]
            self.spare_links = self.spare_links[count:]
            self.links[name] = links
            if ends:
                later = np.concatenate([each for _, each in ends])
                self.earlier[links] = np.concatenate([each for each, _ in ends])
                self.later[links] = later
                changed.append(later)
        return np.concatenate(changed)

    def _ends(
        self, name: str, earlier: str, later: str, pairs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places of the tasks of one part's needs."""
        ends = []
        for side, other in enumerate((earlier, later)):
            if other not in self.places:
                hint = did_you_mean(other, self.order) or f"there are {len(self.order)} parts"
                raise BadValue(f"planner.Part {name!r} names an unknown part {other!r}; {hint}")
            places = self.places[other]
            column = np.asarray(pairs)[:, side]
            if column.min() < 0 or column.max() >= len(places):
                raise BadValue(
                    f"planner.Part {name!r} names a task of {other!r} that is not there; it has "
                    f"{len(places)}"
                )
            ends.append(places[column])
        return ends[0], ends[1]

    def _grow_places(self, count: int) -> None:
        """Make room for so many tasks."""
        more = max(count - len(self.spare_places), 0)
        if more:
            more = max(more, len(self.resource) // 8)
            begin = len(self.resource)
            self.resource = np.concatenate([self.resource, np.full(more, _ABSENT)])
            self.ready = np.concatenate([self.ready, np.full(more, math.inf)])
            self.rank = np.concatenate([self.rank, np.zeros(more, dtype=np.int64)])
            self.seconds = np.concatenate([self.seconds, np.zeros(more)])
            self.end = np.concatenate([self.end, np.zeros(more)])
            self.spare_places = np.concatenate([self.spare_places, begin + np.arange(more)])

    def _grow_links(self, count: int) -> None:
        """Make room for so many needs."""
        more = max(count - len(self.spare_links), 0)
        if more:
            more = max(more, len(self.earlier) // 8)
            begin = len(self.earlier)
            self.earlier = np.concatenate([self.earlier, np.full(more, -1)])
            self.later = np.concatenate([self.later, np.full(more, -1)])
            self.spare_links = np.concatenate([self.spare_links, begin + np.arange(more)])

    def check_needs(self) -> None:
        """Refuse needs that name tasks which went."""
        kept = self.earlier >= 0
        gone = (self.resource[self.earlier] == _ABSENT) | (self.resource[self.later] == _ABSENT)
        if (kept & gone).any():
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
        """The timeline with other parts, simulated from where it can differ.

        Args:
            parts: in place of those with their names; this timeline stays as it is.
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
        if part not in self._tasks.places:
            hint = did_you_mean(part, self._tasks.order) or f"there are {len(self.parts)} parts"
            raise BadValue(f"planner.Timeline: there is no part {part!r}; {hint}")
        places = self._tasks.places[part]
        return np.stack([self._tasks.ready[places], self._tasks.end[places]], axis=1)

    def frame(self) -> pd.DataFrame:
        """One row a task: part, place in it, resource, when it is ready, starts and ends."""
        import pandas as pd

        tasks = self._tasks
        names = [name for name in tasks.order for _ in tasks.places[name]]
        numbers = [number for name in tasks.order for number in range(len(tasks.places[name]))]
        places = np.concatenate([np.zeros(0, dtype=int), *(tasks.places[n] for n in tasks.order)])
        return pd.DataFrame(
            {
                "part": names,
                "task": numbers,
                "resource": tasks.resource[places],
                "ready_s": tasks.ready[places],
                "start_s": tasks.end[places] - tasks.seconds[places],
                "end_s": tasks.end[places],
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
        """No order of the tasks ends earlier: the busiest resource works so long."""
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

    Two layers on two devices, and what the second reads of the first, on a link between them:

    >>> first = Part(resources=np.array([0]), seconds=np.array([2.0]))
    >>> second = Part(resources=np.array([1]), seconds=np.array([3.0]))
    >>> order = [("first", "link", np.array([[0, 0]])), ("link", "second", np.array([[0, 0]]))]
    >>> link = Part(resources=np.array([2]), seconds=np.array([0.5]), needs=order)
    >>> timeline = simulate({"first": first, "second": second, "link": link})
    >>> timeline.end_s
    5.5
    >>> faster = Part(resources=np.array([1]), seconds=np.array([1.0]))
    >>> timeline.changed({"second": faster, "link": link}).end_s  # the link's needs name it
    3.5
    """
    tasks = _Tasks.of(parts)
    return _simulated(tasks, 0.0, math.inf)
