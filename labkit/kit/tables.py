"""Tables in CSV files, read field by field: a row stands under its line, and none is shifted."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import BadFile, BadValue, shown
from labkit.files import read_text

if TYPE_CHECKING:
    import pandas as pd

VALID = "a CSV file with headings"
_MARK = "\ufeff"
"""The byte order mark, which spreadsheets put before the first heading."""


def texts(
    path: Path,
    *,
    sep: str = ",",
    comments: bool = False,
    needed: Sequence[str] = (),
    valid: str = VALID,
) -> pd.DataFrame:
    """Read a file's table as texts; its index holds the line of each row.

    Spaces around a field do not belong to it, and empty lines hold no row.

    Args:
        path: the file.
        sep: what separates its fields.
        comments: whether lines that start with # say something about the table.
        needed: columns that it must have.
        valid: what the file should hold, for errors.

    Raises:
        BadFile: there is no file, no table in it, a heading is missing or stands twice, or a row
            has a field too many or too few, as numbers with decimal commas have.
    """
    import pandas as pd

    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    for line, row in _rows(path, sep, comments, valid):
        if not header:
            header = row
            _check_header(path, header, line, needed, valid)
        elif len(row) == len(header):
            rows.append(row)
            lines.append(line)
        else:
            raise BadFile(
                path,
                f"an incomplete or broken row: {len(row)} fields where the header has "
                f"{len(header)}",
                line=line,
                field=header[min(len(row), len(header) - 1)],
                value=sep.join(row),
                valid=sep.join(header),
            )
    if not header:
        raise BadFile(path, "not a table: it has no header line", valid=valid)
    return pd.DataFrame(rows, columns=header, index=lines, dtype=str)


def typed(path: Path, *, missing: bool = True, valid: str = VALID) -> pd.DataFrame:
    """Read a table as :func:`texts` does, its comments left out; columns of numbers are numbers.

    Args:
        path: the file.
        missing: whether an empty field, or ``nan``, is missing rather than a text.
        valid: what the file should hold, for errors.

    Raises:
        BadFile: as :func:`texts`.
    """
    import pandas as pd

    table = texts(path, comments=True, valid=valid)
    plain = io.StringIO(table.to_csv(index=False))
    read = pd.read_csv(plain, index_col=False, keep_default_na=missing, skip_blank_lines=False)
    return read.set_axis(table.index)


def check(
    function: str,
    table: pd.DataFrame,
    *,
    texts: Sequence[str] = (),
    numbers: Sequence[str] = (),
    filled: bool = False,
) -> None:
    """Refuse a table that lacks a column, has it twice, or holds texts where numbers must stand.

    Args:
        function: who asks, for errors.
        table: what was given as ``table``.
        texts, numbers: columns that it must have; numbers may be missing (NaN).
        filled: whether it must have a row.

    Raises:
        BadValue: names the column.
    """
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    if filled and not len(table):
        raise BadValue(f"{function}: the table has no row; it must have one or more")
    columns = list(table.columns)
    for name in (*texts, *numbers):
        if columns.count(name) != 1:
            problem = "lacks" if name not in columns else "has twice"
            raise BadValue(
                f"{function}: the table {problem} {shown(name)}; valid: the columns "
                f"{', '.join(map(shown, (*texts, *numbers)))}, each once, as of the function that "
                "makes it"
            )
    for name in numbers:
        kind = table[name].dtype
        if not is_numeric_dtype(kind) or is_bool_dtype(kind) or is_complex_dtype(kind):
            raise BadValue(
                f"{function}: column {name!r} of the table must hold numbers; got {kind}"
            )


def _rows(path: Path, sep: str, comments: bool, valid: str) -> list[tuple[int, list[str]]]:
    """List the rows that are not empty, each with the line where it begins."""
    try:
        text = read_text(path).removeprefix(_MARK)
    except OSError as error:
        raise BadFile(path, f"not a table: {error.strerror}", valid=valid) from None
    given = io.StringIO(text, newline="")
    shown = ("\n" if comments and line.startswith("#") else line for line in given)
    reader = csv.reader(shown, delimiter=sep)
    found = []
    begins = 1
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if len(fields) > 1 or any(fields):
                found.append((begins, fields))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise BadFile(path, f"not a table: {error}", line=begins, valid=valid) from None
    return found


def _check_header(
    path: Path, header: list[str], line: int, needed: Sequence[str], valid: str
) -> None:
    named = [name for name in header if name]
    if twice := [name for name in named if named.count(name) > 1]:
        raise BadFile(path, "names a column twice", line=line, field=twice[0], valid=valid)
    if missing := [name for name in needed if name not in header]:
        raise BadFile(path, f"lacks column {', '.join(missing)}", line=line, valid=valid)
