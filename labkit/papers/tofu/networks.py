"""Wide ResNet-152 and a stacked LSTM, as tensors and operators of a step of training.

Shapes are those of the scripts in a public fork of the authors' system
(github.com/Zhaojp-Frank/mxnet, ``tofu_gpu_tests``): no normalisation, all widths times the same
factor. What repeats shares its cuts: the units of a stage, the layers of the LSTM, and its steps.
Kernels and places of images are not cut, as in that fork, which looks at a tensor's first two
dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.papers.tofu.cuts import Network

NUMBER_BYTES = 4
"""Of a weight or an activation in single precision."""
STATES = 3
"""What is kept of a weight: itself, its gradient, and a buffer as large (momentum)."""
UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Units of the four stages, by the number of layers."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer as operator placement sees it.

    Attributes:
        kept_bytes: of its weights and outputs.
        flops: of its three passes.
    """

    kept_bytes: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network, its layers one by one, and what alternatives need to know.

    Attributes:
        name: of it.
        network: to be cut.
        layers: in order.
        steps: that one layer runs one after another; 1 where there is no recurrence.
        weight_bytes: of all weights.
        samples: of a step of training.
    """

    name: str
    network: Network
    layers: Sequence[Layer]
    steps: int
    weight_bytes: float
    samples: int


class _Writer:
    """Adds convolutions and dense layers, and remembers what each keeps and computes."""

    def __init__(self, name: str, samples: int) -> None:
        self.network = Network(name)
        self.samples = samples
        self.layers: list[Layer] = []
        self.weight_bytes = 0.0

    def activation(self, name: str, channels: int, places: int, copies: int) -> str:
        num_bytes = NUMBER_BYTES * self.samples * channels * places
        return self.network.tensor(
            name,
            (self.samples, channels),
            num_bytes,
            copies=copies,
            kept_bytes=copies * num_bytes,
        )

    def layer(self, data: str, name: str, made: str, kernel: int, places: int, copies: int) -> None:
        """Add a layer that occurs so often, from one tensor to another that are both there."""
        tensors = self.network.tensors
        _, reads = tensors[data].sizes
        _, makes = tensors[made].sizes
        num_bytes = NUMBER_BYTES * reads * makes * kernel
        kept_bytes = STATES * copies * num_bytes
        weight = self.network.tensor(
            name, (makes, reads), num_bytes, copies=copies, kept_bytes=kept_bytes
        )
        flops = 2.0 * self.samples * places * reads * makes * kernel
        self.network.dense(data, weight, made, times=copies, flops=copies * flops)
        self.weight_bytes += copies * num_bytes
        kept = STATES * num_bytes + tensors[made].num_bytes
        self.layers += [Layer(kept_bytes=kept, flops=3 * flops)] * copies


def wide_resnet(depth: int = 152, *, width: int = 10, images: int = 16) -> Model:
    """A residual network with all widths times a factor, on images of 224 × 224."""
    writer = _Writer(f"WResNet-{depth}-{width}", images)
    network = writer.network
    channels = 64 * width
    writer.activation("images", 3, 224 * 224, 1)
    last = writer.activation("stem", channels, 112 * 112, 1)
    writer.layer("images", "w stem", last, 49, 112 * 112, 1)
    for stage, units in enumerate(UNITS[depth]):
        side = 56 // 2**stage
        inner = 64 * width * 2**stage
        first = f"stage {stage + 1}"
        last = _unit(writer, first, last, inner, side, copies=1, last=None)
        if units > 1:
            _unit(writer, f"{first} rest", last, inner, side, copies=units - 1, last=last)
    classes = writer.activation("classes", 1000, 1, 1)
    writer.layer(last, "w classes", classes, 1, 1, 1)
    return Model(
        name=network.name,
        network=network,
        layers=writer.layers,
        steps=1,
        weight_bytes=writer.weight_bytes,
        samples=images,
    )


def _unit(
    writer: _Writer, name: str, data: str, inner: int, side: int, *, copies: int, last: str | None
) -> str:
    """Three convolutions and a sum; the first unit of a stage has one more, on its short way.

    Args:
        last: the output, where repeated units share it with their input.
    """
    places = side * side
    reduced = writer.activation(f"{name} a", inner, places, copies)
    middle = writer.activation(f"{name} b", inner, places, copies)
    widened = writer.activation(f"{name} c", 4 * inner, places, copies)
    writer.layer(data, f"w {name} a", reduced, 1, places, copies)
    writer.layer(reduced, f"w {name} b", middle, 9, places, copies)
    writer.layer(middle, f"w {name} c", widened, 1, places, copies)
    if last is None:
        short = writer.activation(f"{name} short", 4 * inner, places, copies)
        writer.layer(data, f"w {name} short", short, 1, places, copies)
        last = writer.activation(f"{name} out", 4 * inner, places, copies)
        writer.network.add(widened, short, last, times=copies)
        return last
    # What a unit makes is what the next one reads: handed on number by number, for nothing where
    # both are cut alike.
    carried = writer.activation(f"{name} sum", 4 * inner, places, copies)
    writer.network.add(widened, last, carried, times=copies)
    writer.network.each(carried, last, times=copies)
    return last


def lstm(layers: int = 10, *, hidden: int = 8192, sequences: int = 256, steps: int = 20) -> Model:
    """A stack of LSTM layers over 512 inputs, unrolled over its steps; 512 classes at each."""
    writer = _Writer(f"RNN-{layers}-{hidden // 1024}K", sequences)
    network = writer.network
    inputs = writer.activation("inputs", 512, 1, steps)
    state = writer.activation("states", hidden, 1, layers * steps)
    for name, source, copies in (("first", inputs, 1), ("further", state, layers - 1)):
        if not copies:
            continue
        parts = []
        for word, read in (("below", source), ("before", state)):
            made = writer.activation(f"{name} {word}", 4 * hidden, 1, copies * steps)
            _dense(writer, read, made, copies, steps)
            parts.append(made)
        gates = writer.activation(f"{name} gates", 4 * hidden, 1, copies * steps)
        network.add(parts[0], parts[1], gates, times=copies * steps)
        network.each(gates, state, times=copies * steps)
    classes = writer.activation("classes", 512, 1, steps)
    _dense(writer, state, classes, 1, steps)
    return Model(
        name=network.name,
        network=network,
        layers=writer.layers,
        steps=steps,
        weight_bytes=writer.weight_bytes,
        samples=sequences,
    )


def _dense(writer: _Writer, read: str, made: str, copies: int, steps: int) -> None:
    """Add a product that occurs in so many layers, at each step."""
    network = writer.network
    samples, reads = network.tensors[read].sizes
    _, makes = network.tensors[made].sizes
    num_bytes = float(NUMBER_BYTES * reads * makes)
    weight = network.tensor(
        f"w {made}",
        (makes, reads),
        num_bytes,
        copies=copies,
        kept_bytes=STATES * copies * num_bytes,
    )
    flops = 2.0 * samples * reads * makes
    network.dense(read, weight, made, times=copies * steps, flops=copies * steps * flops)
    writer.weight_bytes += copies * num_bytes
    kept = STATES * num_bytes + steps * network.tensors[made].num_bytes
    writer.layers += [Layer(kept_bytes=kept, flops=3 * steps * flops)] * copies


def small_network(rng: np.random.Generator, *, num_layers: int = 3) -> Network:
    """A chain of dense layers with drawn sizes, and sums that skip one where shapes allow it."""
    network = Network("small")
    samples = int(2 ** rng.integers(3, 8))
    widths = [int(2 ** rng.integers(3, 8)) for _ in range(num_layers + 1)]
    widths[-1] = widths[0]

    def activation(name: str, width: int) -> str:
        return network.tensor(name, (samples, width), float(samples * width))

    last = activation("data", widths[0])
    for number, (reads, makes) in enumerate(itertools.pairwise(widths)):
        weight = network.tensor(f"w{number}", (makes, reads), float(makes * reads))
        made = activation(f"made {number}", makes)
        network.dense(last, weight, made)
        last = made
    network.add("data", last, activation("out", widths[0]))
    return network
