"""One device's clocks where changing them takes time: a chain with release and due times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE, cost_of, switched
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import Lag
from labkit.pipeline.scheduling.schedule import KINDS, Schedule

_LABELS = 24  # ends kept for each clock, see ``Chain``


class SwitchTask(NamedTuple):
    """What is to be planned, and what any plan for it costs."""

    schedule: Schedule
    profile: EnergyProfile
    deadline_s: float
    switch_s: float
    lag_s: Lag | None

    def durations_s(self, row: np.ndarray) -> np.ndarray:
        """Of each instruction, the switch before it included."""
        return self.profile.time_s[row] + self.switch_s * self.switched(row)

    def switched(self, row: np.ndarray) -> np.ndarray:
        return switched(self.schedule, self.profile, row)

    def cost(self, row: np.ndarray) -> tuple[float, float]:
        """Makespan and energy with switches."""
        pause_s = self.switch_s * self.switched(row)
        return cost_of(self.schedule, self.profile, row, self.lag_s, pause_s)

    def in_time(self, row: np.ndarray) -> bool:
        return self.cost(row)[0] <= self.deadline_s * (1 + DEADLINE_TOLERANCE)

    def energy_j(self, row: np.ndarray) -> float:
        """Energy of a plan that is in time, infinite of one that is late."""
        made_s, energy_j = self.cost(row)
        return energy_j if made_s <= self.deadline_s * (1 + DEADLINE_TOLERANCE) else np.inf


def chains(task: SwitchTask) -> list[Chain]:
    return [
        Chain(task, mine)
        for mine in task.schedule.by_device(np.arange(len(task.schedule)))
        if len(mine)
    ]


class Chain:
    """One device's instructions in their order, and the clocks each could run at.

    Dynamic programming from the first to the last. A label is a way to have run all so far: the
    clock of the last one, when it ended, and the energy above waiting. Of labels with one clock
    only those matter that end earlier or cost less than all others. Of these at most ``_LABELS``
    a clock are kept, spread over the time they span (the earliest always): with that many, the
    result is exact where slack is scarce and near it elsewhere. Time: linear in instructions,
    clocks and labels, up to a logarithm.
    """

    def __init__(self, task: SwitchTask, mine: np.ndarray) -> None:
        schedule, profile = task.schedule, task.profile
        self.mine, self.switch_s = mine, task.switch_s
        self.lag_s = np.zeros(len(mine)) if task.lag_s is None else task.lag_s[0][mine]
        works = list(zip(schedule.kind[mine].tolist(), schedule.stage[mine].tolist(), strict=True))
        rows = {work: profile.rows(work[1], KINDS[work[0]]) for work in set(works)}
        clocks = np.unique(np.concatenate([profile.clock_mhz[r] for r in rows.values()]))
        self.row, self.time_s, self.net_j = {}, {}, {}
        for work, found in rows.items():
            at = np.searchsorted(clocks, profile.clock_mhz[found])
            self.row[work] = np.full(len(clocks), -1)
            self.time_s[work], self.net_j[work] = np.full((2, len(clocks)), np.inf)
            self.row[work][at] = found
            self.time_s[work][at] = profile.time_s[found]
            self.net_j[work][at] = profile.net_energy_j[found]
        self.works = works
        self.num_clocks = len(clocks)

    def solve(self, release_s: np.ndarray, due_s: np.ndarray) -> np.ndarray | None:
        """Profile rows of least energy within the windows; None where none are found."""
        due = due_s * (1 + 1e-12)
        time, net = self.time_s[self.works[0]], self.net_j[self.works[0]]
        end, cost = (release_s[0] + time)[:, None], net[:, None]
        cost = np.where(end <= due[0], cost, np.inf)
        came: list[np.ndarray] = []
        widths = [1]
        for k in range(1, len(self.works)):
            end, cost, source = self._step(k, end + self.lag_s[k], cost, release_s[k], due[k])
            if not np.isfinite(cost).any():
                return None
            came.append(source)
            widths.append(end.shape[1])
        at = int(np.argmin(cost))
        rows = np.empty(len(self.works), dtype=int)
        for k in range(len(self.works) - 1, -1, -1):
            rows[k] = self.row[self.works[k]][at // widths[k]]
            if k:
                at = int(came[k - 1].ravel()[at])
        return rows

    def _step(
        self, k: int, end: np.ndarray, cost: np.ndarray, release_s: float, due_s: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels after instruction ``k``, and which label each came from (flat number)."""
        time = self.time_s[self.works[k]][:, None]
        net = self.net_j[self.works[k]][:, None]
        ready = np.maximum(end, release_s)
        label = np.arange(cost.size)
        pool = _undominated(ready.ravel()[None], cost.ravel()[None], label[None], 3 * _LABELS)
        shape = (self.num_clocks, pool[0].shape[1])
        ends = np.concatenate(
            [ready + time, np.broadcast_to(pool[0] + self.switch_s, shape) + time], axis=1
        )
        costs = np.concatenate([cost, np.broadcast_to(pool[1], shape)], axis=1) + net
        source = np.concatenate(
            [label.reshape(cost.shape), np.broadcast_to(pool[2], shape)], axis=1
        )
        costs = np.where(ends <= due_s, costs, np.inf)
        return _undominated(ends, costs, source, _LABELS)


def _undominated(
    end: np.ndarray, cost: np.ndarray, source: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In every line, the labels that no other both ends before and undercuts: at most ``most``.

    Returns arrays of shape (lines, at most ``most``), padded with infinite cost.
    """
    lines = np.arange(len(end))[:, None]
    end = np.where(np.isfinite(cost), end, np.inf)
    order = np.lexsort((cost, end), axis=1)
    end, cost, source = end[lines, order], cost[lines, order], source[lines, order]
    good = np.isfinite(cost)
    good[:, 1:] &= cost[:, 1:] < np.minimum.accumulate(cost, axis=1)[:, :-1]
    if good.sum(axis=1).max(initial=0) > most:
        first = np.where(good, end, np.inf).min(axis=1, keepdims=True)
        last = np.where(good, end, -np.inf).max(axis=1, keepdims=True)
        some = last > first  # not so in lines that are empty or hold one label
        span = np.subtract(last, first, out=np.ones(last.shape), where=some)
        since = np.zeros(end.shape)
        np.subtract(end, first, out=since, where=good)
        place = np.where(good, np.ceil(since / span * (most - 1)), np.inf)
        # The cheapest of each bin is its last; the earliest label has bin 0 to itself.
        ahead = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1]
        good[:, :-1] &= place[:, :-1] < ahead[:, 1:]
    width = max(1, int(good.sum(axis=1).max()))
    keep = np.argsort(~good, axis=1, kind="stable")[:, :width]
    cost = np.where(good[lines, keep], cost[lines, keep], np.inf)
    return end[lines, keep], cost, source[lines, keep]
