"""How often rows are looked up, as Meta counted it, and how much a cache of rows serves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.errors import BadFile
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, checked
from labkit.kit.randomness import Rng

FILE = "embedding_bag/2021/locality_stats.txt"
"""Of ``dlrm-locality``: histograms of a dozen batches."""
MOST_USES = 65536
"""Where the last, open bin ends: as often as there are samples in the batch."""


def read_reuse(path: Path) -> pd.DataFrame:
    """Read the histograms: for each batch, how many rows are looked up how often.

    Args:
        path: the published text, or a table of the same columns (what stands in for it).

    Returns:
        A row a bin: ``batch``, ``above`` and ``up_to`` (uses of a row), ``rows_share`` of the rows
        that are used at all, ``lookups_share``, and the batch's ``num_lookups`` and ``num_rows``.

    Raises:
        BadFile: the text has no histogram.
    """
    if path.suffix == ".csv":
        return pd.read_csv(path, comment="#")
    text = path.read_text(encoding="utf-8")
    rows = []
    for batch, part in enumerate(re.split(r"\n(?=\S+\.pt\n)", text.strip())):
        counts = [int(number) for number in re.findall(r"^Avg # of .*: (\d+)$", part, re.M)]
        bins = re.findall(r"^\((\d+)(?:, (\d+)\]|\+): ([\d.]+)$", part, re.M)
        if len(counts) != 2 or not bins or len(bins) % 2:
            raise BadFile(
                path,
                f"batch {batch} has no two histograms of as many bins",
                valid="dlrm-locality's text",
            )
        half = len(bins) // 2
        for (above, up_to, share), (_, _, lookups) in zip(bins[:half], bins[half:], strict=True):
            rows.append(
                {
                    "batch": batch,
                    "above": int(above),
                    "up_to": int(up_to or MOST_USES),
                    "rows_share": float(share),
                    "lookups_share": float(lookups),
                    "num_lookups": counts[0],
                    "num_rows": counts[1],
                }
            )
    return pd.DataFrame(rows)


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
        bins: of one batch, from :func:`read_reuse`.
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
