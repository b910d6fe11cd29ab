"""Reading the two tables of a trace: what is wrong is refused, what is missing is counted.

A row that cannot be right (too few fields, a value that is no number, two rows that say different
things of the same run) is a ``BadFile`` with its line. A gap that leaves the rest usable (a batch
size that was trained but never profiled) is a named warning with counts.
"""

from __future__ import annotations

import math
import warnings
from itertools import product
from pathlib import Path

import pandas as pd

from labkit.errors import BadFile, BadValue
from labkit.kit.tables import check, texts

WORKLOAD = ["dataset", "network", "optimizer"]
_RUN = [*WORKLOAD, "batch_size", "run"]
_TRAIN_KEY = [*WORKLOAD, "batch_size", "target_metric", "run"]
_POWER_KEY = [*WORKLOAD, "batch_size", "power_limit"]
TRAIN_COLUMNS = [*_TRAIN_KEY, "learning_rate", "target_epoch"]
POWER_COLUMNS = [*_POWER_KEY, "time_per_epoch", "average_power"]
_WORDS = {*WORKLOAD, "run"}
_SOURCE = "energy_source"
_NEVER = {"", "nan", "na"}  # how tools write an empty field; Zeus's own files have "nan"

ENERGY_SOURCES = ("measured", "modelled")
MOST_OVERDRAW = 0.05
"""Share beyond its limit that a GPU may draw on average before a row counts as implausible."""
MOST_SIZE = 2**53
"""Of a batch: beyond it a table's numbers are no longer exact."""
HOLES = "pairs of batch size and power limit not profiled"
OVERDRAWN = f"rows above their power limit by more than {MOST_OVERDRAW:.0%}"


class TraceWarning(UserWarning):
    """Something about a trace that leaves it usable; the message holds counts."""


class IncompleteTrace(TraceWarning):
    """Batch sizes, runs, targets or power limits are missing: what needs them is left out."""


class ImplausiblePower(TraceWarning):
    """Average power is well above the power limit it was measured under."""


def read_train(path: Path) -> pd.DataFrame:
    """Read epochs to target; an empty ``target_epoch`` (never reached) becomes ``inf``."""
    table = _checked(path, TRAIN_COLUMNS, _TRAIN_KEY, optional="target_epoch")
    table["target_epoch"] = table["target_epoch"].fillna(math.inf)
    _refuse_two_values(path, table, [*WORKLOAD, "batch_size"], "learning_rate")
    _refuse_disorder(path, table)
    return table[TRAIN_COLUMNS].reset_index(drop=True)


def read_power(path: Path) -> pd.DataFrame:
    """Read time and average power of an epoch, with ``energy_source`` where the file says it."""
    table = _checked(path, POWER_COLUMNS, _POWER_KEY)
    columns = [*POWER_COLUMNS, *({_SOURCE} & {*table})]
    if _SOURCE in table:
        unknown = ~table[_SOURCE].isin(ENERGY_SOURCES)
        valid = " or ".join(ENERGY_SOURCES)
        _refuse(path, table[_SOURCE], unknown, "says neither how its energy was found", valid)
        _refuse_two_values(path, table, WORKLOAD, _SOURCE)
    return table[columns].reset_index(drop=True)


def check_tables(train: pd.DataFrame, power: pd.DataFrame) -> None:
    """Refuse tables that are none of a trace's, whoever made them.

    Raises:
        BadValue: a column is missing, twice, or holds what cannot stand there.
    """
    for name, table, columns in (
        ("train", train, TRAIN_COLUMNS),
        ("power", power, POWER_COLUMNS),
    ):
        place = f"TrainingTrace.{name}"
        words = [column for column in columns if column in _WORDS]
        numbers = [column for column in columns if column not in _WORDS]
        check(place, table, texts=words, numbers=numbers, filled=True)
        for column in words:
            if not all(isinstance(value, str) for value in table[column]):
                raise BadValue(f"{place}: column {column!r} of the table must hold texts")
        for column in numbers:
            good = table[column].gt(0) & (table[column].lt(math.inf) | (column == "target_epoch"))
            if not good.all():
                raise BadValue(f"{place}: column {column!r} of the table must hold numbers above 0")


# ---------------------------------------------------------------- rows that cannot be right


def _checked(path: Path, columns: list[str], key: list[str], optional: str = "") -> pd.DataFrame:
    """Read the rows of a file and check each field; the index is their line."""
    table = _fields(path, columns)
    for column in columns:
        values = table[column]
        if column in _WORDS:
            _refuse(path, values, values == "", "blank in {count} rows", "a name")
            continue
        number = pd.to_numeric(values, errors="coerce")
        wrong = ~((number > 0) & (number < math.inf))
        valid = "a positive number"
        if column == optional:
            wrong &= ~values.str.lower().isin(_NEVER)
            valid += ", or empty for never"
        _refuse(path, values, wrong, "not a positive number", valid)
        table[column] = number
    sizes = table["batch_size"]
    _refuse(path, sizes, sizes % 1 != 0, "not whole", "a whole number")
    _refuse(path, sizes, sizes > MOST_SIZE, "too large", f"a whole number up to {MOST_SIZE}")
    table["batch_size"] = sizes.astype(int)
    _refuse_repeats(path, table, key)
    return table


