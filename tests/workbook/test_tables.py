"""Tables: rounding that loses no more than it says, units from names, the same bytes every time."""

from __future__ import annotations

import math
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import quantities, workbook
from labkit.errors import UsageError
from labkit.workbook.review import tables


class Cells(HTMLParser):
    """The rows of an HTML table, by a parser that is not ours."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: str = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.open = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self.open:
            self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open:
            self.rows[-1][-1] += data


def cells(table: tables.Table) -> list[list[str]]:
    return Cells(table.html()).rows


@given(value=st.floats(-1e300, 1e300), digits=st.integers(1, 8))
def test_a_number_as_printed_is_the_number_rounded(value: float, digits: int) -> None:
    text = quantities.number(value, digits)
    printed = float(text.replace(",", ""))
    assert printed == quantities.rounded(value, digits)
    assert abs(printed - value) <= 0.5001 * 10 ** (1 - digits) * abs(value) + 5e-324


@given(value=st.integers(-(10**15), 10**15))
def test_whole_numbers_are_printed_whole(value: int) -> None:
    assert quantities.number(value).replace(",", "") == str(value)
    assert quantities.number(np.int64(value)).replace(",", "") == str(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25"),
        (-0.0, "0"),
        (1e7, "1e7"),
        (999999.0, "1,000,000"),
        (0.00012344, "0.0001234"),
        (math.nan, "–"),
        (-math.inf, "−∞"),
        (np.float64(2.5), "2.5"),
        (np.bool_(True), "yes"),
        (False, "no"),
        (None, "–"),
        (pd.NA, "–"),
        (pd.NaT, "–"),
        ((1, 0.123456), "1, 0.1235"),
        (np.array([1.0, 2.0]), "1, 2"),
        ("a | b", "a | b"),
    ],
)
def test_cell_text(value: Any, text: str) -> None:
    assert tables.cell_text(value) == text


@pytest.mark.parametrize(
    ("column", "header"),
    [
        ("energy_j", "energy (J)"),
        ("iteration_time_s", "iteration time (s)"),
        ("power_limit_w", "power limit (W)"),
        ("peak_bytes", "peak (bytes)"),
        ("bandwidth_bytes_per_s", "bandwidth (bytes/s)"),
        ("rate_flops_per_s", "rate (FLOP/s)"),
        ("clock_mhz", "clock (MHz)"),
        ("saving_percent", "saving (%)"),
        ("saving_fraction", "saving (fraction)"),
        ("bubble_ratio", "bubble ratio"),
        ("num_stages", "num stages"),
        ("s", "s"),
        ("_s", " s"),
        ("energy (kJ)", "energy (kJ)"),
    ],
)
def test_heading_spells_the_unit_out(column: str, header: str) -> None:
    assert quantities.heading(column) == header


def test_html_and_text_hold_the_same_cells() -> None:
    data = pd.DataFrame({"plan": ["max <1>", "ours & more"], "energy_j": [1234.56, 0.5]})
    table = workbook.table(data, caption="Energy")
    assert cells(table) == [
        ["plan", "energy (J)"],
        ["max <1>", "1,235"],
        ["ours & more", "0.5"],
    ]
    text = repr(table).splitlines()
    assert text[0] == "Energy"
    assert text[1].split() == ["plan", "energy", "(J)"]
    assert text[3].endswith("1,235")
    assert len({len(line) for line in text[2:]}) == 1  # numbers right-aligned
    assert "text-align:right" in table.html()
    pd.testing.assert_frame_equal(table.frame(), data)


def test_formats_scale_a_column() -> None:
    data = {
        "peak_bytes": [2**30, 3 * 2**29],
        "energy_j": [3.6e6, 7.2e6],
        "share_fraction": [0.5, 1],
    }
    formats = {"peak_bytes": "GiB", "energy_j": "kWh", "share_fraction": "%"}
    assert cells(workbook.table(data, formats=formats)) == [
        ["peak (GiB)", "energy (kWh)", "share (%)"],
        ["1", "1", "50"],
        ["1.5", "2", "100"],
    ]
    table = workbook.table({"x_s": [0.001, None]}, formats={"x_s": "ms"})
    assert cells(table) == [["x (ms)"], ["1"], ["–"]]


def test_large_fractional_numbers_are_shown_in_a_larger_unit() -> None:
    columns = {"states_bytes": [1.866e10, 7.689e8], "gpu_flops_per_s": [2.384e13, np.nan]}
    shown = workbook.table(columns | {"sent_bytes": [411_041_792, 3], "wait_s": [1e9, 2.0]})
    heads = ["states (GB)", "GPU (TFLOP/s)", "sent (bytes)", "wait (s)"]
    assert [*shown.headers] == heads
    assert [*shown.rows[0]] == ["18.66", "23.84", "411,041,792", "1e9"]
    assert shown.frame()["states_bytes"].iloc[0] == 1.866e10
    asked = workbook.table(columns, formats={"states_bytes": "GiB"})
    assert asked.headers[0] == "states (GiB)"


@pytest.mark.parametrize("unit", sorted(quantities.SCALES))
def test_every_scale_starts_from_a_unit_a_column_can_have(unit: str) -> None:
    assert quantities.SCALES[unit][0] in quantities.UNITS.values()
    assert quantities.SCALES[unit][1] > 0


def test_the_index_is_shown_where_it_has_a_name_or_holds_text() -> None:
    data = pd.DataFrame({"x": [1, 2]}, index=["a", "b"])
    assert cells(workbook.table(data))[:2] == [["", "x"], ["a", "1"]]
    assert workbook.table(data).frame().index.name is None
    assert cells(workbook.table(data.set_axis([7, 9])))[:2] == [["x"], ["1"]]
    assert cells(workbook.table(data.rename_axis("row")))[1] == ["a", "1"]
    levels = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["stage", "clock_mhz"])
    assert cells(workbook.table(data.set_axis(levels)))[0] == ["stage", "clock (MHz)", "x"]
    wide = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("b", "y")]))
    assert cells(workbook.table(wide))[0] == ["a x", "b y"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formats": {"power_w": "kW"}}, "'power_w'"),
        ({"formats": {"energy_j": "GiB"}}, "in J"),
        ({"formats": {"plan": "kJ"}}, "no unit"),
        ({"formats": {"name_j": "kJ"}}, "not of numbers"),
        ({"formats": {"energy_j": "zzz"}}, "'zzz'"),
        ({"digits": 0}, "at least 1"),
    ],
)
def test_wrong_options_name_what_would_do(options: dict[str, Any], words: str) -> None:
    data = {"plan": ["a", "b"], "energy_j": [1.0, 2.0], "name_j": ["x", "y"]}
    with pytest.raises(UsageError, match=words):
        workbook.table(data, **options)


def test_an_empty_table_still_has_its_head() -> None:
    table = workbook.table(pd.DataFrame({"energy_j": []}))
    assert cells(table) == [["energy (J)"]]
    assert "energy (J)" in repr(table)


def test_long_text_wraps_in_plain_text_only() -> None:
    long = "word " * 40
    table = workbook.table([{"what": long.strip(), "value": 1}])
    assert max(len(line) for line in repr(table).splitlines()) < 70
    assert long.strip() in table.html()


def test_a_table_is_the_same_in_another_process() -> None:
    code = (
        "from labkit import workbook;"
        "t = workbook.table({'plan': ['a', 'b'], 'energy_j': [1/3, 2e9]}, 'c');"
        " b = t._repr_mimebundle_();"
        "print(b['text/html']); print(b['text/plain'])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert " id=" not in runs.pop()
