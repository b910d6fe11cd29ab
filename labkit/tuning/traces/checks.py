"""Reading the two tables of a trace: what is wrong is refused, what is missing is counted.

A row that cannot be right (too few fields, a value that is no number, two rows that say different
things of the same run) is an error with its line. A gap that leaves the rest usable (a batch size
that was trained but never profiled) is a named warning with counts.
"""

from __future__ import annotations

import csv
import math
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from labkit.errors import BadFile
from labkit.files import read_text

WORKLOAD = ["dataset", "network", "optimizer"]
_RUN = [*WORKLOAD, "batch_size", "run"]
_TRAIN_KEY = [*WORKLOAD, "batch_size", "target_metric", "run"]
_POWER_KEY = [*WORKLOAD, "batch_size", "power_limit"]
_TRAIN_COLUMNS = [*_TRAIN_KEY, "learning_rate", "target_epoch"]
_POWER_COLUMNS = [*_POWER_KEY, "time_per_epoch", "average_power"]
_WORDS = {*WORKLOAD, "run"}
_SOURCE = "energy_source"
_NEVER = {"", "nan", "na"}  # how tools write an empty field; Zeus's own files have "nan"

ENERGY_SOURCES = ("measured", "modelled")
MOST_OVERDRAW = 0.05
"""Share beyond its limit that a GPU may draw on average before a row counts as implausible."""
HOLES = "pairs of batch size and power limit not profiled"
OVERDRAWN = f"rows above their power limit by more than {MOST_OVERDRAW:.0%}"


class TraceWarning(UserWarning):
    """Something about a trace that leaves it usable; the message holds counts."""


class IncompleteTrace(TraceWarning):
    """Batch sizes, runs, targets or power limits are missing: what needs them is left out."""


class ImplausiblePower(TraceWarning):
    """Average power is well above the power limit it was measured under."""


def read_train(path: Path) -> pd.DataFrame:
    """Epochs to target; an empty ``target_epoch`` (never reached) becomes ``inf``.

    Raises:
        BadFile: a row is malformed, repeats another, or contradicts one.
    """
    rows = _Rows(path, _TRAIN_COLUMNS, _TRAIN_KEY, optional="target_epoch")
    rows.table["target_epoch"] = rows.table["target_epoch"].fillna(math.inf)
    rows.refuse_two_values([*WORKLOAD, "batch_size"], "learning_rate")
    rows.refuse_disorder()
    return rows.table[_TRAIN_COLUMNS]


def read_power(path: Path) -> pd.DataFrame:
    """Time and average power of an epoch, with ``energy_source`` where the file says it.

    Raises:
        BadFile: a row is malformed, repeats another, or contradicts one.
    """
    rows = _Rows(path, _POWER_COLUMNS, _POWER_KEY)
    if _SOURCE not in rows.table:
        return rows.table[_POWER_COLUMNS]
    unknown = ~rows.table[_SOURCE].isin(ENERGY_SOURCES)
    valid = " or ".join(ENERGY_SOURCES)
    rows.refuse(unknown, _SOURCE, "says neither how its energy was found", valid)
    rows.refuse_two_values(WORKLOAD, _SOURCE)
    return rows.table[[*_POWER_COLUMNS, _SOURCE]]


# ---------------------------------------------------------------- rows that cannot be right


