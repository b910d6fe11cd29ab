"""What lies under ``results/``: which runs are current, stale or failed, what to clear away."""

from __future__ import annotations

import operator
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import LabkitError, UsageError, nearest, not_among
from labkit.workbook import notebooks
from labkit.workbook.run import fingerprint, parameters, results, runs

if TYPE_CHECKING:
    import pandas as pd

State = Literal["current", "stale", "orphan", "damaged", "failed", "unknown"]
"""``stale``: the notebook, its code or its data changed since; ``orphan``: the notebook is gone, or
no longer has a parameter that was set; ``failed``: what the last run left, which raised;
``unknown``: the notebook cannot be read as it stands."""
LOG = "log.txt"
"""What a failed run leaves even where it had no notebook to keep."""
_SIGNS = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_BESIDE = ("figures", LOG, ".ipynb_checkpoints")
"""What else may stand in a result's folder: of the run, of one that failed, of Lab."""
_PREFIXES = ("", "run.", "claim.", "metric.", "verdict.")
_MOST_NAMED = 12  # runs in an error
_CONDITION = re.compile(r"\s*([^=<>!]+?)\s*(==|!=|<=|>=|=|<|>)\s*(.*?)\s*")
_RUN = re.compile(r"([^\[\]/]+?)\s*(?:\[(.*)\])?")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A folder of results, what it is worth now, and why."""

    key: str
    folder: Path
    state: State
    reason: str = ""
    record: results.RunRecord | None = None

    @property
    def kept_because(self) -> str:
        """Why it must not be removed though nothing rests on it: it is not all ours; else ""."""
        if self.folder.is_symlink() or self.folder.parent.is_symlink():
            return "reached by a link"
        sealed = (results.read_meta(self.folder) or {}).get("files", ())
        ours = {results.RUN_FILE, results.CLAIMS_FILE, f"{self.key}.ipynb", *_BESIDE, *sealed}
        others = sorted(path.name for path in self.folder.iterdir() if path.name not in ours)
        return f"no run wrote {', '.join(others[:_MOST_NAMED])}" if others else ""

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def inventory(root: Path, keys: Sequence[str] = ()) -> Iterator[Stored]:
    """Every folder of results, or those of the papers ``keys``, by paper; raises UsageError, which
    says what there is, for one that has neither a notebook nor results."""
    top = results.results_folder(root)
    known = notebooks.paths(root)
    folders = [*top.glob("[!.]*/*/"), *(top / ".failed").glob("*/*/")]
    of_key: dict[str, list[Path]] = {key: [] for key in sorted(known)}
    for folder in sorted(folders, key=lambda path: (path.name != results.DEFAULT, path.name)):
        names = [results.RUN_FILE, f"{folder.parent.name}.ipynb"]
        names += [LOG] if _is_failure(folder) else []
        if any((folder / name).exists() for name in names):
            of_key.setdefault(folder.parent.name, []).append(folder)
    for key in keys or of_key:
        if key not in of_key:
            raise not_among("paper", key, of_key)
        if own := of_key[key]:
            yield from _of_paper(root, key, own, known.get(key))


def _of_paper(
    root: Path, key: str, folders: Iterable[Path], notebook: Path | None
) -> Iterator[Stored]:
    declared, now, problem = _as_it_is(root, notebook)
    for folder in folders:
        record = results.read(folder)
        state: State
        if _is_failure(folder):
            state = "failed"
            reason = "what its last run left"
        elif declared is None:
            state = "orphan"
            reason = problem
        elif record is None:
            state = "damaged"
            reason = "a file is missing or altered"
        elif now is None:
            state = "unknown"
            reason = problem
        elif gone := sorted(record.meta.get("overrides", {}).keys() - declared):
            state = "orphan"
            reason = f"the notebook has no parameter {gone[0]!r}"
        else:
            own = now.with_parameters(record.meta.get("overrides", {}))
            reason = own.since(record.meta)
            state = "stale" if reason else "current"
        yield Stored(key=key, folder=folder, state=state, reason=reason, record=record)


def _is_failure(folder: Path) -> bool:
    return folder.parent.parent.name == ".failed"


def _as_it_is(root: Path, path: Path | None) -> tuple[set[str] | None, Any, str]:
    """A notebook's parameters and fingerprint, as far as it has them, and what is wrong."""
    if path is None:
        return None, None, "its notebook is gone"
    try:
        notebook = notebooks.glimpse(path)
        declared = set(notebooks.parameters(notebook))
        return declared, fingerprint.of_notebook(root, path, notebook, {}), ""
    except (LabkitError, SyntaxError, ValueError) as error:
        return set(), None, f"the notebook cannot be read: {error}"


