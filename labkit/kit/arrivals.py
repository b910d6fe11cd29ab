"""Things that arrive, such as jobs or requests: columns of numbers and texts, from files too.

A record's columns are declared once, with the spellings of published files and the values that may
stand in them; the record, a CSV file and a table are then checked alike, and a fault is named by
its column and row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadFile, BadValue, not_among
from labkit.kit import tables
from labkit.kit.describe import checked

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float64]
Arrays = Mapping[str, Numbers]


@dataclass(frozen=True, kw_only=True)
class Column:
    """Describes a column: how files spell it, and what may stand in it.

    Attributes:
        spellings: headings of files, ours first.
        allows: which rows may hold their value, from it and the arrivals; None: a text.
        valid: what ``allows`` allows, in words.
        default: a number that stands where the column is missing; None: it is needed. Where it is
            inf, an empty cell means it too.
        whole: whether the numbers are kept as integers.
        unique: whether each text stands once.
        dates: whether files may hold dates with times, which count from the first arrival's.
        resembles: a pattern of other headings that mean it, or something like it. A file that has
            such a heading and none of the ``spellings`` is refused: the default would be wrong.
    """

    spellings: tuple[str, ...]
    allows: Callable[[Numbers, Numbers], NDArray[np.bool_]] | None = None
    valid: str = ""
    default: float | None = None
    whole: bool = False
    unique: bool = False
    dates: bool = False
    resembles: str = ""


MOST_S = 1e12
"""Seconds after which no job or request comes, 30,000 years: a larger number is of another unit,
and beside it a clock in floats would not tell a millisecond."""


def seconds(*spellings: str, above_0: bool = False, dates: bool = False) -> Column:
    """Make a column of finite numbers of seconds, from 0 on or above it.

    Args:
        spellings: headings of files, ours first.
        above_0: refuse 0 as well.
        dates: let files hold dates with times, which count from the first.
    """
    words, holds = ("above", np.greater) if above_0 else ("at least", np.greater_equal)
    return Column(
        spellings=spellings,
        valid=f"a finite number of seconds, {words} 0, at most {MOST_S:.0e}",
        dates=dates,
        allows=lambda s, _: (s <= MOST_S) & holds(s, 0),
    )


def counts(
    *spellings: str, least: int, default: float | None = None, resembles: str = ""
) -> Column:
    """Make a column of whole numbers from ``least`` on.

    Args:
        spellings: headings of files, ours first.
        least: the smallest number allowed.
        default: a number that stands where the column is missing; None: it is needed.
        resembles: as of :class:`Column`.
    """
    return Column(
        spellings=spellings,
        valid=f"a whole number, at least {least}",
        whole=True,
        allows=lambda n, _: (n >= least) & (n < 2**31) & (n == np.floor(n)),
        default=default,
        resembles=resembles,
    )


class _Fault(NamedTuple):
    """A value that cannot be: its column, its row, and what would be valid."""

    column: str
    row: int
    value: object
    problem: str = "the value is not allowed"


class Arrivals:
    """A frozen record of columns in order of ``arrival_s``.

    Rows that arrive together keep their order. The columns of texts are optional.
    """

    COLUMNS: ClassVar[dict[str, Column]]
    ROW: ClassVar[str]
    """What a row is, such as "job"."""
    name: str

    def __post_init__(self) -> None:
        arrays = {name: self._numbers(name) for name in self.names_of(texts=False)}
        count = arrays["arrival_s"].size
        for name, array in arrays.items():
            if not array.size and self.COLUMNS[name].default is not None:
                arrays[name] = np.full(count, self.COLUMNS[name].default)
        texts = {name: getattr(self, name) for name in self.names_of(texts=True)}
        for name, column in (arrays | {n: t for n, t in texts.items() if t}).items():
            if len(column) != count or not count:
                raise BadValue(
                    f"{type(self).__name__}.{name} must have one entry a {self.ROW}; got "
                    f"{len(column)} where arrival_s has {count}; valid: one {self.ROW} or more, "
                    "every column of the same length"
                )
        if fault := self._fault(arrays, texts):
            raise BadValue(
                f"{type(self).__name__}.{fault.column}[{fault.row}]: {fault.problem}; found "
                f"{fault.value!r}; valid: {self.COLUMNS[fault.column].valid}"
            )
        order = np.argsort(arrays["arrival_s"], kind="stable")
        for name, array in arrays.items():
            column = array[order].astype(np.int64 if self.COLUMNS[name].whole else np.float64)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        if not np.array_equal(order, np.arange(count)):
            self._reordered(texts, order.tolist())

    def _reordered(self, texts: Mapping[str, tuple[str, ...]], order: list[int]) -> None:
        """Set the columns of texts in order of arrival."""
        for name, column in texts.items():
            if column:
                object.__setattr__(self, name, tuple(column[row] for row in order))

    @classmethod
    @checked
    def names_of(cls, *, texts: bool) -> list[str]:
        """List the columns of texts, or those of numbers."""
        return [name for name, column in cls.COLUMNS.items() if (column.allows is None) == texts]

    def _numbers(self, name: str) -> NDArray[np.float64]:
        """Read a column of numbers and check its length."""
        array = np.asarray(getattr(self, name), dtype=float)
        if array.ndim != 1:
            raise BadValue(
                f"{type(self).__name__}.{name} must be a list of numbers, one a {self.ROW}; got "
                f"{array!r}"
            )
        return array

    @classmethod
    def _fault(cls, arrays: Arrays, texts: Mapping[str, tuple[str, ...]]) -> _Fault | None:
        """Find the first value that cannot be, column by column."""
        for name, column in cls.COLUMNS.items():
            right = column.allows(arrays[name], arrays["arrival_s"]) if column.allows else None
            if right is not None and not right.all():
                row = int(np.argmin(right))
                return _Fault(name, row, arrays[name][row].item())
        for name, values in texts.items():
            if cls.COLUMNS[name].unique and len(set(values)) < len(values):
                places = {value: row for row, value in reversed([*enumerate(values)])}
                row = next(row for row, value in enumerate(values) if places[value] < row)
                return _Fault(name, row, values[row], f"an {name.removesuffix('s')} stands twice")
        return None

    def __len__(self) -> int:
        return self.column("arrival_s").size

    @checked
    def column(self, name: str) -> NDArray[Any]:
        """Return a column of numbers, read-only, such as ``arrival_s``.

        Raises:
            UsageError: there is no such column.
        """
        if name not in self.COLUMNS:
            raise not_among("column (name)", name, self.COLUMNS)
        return np.asarray(getattr(self, name))

    @checked
    def head(self, count: int) -> Self:
        """Keep the first rows alone.

        Raises:
            BadValue: there are fewer.
        """
        if not 1 <= count <= len(self):
            raise BadValue(f"head: count must be from 1 to {len(self)}; got {count}")
        return self.changed(**{name: getattr(self, name)[:count] for name in self.COLUMNS})

    def changed(self, **columns: Any) -> Self:
        """Copy the record with other columns of the same rows, or under another name."""
        return replace(self, **columns)  # type: ignore[type-var]

    def frame(self) -> pd.DataFrame:
        """Table the rows in order of arrival; columns of texts that are not there are left out."""
        import pandas as pd

        columns: dict[str, Any] = {name: self.column(name) for name in self.names_of(texts=False)}
        for name in self.names_of(texts=True):
            columns |= {name: list(getattr(self, name))} if getattr(self, name) else {}
        return pd.DataFrame(columns)


Kind = TypeVar("Kind", bound=Arrivals)


def read_csv(
    kind: type[Kind], path: str | Path, columns: Mapping[str, str], name: str | None
) -> Kind:
    """Read the record that a CSV file holds.

    Args:
        kind: the class of the record.
        path: the file.
        columns: the file's own spellings, by our names.
        name: what the record is called.

    Raises:
        BadFile: a column is missing, or a value cannot be; it names row, column and value.
    """
    path = Path(path)
    return from_table(kind, tables.texts(path), path, columns, name or path.stem)


def from_table(
    kind: type[Kind], table: pd.DataFrame, path: Path, columns: Mapping[str, str], name: str
) -> Kind:
    """Read the record that a table of texts holds.

    Args:
        kind: the class of the record.
        table: the texts; its index holds their lines, as :func:`labkit.kit.tables.texts` has them.
        path: where errors say that they stand.
        columns: the table's own spellings, by our names.
        name: what the record is called.
    """
    spelt = spellings(kind, table, path, columns)
    if table.empty:
        valid = f"one row a {kind.ROW} below the headings"
        raise BadFile(path, f"holds no {kind.ROW}s", valid=valid)
    numbers, texts = (
        [column for column in kind.names_of(texts=is_text) if column in spelt]
        for is_text in (False, True)
    )
    origin = _first_date(table[spelt["arrival_s"]])
    arrays = {
        column: _parsed(kind, table[spelt[column]], path, column, origin) for column in numbers
    }
    strings = {column: tuple(table[spelt[column]].str.strip()) for column in texts}
    missing = [column for column in kind.names_of(texts=False) if column not in arrays]
    defaults = {name: np.full(len(table), kind.COLUMNS[name].default) for name in missing}
    if fault := kind._fault(arrays | defaults, strings):
        raise _bad(kind, path, fault, table[spelt[fault.column]])
    return kind(**arrays, **strings, name=name)  # type: ignore[call-arg]


def spellings(
    kind: type[Arrivals], table: pd.DataFrame, path: Path, columns: Mapping[str, str]
) -> dict[str, str]:
    """Find the file's heading of each of our columns that it has.

    Args:
        kind: the class of the record.
        table: the texts.
        path: where errors say that they stand.
        columns: the table's own spellings, by our names.

    Raises:
        BadFile: a column is missing, or would get its default beside one that resembles it.
        BadValue: ``columns`` names a column that there is not, or one twice.
    """
    if unknown := set(columns) - set(kind.COLUMNS):
        valid = ", ".join(kind.COLUMNS)
        raise BadValue(f"from_csv: columns names {sorted(unknown)[0]!r}; valid: {valid}")
    if twice := [text for text in columns.values() if list(columns.values()).count(text) > 1]:
        raise BadValue(
            f"from_csv: columns names {twice[0]!r} twice; valid: a column of its own each"
        )
    spelt = dict(columns)
    for name, column in kind.COLUMNS.items():
        if near := [heading for heading in column.spellings if heading in table.columns]:
            spelt.setdefault(name, near[0])
    needed = [n for n, c in kind.COLUMNS.items() if c.allows and c.default is None]
    for name in dict.fromkeys([*needed, *spelt]):
        heading = spelt.get(name)
        if heading is None or heading not in table.columns:
            known = " or ".join(kind.COLUMNS[name].spellings)
            raise BadFile(
                path,
                "a column is missing",
                line=1,
                field=heading or name,
                value=", ".join(map(str, table.columns)),
                valid=f"a column {known}, or columns={{{name!r}: …}}",
            )
    if shared := [name for name in spelt if list(spelt.values()).count(spelt[name]) > 1]:
        raise BadValue(
            f"from_csv: columns makes {spelt[shared[0]]!r} both {' and '.join(shared)}; valid: a "
            "column of its own each"
        )
    _refuse_what_resembles(kind, table, path, spelt)
    return spelt


def _refuse_what_resembles(
    kind: type[Arrivals], table: pd.DataFrame, path: Path, spelt: Mapping[str, str]
) -> None:
    """Refuse a heading that no column takes where one that it resembles would get its default."""
    unused = [heading for heading in table.columns if heading not in spelt.values()]
    for name, column in kind.COLUMNS.items():
        if name in spelt or not column.resembles:
            continue
        likely = [heading for heading in unused if re.search(column.resembles, heading, re.I)]
        if likely:
            raise BadFile(
                path,
                f"a column is not used, and {name} would be {column.default:g} throughout",
                line=1,
                field=likely[0],
                value=", ".join(map(str, table.columns)),
                valid=f"columns={{{name!r}: {likely[0]!r}}} (--columns {name}={likely[0]}) where "
                f"they are the same, or a file without it",
            )


def _first_date(arrivals: pd.Series[str]) -> pd.Timestamp | None:
    """Find the moment from which a table's dates count; None where arrivals are numbers."""
    import pandas as pd

    texts = arrivals.str.strip()
    if pd.to_numeric(texts, errors="coerce").notna().any():
        return None
    return pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True).min()


def _parsed(
    kind: type[Arrivals],
    texts: pd.Series[str],
    path: Path,
    name: str,
    origin: pd.Timestamp | None,
) -> NDArray[np.float64]:
    """Parse a column as numbers; dates count from ``origin``, the first arrival's."""
    import pandas as pd

    column = kind.COLUMNS[name]
    texts = texts.str.strip()
    values = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=float)
    if column.dates and origin is not None and np.isnan(values).all():
        dates = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)
        values = ((dates - origin) / pd.Timedelta(seconds=1)).to_numpy(dtype=float)
    if column.default == inf:
        values = np.where(texts == "", inf, values)
    if np.isnan(values).any():
        row = int(np.argmax(np.isnan(values)))
        raise _bad(kind, path, _Fault(name, row, texts.iloc[row], "no number"), texts)
    return values


def _bad(kind: type[Arrivals], path: Path, fault: _Fault, texts: pd.Series[str]) -> BadFile:
    """Say where the fault stands."""
    return BadFile(
        path,
        fault.problem,
        line=int(texts.index[fault.row]),
        field=str(texts.name),
        value=fault.value,
        valid=kind.COLUMNS[fault.column].valid,
    )
