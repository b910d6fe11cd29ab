"""A list scheduler: what every device runs next, by priority, under caps on what it may hold.

For schedules whose devices' orders follow from one another: whether the next forward comes from
chunk 0 or chunk 1 depends on when the other devices deliver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from labkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT

_BACKWARD_KINDS = {False: (BACKWARD,), True: (INPUT, WEIGHT)}
Row = tuple[int, int, int]  # kind, stage, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The microbatches that pass one stage on one device, in the order in which they do.

    Attributes:
        before, after: the lanes, by number, that the same microbatches come from and go on to;
            None at the pipeline's ends.
        cap: most of its microbatches that may be in flight.
        room: most activations that this lane and those of earlier stages on its device may hold.
        onwards: the lanes, by number, whose room its activations take: its own and those of later
            stages on its device.
    """

    device: int
    stage: int
    microbatches: range
    before: int | None
    after: int | None
    cap: int
    room: int
    onwards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is more urgent; weight halves are least.

    Attributes:
        forwards_first: whether forwards come before backwards.
        farthest_back: among backwards, whether the earliest stage comes first, or the latest.
    """

    forwards_first: bool
    farthest_back: bool


def list_order(
    lanes: Sequence[Lane],
    num_devices: int,
    duration_s: Sequence[Sequence[float]],
    rule: Rule,
    *,
    split_backward: bool,
) -> tuple[float, list[list[Row]]]:
    """The makespan and each device's instructions, if it always runs the most urgent that is ready.

    Among forwards the latest stage comes first, the furthest on its way. A forward waits while
    its lane or device holds all it may; an activation is held until its backward, or its weight
    half, has ended.

    Args:
        duration_s: seconds of each kind of instruction on each stage.

    Time: a heap operation or two for each instruction.
    """
    kinds = _BACKWARD_KINDS[split_backward]
    last_kind, gradient = kinds[-1], kinds[0]
    urgency = _by_urgency(lanes, num_devices, kinds, rule)
    ready: dict[int, list[list[float]]] = {
        FORWARD: [[0.0] * len(x.microbatches) if x.before is None else [] for x in lanes],
        gradient: [[] for _ in lanes],
        last_kind: [[] for _ in lanes],
    }
    done = {kind: [0] * len(lanes) for kind in ready}
    taken, free_at = [0] * len(lanes), [0.0] * num_devices
    orders: list[list[Row]] = [[] for _ in range(num_devices)]
    wake = [(0.0, device) for device in range(num_devices)]
    heapify(wake)
    while wake:
        now, device = heappop(wake)
        if free_at[device] > now:
            continue
        for kind, number in urgency[device]:
            lane, at = lanes[number], done[kind][number]
            arrived = ready[kind][number]
            if at >= len(arrived) or arrived[at] > now:
                continue
            if kind == FORWARD and (
                at - done[last_kind][number] >= lane.cap
                or any(taken[x] >= lanes[x].room for x in lane.onwards)
            ):
                continue
            break
        else:
            continue
        end = now + duration_s[kind][lane.stage]
        orders[device].append((kind, lane.stage, lane.microbatches[at]))
        done[kind][number] += 1
        free_at[device] = end
        heappush(wake, (end, device))
        change = (kind == FORWARD) - (kind == last_kind)
        for x in lane.onwards:
            taken[x] += change
        for target, what in _released(lane, number, kind, gradient, last_kind):
            ready[what][target].append(end)
            heappush(wake, (end, lanes[target].device))
    return max(free_at), orders


def _by_urgency(
    lanes: Sequence[Lane], num_devices: int, kinds: tuple[int, ...], rule: Rule
) -> list[list[tuple[int, int]]]:
    """For each device its (kind, lane) pairs, the most urgent first."""
    by_rank = (FORWARD, *kinds) if rule.forwards_first else (kinds[0], FORWARD, *kinds[1:])
    rank = {kind: place for place, kind in enumerate(by_rank)}
    back = 1 if rule.farthest_back else -1

    def urgency(pair: tuple[int, int]) -> tuple[int, int]:
        kind, number = pair
        return rank[kind], lanes[number].stage * (-1 if kind == FORWARD else back)

    devices: list[list[tuple[int, int]]] = [[] for _ in range(num_devices)]
    for number, lane in enumerate(lanes):
        devices[lane.device] += [(kind, number) for kind in by_rank]
    return [sorted(pairs, key=urgency) for pairs in devices]


def _released(
    lane: Lane, number: int, kind: int, gradient: int, last_kind: int
) -> list[tuple[int, int]]:
    """Which (lane, kind) the end of an instruction makes ready."""
    if kind == FORWARD:
        return [(number, gradient) if lane.after is None else (lane.after, FORWARD)]
    freed = []
    if kind == gradient:
        if lane.before is not None:
            freed.append((lane.before, gradient))
        if gradient != last_kind:
            freed.append((number, last_kind))
    return freed
