"""Tables for notebooks: the same bytes on every run, readable in Lab, on slides and in print.

A :class:`Table` is text laid out in rows and columns, rendered to HTML (inline styles only, no ids,
no colours but the reader's own) and to plain text. :func:`table` makes one from a DataFrame:
headers spell out the unit that a column name carries, numbers are rounded to significant digits.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import LabkitError, UsageError, not_among
from labkit.files import CONTROL
from labkit.quantities import (
    LARGEST,
    NOTHING,
    SCALES,
    heading,
    is_finite_number,
    number,
    rounded,
    split_unit,
)
from labkit.workbook import notebooks

if TYPE_CHECKING:
    import pandas as pd

    from labkit.datasets import Source

_ONE_LINE = 22
"""Longest number, list or verdict, in characters, that must not break over lines in HTML."""

_LINE = "1px solid rgba(128,128,128,0.45)"
_CELL = "padding:0.25em 0.5em;border:none;"
_TABLE = (
    "border-collapse:collapse;border:none;color:inherit;background:transparent;"
    "font-variant-numeric:tabular-nums;margin:0.4em 0;"
)
_LEAD = "margin:0.4em 0;padding:0 0.5em;color:inherit;"
_CAPTION = "caption-side:top;text-align:left;font-weight:600;color:inherit;padding:0.2em 0.5em;"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Table:
    """A DataFrame as a table in a notebook; :meth:`frame` gives the DataFrame back, unrounded.

    ``lead`` is a line above all; ``bold`` is the column to set in bold. Text columns wrap at
    ``wrap`` characters in plain text; HTML leaves wrapping to the page. ``carried``: what the
    executed notebook holds besides, by MIME type.
    """

    data: pd.DataFrame
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: Sequence[Literal["left", "right"]]
    caption: str = ""
    lead: str = ""
    bold: int | None = None
    wrap: int = 48
    carried: Mapping[str, Any] = field(default_factory=dict)

    def frame(self) -> pd.DataFrame:
        return self.data.copy()

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/html": self.html(), "text/plain": self.text(), **self.carried}

    def html(self) -> str:
        style = _CAPTION + ("white-space:nowrap;" if len(self.caption) <= 2 * _ONE_LINE else "")
        caption = f'<caption style="{style}">{_escape(self.caption)}</caption>'
        head = "".join(
            f'<th style="{_CELL}text-align:{side};vertical-align:bottom;border-bottom:{_LINE};">'
            f"{_escape(header)}</th>"
            for header, side in zip(self.headers, self.align, strict=True)
        )
        body = "\n".join(self._html_row(number) for number in range(len(self.rows)))
        lead = f'<p style="{_LEAD}">{_escape(self.lead)}</p>\n' if self.lead else ""
        return lead + (
            f'<table style="{_TABLE}">\n{caption if self.caption else ""}<thead>'
            f'<tr style="background:transparent;">{head}</tr></thead>\n<tbody>\n{body}\n'
            "</tbody>\n</table>"
        )

    def _html_row(self, number: int) -> str:
        cells = []
        for column, (text, side) in enumerate(zip(self.rows[number], self.align, strict=True)):
            bold = column == self.bold
            whole = len(text) <= _ONE_LINE and (bold or side == "right" or " " not in text)
            style = (
                f"{_CELL}text-align:{side};vertical-align:top;"
                f"white-space:{'nowrap' if whole else 'normal'};"
                f"{'min-width:10em;' if len(text) > 2 * _ONE_LINE else ''}"
                f"{'font-weight:700;' if bold else ''}"
            )
            cells.append(f'<td style="{style}">{_escape(text)}</td>')
        return f'<tr style="background:transparent;border-bottom:{_LINE};">{"".join(cells)}</tr>'

    def text(self) -> str:
        wrapped = partial(
            textwrap.wrap, width=self.wrap, break_on_hyphens=False, break_long_words=False
        )
        blocks = [[wrapped(str(c)) or [""] for c in row] for row in (self.headers, *self.rows)]
        widths = [max(map(len, chain(*cells))) for cells in zip(*blocks, strict=True)]
        head, *body = (list(zip_longest(*block, fillvalue="")) for block in blocks)
        rule = tuple("-" * width for width in widths)
        lines = [line for line in (self.lead, self.caption) if line]
        for line in (*head, rule, *chain(*body)):
            cells = zip(line, widths, self.align, strict=True)
            parts = [t.rjust(w) if side == "right" else t.ljust(w) for t, w, side in cells]
            lines.append("  ".join(parts).rstrip())
        return "\n".join(lines)


def table(
    data: Any, caption: str = "", digits: int = 4, *, formats: Mapping[str, str] | None = None
) -> Table:
    """``data`` as a table whose HTML and text are the same on every run and every machine.

    Args:
        data: a DataFrame, or what makes one (a list of rows, a mapping of columns). Its index is
            shown where it has a name or holds text.
        caption: printed above the table.
        digits: significant digits of fractional numbers; whole numbers are printed whole.
        formats: column -> a unit to show it in (``"GiB"`` for a ``_bytes`` column, ``"kJ"`` for a
            ``_j`` one, ``"%"`` for a ``_fraction`` one). Fractional numbers too large to be read
            in their own unit are shown in a larger one.

    Raises:
        UsageError: a column named in ``formats`` is not there, a unit does not fit the column's
            own, or ``digits`` is not positive.

    >>> table({"plan": ["max", "ours"], "energy_j": [1234.567, 1000.0]})
    plan  energy (J)
    ----  ----------
    max        1,235
    ours       1,000
    """
    import pandas as pd

    if digits < 1:
        raise UsageError(f"digits must be at least 1, got {digits}")
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(data)
    is_named = any(name is not None for name in frame.index.names)
    is_shown = is_named or pd.api.types.is_string_dtype(frame.index)
    shown = frame.reset_index(names=None if is_named else "") if is_shown else frame
    levels = [name if isinstance(name, tuple) else (name,) for name in shown.columns]
    shown = shown.set_axis([" ".join(str(n) for n in own if n != "") for own in levels], axis=1)
    larger = {str(name): unit for name in shown if (unit := _larger_unit(shown[name]))}
    for name, unit in (larger | dict(formats or {})).items():
        if name not in shown.columns:
            raise not_among("column", name, shown.columns)
        shown = _in_unit(shown, name, unit)
    return Table(
        data=frame,
        headers=[heading(str(name)) for name in shown],
        rows=list(zip(*([cell_text(v, digits) for v in shown[n]] for n in shown), strict=True)),
        align=["right" if _is_numeric(shown[name]) else "left" for name in shown],
        caption=caption,
    )


def cell_text(value: Any, digits: int = 4) -> str:
    """One value as printed: numbers rounded, yes/no for booleans, a dash for nothing.

    >>> cell_text([0.5, 2]), cell_text(True), cell_text(None), cell_text("as is")
    ('0.5, 2', 'yes', '–', 'as is')
    """
    if value is None:
        return NOTHING
    if hasattr(value, "tolist") and not isinstance(value, str):  # NumPy scalars and arrays
        value = value.tolist()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value, digits)
    if isinstance(value, list | tuple):
        return ", ".join(cell_text(part, digits) for part in value)
    text = str(value)
    return NOTHING if text in ("nan", "NaT", "<NA>", "") else text


def _in_unit(shown: pd.DataFrame, column: str, unit: str) -> pd.DataFrame:
    """The table with one column shown in ``unit``, which its heading then says."""
    if unit not in SCALES:
        raise not_among("unit", unit, SCALES)
    (words, own) = split_unit(column)
    (needed, size) = SCALES[unit]
    if own != needed:
        raise UsageError(
            f"column {column!r} is in {own or 'no unit'}: it cannot be shown in {unit}, "
            f"which a column in {needed} can"
        )
    if not _is_numeric(shown[column]):
        raise UsageError(f"column {column!r} is not of numbers: no unit fits it")
    scaled = shown.assign(**{column: shown[column] / size})
    return scaled.rename(columns={column: f"{words} ({unit})"})


def _larger_unit(values: pd.Series) -> str:
    """The largest unit that is a power of ten of the column's own, where that would print an
    exponent; else ""."""
    most = values.abs().max() if values.dtype.kind == "f" else 0
    unit = split_unit(str(values.name))[1]
    own = {larger: size for larger, (of, size) in SCALES.items() if of == unit}
    tens = [u for u, size in own.items() if 1 < size <= most and math.log10(size).is_integer()]
    return max(tens, key=own.__getitem__) if tens and most >= LARGEST else ""


def _is_numeric(values: Any) -> bool:
    """Every value present is a number (not a boolean)."""
    if values.dtype.kind in "iuf":
        return True
    present = list(values.dropna())
    return bool(present) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in present
    )


def _escape(text: str) -> str:
    return html.escape(str(text), quote=False).replace("\n", "<br>")


# ---------------------------------------------------------------- tables that a run carries away

METRICS_MIME = "application/vnd.labkit.metrics+json"
"""What a notebook recorded: what sweeps are drawn over."""
SHARED_MIME = "application/vnd.labkit.shared+json"
"""Methods on one input, which papers on the same problem share; ``labkit compare`` collects them by
the input's name. Both are stored rounded, as claims are, so that outputs compare exactly."""


