"""A small recommender trained twice: on whole tables, and on pieces of them on many GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from labkit.kit.randomness import Rng
from labkit.papers.neo.sharding import WHOLE, Cut, Table

RATE = 0.5
"""Of learning."""


def slices(table: Table, cut: Cut) -> list[tuple[slice, slice]]:
    """Rows and columns of each piece of a table, in the order of ``sharding.pieces``."""
    block = math.ceil(table.rows / cut.by_rows)
    width = table.columns // cut.by_columns
    found = []
    for row in range(0, table.rows, block):
        for column in range(0, table.columns, width):
            found.append((slice(row, row + block), slice(column, column + width)))
    return found


def train(
    tables: Sequence[Table],
    cuts: Mapping[str, Cut],
    *,
    num_gpus: int = 4,
    steps: int = 5,
    samples: int = 16,
    rng: Rng = 0,
) -> dict[str, np.ndarray]:
    """Train tables whose summed rows, times fixed weights, should give drawn targets.

    1. Each piece sums the rows that it holds of those that a sample looks up, in its columns.
    2. Sums of pieces with the same columns are added up, those of others put side by side.
    3. Each sample's gradient goes back to all pieces; each updates the rows that it holds.
    4. A copied table is on every GPU; each sums the gradient of its own samples, and these sums are
       added up before the update.

    Args:
        tables: with a whole number of ids each.
        cuts: of each table, by name; a table that is not named is whole.
        num_gpus: of which each has as many samples; it matters for copied tables only.
        steps: of plain gradient descent.
        samples: of a step, a multiple of ``num_gpus``.
        rng: of weights, ids and targets; none of them depends on the cuts.

    Returns:
        The whole tables' weights after training, by name.
    """
    random = np.random.default_rng(rng)
    weights = {t.name: random.normal(size=(t.rows, t.columns)) / t.columns for t in tables}
    head = {table.name: random.normal(size=table.columns) for table in tables}
    for _ in range(steps):
        ids = {t.name: random.integers(t.rows, size=(samples, int(t.ids))) for t in tables}
        errors = -random.normal(size=samples)
        for table in tables:
            cut = cuts.get(table.name, WHOLE)
            sums = np.zeros((samples, table.columns))
            for rows, columns in slices(table, cut):
                sums[:, columns] += _piece_sums(weights[table.name], ids[table.name], rows, columns)
            errors += sums @ head[table.name]
        for table in tables:
            cut = cuts.get(table.name, WHOLE)
            gradients = errors[:, None] * head[table.name] / samples
            parts = num_gpus if cut.copied else 1
            for rows, columns in slices(table, cut):
                piece = weights[table.name][rows, columns]
                change = np.zeros_like(piece)
                for part in np.split(np.arange(samples), parts):
                    change += _piece_gradient(
                        piece.shape, ids[table.name][part], gradients[part, columns], rows.start
                    )
                piece -= RATE * change
    return weights


def _piece_sums(weights: np.ndarray, ids: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
    """What a piece adds to each sample's output."""
    held = (ids >= rows.start) & (ids < rows.stop)
    looked_up = weights[:, columns][ids] * held[:, :, None]
    return looked_up.sum(axis=1)


def _piece_gradient(
    shape: tuple[int, ...], ids: np.ndarray, gradients: np.ndarray, first: int
) -> np.ndarray:
    """The gradient of a piece's rows from some samples."""
    change = np.zeros(shape)
    for sample_ids, gradient in zip(ids, gradients, strict=True):
        for row in sample_ids - first:
            if 0 <= row < shape[0]:
                change[row] += gradient
    return change
