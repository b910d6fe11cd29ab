"""EnvPipe (USENIX ATC 2023): early forwards, an envelope at full clock, the rest slowed to fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from labkit.errors import UsageError
from labkit.kit.describe import Count, checked
from labkit.pipeline.profiles.clocks import Choice, Task, max_clock_rows, valley_rows
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, Schedule

Reconfigure = Literal["balanced", "greedy", "none"]


@checked
def early_forwards(
    profile: EnergyProfile, num_microbatches: Count, *, max_in_flight: Count | None = None
) -> tuple[int, ...]:
    """How many forwards EnvPipe runs early on each stage, for ``build("envpipe", ...)``.

    As many as fit, at the energy-valley clock, into the wait for the first backward to come
    back at the maximum clock through the S - s - 1 later stages; no more than microbatches
    remain, than memory holds besides the S - s that 1F1B keeps, or than the stage before runs
    early (unless that one has all microbatches in flight).

    Args:
        max_in_flight: microbatches whose activations a device can hold; None for no limit.

    Raises:
        UsageError: only halves of the backward pass were measured.

    Source: EnvPipe (USENIX ATC 2023), scheduler; the public implementation counts so.
    """
    num_stages = profile.num_stages
    top, valley = max_clock_rows(profile), valley_rows(profile)
    if (top[BACKWARD] < 0).any():
        raise UsageError("early forwards are counted from full backward passes: not measured")
    counts: list[int] = []
    for stage in range(num_stages):
        ahead = num_stages - stage
        wait_s = (ahead - 1) * profile.time_s[top[BACKWARD, stage]]
        fit = int(wait_s / profile.time_s[valley[FORWARD, stage]] + 1e-9)
        room = num_microbatches if max_in_flight is None else min(max_in_flight, num_microbatches)
        count = max(0, min(fit, room - ahead))
        if counts and ahead + 1 + counts[-1] < num_microbatches:
            count = min(count, counts[-1])
        counts.append(count)
    return tuple(counts)


@checked
def outer_envelope(schedule: Schedule) -> np.ndarray:
    """Which instructions lie on EnvPipe's envelope, shape (n,).

    The first forward and the last backward (its halves, where it runs so) of every stage, and all
    of the last stage: the critical path wherever the last stage is the heaviest.

    Source: EnvPipe (USENIX ATC 2023), planner.
    """
    first = (schedule.kind == FORWARD) & (schedule.microbatch == 0)
    last = (schedule.kind != FORWARD) & (schedule.microbatch == schedule.num_microbatches - 1)
    return first | last | (schedule.stage == schedule.num_stages - 1)


@checked
def choose_envpipe(task: Task, *, reconfigure: Reconfigure = "balanced") -> Choice:
    """EnvPipe's planner; it knows no deadline.

    The outer envelope runs at the maximum clock and all other units at their stage's energy
    valley. While some inner unit lies on the critical path, ``"balanced"`` raises those of its
    inner units that have the lowest clock by one step, ``"greedy"`` the one nearest to its end
    by three; ``"none"`` leaves the first plan as it is.

    As described, reconfiguring ends when the critical path is the envelope, which never comes
    about where the last stage is not the heaviest; the public implementation also stops when no
    unit of the path can go faster, and so do we. Clocks only rise, so it ends, with every unit of
    one longest path at the maximum clock: never slower than all at that clock. Ours differs in
    that the critical path is exact, where a running system infers it from measured receive times;
    and a step is one clock of the profile.

    Time: a step is linear in the number of instructions, ``"balanced"`` takes about as many
    steps as there are clocks, ``"greedy"`` some for each instruction.

    Source: EnvPipe (USENIX ATC 2023), planner; behaviour of the authors' public implementation.
    """
    schedule, profile = task.schedule, task.profile
    envelope = outer_envelope(schedule)
    # Rows of one work stand in descending order of clock: one step up is one row less.
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    row = np.where(envelope, top, valley_rows(profile)[schedule.kind, schedule.stage])
    if reconfigure == "none":
        return Choice(row)
    units = _Units(task, row, np.where(envelope, row, top))
    while units.raise_balanced() if reconfigure == "balanced" else units.raise_last():
        pass
    return Choice(np.array(units.row))


class _Units:
    """A plan whose clocks rise step by step, and the earliest ends it leads to.

    A unit's end depends only on units before it in topological order, so a step computes anew
    only what comes after the units it raises.
    """

    def __init__(self, task: Task, row: np.ndarray, top: np.ndarray) -> None:
        graph, n = task.schedule.graph, len(task.schedule)
        self.row, self.top = row.tolist(), top.tolist()
        self.time, self.clock = task.profile.time_s.tolist(), task.profile.clock_mhz.tolist()
        ends = longest_to(graph, task.profile.time_s[row], task.lag_s)
        # By their ends: nearer to how the plan runs than device by device, so less comes after.
        order = graph.topological[np.argsort(ends[graph.topological], kind="stable")]
        self.end = [*ends.tolist(), 0.0]
        lags = (np.zeros(n), np.zeros(n)) if task.lag_s is None else task.lag_s
        columns = graph.before, graph.needs, *lags
        self.waits = list(zip(*(column.tolist() for column in columns), strict=True))
        self.order, self.place = order.tolist(), np.argsort(order).tolist()

    def raise_last(self) -> bool:
        """Raise the slow unit nearest to the critical path's end by three steps, if there is one.

        What follows it on the path runs as fast as it can, so the search goes no further back.
        """
        for i in self._path():
            if self.row[i] > self.top[i]:
                self.row[i] = max(self.row[i] - 3, self.top[i])
                self._update([i])
                return True
        return False

    def raise_balanced(self) -> bool:
        """Raise the slowest of the critical path's slow units by one step, if there are any."""
        slow = [i for i in self._path() if self.row[i] > self.top[i]]
        if not slow:
            return False
        lowest = min(self.clock[self.row[i]] for i in slow)
        raised = [i for i in slow if self.clock[self.row[i]] == lowest]
        for i in raised:
            self.row[i] -= 1
        self._update(raised)
        return True

    def _path(self) -> Iterator[int]:
        """One longest path, last unit first; where both waits are equal, along the device."""
        end, i = self.end, self.end.index(max(self.end))
        while i < len(self.row):
            yield i
            before, needs, lag_before, lag_needs = self.waits[i]
            i = before if end[before] + lag_before >= end[needs] + lag_needs else needs

    def _update(self, changed: list[int]) -> None:
        end, time, row = self.end, self.time, self.row
        for i in self.order[min(self.place[i] for i in changed) :]:
            before, needs, lag_before, lag_needs = self.waits[i]
            a, b = end[before] + lag_before, end[needs] + lag_needs
            end[i] = (a if a > b else b) + time[row[i]]
