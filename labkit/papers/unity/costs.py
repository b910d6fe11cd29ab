"""What a step of training takes and holds, for a parallel computation graph on GPUs.

    operator   kernels · launch + max(operations / rate, bytes / memory bandwidth), on its largest
               part; a linear operator runs once forwards and twice backwards, others once each
    transfer   what lies between two operators (from one layout to another) is one collective; its
               gradient takes the way back
    weights    a weight of which each device has a copy adds up its gradients (all-reduce)

A step is the sum of all: nothing overlaps. Inputs are loaded in the layout that is wanted, and the
loss takes its input as it is divided.

Source: §5.1 (costs of operators and transfers are added up); the formulas are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import NamedTuple

from labkit import collectives
from labkit.collectives.programs import Op as Collective
from labkit.collectives.scaling import MessageTime
from labkit.kit.fabric import Fabric
from labkit.papers.unity.terms import (
    COPIES,
    LEAVES,
    PARALLEL,
    SAMPLES,
    Layout,
    Op,
    Term,
    layout,
    terms_of,
)

ELEMENT_BYTES = 4
LINEAR_KERNELS = 3
"""A forward pass, and gradients of the input and of the weight, of as many operations each."""
STATE_BYTES = 16
"""Weight, gradient and Adam's two moments of a parameter, in single precision."""


class Place(StrEnum):
    """How a tensor lies on the devices."""

    WHOLE = "whole on one"
    SAMPLES = "cut by samples"
    CHANNELS = "cut by channels"
    COPIES = "a copy on each"
    SUMS = "partial sums"


_TRANSPOSED = {Place.COPIES: Place.SUMS, Place.SUMS: Place.COPIES}
"""Where gradients lie: of copies they are partial sums, of partial sums copies."""
_COLLECTIVES: dict[tuple[Place, Place], Collective] = {
    (Place.WHOLE, Place.COPIES): "broadcast",
    (Place.SUMS, Place.WHOLE): "reduce",
    (Place.SUMS, Place.COPIES): "all-reduce",
    (Place.SUMS, Place.SAMPLES): "reduce-scatter",
    (Place.SUMS, Place.CHANNELS): "reduce-scatter",
    (Place.SAMPLES, Place.COPIES): "all-gather",
    (Place.CHANNELS, Place.COPIES): "all-gather",
    (Place.SAMPLES, Place.CHANNELS): "all-to-all",
    (Place.CHANNELS, Place.SAMPLES): "all-to-all",
}
_UNAIDED = ("ring", "tree", "recursive-halving", "recursive-doubling", "direct")
"""Algorithms that need no further argument."""


class Transfer(NamedTuple):
    """What lies between a tensor's maker and its reader."""

    maker: Term
    origin: Place
    goal: Place


def transfer(of: Term) -> Transfer:
    """The way of a tensor that a reader takes, through operators that move it."""
    chain = []
    while of.op in PARALLEL:
        chain.append(of)
        of = of.args[0]
    goal = _after(chain[0]) if chain else Place.WHOLE
    origin = _before(chain[-1]) if chain else Place.WHOLE
    return Transfer(of, origin, goal)


def _along(axis: int) -> Place:
    return Place.SAMPLES if axis == SAMPLES else Place.CHANNELS


def _before(mover: Term) -> Place:
    if mover.op is Op.REDUCE:
        return Place.SUMS
    return _along(mover.axis) if mover.op is Op.COMBINE else Place.WHOLE


def _after(mover: Term) -> Place:
    if mover.op is Op.REPLICATE:
        return Place.COPIES
    return _along(mover.axis) if mover.op is Op.PARTITION else Place.WHOLE


