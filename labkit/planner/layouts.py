"""How operators are split over devices: layouts, and what moves between and because of them.

A layout says into how many parts each axis of an operator's output is cut. Its parts stand on
devices 0, 1, …, the sample axis outermost and the width innermost, and each device computes its
part of the output. For a step on devices of one kind:

    compute    3 · forward operations / (parts · rate); the backward pass is two forwards
    transfers  what a device reads of each input and does not hold, and the gradients of the same
               back; an exchange ends with its slowest link
    gradients  2 (r - 1)/r of a part's weights, in rings of the r parts that hold the same weights

so that a network's time is a sum over operators and edges: a :class:`labkit.planner.Problem`.

Source: the cost model of Jia et al. 2018 (OptCNN), §5.1, with rings in place of servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, Positive, checked
from labkit.kit.fabric import Fabric
from labkit.planner.choices import Problem
from labkit.planner.networks import AXES, Axis, Network, Operator

if TYPE_CHECKING:
    import pandas as pd

Layout = tuple[int, int, int, int]
"""Parts of sample, channel, height and width."""
_PASSES = 3
"""A forward pass, and a backward pass of twice its operations."""


@checked
def layout_name(layout: tuple[Count, Count, Count, Count]) -> str:
    """A layout in words.

    >>> layout_name((4, 2, 1, 1)), layout_name((1, 1, 1, 1))
    ('sample 4 × channel 2', 'one device')
    """
    cut = [f"{axis} {parts}" for axis, parts in zip(AXES, layout, strict=True) if parts > 1]
    return " × ".join(cut) or "one device"


@checked
def layouts(
    operator: Operator, num_devices: Count, *, axes: Sequence[Axis] = AXES
) -> tuple[Layout, ...]:
    """All layouts of an operator whose parts divide the devices.

    Args:
        num_devices: at most; a layout uses a divisor of them.
        axes: that may be cut.

    >>> from labkit.planner.networks import network
    >>> dense = network("vgg16", batch=64).by_name["fc6"]
    >>> [layout_name(layout) for layout in layouts(dense, 2)]
    ['one device', 'channel 2', 'sample 2']
    """
    parts = [
        [
            d
            for d in range(1, num_devices + 1)
            if num_devices % d == 0 and d <= operator.output[axis]
        ]
        if axis in axes
        else [1]
        for axis in AXES
    ]
    return tuple(
        (sample, channel, height, width)
        for sample, channel, height, width in product(*parts)
        if num_devices % (sample * channel * height * width) == 0
    )


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
        for axis, (name, parts) in enumerate(zip(AXES, layout, strict=True)):
            ends = _cuts(operator.output[name], parts)
            boxes[number, : len(places), axis, 0] = ends[places[:, axis]]
            boxes[number, : len(places), axis, 1] = ends[places[:, axis] + 1]
    return boxes


def _needed(reader: Operator, source: Operator, boxes: np.ndarray, offset: int) -> np.ndarray:
    """What of a source's output is read to compute boxes of the reader's, axis by axis.

    1. Samples are read as they are computed.
    2. Convolutions and dense operators read all channels; a concat those that it took from here.
    3. Windows read around a place; dense operators read all places.

    Args:
        boxes: of the reader's output, by layout and device.
        offset: channels of a concat that come before the source's.
    """
    needed = boxes.copy()
    empty = (boxes[..., 1] <= boxes[..., 0]).any(axis=-1)
    if reader.kind in ("convolution", "dense"):
        needed[..., 1, 0] = 0
        needed[..., 1, 1] = source.output["channel"]
    if reader.kind == "concat":
        inside = boxes[..., 1, :] - offset
        needed[..., 1, :] = np.clip(inside, 0, source.output["channel"])
    for axis, name in ((2, "height"), (3, "width")):
        size = source.output[AXES[axis]]
        if reader.kind == "dense":
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
def _moved(held: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Numbers that devices send each other between two layouts, as ``[from, to]``.

    Args:
        held: box of each device in the source's layout, ``[device, axis, begin or end]``.
        needed: what each device reads in the reader's layout, alike.
    """
    devices = len(held)
    moved = np.zeros((devices, devices))
    for sender in range(devices):
        for receiver in range(devices):
            if sender == receiver:
                continue
            common = 1.0
            for axis in range(held.shape[1]):
                begin = max(held[sender, axis, 0], needed[receiver, axis, 0])
                end = min(held[sender, axis, 1], needed[receiver, axis, 1])
                common *= max(end - begin, 0)
            moved[sender, receiver] = common
    return moved


