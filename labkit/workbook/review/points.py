"""The paper's own points, from a table beside its claims: what figures draw next to ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import BadFile, UsageError, did_you_mean
from labkit.kit import tables

if TYPE_CHECKING:
    import pandas as pd


def load(root: Path, key: str, name: str = "points") -> pd.DataFrame:
    """``data/papers/<key>/<name>.csv``, as :meth:`labkit.workbook.Paper.points` says."""
    folder = root / "data" / "papers" / key
    path = folder / f"{name.removesuffix('.csv')}.csv"
    there = sorted(file.stem for file in folder.glob("*.csv"))
    if path.parent != folder or path.stem not in there:
        hint = did_you_mean(path.stem, there) if there else "it holds no table yet"
        raise UsageError(f"no {name!r} among the tables of data/papers/{key}: {hint}")
    table = tables.typed(path)
    if table.empty:
        raise BadFile(path, "no point in it", valid="a row a point")
    return table.reset_index(drop=True)