# ---------------------------------------------------------------- chosen runs


def table(stored: Iterable[Stored]) -> pd.DataFrame:
    """Runs as :mod:`labkit.workbook.run.runs` has them, with ``run.paper``, ``run.state`` and
    ``run.reason``; of what is no complete result the name alone."""
    return runs.frame(
        {
            "run.paper": each.key,
            "run.slug": each.folder.name,
            "run.state": each.state,
            "run.reason": each.reason,
            **(runs.row(each.record) if each.record and each.state != "failed" else {}),
        }
        for each in stored
    )


def matching(table: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """The rows that meet every condition, such as ``dp_degree=64``, ``state!=current`` or
    ``metric.time_s<10``; a missing value meets none.

    Raises UsageError where one cannot be read, names a column that is not there, or has a value
    that is not of the column's type. Where there are no runs, no condition is looked at.
    """
    if table.empty:
        return table
    for text in conditions:
        parts = _CONDITION.fullmatch(text)
        if parts is None:
            raise UsageError(f"--where {text!r}; valid: a column and a value, as in dp_degree=64")
        name, sign, wanted = parts.groups()
        names = [before + name for before in _PREFIXES if before + name in table.columns]
        if not names:
            every = map(str, table.columns)
            raise not_among("column", name, every, more="`labkit results --csv -` has them all")
        column = table[names[0]]
        kind = {"b": "bool", "i": "float", "f": "float"}.get(column.dtype.kind, "str")
        try:
            value = parameters.coerce(wanted, kind)
        except ValueError as problem:
            raise UsageError(f"--where {text!r}: {wanted!r} is not {problem}") from None
        table = table[_SIGNS[sign](column, value) & column.notna()]
    return table


def resolve(root: Path, text: str) -> results.RunRecord:
    """The run that ``KEY``, ``KEY[parameters]`` or a folder names; raises UsageError where there is
    none, with those there are, and LabkitError where its folder is damaged."""
    for folder in (Path(text), root / text):
        if (folder / results.RUN_FILE).is_file():
            if (record := results.read(folder.resolve())) is None:
                raise LabkitError(f"{folder}: the result is damaged; `labkit run` makes it again")
            return record
    parts = _RUN.fullmatch(text.strip())
    known = runs.keys(root)
    if parts is None or parts[1] not in known:
        name = parts[1] if parts else text
        raise not_among("paper with results", name, known, more="`labkit run KEY` makes results")
    records = {record.slug: record for record in results.records(root, parts[1])}
    slug = parts[2] or results.DEFAULT
    if slug not in records:
        shown = [*nearest(slug, records), *records][:_MOST_NAMED]
        raise not_among(f"run of {parts[1]}", slug, dict.fromkeys(shown))
    return records[slug]


# ---------------------------------------------------------------- clearing away


def is_clearable(stored: Stored, *, sweeps: bool = False, defaults: bool = False) -> bool:
    """Whether nothing is lost with it: failures, orphans, damaged or stale runs of a sweep.

    ``sweeps`` adds current runs of sweeps; ``defaults`` what is stale or damaged of the notebooks'
    own parameters. What ``kept_because`` gives a reason for is for its owner to remove.
    """
    if stored.state in ("failed", "orphan"):
        return True
    if stored.state == "unknown":
        return False
    if stored.folder.name == results.DEFAULT:
        return defaults and stored.state != "current"
    return sweeps or stored.state != "current"


def remove(root: Path, stored: Stored) -> None:
    """Remove a folder in one step, and its paper's tables with the last; under the run lock."""
    aside = results.scratch_folder(root, "clean-")
    os.rename(stored.folder, aside / "run")
    shutil.rmtree(aside)
    top = stored.folder.parent
    if not any(path.is_dir() for path in top.iterdir()):
        for name in (runs.TABLE, runs.PAGE):
            (top / name).unlink(missing_ok=True)
    results.remove(stored.folder)
