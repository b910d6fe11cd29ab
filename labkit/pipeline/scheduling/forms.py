"""The three forms that a schedule's description takes, and the orders that follow from them.

Most schedules are a :class:`Merge`: each device knows its order by itself. Where the devices'
orders follow from one another a list scheduler makes them (:class:`Listed`). DualPipe is published
as a table of steps, and kept as one (:class:`Steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from labkit.errors import BadValue
from labkit.pipeline.scheduling.graph import longest_to
from labkit.pipeline.scheduling.greedy import Lane, Row, list_order
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule

Orders = tuple[tuple[int, ...], np.ndarray]  # length per device; kind, stage, microbatch (3, n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Says how large a pipeline is, and what else was asked of its schedule."""

    num_devices: int
    num_microbatches: int
    num_chunks: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ahead(self) -> np.ndarray:
        """How many devices there are from each one to the last, itself included."""
        return self.num_devices - np.arange(self.num_devices)

    @property
    def num_stages(self) -> int:
        """How many stages there are: the chunks of all devices."""
        return self.num_devices * self.num_chunks

    @property
    def num_units(self) -> int:
        """How many forwards one device runs: its chunks times the microbatches."""
        return self.num_chunks * self.num_microbatches

    @property
    def num_rounds(self) -> int:
        """How many rounds of at least one microbatch a device there are; all chunks have a turn in
        each.
        """
        return max(1, self.num_microbatches // self.num_devices)

    @property
    def per_round(self) -> int:
        """How many microbatches pass one chunk before the device turns to the next."""
        return self.num_microbatches // self.num_rounds


Count = Callable[[Sizes], "np.ndarray | int"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Lets each device merge its own forwards, backwards and weight halves.

    It goes chunk by chunk, ``Sizes.per_round`` microbatches at a time; backwards go from the last
    chunk on. Stage k lives on device k mod S.

    Attributes:
        warm_up: forwards before each device's first backward; afterwards one forward follows each
            backward, so this is how many are in flight.
        weight_lag: None for whole backwards; else how many input halves more than weight halves
            each device has run while there are forwards to run.
        breadth_first: all microbatches pass a chunk before the next one has its turn, and their
            backwards run newest first.
    """

    warm_up: Count
    weight_lag: Count | None = None
    breadth_first: bool = False

    def least(self, sizes: Sizes) -> int:
        """The fewest activations a device must have room for."""
        if self.breadth_first:
            return sizes.num_units
        return (sizes.num_chunks - 1) * sizes.per_round + 1

    def orders(self, sizes: Sizes, limit: np.ndarray | None) -> Orders:
        """Make each device's order within ``limit``, its memory, in time linear in the
        instructions.
        """
        shape = (sizes.num_devices, 1)
        cap = np.broadcast_to(self.warm_up(sizes), sizes.num_devices)
        if limit is not None:
            cap = np.minimum(cap, limit)
        cap = _falling(cap, self.least(sizes), sizes.num_units)
        slot = np.arange(sizes.num_units)
        keys = [4 * (slot - cap.reshape(shape)) + 2, np.tile(4 * slot, shape)]
        kinds = [FORWARD, BACKWARD]
        if self.weight_lag is not None:
            lag = np.broadcast_to(self.weight_lag(sizes), sizes.num_devices)
            if limit is not None:
                lag = np.minimum(lag, limit - cap)
            keys.append(4 * (slot + lag.reshape(shape)) + 1)
            kinds = [FORWARD, INPUT, WEIGHT]
        # The keys of each kind rise, so the stable sort only merges.
        at = np.argsort(np.concatenate(keys, axis=1), axis=1, kind="stable")
        turn = sizes.num_microbatches if self.breadth_first else sizes.per_round
        chunk = slot // turn % sizes.num_chunks
        microbatch = slot // (turn * sizes.num_chunks) * turn + slot % turn
        back = sizes.num_chunks - 1 - chunk
        newest = sizes.num_microbatches - 1 - microbatch if self.breadth_first else microbatch
        halves = len(kinds) - 1
        chunk = np.concatenate([chunk, *[back] * halves])[at]
        microbatch = np.concatenate([microbatch, *[newest] * halves])[at]
        stage = chunk * sizes.num_devices + np.arange(sizes.num_devices).reshape(shape)
        kind = np.repeat(kinds, len(slot))[at]
        rows = np.stack([kind.ravel(), stage.ravel(), microbatch.ravel()])
        return (at.shape[1],) * sizes.num_devices, rows


def _falling(cap: np.ndarray, least: int, most: int) -> np.ndarray:
    """Cut caps to the number of forwards and to what earlier devices send.

    A device holds one activation less than the one before it. Holding as many, it would wait before
    each backward for a forward that the device before can only send after its own next backward:
    every step a round trip, every cap beyond it a deadlock. Only where all microbatches are in
    flight there is nothing to wait for.
    """
    kept: list[int] = []
    for wanted in cap.tolist():
        last = kept[-1] if kept else most
        kept.append(min(wanted, most if last == most else max(least, last - 1)))
    return np.array(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Lets a list scheduler run the microbatches through, on all devices at once.

    Attributes:
        bidirectional: half of the microbatches pass the devices first to last, half last to first,
            on two copies of every stage; otherwise the stages go to and fro over the devices in
            waves.
        split_backward: whether weight gradients run on their own.
        room: most activations a device may hold.
        tapering: which to prefer where both are as short: that stage k of K holds no more than K -
            k microbatches, or as many as the device has room for.
    """

    split_backward: bool
    room: Callable[[Sizes], int]
    tapering: bool
    bidirectional: bool = False

    def least(self, sizes: Sizes) -> int:
        """The fewest activations a device must have room for: one for each of its lanes."""
        return 2 if self.bidirectional else sizes.num_chunks

    def orders(self, sizes: Sizes, limit: np.ndarray | None) -> Orders:
        """Make each device's order: the shortest that any of a few rules gives.

        Each rule is tried with the stages' durations, and as if all were alike.
        """
        room = np.full(sizes.num_devices, self.room(sizes))
        if limit is not None:
            room = np.minimum(room, limit)
        duration_s = sizes.settings["durations_s"]
        best_s, best = self._shortest(sizes, room, duration_s)
        if (alike := durations_by_kind((1, 1, 1), sizes.num_stages)) != duration_s:
            other = self._shortest(sizes, room, alike)[1]
            tried = scheduled("tried", sizes, _as_arrays(other))
            took_s = np.array(duration_s)[tried.kind, tried.stage]
            if longest_to(tried.graph, took_s).max() < best_s:
                best = other
        return _as_arrays(best)

    def _shortest(
        self, sizes: Sizes, room: np.ndarray, duration_s: list[list[float]]
    ) -> tuple[float, list[list[Row]]]:
        """Find the first of the shortest orders that the rules give, and its makespan."""
        best: tuple[float, list[list[Row]]] | None = None
        both = (True, False)
        for tapering, first, back in product((self.tapering, not self.tapering), both, both):
            lanes = self._lanes(sizes, room.tolist(), tapering)
            rule = {"forwards_first": first, "farthest_back": back}
            rule["split_backward"] = self.split_backward
            order = list_order(lanes, sizes.num_devices, duration_s, **rule)
            if best is None or order[0] < best[0]:
                best = order
            if best[0] <= _floor_s(lanes, sizes.num_devices, duration_s):
                break
        assert best is not None
        return best

    def _lanes(self, sizes: Sizes, room: list[int], tapering: bool) -> list[Lane]:
        """List the lanes of all devices, and the room that each may fill."""
        size = sizes.num_devices
        stages = sizes.num_stages
        count = sizes.num_microbatches
        down = (count + 1) // 2 if self.bidirectional else count
        there_and_back = [*range(size), *reversed(range(size))]
        ways = [([there_and_back[k % (2 * size)] for k in range(stages)], range(down))]
        if self.bidirectional:
            ways.append(([*reversed(range(size))], range(down, count)))
        stops = [
            (device, k, way)
            for way, (devices, _) in enumerate(ways)
            for k, device in enumerate(devices)
        ]
        lanes: list[Lane] = []
        for number, (device, k, way) in enumerate(stops):
            mates = [(other, x[1]) for other, x in enumerate(stops) if x[0] == device]
            # Every later stage of the device keeps a place: whoever is furthest on its way can
            # always go on, so that no number of newcomers brings about a deadlock.
            lanes.append(
                Lane(
                    device=device,
                    stage=k,
                    microbatches=ways[way][1],
                    before=number - 1 if k > 0 else None,
                    after=number + 1 if k < stages - 1 else None,
                    cap=stages - k if tapering else count,
                    room=room[device] - sum(stage > k for _, stage in mates),
                    onwards=tuple(other for other, stage in mates if stage >= k),
                )
            )
        return lanes


def _floor_s(
    lanes: Sequence[Lane], num_devices: int, duration_s: Sequence[Sequence[float]]
) -> float:
    """Bound the makespan from below: a device's work cannot begin before the first forward gets
    there.
    """
    way_s = np.cumsum([0.0, *duration_s[FORWARD]])
    first_s = [np.inf] * num_devices
    work_s = [0.0] * num_devices
    for lane in lanes:
        if count := len(lane.microbatches):
            first_s[lane.device] = min(first_s[lane.device], float(way_s[lane.stage]))
            each_s = duration_s[FORWARD][lane.stage] + duration_s[BACKWARD][lane.stage]
            work_s[lane.device] += count * each_s
    return max(a + b for a, b in zip(first_s, work_s, strict=True) if a < np.inf)


def durations_by_kind(durations_s: Sequence[Any], num_stages: int) -> list[list[float]]:
    """List seconds of each kind of instruction on each stage, of a forward and a backward's halves.

    Args:
        durations_s: seconds of a forward, an input half and a weight half, one number each or one
            per stage.
        num_stages: how many stages there are.
    """
    if len(durations_s) != 3 or not all(np.shape(x) in ((), (num_stages,)) for x in durations_s):
        raise BadValue(
            "durations_s must be seconds of a forward, an input half and a weight half, one number "
            f"each or one for each of {num_stages} stages; got {durations_s!r}"
        )
    forward, half, weight = (np.broadcast_to(np.array(x, float), num_stages) for x in durations_s)
    table: list[list[float]] = np.stack([forward, half + weight, half, weight]).tolist()
    return table


def _as_arrays(orders: Sequence[Sequence[Row]]) -> Orders:
    """Put the orders of all devices in arrays."""
    flat = [row for order in orders for row in order]
    return tuple(map(len, orders)), np.array(flat, dtype=int).T


def scheduled(name: str, sizes: Sizes, orders: Orders, **more: Any) -> Schedule:
    """Make the schedule of these orders.

    Args:
        name: what it is called.
        sizes: how large it is.
        orders: what each device runs.
        more: its other attributes.
    """
    lengths, (kind, stage, microbatch) = orders
    return Schedule(
        name=name,
        num_stages=sizes.num_stages,
        num_microbatches=sizes.num_microbatches,
        lengths=lengths,
        stage=stage,
        kind=kind,
        microbatch=microbatch,
        **more,
    )


Step = tuple[str, Callable[[Sizes, int], int]]
_TOKENS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Lets each device work through a table of steps, on two chunks: stage d and stage 2S - 1 - d.

    Attributes:
        table: steps in turn, each a pattern and how often device d runs it. ``F0`` is the next
            forward of chunk 0, ``B`` a backward, ``I`` an input half, ``W`` the oldest weight half
            still to do, of either chunk.
        least: the activations that a device must have room for, and holds at most.
        bidirectional: unfolded. Half of the devices run the table of half as many devices and
            microbatches; the others run it mirrored. Chunk 0 is then the nearer half of the way of
            one direction's microbatches, chunk 1 the farther half of the other's.
    """

    table: tuple[Step, ...]
    least: Callable[[Sizes], int]
    bidirectional: bool = False

    def orders(self, sizes: Sizes, limit: np.ndarray | None) -> Orders:
        """Make each device's order; ``limit`` is no less than ``least`` and changes nothing."""
        half = 0
        folded = sizes
        if self.bidirectional:
            half = sizes.num_microbatches // 2
            folded = Sizes(num_devices=sizes.num_devices // 2, num_microbatches=half, num_chunks=2)
        devices = [self._device(folded, device) for device in range(folded.num_devices)]
        rows = [np.stack([kind, stage, mb + half * far]) for kind, stage, mb, far in devices]
        if self.bidirectional:
            mirrored = reversed(devices)
            rows += [np.stack([kind, s, mb + half * (1 - far)]) for kind, s, mb, far in mirrored]
        return tuple(len(row[0]) for row in rows), np.concatenate(rows, axis=1)

    def _device(self, sizes: Sizes, device: int) -> tuple[np.ndarray, ...]:
        """List kind, stage, microbatch and chunk of each instruction of one device."""
        tokens: list[str] = []
        for pattern, times in self.table:
            tokens += pattern.split() * max(0, times(sizes, device))
        kind = np.array([_TOKENS[token[0]] for token in tokens])
        chunk = np.array([int(token[1:] or 0) for token in tokens])
        microbatch = np.zeros(len(tokens), dtype=int)
        for c in (0, 1):
            for kinds in ((FORWARD,), (BACKWARD, INPUT)):
                mine = np.isin(kind, kinds) & (chunk == c)
                microbatch[mine] = np.arange(mine.sum())
        put_off = kind == INPUT
        weight = kind == WEIGHT
        chunk[weight] = chunk[put_off]
        microbatch[weight] = microbatch[put_off]
        stage = np.where(chunk == 0, device, 2 * sizes.num_devices - 1 - device)
        return kind, stage, microbatch, chunk


Form = Merge | Listed | Steps