class _Rows:
    """The rows of one file, each field checked, with the line of each for what is refused."""

    def __init__(
        self, path: Path, columns: list[str], key: list[str], *, optional: str = ""
    ) -> None:
        self.path = path
        self._read_fields(columns)
        for column in columns:
            values = self.table[column]
            if column in _WORDS:
                self.refuse(values == "", column, "blank in {count} rows", "a name")
                continue
            number = pd.to_numeric(values, errors="coerce")
            wrong = ~((number > 0) & (number < math.inf))
            valid = "a positive number"
            if column == optional:
                wrong &= ~values.str.lower().isin(_NEVER)
                valid += ", or empty for never"
            self.refuse(wrong, column, "not a positive number", valid)
            self.table[column] = number
        part = self.table["batch_size"] % 1 != 0
        self.refuse(part, "batch_size", "not whole", "a whole number")
        self.table["batch_size"] = self.table["batch_size"].astype(int)
        self._refuse_repeats(key)

    def _read_fields(self, columns: list[str]) -> None:
        """The file as text, field by field; lines that start with # or are empty do not count."""
        text = read_text(self.path).splitlines()
        numbered = [(n, t) for n, t in enumerate(text, 1) if t.strip() and not t.startswith("#")]
        valid = ",".join(columns)
        if not numbered:
            raise BadFile(self.path, "not a table: it has no header line", valid=valid)
        (first, *self.lines), texts = zip(*numbered, strict=True)
        header, *rows = [[field.strip() for field in row] for row in csv.reader(texts)]
        if missing := [c for c in columns if c not in header]:
            said = f"lacks column {', '.join(missing)}"
            raise BadFile(self.path, said, line=first, valid=valid)
        if twice := [c for c in columns if header.count(c) > 1]:
            raise BadFile(self.path, "names a column twice", line=first, field=twice[0])
        if not rows:
            raise BadFile(self.path, "has a header but no rows", line=first)
        for line, row in zip(self.lines, rows, strict=True):
            if len(row) != len(header):
                raise BadFile(
                    self.path,
                    f"an incomplete or broken row: {len(row)} fields where the header has "
                    f"{len(header)}",
                    line=line,
                    field=header[min(len(row), len(header) - 1)],
                    value=",".join(row),
                    valid=",".join(header),
                )
        self.table = pd.DataFrame(rows, columns=header)

    def refuse(self, wrong: pd.Series, column: str, problem: str, valid: str) -> None:
        """Refuse the file for rows with a wrong value in a column, by the first of them.

        ``{count}`` in ``problem`` stands for their number.
        """
        if rows := np.flatnonzero(wrong).tolist():
            raise BadFile(
                self.path,
                problem.format(count=len(rows)),
                line=self.lines[rows[0]],
                field=column,
                value=str(self.table[column].iloc[rows[0]]),
                valid=valid,
            )

    def _first_like(self, row: int, key: list[str]) -> int:
        """The line of the first row with the same ``key``."""
        same = (self.table[key] == self.table[key].iloc[row]).all(axis=1)
        return self.lines[int(same.argmax())]

    def _refuse_repeats(self, key: list[str]) -> None:
        """Rows with a key that an earlier one has, whether they say the same or something else."""
        repeats, copies = self.table.duplicated(key), self.table.duplicated()
        if repeats.any():
            others = repeats & ~copies
            row = int((others if others.any() else repeats).argmax())
            raise BadFile(
                self.path,
                f"{repeats.sum()} rows repeat an earlier one, {others.sum()} of them with other "
                f"values; this one repeats line {self._first_like(row, key)}",
                line=self.lines[row],
                field=", ".join(key),
                value=", ".join(str(self.table[c].iloc[row]) for c in key),
                valid="each combination once",
            )

    def refuse_two_values(self, key: list[str], column: str) -> None:
        """Rows of one ``key`` that differ in a ``column`` which belongs to the key."""
        first = self.table.groupby(key, sort=False)[column].transform("first")
        wrong = self.table[column] != first
        if wrong.any():
            row = int(wrong.argmax())
            said = f"{{count}} rows contradict an earlier one of the same {', '.join(key)}"
            valid = f"{first.iloc[row]}, as on line {self._first_like(row, key)}"
            self.refuse(wrong, column, said, valid)

    def refuse_disorder(self) -> None:
        """A run that reaches a harder target before an easier one.

        Whether harder is higher is not in the file: a workload's runs must agree on one direction.
        """
        for _, rows in self.table.groupby(WORKLOAD, sort=False):
            rows = rows.sort_values([*_RUN, "target_metric"])
            before = rows.groupby(_RUN, sort=False)["target_epoch"].shift()
            falls, rises = rows["target_epoch"] < before, rows["target_epoch"] > before
            wrong = falls if falls.sum() <= rises.sum() else rises
            if wrong.any():
                place = int(wrong.argmax())
                easier, harder = (int(rows.index[place - step]) for step in (1, 0))
                if wrong is rises:
                    easier, harder = harder, easier
                target, epoch = self.table.loc[easier, ["target_metric", "target_epoch"]]
                raise BadFile(
                    self.path,
                    f"{wrong.sum()} rows say that a run reached a harder target before an easier "
                    "one",
                    line=self.lines[harder],
                    field="target_epoch",
                    value=str(self.table["target_epoch"].iloc[harder]),
                    valid=f"no earlier than line {self.lines[easier]}, which has target "
                    f"{target:g} at epoch {epoch:g}",
                )