def is_weight(of: Term) -> bool:
    """Whether a term depends on weights alone, so that it can be computed once and kept."""
    if "weight" not in of.cache:
        of.cache["weight"] = of.op is not Op.INPUT and all(map(is_weight, of.args))
    return bool(of.cache["weight"])


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPUs of one kind on a fabric.

    Attributes:
        flops_per_s: that a GPU sustains.
        memory_bytes_per_s: of a GPU.
        launch_s: of a kernel.
    """

    fabric: Fabric
    flops_per_s: float = 10e12
    memory_bytes_per_s: float = 900e9
    launch_s: float = 10e-6
    kept: dict[object, object] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_devices(self) -> int:
        """GPUs in all."""
        return self.fabric.num_devices

    # ------------------------------------------------------------ seconds

    def step_s(self, outputs: tuple[Term, ...]) -> float:
        """Seconds of a step, forwards and backwards."""
        return sum(self.parts_s(outputs))

    def parts_s(self, outputs: tuple[Term, ...]) -> tuple[float, float]:
        """Seconds of operators, and of transfers."""
        computing_s = 0.0
        moving_s = 0.0
        for one in operators(outputs):
            computing_s += self.operator_s(one)
        for moved in _read(outputs):
            moving_s += self.transfer_s(moved)
        for output in outputs:
            maker, origin, _ = transfer(output)
            moving_s += self.output_s(layout(maker), origin)
        return computing_s, moving_s

    def operator_s(self, of: Term) -> float:
        """Seconds of an operator on its largest part, forwards and backwards."""
        return self._once("operator", of, self._operator_s)

    def _once(self, what: str, of: Term, price: Callable[[Term], float]) -> float:
        """A price that is worked out once a term."""
        if (what, of) not in self.kept:
            self.kept[what, of] = price(of)
        seconds = self.kept[what, of]
        assert isinstance(seconds, float)
        return seconds

    def _operator_s(self, of: Term) -> float:
        tensors = [of, *of.args]
        num_bytes = sum(_part_bytes(one) for one in tensors)
        flops = 0.0
        kernels = 2
        if of.op is Op.LINEAR:
            x, weight = (layout(arg) for arg in of.args)
            flops = 2.0 * x.num_numbers * weight.sizes[1] / prod(layout(of).parts)
            kernels = LINEAR_KERNELS
        busy_s = max(flops / self.flops_per_s, num_bytes / self.memory_bytes_per_s)
        return kernels * (self.launch_s + busy_s)

    def transfer_s(self, of: Term) -> float:
        """Seconds of a transfer that a reader asks for, and of its gradient."""
        return self._once("transfer", of, self._transfer_s)

    def _transfer_s(self, of: Term) -> float:
        if is_weight(of):
            num_bytes = ELEMENT_BYTES * layout(of).num_numbers
            copied = layout(of).parts[COPIES] > 1
            return self._moved_s(Place.SUMS, Place.COPIES, num_bytes) if copied else 0.0
        maker, origin, goal = transfer(of)
        if maker.op is Op.INPUT:
            return 0.0
        return self.both_ways_s(layout(maker), origin, goal)

    def both_ways_s(self, of: Layout, origin: Place, goal: Place) -> float:
        """Seconds of moving a tensor, and of its gradient's way back."""
        num_bytes = ELEMENT_BYTES * of.num_numbers
        key = (num_bytes, origin, goal)
        if key not in self.kept:
            gradient = _TRANSPOSED.get(goal, goal), _TRANSPOSED.get(origin, origin)
            forwards_s = self._moved_s(origin, goal, num_bytes)
            self.kept[key] = forwards_s + self._moved_s(*gradient, num_bytes)
        seconds = self.kept[key]
        assert isinstance(seconds, float)
        return seconds

    def output_s(self, of: Layout, origin: Place) -> float:
        """The loss takes its input divided by samples or channels; partial sums it cannot."""
        return self.both_ways_s(of, origin, Place.SAMPLES) if origin is Place.SUMS else 0.0

    def _moved_s(self, origin: Place, goal: Place, num_bytes: int) -> float:
        """Seconds of a collective over all devices."""
        if origin is goal or self.num_devices == 1:
            return 0.0
        collective = _COLLECTIVES.get((origin, goal))
        if collective is None:  # one device sends or collects the parts of the others, one by one
            others = self.num_devices - 1
            share_bytes = num_bytes / self.num_devices
            outermost = self.fabric.levels[-1]
            return others * (outermost.latency_s + share_bytes / outermost.bandwidth_bytes_per_s)
        return min(float(seconds(num_bytes)) for seconds in self._algorithms[collective])

    @cached_property
    def _algorithms(self) -> dict[Collective, list[MessageTime]]:
        """Seconds by the size of the message, of each algorithm of a collective."""
        found: dict[Collective, list[MessageTime]] = {}
        for collective in set(_COLLECTIVES.values()):
            names = [name for name in collectives.names(collective) if name in _UNAIDED]
            found[collective] = [
                collectives.message_time(name, self.fabric, op=collective) for name in names
            ]
        return found

    # ------------------------------------------------------------ memory

    def memory_bytes(self, outputs: tuple[Term, ...]) -> float:
        """Bytes of the fullest GPU: weights with their optimizer's state, and activations.

        What is whole lies on the first GPU, which therefore is the fullest.
        """
        held = 0.0
        for one in _read(outputs):
            if is_weight(one):
                held += STATE_BYTES / ELEMENT_BYTES * _part_bytes(one)
        return held + sum(_part_bytes(one) for one in operators(outputs))


def _part_bytes(of: Term) -> float:
    """Bytes of a tensor on one device that has a part of it."""
    sizes, parts, _ = layout(of)
    return ELEMENT_BYTES * prod(sizes) / prod(parts)


def operators(outputs: tuple[Term, ...]) -> list[Term]:
    """Terms that are computed in each step."""
    moved = LEAVES | PARALLEL
    return [one for one in terms_of(outputs) if one.op not in moved and not is_weight(one)]


def _read(outputs: tuple[Term, ...]) -> set[Term]:
    """Weights and moved tensors that some operator reads, each once."""
    args = {arg for one in operators(outputs) for arg in one.args}
    return {arg for arg in args if arg.op in PARALLEL or is_weight(arg)}
