"""The three forms that a schedule's description takes, and the orders that follow from them.

Most schedules are a :class:`Merge`: each device knows its order by itself, from how many forwards
run before the first backward and how far weight gradients fall behind. Where the devices' orders
follow from one another a list scheduler makes them (:class:`Listed`). DualPipe is published as a
table of steps, and kept as one (:class:`Steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.greedy import Lane, list_order
from labkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT

Orders = tuple[tuple[int, ...], np.ndarray]  # length per device; kind, stage, microbatch (3, n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a pipeline is, and what else was asked of its schedule."""

    num_devices: int
    num_microbatches: int
    num_chunks: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ahead(self) -> np.ndarray:
        """For each device, how many there are from it to the last, itself included."""
        return self.num_devices - np.arange(self.num_devices)

    @property
    def num_stages(self) -> int:
        return self.num_devices * self.num_chunks

    @property
    def num_units(self) -> int:
        """Forwards of one device: its chunks times the microbatches."""
        return self.num_chunks * self.num_microbatches

    @property
    def num_rounds(self) -> int:
        """Rounds of at least one microbatch a device, in each of which all chunks have a turn."""
        return max(1, self.num_microbatches // self.num_devices)

    @property
    def per_round(self) -> int:
        """Microbatches that pass one chunk before the device turns to the next."""
        return self.num_microbatches // self.num_rounds


Count = Callable[[Sizes], "np.ndarray | int"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Each device merges its own forwards, backwards and weight halves.

    Chunk by chunk, ``Sizes.per_round`` microbatches at a time; backwards from the last chunk on.
    Stage k lives on device k mod S.

    Attributes:
        warm_up: forwards before each device's first backward; afterwards one forward follows
            each backward, so this is how many are in flight.
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
        """The order of each device. Time: linear in the number of instructions."""
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
        chunk, microbatch = self._turns(sizes, slot)
        back = sizes.num_chunks - 1 - chunk
        newest = sizes.num_microbatches - 1 - microbatch if self.breadth_first else microbatch
        halves = len(kinds) - 1
        chunk = np.concatenate([chunk, *[back] * halves])[at]
        microbatch = np.concatenate([microbatch, *[newest] * halves])[at]
        stage = chunk * sizes.num_devices + np.arange(sizes.num_devices).reshape(shape)
        kind = np.repeat(kinds, len(slot))[at]
        rows = np.stack([kind.ravel(), stage.ravel(), microbatch.ravel()])
        return (at.shape[1],) * sizes.num_devices, rows

    def _turns(self, sizes: Sizes, slot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chunk and microbatch of each of a device's forwards."""
        turn = sizes.num_microbatches if self.breadth_first else sizes.per_round
        chunk = slot // turn % sizes.num_chunks
        return chunk, slot // (turn * sizes.num_chunks) * turn + slot % turn


def _falling(cap: np.ndarray, least: int, most: int) -> np.ndarray:
    """Caps cut to the number of forwards and to what earlier devices send.

    A device holds one activation less than the one before it. Holding as many, it would wait
    before each backward for a forward that the device before can only send after its own next
    backward: every step a round trip, every cap beyond it a deadlock. Only where all microbatches
    are in flight there is nothing to wait for.
    """
    kept: list[int] = []
    for one in cap.tolist():
        last = kept[-1] if kept else most
        kept.append(min(one, most if last == most else max(least, last - 1)))
    return np.array(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A list scheduler runs the microbatches through, on all devices at once.

    Attributes:
        bidirectional: half of the microbatches pass the devices first to last, half last to
            first, on two copies of every stage; otherwise the stages go to and fro over the
            devices in waves.
        split_backward: whether weight gradients run on their own.
        room: most activations a device may hold.
        tapering: whether stage k of K may hold no more than K - k microbatches.
    """

    split_backward: bool
    room: Callable[[Sizes], int]
    tapering: bool
    bidirectional: bool = False

    def least(self, sizes: Sizes) -> int:
        """One activation for each lane of a device."""
        return 2 if self.bidirectional else sizes.num_chunks

    def orders(self, sizes: Sizes, limit: np.ndarray | None) -> Orders:
        """The order of each device, see :func:`list_order`."""
        room = np.full(sizes.num_devices, self.room(sizes))
        if limit is not None:
            room = np.minimum(room, limit)
        lanes = self._lanes(sizes, room.tolist())
        forward, half, weight = (
            np.broadcast_to(x, sizes.num_stages) for x in sizes.settings["durations_s"]
        )
        duration_s = np.stack([forward, half + weight, half, weight]).tolist()
        found = list_order(lanes, sizes.num_devices, duration_s, split_backward=self.split_backward)
        flat = [row for order in found for row in order]
        return tuple(map(len, found)), np.array(flat, dtype=int).T

    def _lanes(self, sizes: Sizes, room: list[int]) -> list[Lane]:
        size, stages, count = sizes.num_devices, sizes.num_stages, sizes.num_microbatches
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
        for here, (device, k, way) in enumerate(stops):
            mates = [(other, x[1]) for other, x in enumerate(stops) if x[0] == device]
            # Every later stage of the device keeps a place: whoever is furthest on its way can
            # always go on, so that no number of newcomers brings about a deadlock.
            lanes.append(
                Lane(
                    device=device,
                    stage=k,
                    microbatches=ways[way][1],
                    before=here - 1 if k > 0 else None,
                    after=here + 1 if k < stages - 1 else None,
                    cap=stages - k if self.tapering else count,
                    room=room[device] - sum(stage > k for _, stage in mates),
                    onwards=tuple(other for other, stage in mates if stage >= k),
                )
            )
        return lanes


Step = tuple[str, Callable[[Sizes, int], int]]
_TOKENS = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Each device works through a table of steps, on two chunks: stage d and stage 2S - 1 - d.

    Attributes:
        table: steps in turn, each a pattern and how often device d runs it. ``F0`` is the next
            forward of chunk 0, ``B`` a backward, ``I`` an input half, ``W`` the oldest weight
            half still to do, of either chunk.
        held: the activations a device holds at most.
        bidirectional: unfolded. Half of the devices run the table of half as many devices and
            microbatches; the others run it mirrored. Chunk 0 is then the nearer half of the way
            of one direction's microbatches, chunk 1 the farther half of the other's.
    """

    table: tuple[Step, ...]
    held: Callable[[Sizes], int]
    bidirectional: bool = False

    def least(self, sizes: Sizes) -> int:
        return self.held(sizes)

    def orders(self, sizes: Sizes, limit: np.ndarray | None) -> Orders:
        """The order of each device; ``limit`` is no less than ``least`` and changes nothing."""
        if not self.bidirectional:
            found = [self._device(sizes, device) for device in range(sizes.num_devices)]
            rows = [np.stack([kind, stage, mb]) for kind, stage, mb, _ in found]
        else:
            half = sizes.num_microbatches // 2
            folded = Sizes(num_devices=sizes.num_devices // 2, num_microbatches=half, num_chunks=2)
            found = [self._device(folded, device) for device in range(folded.num_devices)]
            rows = [np.stack([kind, stage, mb + half * far]) for kind, stage, mb, far in found]
            rows += [
                np.stack([kind, stage, mb + half * (1 - far)])
                for kind, stage, mb, far in reversed(found)
            ]
        return tuple(len(row[0]) for row in rows), np.concatenate(rows, axis=1)

    def _device(self, sizes: Sizes, device: int) -> tuple[np.ndarray, ...]:
        """Kind, stage, microbatch and chunk of each instruction of one device."""
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
        put_off, weight = kind == INPUT, kind == WEIGHT
        chunk[weight], microbatch[weight] = chunk[put_off], microbatch[put_off]
        stage = np.where(chunk == 0, device, 2 * sizes.num_devices - 1 - device)
        return kind, stage, microbatch, chunk


Form = Merge | Listed | Steps


def check_room(name: str, form: Form, sizes: Sizes, limit: np.ndarray | None) -> None:
    """Refuse a memory limit that no order of this form can keep."""
    least = form.least(sizes)
    if limit is not None and (small := limit < least).any():
        device = int(np.argmax(small))
        raise UsageError(
            f"schedule {name!r} of these sizes holds at least {least} activations on a device; "
            f"max_in_flight of device {device} must be >= {least}, found {int(limit[device])}"
        )
