"""Quantities at the edge: units in names, numbers as people print them, how a number was cut.

Inside the engines everything is SI (bytes, seconds, joules). GB is decimal and GiB binary, always
labelled. :func:`formatted` is the formatter of every report: the unit follows from the name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any, Literal, TypeGuard

KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

BILLION = 10**9
TRILLION = 10**12

_DECIMAL = {"kB": KB, "MB": MB, "GB": GB, "TB": TB}
BYTES = {"B": 1, **_DECIMAL, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
"""Bytes in each unit of memory."""

Cut = Literal["exact", "rounded", "truncated", "differs"]


def is_finite_number(value: object) -> TypeGuard[float]:
    """Tell whether ``value`` is a number that is finite as a float; truths are none.

    >>> is_finite_number(3), is_finite_number(10**400), is_finite_number(True)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def format_bytes(num_bytes: float) -> str:
    """Write ``num_bytes`` with the decimal unit that suits its size, to three significant digits.

    >>> format_bytes(31_406_250_000)
    '31.4 GB'
    >>> format_bytes(999)
    '999 B'
    """
    fitting = (name for name, size in reversed(_DECIMAL.items()) if abs(num_bytes) >= size)
    unit = next(fitting, "B")
    return f"{significant(num_bytes / BYTES[unit])} {unit}"


def significant(value: float, digits: int = 3) -> str:
    """Write ``value`` to ``digits`` significant digits, never in exponent form, no trailing zeros.

    >>> significant(1234.5), significant(0.012345), significant(2.0)
    ('1230', '0.0123', '2')
    """
    text = f"{Decimal(f'{value:.{digits - 1}e}'):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cut(exact: int | float | Fraction, printed: str) -> Cut:
    """Tell how ``printed`` came from ``exact``: tables round some cells and truncate others.

    Halves count as rounded whichever way they went. ``printed`` fixes the number of decimals.

    >>> cut(41.25, "41.3"), cut(4187.5, "4187"), cut(52.5, "52.5"), cut(30.57, "30.4")
    ('rounded', 'truncated', 'exact', 'differs')
    """
    shown = Decimal(printed)
    value = Fraction(exact)
    if Fraction(shown) == value:
        return "exact"
    number = Decimal(value.numerator) / Decimal(value.denominator)
    step = Decimal(1).scaleb(int(shown.as_tuple().exponent))
    if shown in {number.quantize(step, mode) for mode in (ROUND_HALF_UP, ROUND_HALF_EVEN)}:
        return "rounded"
    return "truncated" if shown == number.quantize(step, ROUND_DOWN) else "differs"


LARGEST = 1e7
"""From here on :func:`number` prints fractional numbers with an exponent."""
NOTHING = "–"
"""What stands in a cell for a value that is missing."""

_SPELT_AS_NAMED = """
    bytes bytes/s kB KiB MB MiB GB GiB GB/s fraction s ms ns min h Hz MHz J J/s kJ MJ Wh kWh W USD
"""
UNITS: dict[str, str] = {
    **{unit.lower().replace("/", "_per_"): unit for unit in _SPELT_AS_NAMED.split()},
    "per_s": "1/s",
    "us": "µs",
    "percent": "%",
    "pp": "percentage points",
    "flops": "FLOP",
    "flops_per_s": "FLOP/s",
    "tflops": "TFLOP",
    "tflops_per_s": "TFLOP/s",
}
"""What a column name's last part says, as printed. ``_ratio`` stays a word: it has no unit."""
_ACRONYMS = {"gpu": "GPU", "gpus": "GPUs", "cpu": "CPU", "cpus": "CPUs", "jct": "JCT"}

_SCALED: dict[str, dict[str, float]] = {
    "bytes": {name: float(size) for name, size in BYTES.items() if name != "B"},
    "s": {"ms": 1e-3, "µs": 1e-6, "min": 60.0, "h": 3600.0},
    "J": {"kJ": 1e3, "MJ": 1e6, "kWh": 3.6e6},
    "W": {"kW": 1e3},
    "FLOP": {"GFLOP": 1e9, "TFLOP": 1e12},
    "FLOP/s": {"TFLOP/s": 1e12},
    "bytes/s": {"GB/s": 1e9},
    "fraction": {"%": 1e-2},
}
SCALES: dict[str, tuple[str, float]] = {
    unit: (own, size) for own, units in _SCALED.items() for unit, size in units.items()
}
"""Units a column may be shown in by ``formats=``: the unit it must be in, and how many make one."""