def shared_table(
    key: str,
    input: str,
    results: pd.DataFrame | Mapping[str, Mapping[str, float]],
    sources: Sequence[Source] = (),
) -> Table:
    """Methods by measures on one input, as a notebook shows and carries them."""
    import pandas as pd

    if not isinstance(results, pd.DataFrame):
        results = pd.DataFrame.from_dict(dict(results), orient="index").rename_axis("method")
    name = results.index.name
    if not input.strip():
        raise UsageError("paper.shared needs the name of the input, as its companions say it")
    if not name or results.index.has_duplicates or results.empty:
        raise UsageError(
            "paper.shared takes a table with one row a method: an index with a name and no "
            f"method twice, got index {name!r} with {len(results)} rows"
        )
    records = [
        {"paper": key, "input": input, "method": str(method), "measure": str(measure)}
        | {"value": _value(measure, value)}
        | {"standin": any(source.is_standin for source in sources)}
        for method, row in results.iterrows()
        for measure, value in row.items()
    ]
    return replace(table(results, f"On one input: {input}"), carried={SHARED_MIME: records})


def _value(measure: Any, value: Any) -> float | None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise UsageError(f"paper.shared: {measure!r} must hold numbers, got {value!r}")
    number = value.item() if hasattr(value, "item") else value
    return float(rounded(float(number), 4)) if is_finite_number(number) else None


