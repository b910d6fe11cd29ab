"""Lookups drawn as often as Meta counted them, and how many of them a cache of rows serves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.kit.compiled import njit
from labkit.kit.describe import Count, checked
from labkit.kit.randomness import Rng

FILE = "embedding_bag/2021/locality_stats.txt"
"""Of ``dlrm-locality``: histograms of a dozen batches."""


def uses_of_rows(bins: pd.DataFrame, num_lookups: int) -> np.ndarray:
    """The uses of each row, hottest first, of a batch with so many lookups and the same reuse.

    A bin's rows share its lookups: as many rows as its two shares say where both are printed with
    two digits, else rows in the middle of the bin (on a logarithmic scale).
    """
    counts: list[int] = []
    columns = ["above", "up_to", "rows_share", "lookups_share", "num_lookups", "num_rows"]
    for numbers in bins[columns].to_numpy(dtype=float).tolist():
        above, up_to, rows_share, lookups_share, whole_lookups, whole_rows = numbers
        lookups = lookups_share * num_lookups
        if lookups < 1:
            continue
        mean_uses = (above * up_to) ** 0.5
        if rows_share >= 0.01:
            mean_uses = lookups_share * whole_lookups / (rows_share * whole_rows)
        mean_uses = min(max(mean_uses, above, 1), up_to)
        rows = max(round(lookups / mean_uses), 1)
        counts += np.diff(np.linspace(0, lookups, rows + 1).round()).astype(int).tolist()
    return np.sort(np.array(counts))[::-1]


@checked
def draw_lookups(bins: pd.DataFrame, num_lookups: Count, rng: Rng = 0) -> np.ndarray:
    """Draw a stream of lookups with the measured reuse, in random order.

    Args:
        bins: of one batch, from :func:`labkit.datasets.locality.read_reuse`.
        num_lookups: about how many.
        rng: of their order.

    Returns:
        Rows, numbered from the hottest.
    """
    uses = uses_of_rows(bins, num_lookups)
    lookups = np.repeat(np.arange(len(uses)), uses)
    return np.random.default_rng(rng).permutation(lookups)


def best_hits(lookups: np.ndarray, room: int) -> float:
    """Share that a cache serves which holds the hottest rows from the start (the bound)."""
    uses = np.sort(np.bincount(lookups))[::-1]
    return float(uses[:room].sum() / len(lookups))


def recency_hits(lookups: np.ndarray, room: int) -> float:
    """Share that a cache serves which drops the row that was not used for longest."""
    return float(_recency_hits(lookups.astype(np.int64), int(lookups.max()) + 1, room))


@njit(cache=True)
def _recency_hits(lookups, num_rows, room):  # type: ignore[no-untyped-def]
    """Rows in the cache are a list from the latest used to the earliest, linked both ways."""
    newer = np.full(num_rows + 1, -1, np.int64)
    older = np.full(num_rows + 1, -1, np.int64)
    held = np.zeros(num_rows, np.bool_)
    ends = num_rows  # one more place: its `older` is the latest row, its `newer` the earliest
    newer[ends] = ends
    older[ends] = ends
    num_held = 0
    hits = 0
    for row in lookups:
        if held[row]:
            # 1. A hit: take the row out of the list.
            hits += 1
            older[newer[row]] = older[row]
            newer[older[row]] = newer[row]
        else:
            # 2. A miss: where the cache is full, drop the earliest row.
            if num_held == room:
                last = newer[ends]
                newer[ends] = newer[last]
                older[newer[last]] = ends
                held[last] = False
            else:
                num_held += 1
            held[row] = True
        # 3. Put the row in front.
        first = older[ends]
        older[ends] = row
        newer[row] = ends
        older[row] = first
        newer[first] = row
    return hits / len(lookups)