# ---------------------------------------------------------------- what is missing


def gaps(train: pd.DataFrame, power: pd.DataFrame) -> pd.DataFrame:
    """What two tables lack of a full grid, and what in them is hard to believe.

    One row a workload and kind: dataset, network, optimizer, gap, count, detail.
    """
    trained, profiled = (dict(list(table.groupby(WORKLOAD))) for table in (train, power))
    rows = [
        (*workload, kind, len(places), _listed(places))
        for workload in sorted({*trained, *profiled})
        for kind, places in _gaps_of(trained.get(workload), profiled.get(workload)).items()
        if places
    ]
    return pd.DataFrame(rows, columns=[*WORKLOAD, "gap", "count", "detail"])


def _gaps_of(train: pd.DataFrame | None, power: pd.DataFrame | None) -> dict[str, list[str]]:
    """Kinds of gaps of one workload, each with its places."""
    if power is None:
        return {"workload trained, never profiled": ["all of it"]}
    over = power[power["average_power"] > (1 + MOST_OVERDRAW) * power["power_limit"]]
    drawn = zip(over["batch_size"], over["power_limit"], over["average_power"], strict=True)
    overdrawn = {OVERDRAWN: [f"{b} @ {limit:g} W: {watts:.1f} W" for b, limit, watts in drawn]}
    if train is None:
        return {"workload profiled, never trained": ["all of it"]} | overdrawn
    trained, profiled = set(train["batch_size"]), set(power["batch_size"])
    runs = train.groupby("batch_size")["run"].nunique()
    targets = train.groupby(["batch_size", "run"])["target_metric"].nunique()
    every = train["target_metric"].nunique()
    return {
        "batch sizes trained, never profiled": [str(b) for b in sorted(trained - profiled)],
        "batch sizes profiled, never trained": [str(b) for b in sorted(profiled - trained)],
        "batch sizes with fewer runs": [
            f"{size}: {count} of {runs.max()}" for size, count in runs.items() if count < runs.max()
        ],
        "runs without some target": [
            f"{row.batch_size}/{row.run}: {row.target_metric} of {every}"
            for row in targets[targets < every].reset_index().itertuples()
        ],
        HOLES: _holes(power),
    } | overdrawn


def _holes(power: pd.DataFrame) -> list[str]:
    profiled = set(zip(power["batch_size"], power["power_limit"], strict=True))
    grid = product(sorted(set(power["batch_size"])), sorted(set(power["power_limit"])))
    return [f"{size} @ {limit:g} W" for size, limit in grid if (size, limit) not in profiled]


def warn_of(path: Path, table: pd.DataFrame) -> None:
    """Say what :func:`gaps` found, one warning a kind of problem."""
    implausible = table["gap"] == OVERDRAWN
    kinds = {IncompleteTrace: table[~implausible], ImplausiblePower: table[implausible]}
    for category, rows in kinds.items():
        if len(rows):
            workloads = ["/".join(names) for names in rows[WORKLOAD].to_numpy()]
            listed = "; ".join(
                f"{workload}: {row['count']} {row['gap']} ({row['detail']})"
                for workload, row in zip(workloads, rows.to_dict("records"), strict=True)
            )
            warnings.warn(f"{path}: {listed}", category, stacklevel=3)


def warn_of_holes(of: str, power: pd.DataFrame) -> None:
    """Say how many pairs of batch size and power limit ``power`` lacks of a full grid, if any."""
    if places := _holes(power):
        warnings.warn(
            f"{of}: {len(places)} {HOLES} ({_listed(places)}); they are left out",
            IncompleteTrace,
            stacklevel=3,
        )


def _listed(places: list[str], most: int = 3) -> str:
    more = len(places) - most
    return ", ".join(places[:most]) + (f" and {more} more" if more > 0 else "")
