"""What is made of all results together: each paper's runs, and every claim, as tables.

A row of ``results/<key>/runs.parquet`` is a run, a column without a dot a parameter; the others are

- ``run.slug``, ``run.started``, ``run.duration_s``, and ``run.version``, which changes with
  everything a result rests on but its parameters: only runs of one version compare;
  ``run.standin`` whether it rests on stand-in data;
- ``claim.ID`` and ``verdict.ID``: our value (as JSON where it is no single number) and the verdict;
- ``metric.NAME``: numbers the notebook recorded (``paper.record``) or shared (``paper.shared``).

A row of the ledger, ``results/claims.parquet``, is a claim of a run. All follow from the result
folders alone and are written anew when those have changed since, also by hand or by a run that was
killed before it came to this.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.workbook.review import claims
from labkit.workbook.review.verdicts import are_numbers, is_finite
from labkit.workbook.run import results

if TYPE_CHECKING:
    import pandas as pd

TABLE = "runs.parquet"
PAGE = "sweep.html"
NOTE = ".stamp"
_STAMP = b"labkit.results"


def refresh(root: Path, *writers: Callable[[Path], Path]) -> list[Path]:
    """Call each of ``writers`` if the results are not those it was last called for.

    Returns the paths they wrote, nothing when all was current. One process at a time: of two runs
    that end together, the later one sees the results of both.
    """
    from filelock import FileLock

    folder = results.results_folder(root)
    if _is_current(folder, results.stamp(results.records(root))):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".ledger"):
        # Before the writers read: what ends meanwhile makes it out of date.
        stamp = results.stamp(results.records(root))
        if _is_current(folder, stamp):
            return []
        for half in folder.glob(".*.tmp"):  # of a run that was killed while it wrote here
            if half.is_file():
                half.unlink()
        for damaged in _altered(folder, _note(folder)):  # a writer may keep what it finds
            damaged.unlink(missing_ok=True)
        written = [writer(root) for writer in writers]
        digests = {path.relative_to(folder).as_posix(): _digest(path) for path in written}
        files.write_atomically(folder / NOTE, json.dumps({"stamp": stamp, "files": digests}))
    return written


def _is_current(folder: Path, stamp: str) -> bool:
    """Whether the note of the last call has this ``stamp``, and what was written is still there."""
    known = _note(folder)
    return known.get("stamp") == stamp and not _altered(folder, known)


def _note(folder: Path) -> dict[str, Any]:
    """The note of the last call; empty where there is none that can be read."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_whole = isinstance(note, dict) and isinstance(note.get("files"), dict)
    return note if is_whole else {}


def _altered(folder: Path, note: Mapping[str, Any]) -> list[Path]:
    """The files of a ``note`` that are missing, cut short or altered since."""
    written = {folder / name: digest for name, digest in note.get("files", {}).items()}
    return [path for path, digest in written.items() if _digest(path) != digest]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _single_number(value: Any) -> float | None:
    """A number that a column of numbers can hold; None for anything else."""
    is_number = are_numbers(value) and not isinstance(value, list) and is_finite(value)
    return float(value) if is_number else None


def _json(value: Any) -> str:
    return _text(json.dumps(value, ensure_ascii=False, sort_keys=True))


def _text(value: str) -> str:
    return files.encoded(value).decode()


# ---------------------------------------------------------------- a paper's runs


def path_of(root: Path, key: str) -> Path:
    return results.results_folder(root) / key / TABLE


def keys(root: Path) -> list[str]:
    """The papers that have results, also those whose notebook is gone."""
    return list(dict.fromkeys(folder.parent.name for folder in results.folders(root)))


def write(root: Path, key: str) -> bool:
    """Bring a paper's table up to date; whether it was not."""
    import pyarrow
    from pyarrow import parquet

    path = path_of(root, key)
    stamp = results.stamp(results.records(root, key)).encode()
    if _stamp_of(path) == stamp:
        return False
    rows = map(row, results.records(root, key))
    table = pyarrow.Table.from_pandas(frame(rows), preserve_index=False)
    buffer = io.BytesIO()
    metadata = {**(table.schema.metadata or {}), _STAMP: stamp}
    parquet.write_table(table.replace_schema_metadata(metadata), buffer)
    files.write_atomically(path, buffer.getvalue())
    return True


