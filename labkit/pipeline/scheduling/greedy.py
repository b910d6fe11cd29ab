"""A list scheduler: what every device runs next, by priority, under caps on what it may hold.

For schedules whose devices' orders follow from one another: whether the next forward comes from
chunk 0 or chunk 1 depends on when the other devices deliver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, INPUT, WEIGHT

Row = tuple[int, int, int]  # kind, stage, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Describes the microbatches that pass one stage on one device, in the order in which they do.

    Attributes:
        device, stage: where they pass.
        microbatches: their numbers, in order.
        before, after: the lanes, by number, that the same microbatches come from and go on to; None
            at the pipeline's ends.
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


def list_order(
    lanes: Sequence[Lane],
    num_devices: int,
    duration_s: Sequence[Sequence[float]],
    *,
    forwards_first: bool,
    farthest_back: bool,
    split_backward: bool,
) -> tuple[float, list[list[Row]]]:
    """Let every device always run the most urgent that is ready; return the makespan and each
    order.

    Among forwards the latest stage comes first, the furthest on its way. A forward waits while its
    lane or device holds all it may; an activation is held until its backward, or its weight half,
    has ended. It takes a heap operation or two for each instruction.

    Args:
        lanes: what passes where.
        num_devices: how many devices there are.
        duration_s: seconds of each kind of instruction on each stage.
        forwards_first: whether forwards come before backwards; weight halves come last.
        farthest_back: among backwards, whether the earliest stage comes first, or the latest.
        split_backward: whether weight halves run on their own.
    """
    run = _Run(lanes, (INPUT, WEIGHT) if split_backward else (BACKWARD,))
    urgency = _by_urgency(lanes, num_devices, run.kinds, forwards_first, farthest_back)
    free_s = [0.0] * num_devices
    orders: list[list[Row]] = [[] for _ in range(num_devices)]
    wake = [(0.0, device) for device in range(num_devices)]
    heapify(wake)
    while wake:
        now_s, device = heappop(wake)
        if free_s[device] > now_s:
            continue
        chosen = run.most_urgent(urgency[device], now_s)
        if chosen is None:
            continue
        kind, number = chosen
        lane = lanes[number]
        at = run.done[kind][number]
        end_s = now_s + duration_s[kind][lane.stage]
        orders[device].append((kind, lane.stage, lane.microbatches[at]))
        free_s[device] = end_s
        heappush(wake, (end_s, device))
        for target in run.start(kind, number, end_s):
            heappush(wake, (end_s, lanes[target].device))
    return max(free_s), orders


class _Run:
    """Remembers how far every lane has come.

    Attributes:
        kinds: the kinds of instruction: forwards, what makes the input's gradient, and weight
            halves if there are any. The last one frees the activation.
        done: of each kind, how many each lane has started.
        ready_s: of each kind, when each lane's input for one after another is there.
        taken: of each lane's room, how much is in use.
    """

    def __init__(self, lanes: Sequence[Lane], backward: tuple[int, ...]) -> None:
        self.lanes = lanes
        self.kinds = (FORWARD, *backward)
        self.done = {kind: [0] * len(lanes) for kind in self.kinds}
        self.ready_s: dict[int, list[list[float]]] = {k: [[] for _ in lanes] for k in self.kinds}
        for arrived, lane in zip(self.ready_s[FORWARD], lanes, strict=True):
            if lane.before is None:
                arrived.extend([0.0] * len(lane.microbatches))
        self.taken = [0] * len(lanes)

    def most_urgent(self, urgency: list[tuple[int, int]], now_s: float) -> tuple[int, int] | None:
        """Find the first (kind, lane) whose next instruction may start now."""
        for kind, number in urgency:
            at = self.done[kind][number]
            arrived = self.ready_s[kind][number]
            if at >= len(arrived) or arrived[at] > now_s:
                continue
            if kind == FORWARD and not self._has_room(number):
                continue
            return kind, number
        return None

    def start(self, kind: int, number: int, end_s: float) -> list[int]:
        """Count the lane's next instruction, and return the lanes that its end makes ready."""
        lane = self.lanes[number]
        self.done[kind][number] += 1
        if change := (kind == FORWARD) - (kind == self.kinds[-1]):
            for other in lane.onwards:
                self.taken[other] += change
        released = self._releases(lane, kind, number)
        for what, target in released:
            self.ready_s[what][target].append(end_s)
        return [target for _, target in released]

    def _has_room(self, number: int) -> bool:
        """Tell whether a lane may take one more activation."""
        lane = self.lanes[number]
        last = self.kinds[-1]
        held = self.done[FORWARD][number] - self.done[last][number]
        return held < lane.cap and all(self.taken[x] < self.lanes[x].room for x in lane.onwards)

    def _releases(self, lane: Lane, kind: int, number: int) -> list[tuple[int, int]]:
        """List the (kind, lane) pairs that need what the instruction makes."""
        gradient = self.kinds[1]
        if kind == FORWARD:
            return [(gradient, number) if lane.after is None else (FORWARD, lane.after)]
        released = []
        if kind == gradient:
            if lane.before is not None:
                released.append((gradient, lane.before))
            if gradient != self.kinds[-1]:
                released.append((self.kinds[-1], number))
        return released


def _by_urgency(
    lanes: Sequence[Lane],
    num_devices: int,
    kinds: tuple[int, ...],
    forwards_first: bool,
    farthest_back: bool,
) -> list[list[tuple[int, int]]]:
    """Rank each device's (kind, lane) pairs, the most urgent first."""
    forward, gradient, *weight = kinds
    devices: list[list[tuple[int, int]]] = [[] for _ in range(num_devices)]
    by_stage = sorted(range(len(lanes)), key=lambda number: lanes[number].stage)
    for kind in kinds if forwards_first else (gradient, forward, *weight):
        latest_first = kind == FORWARD or not farthest_back
        for number in reversed(by_stage) if latest_first else by_stage:
            devices[lanes[number].device].append((kind, number))
    return devices
