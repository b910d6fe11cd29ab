"""EnvPipe (USENIX ATC 2023): early forwards, an envelope at full clock, the rest slowed to fit."""

from __future__ import annotations

from typing import Literal

import numpy as np

from labkit.errors import UsageError
from labkit.kit.compiled import hear, njit
from labkit.kit.describe import Count, checked
from labkit.pipeline.profiles.clocks import Choice, Task, max_clock_rows, valley_rows
from labkit.pipeline.profiles.profile import EnergyProfile
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
    top = max_clock_rows(profile)
    valley = valley_rows(profile)
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
    schedule = task.schedule
    profile = task.profile
    envelope = outer_envelope(schedule)
    # Rows of one work stand in descending order of clock: one step up is one row less.
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    row = np.where(envelope, top, valley_rows(profile)[schedule.kind, schedule.stage])
    if reconfigure == "none":
        return Choice(row)
    ceiling = np.where(envelope, row, top)
    graph = schedule.graph
    before_lag_s, needs_lag_s = task.lag_s or (np.zeros(len(graph)), np.zeros(len(graph)))
    _reconfigure(
        (graph.topological, graph.before, graph.needs),
        (before_lag_s, needs_lag_s),
        profile.time_s,
        profile.clock_mhz.astype(float),
        row,
        ceiling,
        reconfigure == "greedy",
    )
    return Choice(row)


@njit(cache=True)
def _reconfigure(
    waits: tuple[np.ndarray, np.ndarray, np.ndarray],
    lags_s: tuple[np.ndarray, np.ndarray],
    time_s: np.ndarray,
    clock_mhz: np.ndarray,
    row: np.ndarray,
    ceiling: np.ndarray,
    is_greedy: bool,
) -> None:
    """Raise clocks on the critical path, step by step, until all of it is at its ceiling.

    1. End every instruction as :func:`.graph.longest_to` does.
    2. Go back along the path of :func:`.graph.critical_path`.
    3. Raise what of it is below its ceiling: the last one, or those with the lowest clock.

    Args:
        waits: ``topological``, ``before`` and ``needs`` of the graph.
        lags_s: as :func:`.graph.longest_to` takes them.
        time_s, clock_mhz: of the profile's rows.
        row: of each instruction; changed in place.
        ceiling: the lowest row that an instruction may get.
        is_greedy: whether the last one is raised by three steps, or all the slowest by one.
    """
    topological, before, needs = waits
    before_lag_s, needs_lag_s = lags_s
    n = len(row)
    end_s = np.zeros(n + 1)
    slow = np.empty(n, dtype=np.int64)
    step = 0
    while True:
        step += 1
        hear(step, 1 << 8)
        for i in topological:  # 1
            on_device_s = end_s[before[i]] + before_lag_s[i]
            message_s = end_s[needs[i]] + needs_lag_s[i]
            end_s[i] = max(on_device_s, message_s) + time_s[row[i]]
        num_slow = 0
        at = np.argmax(end_s[:n])  # 2
        while at < n:
            if row[at] > ceiling[at]:
                slow[num_slow] = at
                num_slow += 1
            a = before[at]
            b = needs[at]
            on_device_s = end_s[a] + before_lag_s[at] if a < n else -1.0
            message_s = end_s[b] + needs_lag_s[at] if b < n else -1.0
            at = a if on_device_s >= message_s else b
        if num_slow == 0:
            return
        if is_greedy:  # 3
            row[slow[0]] = max(row[slow[0]] - 3, ceiling[slow[0]])
            continue
        lowest_mhz = clock_mhz[row[slow[:num_slow]]].min()
        for i in slow[:num_slow]:
            if clock_mhz[row[i]] == lowest_mhz:
                row[i] -= 1