@njit(cache=True)
def _exchanges_s(
    held: np.ndarray,
    needed: np.ndarray,
    element_bytes: float,
    sizes: np.ndarray,
    latency_s: np.ndarray,
    bandwidth: np.ndarray,
) -> np.ndarray:
    """Seconds of the exchange between each pair of layouts; shape (layouts, layouts).

    1. What each device sends each other is what one holds and the other needs.
    2. It goes over the innermost level that joins the two: out of the sender's unit there, into the
       receiver's.
    3. The exchange ends with the slowest link: its messages' latencies, and its bytes.

    Args:
        held: ``[layout, device, axis, begin or end]`` of the source.
        needed: the same of what the reader's devices read.
        sizes: devices below a unit of each level, and of the whole fabric; shape (levels + 1,).
    """
    devices = held.shape[1]
    levels = len(sizes) - 1
    seconds = np.zeros((len(held), len(needed)))
    link_s = np.zeros((2, levels, devices))
    for source in range(len(held)):
        for reader in range(len(needed)):
            link_s[:] = 0.0
            moved = _moved(held[source], needed[reader])  # 1
            for sender in range(devices):
                for receiver in range(devices):
                    if moved[sender, receiver] == 0:
                        continue
                    level = 0  # 2
                    while sender // sizes[level + 1] != receiver // sizes[level + 1]:
                        level += 1
                    num_bytes = moved[sender, receiver] * element_bytes
                    message_s = latency_s[level] + num_bytes / bandwidth[level]
                    link_s[0, level, sender // sizes[level]] += message_s
                    link_s[1, level, receiver // sizes[level]] += message_s
            seconds[source, reader] = link_s.max()  # 3
    return seconds


@dataclass(frozen=True, kw_only=True, eq=False)
class Layouts:
    """A network's layouts on a fabric, and what they cost.

    Attributes:
        flops_per_s: that a device sustains.
        axes: that may be cut.
        element_bytes: of one number.
        operator_s: seconds of an operator on one device, forward and backward, instead of what its
            operations take; by name, measured ones for instance.
    """

    network: Network
    fabric: Fabric
    flops_per_s: float
    axes: tuple[Axis, ...] = AXES
    element_bytes: int = 4
    operator_s: Mapping[str, float] = field(default_factory=dict)
    _tables: dict[object, np.ndarray] = field(default_factory=dict, repr=False)

    @cached_property
    def choices(self) -> dict[str, tuple[Layout, ...]]:
        """The layouts of each operator."""
        devices = self.fabric.num_devices
        return {o.name: layouts(o, devices, axes=self.axes) for o in self.network.operators}

    @cached_property
    def problem(self) -> Problem:
        """The choice of a layout for each operator, in seconds a step."""
        nodes = {}
        for operator in self.network.operators:
            options = self.choices[operator.name]
            nodes[operator.name] = np.array([self.node_s(operator, layout) for layout in options])
        edges = {pair: self.transfers_s(*pair) for pair in self.network.edges}
        names = {name: tuple(map(layout_name, ways)) for name, ways in self.choices.items()}
        return Problem(choices=names, node_costs=nodes, edge_costs=edges)

    def compute_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of the largest part, forward and backward."""
        seconds = self.operator_s.get(operator.name)
        if seconds is None:
            seconds = _PASSES * operator.forward_flops / self.flops_per_s
        sizes = [
            math.ceil(operator.output[axis] / parts) / operator.output[axis]
            for axis, parts in zip(AXES, layout, strict=True)
        ]
        return seconds * prod(sizes)

    def gradient_bytes(self, operator: Operator, layout: Layout) -> float:
        """Bytes of gradients that each part sends: of its weights, in a ring of those alike."""
        replicas = prod(layout) // layout[1]
        part = operator.weights * self.element_bytes / layout[1]
        return 2 * (replicas - 1) / replicas * part

    def gradients_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of those rings; on the link of a group of devices, as many as it has of them."""
        num_bytes = self.gradient_bytes(operator, layout)
        if not num_bytes:
            return 0.0
        replicas = prod(layout) // layout[1]
        seconds = 0.0
        for level, size in zip(self.fabric.levels, self.fabric.group_sizes, strict=True):
            if prod(layout) > size:
                rings = min(size, layout[1])
                waits_s = 2 * (replicas - 1) * level.latency_s
                moving_s = rings * num_bytes / level.bandwidth_bytes_per_s
                seconds = max(seconds, waits_s + moving_s)
        return seconds

    def node_s(self, operator: Operator, layout: Layout) -> float:
        """Seconds of an operator by itself: compute, then gradients."""
        return self.compute_s(operator, layout) + self.gradients_s(operator, layout)

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
        needed = _needed(other, one, computed, self._offset(source, reader))
        return held, needed * (one.kind != "input")

    def moved_bytes(self, source: str, reader: str, plan: Mapping[str, str]) -> np.ndarray:
        """Bytes that devices send each other forward over an edge of a plan, as ``[from, to]``.

        Args:
            plan: the name of each operator's layout.
        """
        held, needed = self._boxes_of(source, reader, plan)
        return _moved(held[0], needed[0]) * self.element_bytes

    def transfers_s(self, source: str, reader: str) -> np.ndarray:
        """Seconds of an edge, forward and back, by both layouts; shape (layouts, layouts)."""
        shapes = [
            (o.kind, tuple(o.output.values()), o.window, o.stride, o.padding)
            for o in (self.network.by_name[source], self.network.by_name[reader])
        ]
        place = self._offset(source, reader)
        key = (*shapes, place)
        if key not in self._tables:
            self._tables[key] = 2 * _exchanges_s(
                *self._boxes_of(source, reader),
                float(self.element_bytes),
                np.array([*self.fabric.group_sizes, self.fabric.num_devices]),
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
        return self.choices[operator][self.problem.choices[operator].index(name)]

    def same(self, convolutions: Layout, dense: Layout | None = None) -> dict[str, str]:
        """A plan by kind: one layout for dense operators, one for all others.

        ``same((16, 1, 1, 1))`` is data parallelism; with ``(1, 16, 1, 1)`` for dense operators it
        is Krizhevsky's.

        Raises:
            BadValue: an operator has no such layout.
        """
        plan = {}
        for operator in self.network.operators:
            wanted = dense if operator.kind == "dense" and dense else convolutions
            if wanted not in self.choices[operator.name]:
                raise BadValue(
                    f"planner.Layouts: {operator.name!r} cannot be cut into {layout_name(wanted)} "
                    f"on {self.fabric.num_devices} devices"
                )
            plan[operator.name] = layout_name(wanted)
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
                edge = self.problem.edge_costs[source, operator.name]
                row = self.problem.choices[source].index(plan[source])
                column = self.problem.choices[operator.name].index(plan[operator.name])
                transfers_s += float(edge[row, column])
                transferred += 2 * float(self.moved_bytes(source, operator.name, plan).sum())
            rows.append(
                {
                    "operator": operator.name,
                    "kind": operator.kind,
                    "layout": plan[operator.name],
                    "compute_s": self.compute_s(operator, layout),
                    "transfers_s": transfers_s,
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
) -> Layouts:
    """A network's layouts on a fabric, to be chosen from.

    Args:
        flops_per_s: that a device sustains.
        axes: that may be cut.
        element_bytes: of one number.
        operator_s: measured seconds of operators on one device, forward and backward, by name.

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
    )
