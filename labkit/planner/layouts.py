"""How operators are split over devices: layouts, and what moves between and because of them.

A layout says into how many parts each axis of an operator's output is cut. Its parts stand on
devices 0, 1, …, the sample axis outermost and the width innermost, and each device computes its
part of the output. For a step on devices of one kind:

    compute    3 · forward operations / (parts · rate); the backward pass is two forwards
    transfers  what a device reads of each input and does not hold, and the gradients of the same
               back; an exchange ends with its slowest link
    gradients  2 (r - 1)/r of a part's weights, in rings of the r parts that hold the same weights

so that a network's time is a sum over operators and edges: a :class:`labkit.planner.Problem`.

In a transformer a layout has a fifth number, *copies*: so many neighbouring devices end with the
same part. An operator that sums over its depth (linear, embedding) divides the depth among them and
adds up their parts in a ring, forward; every other operator computes its part on each of them.
Backward, whoever holds a copy needs the gradient of all of it: where several devices made parts of
that gradient, the copies add these up in a ring. Megatron-LM's layers are such a layout: qkv and up
are cut along channels, projection and down have copies, and so have norms and residuals; a block
then has two rings forward and two backward, one each for attention and for the two linear layers.

Source: the cost model of Jia et al. 2018 (OptCNN), §5.1, with rings in place of servers; copies:
Shoeybi et al. 2019 (Megatron-LM), §3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, Positive, checked
from labkit.kit.fabric import Fabric
from labkit.planner.choices import Problem
from labkit.planner.networks import ATTENTION, AXES, SUMMED, Axis, Network, Operator

if TYPE_CHECKING:
    import pandas as pd

Layout = tuple[int, ...]
"""Parts of sample, channel, height and width; in a transformer also copies of each part."""
_PASSES = 3
"""A forward pass, and a backward pass of twice its operations."""


@checked
def layout_name(layout: tuple[Count, ...]) -> str:
    """A layout in words.

    Raises:
        BadValue: there are not four or five numbers.

    >>> layout_name((4, 2, 1, 1)), layout_name((1, 1, 1, 1)), layout_name((2, 1, 1, 1, 4))
    ('sample 4 × channel 2', 'one device', 'sample 2 × copies 4')
    """
    if len(layout) not in (len(AXES), len(AXES) + 1):
        raise BadValue(
            f"planner.layout_name: layout has {len(layout)} numbers; parts of {', '.join(AXES)}, "
            "and copies where there are any, are valid"
        )
    return _words(layout)


@cache
def _words(layout: Layout) -> str:
    """The name of a layout that is known to be one; the same few are asked for again and again."""
    names = [*AXES, "copies"][: len(layout)]
    cut = [f"{axis} {parts}" for axis, parts in zip(names, layout, strict=True) if parts > 1]
    return " × ".join(cut) or "one device"


def _copies(layout: Layout) -> int:
    """Devices that hold the same part."""
    return layout[4] if len(layout) > len(AXES) else 1


def _parts_of_depth(operator: Operator, layout: Layout) -> int:
    """Into how many parts the sum over its depth is divided."""
    return _copies(layout) if operator.kind in SUMMED else 1


@checked
def layouts(
    operator: Operator,
    num_devices: Count,
    *,
    axes: Sequence[Axis] = AXES,
    copies: bool = False,
) -> tuple[Layout, ...]:
    """All layouts of an operator whose parts divide the devices.

    Places that attention attends to stay together.

    Args:
        num_devices: at most; a layout uses a divisor of them.
        axes: that may be cut.
        copies: whether several devices may hold the same part.

    >>> from labkit.planner.networks import network
    >>> dense = network("vgg16", batch=64).by_name["fc6"]
    >>> [layout_name(layout) for layout in layouts(dense, 2)]
    ['one device', 'channel 2', 'sample 2']
    """
    divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
    parts = []
    for axis in AXES:
        whole = axis not in axes or (axis == "width" and operator.kind in ATTENTION)
        parts.append([1] if whole else [d for d in divisors if d <= operator.output[axis]])
    if copies:
        most = operator.depth if operator.kind in SUMMED else num_devices
        parts.append([d for d in divisors if d <= most])
    return tuple(layout for layout in product(*parts) if num_devices % prod(layout) == 0)


def _cuts(size: int, parts: int) -> np.ndarray:
    """Where an axis is cut, as evenly as whole numbers allow: parts + 1 places."""
    return np.arange(parts + 1) * size // parts


def _boxes(operator: Operator, choices: Sequence[Layout], num_devices: int) -> np.ndarray:
    """What each device computes in each layout, as ``[layout, device, axis, begin or end]``.

    A device without a part has an empty box.
    """
    boxes = np.zeros((len(choices), num_devices, len(AXES), 2), dtype=np.int64)
    for number, layout in enumerate(choices):
        places = np.array(list(np.ndindex(layout)))
        for axis, (name, parts) in enumerate(zip(AXES, layout, strict=False)):
            ends = _cuts(operator.output[name], parts)
            boxes[number, : len(places), axis, 0] = ends[places[:, axis]]
            boxes[number, : len(places), axis, 1] = ends[places[:, axis] + 1]
    return boxes


def _depths(operator: Operator, choices: Sequence[Layout], num_devices: int) -> np.ndarray:
    """Which part of its depth each device sums over, as ``[layout, device, begin or end]``."""
    depths = np.zeros((len(choices), num_devices, 2), dtype=np.int64)
    for number, layout in enumerate(choices):
        parts = _parts_of_depth(operator, layout)
        place = np.arange(num_devices) % parts
        ends = _cuts(operator.depth, parts)
        depths[number, :, 0] = ends[place]
        depths[number, :, 1] = ends[place + 1]
    return depths


def _of_heads(reader: Operator, source: Operator, channels: np.ndarray) -> np.ndarray:
    """Channels of the source that belong to the heads of the reader's channels."""
    per_head = reader.output["channel"] // reader.heads
    source_per_head = source.output["channel"] // reader.heads
    first = channels[..., 0] // per_head
    last = -(-channels[..., 1] // per_head)
    return np.stack([first * source_per_head, last * source_per_head], axis=-1)


def _needed(
    reader: Operator, source: Operator, boxes: np.ndarray, offset: int, depths: np.ndarray
) -> np.ndarray:
    """What of a source's output is read to compute boxes of the reader's, axis by axis.

    1. Samples are read as they are computed.
    2. Convolutions, dense operators and norms read all channels, linear operators those of their
       part of the depth; a concat those that it took from here; attention those of its heads.
    3. Windows read around a place; dense operators read all places. Attention reads all places of
       the projection, and of its scores and their softmax those of its queries.

    Args:
        boxes: of the reader's output, by layout and device.
        offset: channels of a concat that come before the source's.
        depths: that each device sums over.
    """
    needed = boxes.copy()
    empty = (boxes[..., 1] <= boxes[..., 0]).any(axis=-1)
    if reader.kind in ("convolution", "dense", "norm"):
        needed[..., 1, 0] = 0
        needed[..., 1, 1] = source.output["channel"]
    if reader.kind == "concat":
        inside = boxes[..., 1, :] - offset
        needed[..., 1, :] = np.clip(inside, 0, source.output["channel"])
    if reader.kind == "linear":
        needed[..., 1, :] = depths
    if reader.heads:
        needed[..., 1, :] = _of_heads(reader, source, boxes[..., 1, :])
    for axis, name in ((2, "height"), (3, "width")):
        size = source.output[AXES[axis]]
        all_width = name == "width" and reader.kind == "context"
        if reader.kind == "dense" or all_width or (reader.heads and not source.heads):
            needed[..., axis, 0] = 0
            needed[..., axis, 1] = size
        elif reader.kind in ("convolution", "pool"):
            place = 0 if name == "height" else 1
            first = boxes[..., axis, 0] * reader.stride - reader.padding[place]
            last = (boxes[..., axis, 1] - 1) * reader.stride - reader.padding[place]
            needed[..., axis, 0] = np.clip(first, 0, size)
            needed[..., axis, 1] = np.clip(last + reader.window[place], 0, size)
    needed[empty] = 0
    return needed


@njit(cache=True)
def _common(held: np.ndarray, needed: np.ndarray) -> float:
    """Numbers in both of two boxes."""
    numbers = 1.0
    for axis in range(held.shape[0]):
        begin = max(held[axis, 0], needed[axis, 0])
        end = min(held[axis, 1], needed[axis, 1])
        numbers *= max(end - begin, 0)
    return numbers


@njit(cache=True)
def _level(one: int, other: int, sizes: np.ndarray) -> int:
    """The innermost level that joins two devices."""
    level = 0
    while one // sizes[level + 1] != other // sizes[level + 1]:
        level += 1
    return level


@njit(cache=True)
def _nearest(device: int, first: int, count: int, sizes: np.ndarray) -> int:
    """The one of ``count`` neighbouring devices that is nearest; of equals, each asks another."""
    best = first + device % count
    for other in range(first, first + count):
        if _level(device, other, sizes) < _level(device, best, sizes):
            best = other
    return best


@njit(cache=True)
def _moved(held: np.ndarray, needed: np.ndarray, copies: int, sizes: np.ndarray) -> np.ndarray:
    """Numbers that devices send each other between two layouts, forward, as ``[from, to]``.

    A device reads what it does not hold from the nearest device that does.

    Args:
        held: box of each device in the source's layout, ``[device, axis, begin or end]``.
        needed: what each device reads in the reader's layout, alike.
        copies: of each box of the source, on neighbouring devices.
    """
    devices = len(held)
    moved = np.zeros((devices, devices))
    for first in range(0, devices, copies):
        for receiver in range(devices):
            if first <= receiver < first + copies:
                continue
            common = _common(held[first], needed[receiver])
            if common > 0:
                moved[_nearest(receiver, first, copies, sizes), receiver] += common
    return moved


@njit(cache=True)
def _returned(
    held: np.ndarray, needed: np.ndarray, copies: int, alike: int, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that devices send each other backward: as ``[from, to]``, and in rings of copies.

    1. Devices of the reader that computed the same have the same gradient of what they read; one
       of them sends it to whom it lacks.
    2. A single holder adds up what it gets.
    3. Copies of a box need the whole gradient each. Where every one of them has it, nothing moves.
       Else each reader hands its gradient to one of them, and a ring gathers it: once around for
       parts that lie side by side, twice where parts must be added up.

    Args:
        alike: neighbouring devices of the reader that computed the same.

    Returns:
        The messages; and what each device of a ring sends, by the first device of the copies.
    """
    devices = len(held)
    moved = np.zeros((devices, devices))
    rings = np.zeros(devices)
    for first in range(0, devices, copies):
        box = _common(held[first], held[first])
        parts = 0.0
        for reader in range(0, devices, alike):
            common = _common(held[first], needed[reader])
            if common == 0 or (reader <= first and first + copies <= reader + alike):  # 1
                continue
            parts += common
            if reader < first + copies and first < reader + alike:
                continue
            target = _nearest(reader, first, copies, sizes)
            moved[_nearest(target, reader, alike, sizes), target] += common  # 2
        if copies > 1 and parts > 0:  # 3
            gathered = min(parts, box)
            passes = 2 if parts > gathered else 1
            rings[first] = passes * (copies - 1) / copies * gathered
    return moved, rings


@njit(cache=True)
def _slowest_s(
    moved: np.ndarray,
    rings: np.ndarray,
    copies: int,
    element_bytes: float,
    sizes: np.ndarray,
    latency_s: np.ndarray,
    bandwidth: np.ndarray,
) -> float:
    """Seconds of the slowest link: its messages' latencies, and its bytes.

    A message goes over the innermost level that joins two devices: out of the sender's unit there,
    into the receiver's. A ring crosses the link of each unit that it leaves once.
    """
    devices = len(moved)
    levels = len(sizes) - 1
    link_s = np.zeros((2, levels, devices))
    for sender in range(devices):
        for receiver in range(devices):
            if moved[sender, receiver] == 0:
                continue
            level = _level(sender, receiver, sizes)
            num_bytes = moved[sender, receiver] * element_bytes
            message_s = latency_s[level] + num_bytes / bandwidth[level]
            link_s[0, level, sender // sizes[level]] += message_s
            link_s[1, level, receiver // sizes[level]] += message_s
    for first in range(devices):
        if rings[first] == 0:
            continue
        for level in range(levels):
            if copies <= sizes[level]:
                continue
            waits_s = 2 * (copies - 1) * latency_s[level]
            ring_s = waits_s + rings[first] * element_bytes / bandwidth[level]
            for unit in range(first // sizes[level], (first + copies - 1) // sizes[level] + 1):
                link_s[0, level, unit] += ring_s
                link_s[1, level, unit] += ring_s
    return float(link_s.max())


@njit(cache=True)
def _exchanges_s(
    held: np.ndarray,
    needed: np.ndarray,
    copies: np.ndarray,
    alike: np.ndarray,
    element_bytes: float,
    sizes: np.ndarray,
    latency_s: np.ndarray,
    bandwidth: np.ndarray,
) -> np.ndarray:
    """Seconds of the exchanges between each pair of layouts; shape (layouts, layouts).

    1. Forward, each device gets what it needs and does not hold.
    2. Backward, gradients take the same ways, the other way round; where there are copies, they
       are counted by themselves.

    Args:
        held: ``[layout, device, axis, begin or end]`` of the source.
        needed: the same of what the reader's devices read.
        copies: of each box, by layout of the source.
        alike: devices that compute the same, by layout of the reader.
        sizes: devices below a unit of each level, and of the whole fabric; shape (levels + 1,).
    """
    seconds = np.zeros((len(held), len(needed)))
    no_rings = np.zeros(held.shape[1])
    links = (element_bytes, sizes, latency_s, bandwidth)
    for source in range(len(held)):
        same = int(copies[source])
        for reader in range(len(needed)):
            moved = _moved(held[source], needed[reader], same, sizes)  # 1
            forward_s = _slowest_s(moved, no_rings, same, *links)
            backward_s = forward_s  # 2
            if same > 1 or alike[reader] > 1:
                returned, rings = _returned(
                    held[source], needed[reader], same, int(alike[reader]), sizes
                )
                backward_s = _slowest_s(returned, rings, same, *links)
            seconds[source, reader] = forward_s + backward_s
    return seconds


def _places(layout: Layout) -> np.ndarray:
    """The device of each part and copy; an axis a number of the layout, and one of copies."""
    return np.arange(prod(layout)).reshape(*layout[: len(AXES)], _copies(layout))


def _ring_bytes(members: np.ndarray, num_bytes: float, sizes: np.ndarray) -> np.ndarray:
    """Bytes on each level of a ring whose members send so much each; shape (levels,)."""
    carried = np.zeros(len(sizes) - 1)
    for one, other in zip(members, np.roll(members, -1), strict=True):
        if one != other:
            carried[_level(one, other, sizes)] += num_bytes
    return carried


@dataclass(frozen=True, kw_only=True, eq=False)
class Layouts:
    """A network's layouts on a fabric, and what they cost.

    Attributes:
        flops_per_s: that a device sustains.
        axes: that may be cut.
        element_bytes: of one number.
        operator_s: seconds of an operator on one device, forward and backward, instead of what its
            operations take; by name, measured ones for instance.
        copies: whether several devices may hold the same part.
        allowed: layouts of operators, by name, instead of all that there are.
    """

    network: Network
    fabric: Fabric
    flops_per_s: float
    axes: tuple[Axis, ...] = AXES
    element_bytes: int = 4
    operator_s: Mapping[str, float] = field(default_factory=dict)
    copies: bool = False
    allowed: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict)
    _tables: dict[object, np.ndarray] = field(default_factory=dict, repr=False)

    @cached_property
    def choices(self) -> dict[str, tuple[Layout, ...]]:
        """The layouts of each operator."""
        devices = self.fabric.num_devices
        return {
            operator.name: self.allowed.get(operator.name)
            or layouts(operator, devices, axes=self.axes, copies=self.copies)
            for operator in self.network.operators
        }

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Devices below a unit of each level, and of the whole fabric."""
        return np.array([*self.fabric.group_sizes, self.fabric.num_devices])

    @cached_property
    def problem(self) -> Problem:
        """The choice of a layout for each operator, in seconds a step."""
        nodes = {operator.name: self.nodes_s(operator)[0] for operator in self.network.operators}
        edges = {pair: self.transfers_s(*pair) for pair in self.network.edges}
        names = {name: tuple(map(_words, ways)) for name, ways in self.choices.items()}
        return Problem(choices=names, node_costs=nodes, edge_costs=edges)

    def compute_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of the largest part, forward and backward."""
        seconds = self.operator_s.get(operator.name)
        if seconds is None:
            seconds = _PASSES * operator.forward_flops / self.flops_per_s
        sizes = [
            math.ceil(operator.output[axis] / parts) / operator.output[axis]
            for axis, parts in zip(AXES, layout, strict=False)
        ]
        if (parts := _parts_of_depth(operator, layout)) > 1:
            sizes.append(math.ceil(operator.depth / parts) / operator.depth)
        return seconds * prod(sizes)

    def summed_bytes(self, operator: Operator, layout: Layout) -> float:
        """Bytes that each device sends forward to add up parts of sums over the depth, in a ring.

        Nothing where every device has the whole depth.
        """
        parts = _parts_of_depth(operator, layout)
        sizes = [
            math.ceil(operator.output[axis] / cut) for axis, cut in zip(AXES, layout, strict=False)
        ]
        return 2 * (parts - 1) / parts * prod(sizes) * self.element_bytes

    def sums_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of those rings; each of its devices is a neighbour of the next."""
        num_bytes = self.summed_bytes(operator, layout)
        parts = _parts_of_depth(operator, layout)
        seconds = 0.0
        for level, size in zip(self.fabric.levels, self.fabric.group_sizes, strict=True):
            if parts > size:
                waits_s = 2 * (parts - 1) * level.latency_s
                seconds = max(seconds, waits_s + num_bytes / level.bandwidth_bytes_per_s)
        return seconds

    def gradient_bytes(self, operator: Operator, layout: Layout) -> float:
        """Bytes of gradients that each part sends: of its weights, in a ring of those alike."""
        replicas = prod(layout) // (layout[1] * _copies(layout))
        cut = layout[1] * _parts_of_depth(operator, layout)
        part = operator.weights * self.element_bytes / cut
        return 2 * (replicas - 1) / replicas * part

    def gradients_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of those rings; on the link of a group of devices, as many as it has of them."""
        num_bytes = self.gradient_bytes(operator, layout)
        if not num_bytes:
            return 0.0
        rings_in_all = layout[1] * _copies(layout)
        replicas = prod(layout) // rings_in_all
        seconds = 0.0
        for level, size in zip(self.fabric.levels, self.fabric.group_sizes, strict=True):
            if prod(layout) > size:
                rings = min(size, rings_in_all)
                waits_s = 2 * (replicas - 1) * level.latency_s
                moving_s = rings * num_bytes / level.bandwidth_bytes_per_s
                seconds = max(seconds, waits_s + moving_s)
        return seconds

    def nodes_s(self, operator: Operator) -> np.ndarray:
        """Seconds of an operator in each of its layouts, and those of its gradients alone.

        Operators of the same sizes share them: the blocks of a network are alike.

        Returns:
            Shape (2, layouts).
        """
        options = self.choices[operator.name]
        sizes = (
            *(operator.kind, operator.depth, operator.window, operator.bias),
            *(len(operator.inputs), *(operator.output[axis] for axis in AXES)),
        )
        rates = (self.fabric, self.flops_per_s, self.element_bytes)
        key = ("node", sizes, rates, self.operator_s.get(operator.name), options)
        if key not in self._tables:
            whole_s = [self.node_s(operator, layout) for layout in options]
            gradients_s = [self.gradients_s(operator, layout) for layout in options]
            self._tables[key] = np.array([whole_s, gradients_s])
        return self._tables[key]

    def node_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of an operator by itself: compute, sums over the depth, then gradients."""
        seconds = self.compute_s(operator, layout) + self.gradients_s(operator, layout)
        return seconds + self.sums_s(operator, layout)

    def _boxes_of(
        self, source: str, reader: str, plan: Mapping[str, str] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """What devices hold of the source's output, and what they read of it, by layout.

        A device loads its own samples of the images, so nothing is needed of those.

        Args:
            plan: with its two layouts alone; None is all of them.
        """
        one = self.network.by_name[source]
        other = self.network.by_name[reader]
        devices = self.fabric.num_devices
        of_source: Sequence[Layout] = self.choices[source]
        of_reader: Sequence[Layout] = self.choices[reader]
        if plan is not None:
            of_source = [self.layout(source, plan[source])]
            of_reader = [self.layout(reader, plan[reader])]
        held = _boxes(one, of_source, devices)
        computed = _boxes(other, of_reader, devices)
        depths = _depths(other, of_reader, devices)
        needed = _needed(other, one, computed, self._offset(source, reader), depths)
        return held, needed * (one.kind != "input")

    def moved_bytes(self, source: str, reader: str, plan: Mapping[str, str]) -> np.ndarray:
        """Bytes that devices send each other forward over an edge of a plan, as ``[from, to]``.

        Args:
            plan: the name of each operator's layout.
        """
        held, needed = self._boxes_of(source, reader, plan)
        copies = _copies(self.layout(source, plan[source]))
        return _moved(held[0], needed[0], copies, self._sizes) * self.element_bytes

    def returned_bytes(
        self, source: str, reader: str, plan: Mapping[str, str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of gradients backward, and what each device of a ring of copies sends.

        Returns:
            Bytes as ``[from, to]``; and by the first device of each ring.
        """
        held, needed = self._boxes_of(source, reader, plan)
        copies = _copies(self.layout(source, plan[source]))
        alike = self._alike(reader, self.layout(reader, plan[reader]))
        if copies == alike == 1:
            there = _moved(held[0], needed[0], 1, self._sizes)
            return there.T * self.element_bytes, np.zeros(len(there))
        moved, rings = _returned(held[0], needed[0], copies, alike, self._sizes)
        return moved * self.element_bytes, rings * self.element_bytes

    def _alike(self, reader: str, layout: Layout) -> int:
        """Devices that compute the same part of an operator, and of the same depth."""
        summed = self.network.by_name[reader].kind in SUMMED
        return 1 if summed else _copies(layout)

    def level_bytes(self, plan: Mapping[str, str]) -> np.ndarray:
        """Bytes of a step on the links of each level, the innermost first; shape (levels,).

        A message counts on the innermost level that joins its two devices; of the messages of a
        ring, those between units of a level count there.
        """
        carried = np.zeros(len(self.fabric.levels))
        for source, reader in self.network.edges:
            carried += self._edge_bytes(source, reader, plan)
        for operator in self.network.operators:
            layout = self.layout(operator.name, plan[operator.name])
            members = _places(layout).reshape(-1, _copies(layout))
            carried += self._rings_bytes(members, self.summed_bytes(operator, layout))
        return carried + self.gradient_level_bytes(plan)

    def gradient_level_bytes(self, plan: Mapping[str, str]) -> np.ndarray:
        """Those of :meth:`level_bytes` that are gradients of weights."""
        carried = np.zeros(len(self.fabric.levels))
        for operator in self.network.operators:
            layout = self.layout(operator.name, plan[operator.name])
            by_weights = np.moveaxis(_places(layout), (1, 4), (0, 1))
            members = by_weights.reshape(layout[1] * _copies(layout), -1)
            carried += self._rings_bytes(members, self.gradient_bytes(operator, layout))
        return carried

    def _rings_bytes(self, rings: np.ndarray, num_bytes: float) -> np.ndarray:
        """Bytes on each level of rings, one a row, whose members send so much each."""
        carried = np.zeros(len(self.fabric.levels))
        if num_bytes:
            for members in rings:
                carried += _ring_bytes(members, num_bytes, self._sizes)
        return carried

    def _edge_bytes(self, source: str, reader: str, plan: Mapping[str, str]) -> np.ndarray:
        """Bytes of an edge on each level, forward and back."""
        carried = np.zeros(len(self.fabric.levels))
        copies = _copies(self.layout(source, plan[source]))
        returned, rings = self.returned_bytes(source, reader, plan)
        moved = self.moved_bytes(source, reader, plan) + returned
        for sender, receiver in np.argwhere(moved):
            level = _level(sender, receiver, self._sizes)
            carried[level] += moved[sender, receiver]
        for first in np.flatnonzero(rings):
            members = np.arange(first, first + copies)
            carried += _ring_bytes(members, rings[first], self._sizes)
        return carried

    def transfers_s(self, source: str, reader: str) -> np.ndarray:
        """Seconds of an edge, forward and back, by both layouts; shape (layouts, layouts)."""
        return self._exchanges(source, reader)

    def transfer_s(self, source: str, reader: str, plan: Mapping[str, str]) -> float:
        """Seconds of an edge, forward and back, in a plan."""
        return float(self._exchanges(source, reader, plan)[0, 0])

    def _exchanges(
        self, source: str, reader: str, plan: Mapping[str, str] | None = None
    ) -> np.ndarray:
        """Seconds of an edge by both layouts, or of a plan's two layouts alone."""
        shapes = [
            (o.kind, tuple(o.output.values()), o.window, o.stride, o.padding, o.depth, o.heads)
            for o in (self.network.by_name[source], self.network.by_name[reader])
        ]
        place = self._offset(source, reader)
        ways = [self.choices[source], self.choices[reader]]
        if plan is not None:
            ways = [(self.layout(name, plan[name]),) for name in (source, reader)]
        key = (*shapes, place, plan and tuple(ways))
        if key not in self._tables:
            self._tables[key] = _exchanges_s(
                *self._boxes_of(source, reader, plan),
                np.array([_copies(layout) for layout in ways[0]]),
                np.array([self._alike(reader, layout) for layout in ways[1]]),
                float(self.element_bytes),
                self._sizes,
                self.fabric.latencies_s,
                self.fabric.bandwidths_bytes_per_s,
            )
        return self._tables[key]

    def _offset(self, source: str, reader: str) -> int:
        """Channels of a concat before those of the source; 0 of other readers."""
        inputs = self.network.by_name[reader].inputs
        if self.network.by_name[reader].kind != "concat":
            return 0
        before = inputs[: inputs.index(source)]
        return sum(self.network.by_name[name].output["channel"] for name in before)

    def layout(self, operator: str, name: str) -> Layout:
        """The layout of an operator that has that name."""
        return self._by_name[operator][name]

    @cached_property
    def _by_name(self) -> dict[str, dict[str, Layout]]:
        """The layouts of each operator, by their names."""
        return {
            operator: {_words(layout): layout for layout in ways}
            for operator, ways in self.choices.items()
        }

    def same(self, convolutions: Layout, dense: Layout | None = None) -> dict[str, str]:
        """A plan by kind: one layout for dense operators, one for all others.

        ``same((16, 1, 1, 1))`` is data parallelism; with ``(1, 16, 1, 1)`` for dense operators it
        is Krizhevsky's.

        Raises:
            BadValue: an operator has no such layout.
        """
        plan = {}
        ones = (1,) * (len(AXES) + self.copies)
        for operator in self.network.operators:
            weighted = operator.kind in ("dense", *SUMMED)
            wanted = dense if weighted and dense else convolutions
            wanted = (*wanted, *ones[len(wanted) :])
            plan[operator.name] = self._named(operator, wanted)
        return plan

    def _named(self, operator: Operator, layout: Layout) -> str:
        """The name of a layout that an operator has.

        Raises:
            BadValue: it has not.
        """
        if layout not in self.choices[operator.name]:
            raise BadValue(
                f"planner.Layouts: {operator.name!r} cannot be cut into {layout_name(layout)} "
                f"on {self.fabric.num_devices} devices"
            )
        return layout_name(layout)

    def columns_then_rows(self, ways: int, samples: int = 1) -> dict[str, str]:
        """Megatron-LM's layouts of a transformer, in groups of ``ways`` neighbours.

        1. A linear operator that reads a norm is cut by columns, its output's channels, and so is
           what follows it.
        2. The next linear operator is cut by rows, its depth, and adds up the parts: its output
           has copies, and so have residuals, norms and the embedding.

        Args:
            ways: devices of a group, which divide each operator.
            samples: groups, each with its part of the samples.

        Raises:
            BadValue: an operator has no such layout.

        Source: Shoeybi et al. 2019 (Megatron-LM), §3.
        """
        plan = {}
        for operator in self.network.operators:
            reads = [self.network.by_name[name].kind for name in operator.inputs]
            by_columns = operator.kind == "linear" and reads == ["norm"]  # 1
            follows = operator.kind in ("pointwise", *ATTENTION)
            cut = (samples, ways, 1, 1, 1) if by_columns or follows else (samples, 1, 1, 1, ways)
            plan[operator.name] = self._named(operator, cut)
        return plan

    def parts(self, plan: Mapping[str, str]) -> pd.DataFrame:
        """List what a plan costs, one row an operator: layout, seconds, and bytes of all devices.

        Args:
            plan: the name of each operator's layout, as :func:`labkit.planner.choose` gives it.
        """
        import pandas as pd

        rows = []
        for operator in self.network.operators:
            layout = self.layout(operator.name, plan[operator.name])
            transfers_s = 0.0
            transferred = 0.0
            for source in operator.inputs:
                transfers_s += self.transfer_s(source, operator.name, plan)
                copies = _copies(self.layout(source, plan[source]))
                returned, rings = self.returned_bytes(source, operator.name, plan)
                transferred += float(self.moved_bytes(source, operator.name, plan).sum())
                transferred += float(returned.sum() + copies * rings.sum())
            transferred += prod(layout) * self.summed_bytes(operator, layout)
            rows.append(
                {
                    "operator": operator.name,
                    "kind": operator.kind,
                    "layout": plan[operator.name],
                    "compute_s": self.compute_s(operator, layout),
                    "transfers_s": transfers_s + self.sums_s(operator, layout),
                    "gradients_s": self.gradients_s(operator, layout),
                    "transferred_bytes": transferred,
                    "gradient_bytes": prod(layout) * self.gradient_bytes(operator, layout),
                }
            )
        return pd.DataFrame(rows)


@checked
def split(
    network: Network,
    fabric: Fabric,
    *,
    flops_per_s: Positive,
    axes: Sequence[Axis] = AXES,
    element_bytes: Count = 4,
    operator_s: Mapping[str, float] | None = None,
    copies: bool | None = None,
) -> Layouts:
    """A network's layouts on a fabric, to be chosen from.

    Args:
        flops_per_s: that a device sustains.
        axes: that may be cut.
        element_bytes: of one number.
        operator_s: measured seconds of operators on one device, forward and backward, by name.
        copies: whether several devices may hold the same part; by default in transformers.

    Raises:
        BadValue: a measured operator is none of the network's, or its seconds are no number.

    >>> from labkit.planner import choose
    >>> from labkit.planner.networks import network
    >>> pair = Fabric.flat(2, bandwidth_bytes_per_s=1e9)
    >>> found = choose(split(network("alexnet", batch=128), pair, flops_per_s=5e12).problem)
    >>> found.plan["conv1"], found.plan["fc6"]
    ('sample 2', 'channel 2')
    """
    measured = dict(operator_s or {})
    for name, seconds in measured.items():
        if name not in network.by_name or not math.isfinite(seconds) or seconds < 0:
            raise BadValue(
                f"planner.split: operator_s[{name!r}] must be seconds of an operator of "
                f"{network.name}, got {seconds}"
            )
    return Layouts(
        network=network,
        fabric=fabric,
        flops_per_s=flops_per_s,
        axes=tuple(axes),
        element_bytes=element_bytes,
        operator_s=measured,
        copies=network.is_transformer if copies is None else copies,
    )
