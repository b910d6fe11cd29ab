"""A network cut over machines: operations of each, bytes that cross borders, and the speed-up.

A step computes layer by layer; before each layer but the first a machine fetches the outputs below
that it needs and lacks, and in the backward pass it sends as many gradients back. Machines compute
and send in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Literal

import numpy as np
from scipy import special

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, Whole, checked, description

Connection = Literal["full", "local", "neighbours"]
_VALUE_BYTES = 4


@description
class Layer:
    """Describes a layer.

    Args:
        weights: of the layer; no weight is shared, so a sample takes two operations for each.
        inputs: numbers of a sample that the layer reads.
        side: of the square plane that it reads; 0 where it reads a vector.
        field: side of the square that a unit reads; 0 where it reads everything.
    """

    weights: Count
    inputs: Count
    side: Whole = 0
    field: Whole = 0


@description
class Machine:
    """Describes one of the machines.

    Args:
        flops_per_s: of all its cores together.
        link_bytes_per_s: into it, and out of it.
        message_s: that a message takes beside its bytes.
        spread: sigma of the lognormal factor, of mean 1, on each layer's computing; each phase
            waits for the slowest machine.
    """

    flops_per_s: Positive = 1.6e11
    link_bytes_per_s: Positive = 1.25e8
    message_s: NonNegative = 1e-4
    spread: NonNegative = 0.0


def _dense(inputs: int, outputs: int) -> Layer:
    return Layer(weights=inputs * outputs, inputs=inputs)


def _filters(side: int, maps_below: int, maps: int = 36, field: int = 10) -> Layer:
    positions = (side - field + 1) ** 2
    weights = positions * maps * field**2 * maps_below
    return Layer(weights=weights, inputs=side**2 * maps_below, side=side, field=field)


SPEECH: tuple[Layer, ...] = (
    _dense(440, 2_560),
    _dense(2_560, 2_560),
    _dense(2_560, 2_560),
    _dense(2_560, 2_560),
    _dense(2_560, 8_192),
)
"""The speech network, fully connected: 11 frames of 40 values, 8,192 states (§5)."""

IMAGE: tuple[Layer, ...] = (
    _filters(100, 3),
    _filters(91, 36),
    _filters(82, 36),
    _dense(8 * 8 * 36, 21_000),
)
"""A network of 1.7 billion weights: windows of 10 × 10 on images of 100 × 100, 36 units a window,
21,000 classes (§5). That nothing shrinks between filters, and the last pooling to 8 × 8, are ours.
"""


@checked
def received_bytes(
    layer: Layer, machines: Count, connection: Connection = "full", *, batch: Count = 128
) -> float:
    """Bytes of the layer's input that a machine lacks, per pass.

    Args:
        layer: that reads them.
        machines: over which units are cut evenly.
        connection: "full": all inputs; "local": a square of the plane and half a window around it;
            "neighbours": what the machines on both sides have.
        batch: samples.

    Raises:
        BadValue: a plane is cut over a number of machines that is no square.
    """
    whole = _VALUE_BYTES * batch * layer.inputs
    lacking = whole * (machines - 1) / machines
    if connection == "full" or (connection == "local" and not layer.side):
        return lacking
    if connection == "neighbours":
        return min(lacking, whole * 2 / machines)
    cuts = isqrt(machines)
    if cuts**2 != machines:
        raise BadValue(
            f"received_bytes: machines is {machines}; a plane is cut into a square number"
        )
    tile = layer.side / cuts
    wide = min(layer.side, tile + layer.field - 1)
    return whole * (wide**2 - tile**2) / layer.side**2


def _slowest(machines: int, spread: float) -> float:
    """The expected factor of the slowest machine (Blom's approximation)."""
    if machines == 1:
        return 1.0
    place = special.ndtri((machines - 0.375) / (machines + 0.25))
    return float(np.exp(spread * place - spread**2 / 2))


@checked
def step_s(
    network: Sequence[Layer],
    machines: Count,
    connection: Connection = "full",
    *,
    machine: Machine,
    batch: Count = 128,
) -> float:
    """Seconds of a training step on one replica that is cut over machines.

    Args:
        network: its layers.
        machines: over which each layer is cut.
        connection: what a machine needs of the layer below, see :func:`received_bytes`.
        machine: the rates.
        batch: samples of the step.
    """
    operations = sum(6 * layer.weights * batch for layer in network)
    slowest = _slowest(machines, machine.spread)
    seconds = slowest * operations / (machines * machine.flops_per_s)
    if machines == 1:
        return seconds
    for layer in network[1:]:
        few = connection == "neighbours" or (connection == "local" and layer.side > 0)
        messages = min(machines - 1, 2 if connection == "neighbours" else 8)
        if not few:
            messages = machines - 1
        size = received_bytes(layer, machines, connection, batch=batch)
        seconds += 2 * (size / machine.link_bytes_per_s + messages * machine.message_s)
    return seconds


def speedup(
    network: Sequence[Layer],
    machines: int,
    connection: Connection = "full",
    *,
    machine: Machine,
    batch: int = 128,
) -> float:
    """The step's seconds on one machine over those on many."""
    alone_s = step_s(network, 1, machine=machine, batch=batch)
    return alone_s / step_s(network, machines, connection, machine=machine, batch=batch)