def _fields(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read a file as text, field by field; lines that start with # or are empty do not count."""
    valid = ",".join(columns)
    table = texts(path, comments=True, needed=columns, valid=valid)
    if table.empty:
        raise BadFile(path, "has a header but no rows", valid=valid)
    return table


def _refuse(path: Path, values: pd.Series, wrong: pd.Series, problem: str, valid: str) -> None:
    """Refuse the file for wrong values of a column, by the first; ``{count}`` is their number."""
    if wrong.any():
        line = _first_line(wrong)
        said = problem.format(count=wrong.sum())
        value = str(values[line])
        raise BadFile(path, said, line=line, field=str(values.name), value=value, valid=valid)


def _first_line(of: pd.Series) -> int:
    """Find the line of the first row that is marked."""
    return int(of.index[int(of.argmax())])


def _first_like(table: pd.DataFrame, line: int, key: list[str]) -> int:
    """Find the line of the first row with the same ``key``."""
    return _first_line((table[key] == table.loc[line, key]).all(axis=1))


def _refuse_repeats(path: Path, table: pd.DataFrame, key: list[str]) -> None:
    """Refuse rows with a key that an earlier one has, whether they say the same or not."""
    repeats = table.duplicated(key)
    copies = table.duplicated()
    if repeats.any():
        others = repeats & ~copies
        line = _first_line(others if others.any() else repeats)
        raise BadFile(
            path,
            f"{repeats.sum()} rows repeat an earlier one, {others.sum()} of them with other "
            f"values; this one repeats line {_first_like(table, line, key)}",
            line=line,
            field=", ".join(key),
            value=", ".join(map(str, table.loc[line, key])),
            valid="each combination once",
        )


def _refuse_two_values(path: Path, table: pd.DataFrame, key: list[str], column: str) -> None:
    """Refuse rows of one ``key`` that differ in a ``column`` which belongs to the key."""
    first = table.groupby(key, sort=False)[column].transform("first")
    wrong = table[column] != first
    if wrong.any():
        line = _first_line(wrong)
        said = f"{{count}} rows contradict an earlier one of the same {', '.join(key)}"
        valid = f"{first[line]}, as on line {_first_like(table, line, key)}"
        _refuse(path, table[column], wrong, said, valid)


def _refuse_disorder(path: Path, table: pd.DataFrame) -> None:
    """Refuse a run that reaches a harder target before an easier one.

    Whether harder is higher is not in the file: a workload's runs must agree on one direction.
    """
    for _, rows in table.groupby(WORKLOAD, sort=False):
        rows = rows.sort_values([*_RUN, "target_metric"])
        before = rows.groupby(_RUN, sort=False)["target_epoch"].shift()
        falls = rows["target_epoch"] < before
        rises = rows["target_epoch"] > before
        wrong = falls if falls.sum() <= rises.sum() else rises
        if wrong.any():
            place = int(wrong.argmax())
            easier, harder = rows.index[[place - 1, place]][:: -1 if wrong is rises else 1]
            target, epoch = table.loc[easier, ["target_metric", "target_epoch"]]
            raise BadFile(
                path,
                f"{wrong.sum()} rows say that a run reached a harder target before an easier one",
                line=harder,
                field="target_epoch",
                value=str(table.loc[harder, "target_epoch"]),
                valid=f"no earlier than line {easier}, which has target {target:g} at epoch "
                f"{epoch:g}",
            )


# ---------------------------------------------------------------- what is missing


def gaps(train: pd.DataFrame, power: pd.DataFrame) -> pd.DataFrame:
    """List what two tables lack of a full grid, and what in them is hard to believe.

    Each workload and kind of gap has a row: dataset, network, optimizer, gap, count, detail.
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
    """List the kinds of gaps of one workload, each with its places."""
    if power is None:
        return {"workload trained, never profiled": ["all of it"]}
    over = power[power["average_power"] > (1 + MOST_OVERDRAW) * power["power_limit"]]
    drawn = zip(over["batch_size"], over["power_limit"], over["average_power"], strict=True)
    overdrawn = {OVERDRAWN: [f"{b} @ {limit:g} W: {watts:.1f} W" for b, limit, watts in drawn]}
    if train is None:
        return {"workload profiled, never trained": ["all of it"]} | overdrawn
    trained = set(train["batch_size"])
    profiled = set(power["batch_size"])
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
    """List the pairs of batch size and power limit that a full grid has and the table lacks."""
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


def _listed(places: list[str]) -> str:
    """Write out the first three places, and how many more there are."""
    more = len(places) - 3
    return ", ".join(places[:3]) + (f" and {more} more" if more > 0 else "")
