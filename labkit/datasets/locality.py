"""Reads ``dlrm-locality``: how often rows of embedding tables are looked up, as Meta counted it."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from labkit.errors import BadFile

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
