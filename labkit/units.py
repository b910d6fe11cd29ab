"""Quantities at the edge: bytes as people print them, and how a printed number was cut.

Inside the engines everything is SI (bytes, seconds, joules). GB is decimal and GiB binary, always
labelled.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Literal

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

BILLION, TRILLION = 10**9, 10**12

_DECIMAL = (("TB", TB), ("GB", GB), ("MB", MB), ("kB", KB))
_BINARY = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))

Cut = Literal["exact", "rounded", "truncated", "differs"]


def format_bytes(num_bytes: float, *, binary: bool = False, digits: int = 3) -> str:
    """``num_bytes`` with the unit that suits its size, to ``digits`` significant digits.

    >>> format_bytes(31_406_250_000)
    '31.4 GB'
    >>> format_bytes(32 * GIB, binary=True)
    '32 GiB'
    >>> format_bytes(999)
    '999 B'
    """
    for name, size in _BINARY if binary else _DECIMAL:
        if abs(num_bytes) >= size:
            return f"{significant(num_bytes / size, digits)} {name}"
    return f"{significant(num_bytes, digits)} B"


def significant(value: float, digits: int = 3) -> str:
    """``value`` to ``digits`` significant digits, never in exponent form, no trailing zeros.

    >>> significant(1234.5), significant(0.012345), significant(2.0)
    ('1230', '0.0123', '2')
    """
    text = f"{Decimal(f'{value:.{digits - 1}e}'):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cut(exact: int | float | Fraction, printed: str) -> Cut:
    """How ``printed`` came from ``exact``: tables round some cells and truncate others.

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
