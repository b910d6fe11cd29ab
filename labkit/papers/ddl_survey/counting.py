"""Numbers that count what is done with them, and the survey's operators run on them.

A traced number knows its depth: how many operations lie on the longest chain that led to it. All
numbers of a run share a tally of multiplications and additions. Running an operator on such numbers
counts its work and its depth, which the survey gives as formulas.

Source: Ben-Nun and Hoefler, ACM Computing Surveys 52(4), 2019, §2 and §4 (from memory).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2

import numpy as np

OPERATORS = ("dense", "direct convolution", "im2col", "Winograd")
"""Operators that :func:`count_operator` runs."""

TILE = 2
"""Outputs of a Winograd tile along an axis."""

INPUT_TRANSFORM = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
FILTER_TRANSFORM = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
OUTPUT_TRANSFORM = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


@dataclass(slots=True)
class Tally:
    """Operations of a run, counted."""

    multiplications: int = 0
    additions: int = 0


@dataclass(frozen=True, slots=True)
class Traced:
    """A number with the length of the longest chain of operations that led to it.

    >>> tally = Tally()
    >>> a, b = Traced(2.0, tally), Traced(3.0, tally)
    >>> (a * b + a).depth, tally.multiplications, tally.additions
    (2, 1, 1)
    """

    value: float
    tally: Tally = field(repr=False)
    depth: int = 0

    def __add__(self, other: Traced) -> Traced:
        self.tally.additions += 1
        depth = 1 + max(self.depth, other.depth)
        return Traced(self.value + other.value, self.tally, depth)

    def __sub__(self, other: Traced) -> Traced:
        self.tally.additions += 1
        depth = 1 + max(self.depth, other.depth)
        return Traced(self.value - other.value, self.tally, depth)

    def __mul__(self, other: Traced) -> Traced:
        self.tally.multiplications += 1
        depth = 1 + max(self.depth, other.depth)
        return Traced(self.value * other.value, self.tally, depth)


def tree_sum(numbers: Sequence[Traced]) -> Traced:
    """Add numbers in pairs, then the sums in pairs: depth ⌈log₂ n⌉."""
    level = list(numbers)
    while len(level) > 1:
        pairs = [left + right for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def traced(array: np.ndarray, tally: Tally) -> np.ndarray:
    """An array of traced numbers of depth 0."""
    return np.vectorize(lambda value: Traced(float(value), tally), otypes=[object])(array)


def values(array: np.ndarray) -> np.ndarray:
    """The values of traced numbers."""
    return np.vectorize(lambda number: number.value, otypes=[float])(array)


def dense(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A dense layer: images (samples, inputs), weights (outputs, inputs)."""
    rows = [[tree_sum(image * row) for row in weights] for image in images]
    return np.array(rows, dtype=object)