def seconds(value: float) -> str:
    """Write a duration: in microseconds and milliseconds where it is short.

    >>> seconds(2.83651), seconds(0.00123456), seconds(33.0), seconds(0.0000004)
    ('2.837 s', '1.235 ms', '33 s', '0.4 µs')
    """
    if 0 < abs(value) < 1e-3:
        return f"{significant(value * 1e6, 4)} µs"
    if 0 < abs(value) < 1:
        return f"{significant(value * 1e3, 4)} ms"
    return f"{significant(value, 4)} s"


def joules(value: float) -> str:
    """Write an energy in joules.

    >>> joules(5837.07), joules(65.25)
    ('5,837 J', '65.25 J')
    """
    return f"{value:,.0f} J" if abs(value) >= 1000 else f"{significant(value, 4)} J"


def percent(value: float | None, digits: int = 2) -> str:
    """Write a fraction in per cent, and nothing where it is missing.

    >>> percent(0.204650), percent(-0.00001), percent(float("nan"))
    ('20.46 %', '0.00 %', '')
    """
    if value is None or math.isnan(value):
        return ""
    return f"{round(100 * value, digits) + 0.0:.{digits}f} %"


_FORMATS: dict[str, Callable[[float], str]] = {
    "s": seconds,
    "j": joules,
    "fraction": percent,
    "bytes": lambda value: format_bytes(value) if value else "0",
}


def formatted(name: str, value: Any) -> str:
    """Write a value of the column, field or option ``name`` as reports print it, with its unit.

    >>> formatted("peak_bytes", 31.4e9), formatted("saving_fraction", 0.2), formatted("dp", 64)
    ('31.4 GB', '20.00 %', '64')
    >>> formatted("limit_w", 250.0), formatted("time_s", None), formatted("fits", True)
    ('250 W', '', 'yes')
    >>> formatted("bandwidth_gb_per_s", 1.25), formatted("gpu_flops_per_s", 2.384e13)
    ('1.25 GB/s', '23.84 TFLOP/s')
    """
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return "yes" if value else "no"
    missing = value is None or type(value).__name__ == "NAType"  # None, pandas' or a NaN
    if missing or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(formatted(name, part) for part in value)
    if hasattr(value, "dtype"):
        return formatted(name, value.item())
    if not isinstance(value, int | float):
        return str(value)
    for suffix, convert in _FORMATS.items():
        if name.endswith(f"_{suffix}") and not name.endswith("_per_s"):
            return convert(float(value))
    unit = split_unit(name)[1]
    if unit in {"FLOP", "FLOP/s"} and abs(value) >= LARGEST:
        value = value / 1e12
        unit = f"T{unit}"
    return f"{number(value)} {unit}" if unit else number(value)


def number(value: float, digits: int = 4) -> str:
    """Write ``value`` rounded to ``digits`` significant digits, with thousands separated.

    Whole numbers (Python or NumPy integers) are exact and printed whole.

    >>> number(0.251234), number(31425.6), number(120), number(1.5e-7), number(3.2e12)
    ('0.2512', '31,430', '120', '1.5e-7', '3.2e12')
    """
    if isinstance(value, int) or (hasattr(value, "dtype") and value.dtype.kind in "iu"):
        return f"{int(value):,}"
    value = rounded(float(value), digits)
    if math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < LARGEST:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def rounded(value: float, digits: int = 4) -> float:
    """Round ``value`` to ``digits`` significant digits, as stored outputs hold it.

    >>> rounded(0.251249999), rounded(-1234567.0), rounded(0.0)
    (0.2512, -1235000.0, 0.0)
    """
    return float(f"{value:.{digits - 1}e}") if math.isfinite(value) else value


def heading(column: str) -> str:
    """Write a column's name in words, its unit in brackets.

    >>> heading("gpu_energy_j"), heading("peak_bytes"), heading("bubble_ratio"), heading("plan")
    ('GPU energy (J)', 'peak (bytes)', 'bubble ratio', 'plan')
    """
    words, unit = split_unit(column)
    return f"{words} ({unit})" if unit else words


def split_unit(column: str) -> tuple[str, str]:
    """Split a column name into its words and the unit it ends in ("" where it names none)."""
    fitting = (suffix for suffix in UNITS if column.endswith(f"_{suffix}") and suffix != column[1:])
    suffix = max(fitting, key=len, default="")
    words = column.removesuffix(f"_{suffix}").split("_")
    return " ".join(_ACRONYMS.get(word, word) for word in words), UNITS.get(suffix, "")


def plain(value: Any) -> Any:
    """Turn ``value`` into what JSON holds: what is missing or not finite is null.

    >>> plain({"a": float("nan"), "b": (1, 2.5)})
    {'a': None, 'b': [1, 2.5]}
    """
    if isinstance(value, dict) or hasattr(value, "keys"):
        return {str(key): plain(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas' missing values
        return None
    raise TypeError(f"JSON cannot hold {type(value).__name__}: {value!r}")
