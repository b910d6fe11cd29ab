"""Synthetic sparse clicks: few common and many rare features, and few of them matter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Share, checked
from labkit.kit.randomness import Rng

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clicks:
    """Examples in rows, features in columns, and whether each was clicked.

    Two of them are equal only if they are the same object, so that cuts of them can be cached.

    Args:
        rows: examples × features, 0 or 1.
        clicked: 1 or -1, one an example.
    """

    rows: sparse.csr_matrix
    clicked: Vector

    @property
    def features(self) -> int:
        return int(self.rows.shape[1])

    @property
    def examples(self) -> int:
        return int(self.rows.shape[0])

    @cached_property
    def columns(self) -> sparse.csc_matrix:
        return self.rows.tocsc()

    def blocks(self, number: int) -> list[NDArray[np.int64]]:
        """Cut the features into ranges of keys, whose lengths differ by one at most."""
        return list(np.array_split(np.arange(self.features), number))

    def shards(self, workers: int) -> list[NDArray[np.int64]]:
        """Cut the examples into as many ranges as there are workers."""
        return list(np.array_split(np.arange(self.examples), workers))


@lru_cache(maxsize=8)
def cut_columns(clicks: Clicks, blocks: int) -> tuple[sparse.csr_matrix, ...]:
    """The columns of each block, as examples × features."""
    cuts = clicks.blocks(blocks)
    return tuple(clicks.columns[:, block[0] : block[-1] + 1].tocsr() for block in cuts)


@lru_cache(maxsize=8)
def count_entries(clicks: Clicks, blocks: int, workers: int) -> Vector:
    """Nonzero entries, blocks × workers."""
    shards = clicks.shards(workers)
    parts = cut_columns(clicks, blocks)
    return np.array([[part[rows[0] : rows[-1] + 1].nnz for rows in shards] for part in parts])


@lru_cache(maxsize=8)
def find_keys(
    clicks: Clicks, blocks: int, workers: int
) -> tuple[tuple[NDArray[np.int64], ...], tuple[NDArray[np.int64], ...]]:
    """For each block the keys that each worker has, one worker after the other, and where each
    worker's begin."""
    shards = clicks.shards(workers)
    keys = []
    borders = []
    for part in cut_columns(clicks, blocks):
        found = [np.unique(part[rows[0] : rows[-1] + 1].indices) for rows in shards]
        keys.append(np.concatenate(found).astype(np.int64))
        borders.append(np.cumsum([0, *map(len, found)]))
    return tuple(keys), tuple(borders)


@checked
def draw_clicks(
    *,
    examples: Count = 8_192,
    features: Count = 32_768,
    per_example: Count = 30,
    exponent: Positive = 1.0,
    mattering: Share = 0.02,
    rng: Rng = 0,
) -> Clicks:
    """Draw examples whose features are as common as Zipf's law says.

    A share of the features has a weight in the model that draws the clicks; all others are noise.

    Args:
        examples: how many.
        features: how many there are; keys are shuffled, as hashing would.
        per_example: features drawn for an example; one drawn twice counts once.
        exponent: of Zipf's law.
        mattering: the share of features with a weight, of the thousand commonest and of the rest.
        rng: of everything.

    Raises:
        BadValue: an example would have more features than there are.
    """
    if per_example > features:
        raise BadValue(f"draw_clicks: per_example is {per_example}; features is {features}")
    generator = np.random.default_rng(rng)
    common = np.arange(1, features + 1) ** -float(exponent)
    ends = np.cumsum(common / common.sum())
    drawn = np.searchsorted(ends, generator.random((examples, per_example)))
    keys = generator.permutation(features)[np.minimum(drawn, features - 1)]
    starts = np.repeat(np.arange(examples), per_example)
    ones = np.ones(keys.size)
    rows = sparse.csr_matrix((ones, (starts, keys.ravel())), shape=(examples, features))
    rows.data[:] = 1.0

    weights = generator.standard_normal(features) * 1.5
    weights[generator.random(features) >= mattering] = 0.0
    # The commonest twenty always matter, or clicks would be noise alone.
    commonest = np.argsort(-np.asarray(rows.sum(0)).ravel(), kind="stable")[:20]
    weights[commonest] = generator.standard_normal(20)
    chances = 1 / (1 + np.exp(-(rows @ weights - 1.0)))
    clicked = np.where(generator.random(examples) < chances, 1.0, -1.0)
    return Clicks(rows, clicked)