def convolution(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """A convolution without padding, term by term: a tree an axis of the filter.

    Args:
        images: (samples, input channels, height, width).
        filters: (output channels, input channels, size, size).
    """
    size = filters.shape[-1]
    samples, _, height, width = images.shape
    outputs = (samples, len(filters), height - size + 1, width - size + 1)
    result = np.empty(outputs, dtype=object)
    for sample, output, y, x in np.ndindex(outputs):
        window = images[sample, :, y : y + size, x : x + size]
        products = window * filters[output]
        channels = [tree_sum([tree_sum(row) for row in plane]) for plane in products]
        result[sample, output, y, x] = tree_sum(channels)
    return result


def im2col(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """A convolution as one dense layer over windows laid out as rows."""
    size = filters.shape[-1]
    samples, _, height, width = images.shape
    rows = height - size + 1
    columns = width - size + 1
    windows = [
        images[sample, :, y : y + size, x : x + size].ravel()
        for sample, y, x in np.ndindex(samples, rows, columns)
    ]
    flat = dense(np.array(windows, dtype=object), filters.reshape(len(filters), -1))
    return np.moveaxis(flat.reshape(samples, rows, columns, len(filters)), -1, 1)


def combined(matrix: np.ndarray, vector: Sequence[Traced]) -> list[Traced]:
    """A matrix of 0, 1 and -1 times a vector, by additions alone."""
    result = []
    for row in matrix:
        places = np.argsort(row < 0, kind="stable")  # what is added first, then what is taken off
        total: Traced | None = None
        for place in places:
            if row[place] == 0:
                continue
            if total is None:
                total = vector[place]
            elif row[place] > 0:
                total = total + vector[place]
            else:
                total = total - vector[place]
        assert total is not None
        result.append(total)
    return result


def both_axes(matrix: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """The matrix applied to the rows of a tile, then to its columns."""
    half = np.array([combined(matrix, column) for column in tile.T], dtype=object).T
    return np.array([combined(matrix, row) for row in half], dtype=object)


def winograd(images: np.ndarray, filters: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A convolution with filters of 3 × 3 by tiles of 2 × 2 outputs: F(2 × 2, 3 × 3).

    Source: Lavin and Gray, CVPR 2016, §4.1.

    Args:
        images: traced, of even output height and width.
        filters: traced, for their tally alone.
        weights: the filters' values; their transform is made once beforehand, and not counted.
    """
    tally = filters.flat[0].tally
    ready = np.einsum("ai,ocij,bj->ocab", FILTER_TRANSFORM, weights, FILTER_TRANSFORM)
    ready = traced(ready, tally)
    samples, _, height, width = images.shape
    result = np.empty((samples, len(filters), height - 2, width - 2), dtype=object)
    for sample, tile_y, tile_x in np.ndindex(samples, (height - 2) // TILE, (width - 2) // TILE):
        y = TILE * tile_y
        x = TILE * tile_x
        tiles = images[sample, :, y : y + 4, x : x + 4]
        turned = np.array([both_axes(INPUT_TRANSFORM, tile) for tile in tiles], dtype=object)
        for output in range(len(filters)):
            products = turned * ready[output]
            total = np.empty((4, 4), dtype=object)
            for place in np.ndindex(4, 4):
                total[place] = tree_sum(products[(slice(None), *place)])
            result[sample, output, y : y + 2, x : x + 2] = both_axes(OUTPUT_TRANSFORM, total)
    return result


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What an operator did: multiplications, additions, depth, and its error against NumPy's."""

    multiplications: int
    additions: int
    depth: int
    error: float


def count_operator(
    operator: str,
    *,
    samples: int = 2,
    inputs: int = 3,
    outputs: int = 4,
    side: int = 6,
    rng: np.random.Generator,
) -> Counted:
    """Run an operator of :data:`OPERATORS` on traced numbers and count.

    Args:
        samples, inputs, outputs: images, and channels before and after.
        side: height and width of the images; filters have 3 × 3.
        rng: draws images and filters.
    """
    tally = Tally()
    if operator == "dense":
        images = rng.normal(size=(samples, inputs))
        filters = rng.normal(size=(outputs, inputs))
        exact = images @ filters.T
    else:
        images = rng.normal(size=(samples, inputs, side, side))
        filters = rng.normal(size=(outputs, inputs, 3, 3))
        windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
        exact = np.einsum("ncyxij,ocij->noyx", windows, filters)
    traced_images = traced(images, tally)
    traced_filters = traced(filters, tally)
    runs: dict[str, Callable[[], np.ndarray]] = {
        "dense": lambda: dense(traced_images, traced_filters),
        "direct convolution": lambda: convolution(traced_images, traced_filters),
        "im2col": lambda: im2col(traced_images, traced_filters),
        "Winograd": lambda: winograd(traced_images, traced_filters, filters),
    }
    result = runs[operator]()
    return Counted(
        multiplications=tally.multiplications,
        additions=tally.additions,
        depth=max(number.depth for number in result.flat),
        error=float(np.abs(values(result) - exact).max()),
    )


def expected(
    operator: str, *, samples: int = 2, inputs: int = 3, outputs: int = 4, side: int = 6
) -> tuple[int, int]:
    """Multiplications and depth of an operator by formula; sizes as :func:`count_operator`'s.

    Depth counts the multiplication as one step and each level of a tree of additions as one.

    Source: §4's table of operators (from memory); Winograd's by the tiles' transforms.
    """

    def levels(count: int) -> int:
        return ceil(log2(count))

    pixels = samples * (side - 2) ** 2
    if operator == "dense":
        return samples * inputs * outputs, 1 + levels(inputs)
    if operator == "direct convolution":
        return pixels * inputs * outputs * 9, 1 + levels(inputs) + 2 * levels(3)
    if operator == "im2col":
        return pixels * inputs * outputs * 9, 1 + levels(9 * inputs)
    tiles = pixels // TILE**2
    # An input transform adds once along each axis, an output transform twice.
    return tiles * inputs * outputs * 16, 2 + 1 + levels(inputs) + 4
