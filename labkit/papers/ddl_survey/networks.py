"""AlexNet's layers with the survey's work and depth.

Source: Krizhevsky et al., NIPS 2012, §3.5: two towers, which meet at the third convolution and in
the dense layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

_CONVOLUTIONS = (
    # name, inputs a tower sees, outputs, size of the filter, side of the output
    ("conv1", 3, 96, 11, 55),
    ("conv2", 48, 256, 5, 27),
    ("conv3", 256, 384, 3, 13),
    ("conv4", 192, 384, 3, 13),
    ("conv5", 192, 256, 3, 13),
)
_DENSE = (("fc6", 9216, 4096), ("fc7", 4096, 4096), ("fc8", 4096, 1000))
_SPLIT = {"conv2": 2, "conv4": 2, "conv5": 2}
"""Layers whose filters see one of two towers."""
_POOLS = {"conv1": 27, "conv2": 13, "conv5": 6}
"""Layers that a pooling of 3 × 3 follows, and the side of what it leaves."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer on one image: its work, depth, weights, and the numbers that it reads and writes.

    Attributes:
        work: multiply-adds; of pooling and ReLU, one for each number read.
        depth: operations on the longest chain.
        weights: parameters, biases among them.
        moved: numbers read and written, weights among them.
    """

    name: str
    work: int
    depth: int
    weights: int
    moved: int

    @property
    def parallelism(self) -> float:
        """The average parallelism W/D: operations that could run at once."""
        return self.work / self.depth


def alexnet(*, towers: bool = True) -> list[Layer]:
    """AlexNet's layers in order, on one image of 227 × 227.

    Args:
        towers: Krizhevsky's two, as the paper of AlexNet has them; else every filter sees all
            channels.
    """
    layers = []
    read = 3 * 227 * 227
    for name, inputs, outputs, size, side in _CONVOLUTIONS:
        seen = inputs if towers else inputs * _SPLIT.get(name, 1)
        weights = outputs * (seen * size * size + 1)
        written = outputs * side * side
        layers.append(
            Layer(
                name=name,
                work=written * seen * size * size,
                depth=1 + ceil(log2(seen)) + 2 * ceil(log2(size)),
                weights=weights,
                moved=read + weights + written,
            )
        )
        layers.append(
            Layer(name=f"{name} ReLU", work=written, depth=1, weights=0, moved=2 * written)
        )
        read = written
        if name in _POOLS:
            left = outputs * _POOLS[name] ** 2
            layers.append(
                Layer(name=f"{name} pool", work=9 * left, depth=4, weights=0, moved=read + left)
            )
            read = left
    for name, inputs, outputs in _DENSE:
        weights = outputs * (inputs + 1)
        depth = 1 + ceil(log2(inputs))
        moved = inputs + weights + outputs
        layers.append(
            Layer(name=name, work=inputs * outputs, depth=depth, weights=weights, moved=moved)
        )
    return layers


def alexnet_weights(layers: list[Layer]) -> int:
    """Parameters of all layers.

    >>> alexnet_weights(alexnet())
    60965224
    """
    return sum(layer.weights for layer in layers)
