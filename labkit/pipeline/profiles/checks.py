"""What a table of measurements must satisfy to be an energy profile, and which rows can help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import BadFile, UsageError, shown
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "stage": "stage",
    "instruction": "kind",
    "frequency": "clock_mhz",
    "time": "time_s",
    "energy": "energy_j",
}
NUMBERS = ("clock_mhz", "time_s", "energy_j")
PLAUSIBLE_POWER_W = (1.0, 3000.0)  # of one accelerator; anything else is a mistaken unit
PLAUSIBLE_CLOCK_MHZ = (10.0, 10_000.0)  # likewise: GHz lie below, kHz and Hz above

# A higher clock that is slower than a lower one of the same work. Published measurements hold
# such pairs, most of them noise below 1 %, the worst 6.3 % (an A40 between 1005 and 960 MHz). A
# table with its clocks in the wrong order is off by the whole range, which is 40 % and more.
REVERSAL_TOLERANCE = 0.2


def _fail(path: Path | None, problem: str, **where: object) -> Exception:
    """Make the error for a file's row, or for a table that comes from no file."""
    if path is not None:
        return BadFile(path, problem, **where)  # type: ignore[arg-type]
    said = {key: value for key, value in where.items() if value is not None}
    details = [f"{key} {shown(value)}" for key, value in said.items() if not _is_empty(value)]
    return UsageError("; ".join([f"energy profile: the table: {problem}", *details]))


def _is_empty(value: object) -> bool:
    return isinstance(value, str) and not value


def validated(table: pd.DataFrame, path: Path | None) -> pd.DataFrame:
    """Check the numbers of a table and return it under our column names, kinds as numbers.

    Args:
        table: the measurements, with the CSV's columns.
        path: the file they come from; None where they come from none.

    Raises:
        BadFile: the table is no profile; with the line and the column (``UsageError`` where it
            comes from no file).
    """
    import pandas as pd

    columns = list(table.columns)
    for column in COLUMNS:
        if columns.count(column) != 1:
            problem = "no column" if column not in columns else "more than one column"
            raise _fail(path, f"{problem} {column!r}", valid=", ".join(COLUMNS))
    if table.empty:
        raise _fail(path, "no measurements")
    kinds = table["instruction"].astype(str).str.strip()
    numbers = table[[name for name in COLUMNS if name != "instruction"]]
    numbers = numbers.apply(pd.to_numeric, errors="coerce").astype(float)
    for column, good, problem, valid in _rules(numbers, kinds):
        if not good.all():
            bad = int(np.argmin(good))
            line = None if path is None else int(table.index[bad])
            value = table[column].tolist()[bad]
            raise _fail(path, problem, line=line, field=column, value=value, valid=valid)
    checked = _as_ours(numbers, kinds)
    have = set(zip(checked["stage"], checked["kind"], strict=True))
    for stage in range(checked["stage"].max() + 1):
        halves = {(stage, INPUT), (stage, WEIGHT)} <= have
        for kind in (FORWARD,) if halves else (FORWARD, BACKWARD):
            if (stage, kind) not in have:
                raise _fail(
                    path,
                    f"stage {stage} has no {KINDS[kind]} measurement",
                    valid="every stage from 0 on, forward and backward (or input and weight)",
                )
    return checked


def _as_ours(numbers: pd.DataFrame, kinds: pd.Series[str]) -> pd.DataFrame:
    """Rename columns to ours, and number the kinds."""
    table = numbers.assign(instruction=kinds.map({kind: i for i, kind in enumerate(KINDS)}))
    return table.astype({"stage": int}).rename(columns=COLUMNS)


def _rules(numbers: pd.DataFrame, kinds: pd.Series[str]) -> Iterator[tuple[str, Any, str, str]]:
    """Yield for each rule its column, which rows are good, what is wrong with the others, and what
    would be right.
    """
    stage, clock_mhz, time_s = (numbers[name] for name in ("stage", "frequency", "time"))
    yield "instruction", kinds.isin(KINDS), "unknown instruction", " or ".join(KINDS)
    yield "stage", (stage >= 0) & (stage % 1 == 0), "stage out of range", "an integer >= 0"
    for name in ("frequency", "time", "energy"):
        good = np.isfinite(numbers[name]) & (numbers[name] > 0)
        yield name, good, f"{name} out of range", "a finite number > 0"
    low, high = PLAUSIBLE_CLOCK_MHZ
    good = clock_mhz.between(low, high)
    yield "frequency", good, "implausible clock: is it in MHz?", f"{low:g} to {high:g} MHz"
    low, high = PLAUSIBLE_POWER_W
    good = (numbers["energy"] / time_s).between(low, high)
    right = f"{low:g} to {high:g} W"
    problem = "implausible power: is time in seconds and energy in joules?"
    yield "energy", good, problem, f"energy / time between {right}"
    good = ~numbers.assign(kind=kinds).duplicated(["stage", "kind", "frequency"])
    yield "frequency", good, "a clock is measured twice", "one row per clock"
    excess = reversal_excess(_as_ours(numbers, kinds))
    problem = f"a lower clock of the same work is up to {excess.max():.0%} faster than a higher one"
    yield "time", excess <= REVERSAL_TOLERANCE, problem, f"at most {REVERSAL_TOLERANCE:.0%}"


def reversal_excess(table: pd.DataFrame) -> np.ndarray:
    """For each row, say how much longer the slowest higher clock of its work takes: 0 for no
    longer.
    """
    falling = table.sort_values("clock_mhz", ascending=False, kind="stable")
    slowest_s = falling.groupby(["stage", "kind"])["time_s"].cummax()
    return (slowest_s / table["time_s"] - 1).to_numpy()


def kept_rows(
    stage: np.ndarray, kind: np.ndarray, time_s: np.ndarray, net_j: np.ndarray
) -> np.ndarray:
    """Mark the rows that no other of the same work dominates in (time, energy); one of equals is
    kept.
    """
    work = stage * len(KINDS) + kind
    order = np.lexsort((net_j, time_s, work))
    # Ranks of energies, each work's below those of the works before it: so one running minimum
    # serves all, and a row is kept where it falls.
    rank = np.unique(net_j, return_inverse=True)[1] - work * len(net_j)
    lowest = np.minimum.accumulate(rank[order])
    kept = np.zeros(len(order), dtype=bool)
    kept[order] = np.diff(lowest, prepend=lowest[0] + 1) < 0
    return kept
