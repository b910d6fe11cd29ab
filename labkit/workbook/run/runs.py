"""All runs of a paper as one tidy table, ``results/<key>/runs.parquet``.

A row is a run, a column without a dot a parameter; the others are

- ``run.slug``, ``run.started``, ``run.duration_s``, and ``run.version``, which changes with
  everything a result rests on but its parameters: only runs of one version compare;
  ``run.standin`` whether it rests on stand-in data;
- ``claim.ID`` and ``verdict.ID``: our value (as JSON where it is no single number) and the verdict;
- ``metric.NAME``: numbers the notebook recorded (``paper.record``) or shared (``paper.shared``).

The table follows from the result folders alone and is written anew when they change.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.workbook.review.verdicts import are_numbers
from labkit.workbook.run import results

if TYPE_CHECKING:
    import pandas as pd

TABLE, PAGE = "runs.parquet", "sweep.html"
_STAMP = b"labkit.results"


def path_of(root: Path, key: str) -> Path:
    return results.results_folder(root) / key / TABLE


def keys(root: Path) -> list[str]:
    """The papers that have results, also those whose notebook is gone."""
    return list(dict.fromkeys(folder.parent.name for folder in results.folders(root)))


def of_paper(root: Path, key: str) -> Iterator[results.RunRecord]:
    """The complete results of a paper, read as they are asked for."""
    return filter(None, map(results.read, results.folders(root, key)))


def write(root: Path, key: str) -> bool:
    """Bring a paper's table up to date; whether it was not."""
    import pyarrow
    from pyarrow import parquet

    path = path_of(root, key)
    stamp = results.stamp(of_paper(root, key)).encode()
    if path.is_file() and (parquet.read_schema(path).metadata or {}).get(_STAMP) == stamp:
        return False
    table = pyarrow.Table.from_pandas(frame(map(row, of_paper(root, key))), preserve_index=False)
    buffer = io.BytesIO()
    metadata = {**(table.schema.metadata or {}), _STAMP: stamp}
    parquet.write_table(table.replace_schema_metadata(metadata), buffer)
    files.write_atomically(path, buffer.getvalue())
    return True


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The table of ``rows``, by paper and in order of the parameters."""
    import pandas as pd

    rows = list(rows)
    names = [*dict.fromkeys(name for each in rows for name in each)]
    own = [n for n in names if "." not in n]
    rest = [n for kind in ("run.", "claim.", "metric.") for n in names if n.startswith(kind)]
    order = [p for n in rest for p in (n, n.replace("claim.", "verdict.")) if p in names]
    columns = {n: _column([each.get(n) for each in rows]) for n in dict.fromkeys([*own, *order])}
    table = pd.DataFrame(columns)
    by = [name for name in ("run.paper", *own, "run.slug") if name in columns]
    return table.sort_values(by, ignore_index=True) if by else table


def row(record: results.RunRecord) -> dict[str, Any]:
    """A run by the table's columns."""
    parts = {n: v for n, v in record.meta.get("fingerprint_parts", {}).items() if n != "parameters"}
    version = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    claims: dict[str, Any] = {}
    for claim in record.claims:
        name = claim["id"]
        claims |= {f"claim.{name}": claim["our_value"], f"verdict.{name}": claim["verdict"]}
    return {
        **record.parameters,
        "run.slug": record.slug,
        "run.started": record.meta.get("started", ""),
        "run.duration_s": record.meta.get("duration_s"),
        "run.version": version,
        "run.standin": any(d["standin"] for d in record.meta.get("datasets", {}).values()),
        **claims,
        **{f"metric.{name}": value for name, value in record.meta.get("metrics", {}).items()},
    }


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind, as a column of a file must be: numbers, truths, or texts."""
    known = [value for value in values if value is not None]
    of_a_kind = any(all(isinstance(v, kind) for v in known) for kind in (bool, str))
    if of_a_kind or all(are_numbers(v) and not isinstance(v, list) for v in known):
        return values
    return [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]


def swept(table: pd.DataFrame) -> list[str]:
    """The parameters that runs differ in, those with most values first."""
    counts = {n: table[n].nunique(dropna=False) for n in table.columns if "." not in str(n)}
    return sorted((n for n, count in counts.items() if count > 1), key=lambda n: -counts[n])
