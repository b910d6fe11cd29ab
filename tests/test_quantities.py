"""Units: what people read, and how a printed number was cut."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit import quantities


@pytest.mark.parametrize(
    ("exact", "printed", "expected"),
    [
        (Fraction(6000, 1000), "6", "exact"),
        (Fraction(825, 20), "41.3", "rounded"),  # 41.25: half up
        (Fraction(825, 20), "41.2", "rounded"),  # 41.25: half to even, also rounding
        (Fraction(8375, 2), "4187", "truncated"),
        (Fraction(8375, 2), "4188", "rounded"),
        (0.46875, "0.47", "rounded"),
        (30.567, "30.4", "differs"),
        (1.96, "1.9", "truncated"),
        (1.96, "2.0", "rounded"),
    ],
)
def test_cut_says_how_a_cell_was_printed(
    exact: float | Fraction, printed: str, expected: str
) -> None:
    assert quantities.cut(exact, printed) == expected


@given(st.integers(0, 10**9).filter(lambda n: n % 500), st.integers(0, 2))
def test_the_nearer_neighbour_is_rounded_and_the_lower_truncated(
    thousandths: int, decimals: int
) -> None:
    exact = Fraction(thousandths, 1000)
    step = Fraction(1, 10**decimals)
    below = exact // step * step
    assume(below != exact and exact - below != step / 2)
    low, high = (f"{float(value):.{decimals}f}" for value in (below, below + step))
    up = exact - below > step / 2
    assert quantities.cut(exact, low) == ("truncated" if up else "rounded")
    assert quantities.cut(exact, high) == ("rounded" if up else "differs")


@given(st.floats(1, 1e15))
def test_formatted_bytes_read_back_within_their_digits(num_bytes: float) -> None:
    value, unit = quantities.format_bytes(num_bytes).split()
    sizes = {
        "B": 1,
        "kB": quantities.KB,
        "MB": quantities.MB,
        "GB": quantities.GB,
        "TB": quantities.TB,
    }
    assert float(value) * sizes[unit] == pytest.approx(num_bytes, rel=6e-3)


def test_binary_and_decimal_are_told_apart() -> None:
    assert quantities.format_bytes(2**30) == "1.07 GB"