def _stamp_of(path: Path) -> bytes | None:
    """The stamp of the results that a table was written from; None where it cannot be read."""
    import pyarrow
    from pyarrow import parquet

    try:
        return (parquet.read_schema(path).metadata or {}).get(_STAMP)
    except (OSError, pyarrow.ArrowException):
        return None


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The table of ``rows``, by paper and in order of the parameters."""
    import pandas as pd

    rows = list(rows)
    names = [*dict.fromkeys(name for each in rows for name in each)]
    own = [n for n in names if "." not in n]
    rest = [n for kind in ("run.", "claim.", "metric.") for n in names if n.startswith(kind)]
    order = [p for n in rest for p in (n, n.replace("claim.", "verdict.")) if p in names]
    columns = {}
    for name in dict.fromkeys([*own, *order]):
        columns[name] = _column([each.get(name) for each in rows])
    table = pd.DataFrame(columns)
    by = [name for name in ("run.paper", *own, "run.slug") if name in columns]
    return table.sort_values(by, ignore_index=True) if by else table


def row(record: results.RunRecord) -> dict[str, Any]:
    """A run by the table's columns."""
    parts = {n: v for n, v in record.meta.get("fingerprint_parts", {}).items() if n != "parameters"}
    version = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    judged: dict[str, Any] = {}
    for claim in record.claims:
        name = claim["id"]
        judged |= {f"claim.{name}": claim["our_value"], f"verdict.{name}": claim["verdict"]}
    return {
        **record.parameters,
        "run.slug": record.slug,
        "run.started": record.meta.get("started", ""),
        "run.duration_s": record.meta.get("duration_s"),
        "run.version": version,
        "run.standin": any(d["standin"] for d in record.meta.get("datasets", {}).values()),
        **judged,
        **{f"metric.{name}": value for name, value in record.meta.get("metrics", {}).items()},
    }


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind, as a column of a file must be: numbers, truths, or texts.

    Whole numbers that 64 bits cannot hold are kept as texts, every digit of them.
    """
    known = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in known):
        return [None if value is None else _text(value) for value in values]
    if all(isinstance(value, bool) for value in known) or all(map(_fits_a_column, known)):
        return values
    return [None if v is None else _json(v) for v in values]


def _fits_a_column(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, float)


def swept(table: pd.DataFrame) -> list[str]:
    """The parameters that runs differ in, those with most values first."""
    counts = {n: table[n].nunique(dropna=False) for n in table.columns if "." not in str(n)}
    return sorted((n for n, count in counts.items() if count > 1), key=lambda n: -counts[n])


# ---------------------------------------------------------------- the ledger of claims

_TEXT = [
    "paper",
    "slug",
    "parameters",
    "id",
    "kind",
    "statement",
    "unit",
    "source",
    "judge",
    "tolerance",
    "dataset",
    "verdict",
    "paper_value",
    "our_value",
    "flip",
    "flip_value",
    "flip_verdict",
]
_NUMBERS = ["paper_number", "our_number", "ratio", "fitted"]
_TYPES = (
    dict.fromkeys(_TEXT, "str")
    | {"verified": "bool", "can_fail": "boolean"}
    | dict.fromkeys(_NUMBERS, "float64")
)


def ledger_path(root: Path) -> Path:
    return results.results_folder(root) / "claims.parquet"


def write_ledger(root: Path) -> Path:
    """Write every claim of every result."""
    content = ledger(results.records(root), root).to_parquet(index=False)
    files.write_atomically(ledger_path(root), content)
    return ledger_path(root)


def ledger(records: Iterable[Any], root: Path) -> pd.DataFrame:
    """Every claim of every run (``results.RunRecord``), one row each, sorted.

    Claims of the paper's file that a run never showed are listed as not attempted. Values may be
    numbers, names or lists, so ``paper_value``, ``our_value``, ``tolerance`` and ``parameters``
    are JSON texts; ``paper_number`` and ``our_number`` hold the single numbers (NaN elsewhere).
    """
    import pandas as pd

    rows = [row for record in records for row in _ledger_rows(record, root)]
    frame = pd.DataFrame(rows, columns=list(_TYPES))
    return frame.astype(_TYPES).sort_values(["paper", "slug", "id"], ignore_index=True)


def _ledger_rows(run: Any, root: Path) -> Iterator[dict[str, Any]]:
    shown = {(record["paper"], record["id"]): record for record in run.claims}
    if claims.path_of(root, run.key).is_file():
        for claim in claims.load(root, run.key):
            shown.setdefault((run.key, claim.id), claims.record_of(run.key, claim))
    values = ("tolerance", "paper_value", "our_value", "flip_value")
    for record in shown.values():
        own = {name: record[name] for name in record if name in _TYPES}
        yield {
            **{n: _text(v) if isinstance(v, str) else v for n, v in own.items()},
            **{name: _json(record.get(name)) for name in values},
            "slug": run.slug,
            "parameters": _json(dict(run.parameters)),
            "paper_number": _single_number(record["paper_value"]),
            "our_number": _single_number(record["our_value"]),
        }