def shared_in(notebook: Any) -> list[dict[str, Any]]:
    """The shared results that an executed notebook carries, in order.

    Raises:
        LabkitError: one is malformed.
    """
    records: list[Any] = []
    for shown in notebooks.carried(notebook, SHARED_MIME):
        records += shown if isinstance(shown, list) else [shown]
    for record in records:
        fields = record if isinstance(record, dict) else {}
        texts = [fields.get(name) for name in ("paper", "input", "method", "measure")]
        value = fields.get("value", "")
        is_number = value is None or is_finite_number(value)
        if not (all(map(_is_text, texts)) and is_number and type(fields.get("standin")) is bool):
            raise _malformed("a result on a shared input", record)
    return records


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not CONTROL.search(value)


def _malformed(what: str, found: Any) -> LabkitError:
    return LabkitError(
        f"{what} that the notebook stores is malformed: {found!r:.200}; `labkit run` and "
        "`labkit refresh` store it anew"
    )


def metrics_table(values: Mapping[str, Any]) -> Table:
    """Named numbers as a notebook shows and carries them; the end of a name is its unit."""
    import pandas as pd

    if not values:
        raise UsageError("paper.record needs a number by its name, such as time_s=12.5")
    numbers = {name: _number(name, value) for name, value in values.items()}
    return Table(
        data=pd.DataFrame([numbers]),
        headers=["recorded", "value"],
        rows=[[heading(name), cell_text(value)] for name, value in numbers.items()],
        align=["left", "right"],
        carried={METRICS_MIME: numbers},
    )


def _number(name: str, value: Any) -> int | float:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, Real) and not isinstance(value, int | float):
        value = float(value)  # a fraction
    if not is_finite_number(value):
        raise UsageError(f"paper.record: {name} must be a finite number, got {value!r}")
    return value if isinstance(value, int) else rounded(float(value))


def metrics_in(notebook: Any) -> dict[str, int | float]:
    """What an executed notebook recorded, a later value over an earlier one of its name, and what
    it shows on shared inputs, as ``input/method/measure``.

    Raises:
        LabkitError: something it recorded is no number, or has no name.
    """
    values: dict[str, int | float] = {
        f"{record['input']}/{record['method']}/{record['measure']}": record["value"]
        for record in shared_in(notebook)
        if record["value"] is not None
    }
    for recorded in notebooks.carried(notebook, METRICS_MIME):
        are_numbers = isinstance(recorded, dict) and all(map(is_finite_number, recorded.values()))
        if not are_numbers or not all(map(_is_text, recorded)):
            raise _malformed("a table of recorded numbers", recorded)
        values |= recorded
    return values
