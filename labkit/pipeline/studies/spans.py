"""Spans in unit time beside torch's own orders: how good a schedule is before any profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import UsageError, not_among
from labkit.pipeline.scheduling.families import FAMILIES
from labkit.pipeline.scheduling.orders import from_torch
from labkit.pipeline.scheduling.policies import build
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, Schedule
from labkit.pipeline.simulation.timeline import Costs, simulate

if TYPE_CHECKING:
    import pandas as pd

# Our names, torch's, and whether torch's takes stages per rank.
_PEERS = {
    "gpipe": ("GPipe", False),
    "1f1b": ("1F1B", False),
    "loop-bfs": ("LoopedBFS", True),
    "interleaved-1f1b": ("Interleaved1F1B", True),
    "interleaved-zb": ("InterleavedZeroBubble", True),
    "zb-v": ("ZBVZeroBubble", False),
    "dualpipe-v": ("DualPipeV", False),
}
_RUN_AS_PAIRS = ("dualpipe", "dualpipe-v")
_UNIT = Costs.uniform(forward_s=1.0, backward_s=1.0, weight_s=1.0)


def torch_schedule(
    name: str, num_stages: int, num_microbatches: int, *, num_chunks: int = 2
) -> Schedule:
    """torch's own order for the schedule of our ``name``, sizes as for :func:`build`.

    ``"zb-h1"`` is torch's InterleavedZeroBubble with one stage a rank, which torch builds but
    its visualiser refuses.

    Raises:
        UsageError: torch has no such schedule, or not for these sizes; the message is torch's.
    """
    if name not in (*_PEERS, "zb-h1"):
        raise not_among("schedule of torch's", name, (*_PEERS, "zb-h1"))
    try:
        if name == "zb-h1":
            rows = _one_stage_zero_bubble(num_stages, num_microbatches)
        else:
            from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

            theirs, chunked = _PEERS[name]
            per_rank = num_chunks if chunked else None
            rows = get_schedule_ops(theirs, num_stages, num_microbatches, per_rank)
    except (ValueError, AssertionError) as error:
        sizes = f"{num_stages} stages, {num_microbatches} microbatches"
        raise UsageError(f"torch builds no {name!r} for {sizes}: {error}") from None
    return from_torch(rows, name=f"torch {name}")


def _one_stage_zero_bubble(num_ranks: int, num_microbatches: int) -> Sequence[Sequence[Any]]:
    from unittest import mock

    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
    from torch.distributed.pipelining.stage import PipelineStage

    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages = 0, num_ranks, num_ranks
    stage.submod = None
    order = ScheduleInterleavedZeroBubble([stage], num_microbatches).pipeline_order
    return [order[rank] for rank in range(num_ranks)]


def paired_span_s(schedule: Schedule, costs: Costs) -> float:
    """The makespan if a forward and the whole backward right after it run as one.

    As DualPipe means it: the two overlap, so they start when the inputs of both are there and
    hand on both results at their common end. They take as long as one after the other; what
    overlapping saves is for ``costs`` to say.

    Raises:
        UsageError: the pairs wait for each other in a circle.
    """
    duration_s = costs.durations_s(schedule)
    kind, needs = schedule.kind, schedule.graph.needs.tolist()
    whole = (kind == FORWARD)[:-1] & (kind == BACKWARD)[1:]
    whole &= schedule.device[:-1] == schedule.device[1:]
    whole &= np.array(needs[1:]) != np.arange(len(schedule) - 1)  # not its own forward's
    ends = np.cumsum(schedule.lengths).tolist()
    head = [end - length for end, length in zip(ends, schedule.lengths, strict=True)]
    end_s: list[float | None] = [None] * len(schedule) + [0.0]
    free_s = [0.0] * schedule.num_devices
    moved = True
    while moved:
        moved = False
        for device, end in enumerate(ends):
            while head[device] < end:
                i = head[device]
                unit = [i, i + 1] if i + 1 < end and whole[i] else [i]
                ready = [x for x in (end_s[needs[j]] for j in unit) if x is not None]
                if len(ready) < len(unit):
                    break
                free_s[device] = max(free_s[device], *ready) + sum(duration_s[j] for j in unit)
                for j in unit:
                    end_s[j] = free_s[device]
                head[device], moved = i + len(unit), True
    if head != ends:
        raise UsageError(f"schedule {schedule.name!r} cannot run its forwards as pairs")
    return max(free_s)


def span_table(
    sizes: Iterable[tuple[int, int]], schedules: Iterable[str] | None = None
) -> pd.DataFrame:
    """Makespans in unit time, ours beside those of torch's own orders.

    A forward, an input half and a weight half of one stage (or chunk: two a device where there
    are any) take 1 each, a full backward 2.

    Args:
        sizes: pairs of devices and microbatches.
        schedules: names; default: all that torch has too, and dualpipe.

    Returns:
        One row per schedule and size: schedule, num_devices, num_microbatches, span, torch_span
        (missing where torch has none) and paired_span, for those made to run forwards and
        backwards as one (see :func:`paired_span_s`).
    """
    import pandas as pd

    pairs = list(sizes)
    names = (*_PEERS, "zb-h1", "dualpipe") if schedules is None else schedules
    rows = []
    for name in names:
        if name not in FAMILIES:
            raise not_among("schedule", name, FAMILIES)
        for devices, count in pairs:
            row: dict[str, Any] = {
                "schedule": name,
                "num_devices": devices,
                "num_microbatches": count,
            }
            ours = _or_none(build, name, devices, count)
            theirs = _or_none(torch_schedule, name, devices, count)
            row["span"] = None if ours is None else simulate(ours, _UNIT).makespan_s
            row["torch_span"] = None if theirs is None else simulate(theirs, _UNIT).makespan_s
            row["paired_span"] = None
            if ours is not None and name in _RUN_AS_PAIRS:
                row["paired_span"] = paired_span_s(ours, _UNIT)
            rows.append(row)
    columns = ["span", "torch_span", "paired_span"]
    return pd.DataFrame(rows).astype(dict.fromkeys(columns, "Int64"))


def _or_none(make: Callable[[str, int, int], Schedule], *what: Any) -> Schedule | None:
    """The schedule, or None for sizes it is not made for."""
    try:
        return make(*what)
    except UsageError:
        return None
