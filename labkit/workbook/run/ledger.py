"""What is made of all results together: ``results/claims.parquet`` and the scoreboard.

Both follow from the result folders alone, so they are made again whenever those have changed
since, also by hand or by a run that was killed before it came to this.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.workbook.review import claims
from labkit.workbook.review.verdicts import are_numbers
from labkit.workbook.run import results

if TYPE_CHECKING:
    import pandas as pd

NOTE = ".stamp"


def path_of(root: Path) -> Path:
    return results.results_folder(root) / "claims.parquet"


def write(root: Path) -> Path:
    """Write every claim of every result to ``results/claims.parquet``."""
    buffer = io.BytesIO()
    frame(results.records(root), root).to_parquet(buffer, index=False)
    files.write_atomically(path_of(root), buffer.getvalue())
    return path_of(root)


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
            half.unlink()
        written = [writer(root) for writer in writers]
        names = [path.relative_to(folder).as_posix() for path in written]
        files.write_atomically(folder / NOTE, json.dumps({"stamp": stamp, "files": names}))
    return written


def _is_current(folder: Path, stamp: str) -> bool:
    """Whether the note of the last call has this ``stamp`` and what was written is all there."""
    try:
        known = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        return known["stamp"] == stamp and all((folder / f).is_file() for f in known["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


# ---------------------------------------------------------------- every claim as a table

_TEXT = ["paper", "slug", "parameters", "id", "kind", "statement", "unit", "source", "judge",
         "tolerance", "dataset", "verdict", "paper_value", "our_value", "flip", "flip_value",
         "flip_verdict"]  # fmt: skip
_NUMBERS = ["paper_number", "our_number", "ratio", "fitted"]
_TYPES = (
    dict.fromkeys(_TEXT, "str")
    | {"verified": "bool", "can_fail": "boolean"}
    | dict.fromkeys(_NUMBERS, "float64")
)


def frame(records: Iterable[Any], root: Path | None = None) -> pd.DataFrame:
    """Every claim of every run (``results.RunRecord``), one row each, sorted.

    Claims of the paper's file that a run never showed are listed as not attempted. Values may be
    numbers, names or lists, so ``paper_value``, ``our_value``, ``tolerance`` and ``parameters``
    are JSON texts; ``paper_number`` and ``our_number`` hold the single numbers (NaN elsewhere).
    """
    import pandas as pd

    rows = [row for record in records for row in _ledger_rows(record, root)]
    frame = pd.DataFrame(rows, columns=list(_TYPES))
    return frame.astype(_TYPES).sort_values(["paper", "slug", "id"], ignore_index=True)


def _ledger_rows(run: Any, root: Path | None) -> list[dict[str, Any]]:
    shown = {(record["paper"], record["id"]): record for record in run.claims}
    root = root or files.project_root()
    if claims.path_of(root, run.key).is_file():
        for claim in claims.load(root, run.key):
            shown.setdefault((run.key, claim.id), claims.record_of(run.key, claim))
    return [_ledger_row(run, record) for record in shown.values()]


def _ledger_row(run: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    values = ("tolerance", "paper_value", "our_value", "flip_value")
    return {
        **{name: record[name] for name in record if name in _TYPES},
        **{name: _json(record.get(name)) for name in values},
        "slug": run.slug,
        "parameters": _json(dict(run.parameters)),
        "paper_number": _single_number(record["paper_value"]),
        "our_number": _single_number(record["our_value"]),
    }


def _single_number(value: Any) -> float | None:
    return float(value) if are_numbers(value) and not isinstance(value, list) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
