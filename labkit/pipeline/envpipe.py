"""EnvPipe (USENIX ATC 2023): early forwards, an envelope at full clock, the rest slowed to fit."""

from __future__ import annotations

from typing import Literal

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.clocks import Choice, max_clock_rows, valley_rows
from labkit.pipeline.graph import longest_to
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.schedule import BACKWARD, FORWARD, Schedule

Reconfigure = Literal["balanced", "greedy", "none"]
Floor = Literal["energy", "above-waiting"]


def early_forwards(
    profile: EnergyProfile, num_microbatches: int, *, max_in_flight: int | None = None
) -> tuple[int, ...]:
    """How many forwards EnvPipe runs early on each stage, for ``build("envpipe", ...)``.

    As many as fit, at the energy-valley clock, into the wait for the first backward to come
    back at the maximum clock through the S - s - 1 later stages; no more than microbatches
    remain, than memory holds beside the S - s that 1F1B keeps, or than the stage before runs
    early (unless that one has all microbatches in flight).

    Args:
        max_in_flight: microbatches whose activations a device can hold; None for no limit.

    Source: EnvPipe (USENIX ATC 2023), scheduler; the public implementation counts so.
    """
    num_stages = profile.num_stages
    top, valley = max_clock_rows(profile), valley_rows(profile)
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


def outer_envelope(schedule: Schedule) -> np.ndarray:
    """Which instructions lie on EnvPipe's envelope, shape (n,).

    The first forward and the last backward of every stage, and all of the last stage: the
    critical path wherever the last stage is the heaviest.

    Source: EnvPipe (USENIX ATC 2023), planner.
    """
    first = (schedule.kind == FORWARD) & (schedule.microbatch == 0)
    last = (schedule.kind == BACKWARD) & (schedule.microbatch == schedule.num_microbatches - 1)
    return first | last | (schedule.stage == schedule.num_stages - 1)


def envpipe_rows(
    schedule: Schedule,
    profile: EnergyProfile,
    *,
    reconfigure: Reconfigure = "balanced",
    floor: Floor = "energy",
) -> np.ndarray:
    """EnvPipe's planner: a profile row for every instruction.

    The outer envelope runs at the maximum clock and all other units at their stage's energy
    valley. While some inner unit lies on the critical path, ``"balanced"`` raises those of its
    inner units that have the lowest clock by one step, ``"greedy"`` the one nearest to its end
    by three; ``"none"`` leaves the first plan as it is. ``floor`` says what the valley is the
    least of: the published planner's is energy; energy above waiting is what a pipeline saves.

    As described, reconfiguring ends when the critical path is the envelope. Where the last stage
    is not the heaviest that never comes about; the public implementation also stops when no unit
    of the path can go faster, and so do we. Clocks only rise, so it always ends, and then every
    unit of one longest path runs at the maximum clock: never slower than all at that clock.

    Ours differs in that the critical path is exact, from the simulated timeline, where a running
    system infers it from measured receive times; and a step is one clock of the profile.

    Source: EnvPipe (USENIX ATC 2023), planner; behaviour of the authors' public implementation.
    """
    if reconfigure not in ("balanced", "greedy", "none"):
        raise UsageError(f"reconfigure must be balanced, greedy or none, found {reconfigure!r}")
    if floor not in ("energy", "above-waiting"):
        raise UsageError(f"floor must be energy or above-waiting, found {floor!r}")
    envelope = outer_envelope(schedule)
    # Rows of one work stand in descending order of clock: one step up is one row less.
    top = max_clock_rows(profile)[schedule.kind, schedule.stage]
    valley = valley_rows(profile, above_waiting=floor == "above-waiting")
    row = np.where(envelope, top, valley[schedule.kind, schedule.stage])
    while reconfigure != "none":
        path = _critical_path(schedule, profile.time_s[row])
        slow = path[(row[path] > top[path]) & ~envelope[path]]
        if not len(slow):
            break
        if reconfigure == "balanced":
            clock = profile.clock_mhz[row[slow]]
            row[slow[clock == clock.min()]] -= 1
        else:
            row[slow[0]] = max(row[slow[0]] - 3, top[slow[0]])
    return row


def _critical_path(schedule: Schedule, duration_s: np.ndarray) -> np.ndarray:
    """One longest path, last instruction first; where both waits are equal, along the device."""
    graph, n = schedule.graph, len(schedule.graph)
    end = np.append(longest_to(graph, duration_s), 0.0)
    path = [int(np.argmax(end))]
    while True:
        before, needs = int(graph.before[path[-1]]), int(graph.needs[path[-1]])
        previous = before if end[before] >= end[needs] else needs
        if previous == n:
            return np.array(path)
        path.append(previous)


def choose_envpipe(
    schedule: Schedule,
    profile: EnergyProfile,
    deadline_s: float | None,
    *,
    reconfigure: Reconfigure = "balanced",
    floor: Floor = "energy",
) -> Choice:
    """:func:`envpipe_rows` as a planner."""
    return Choice(envpipe_rows(schedule, profile, reconfigure=reconfigure, floor=floor))
