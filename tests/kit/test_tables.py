"""Tables of CSV files: each field stands under its heading, or the line is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import cluster, planner, serving
from labkit.errors import BadFile
from labkit.kit import tables
from labkit.pipeline import EnergyProfile
from labkit.workbook.review import points


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_rows_stand_under_their_lines(tmp_path: Path) -> None:
    text = "# why\na,b\n\n1 , two\n# between\n'3',\"four\nlines\"\n,\n5,6\n"
    table = tables.texts(write(tmp_path / "x.csv", text), comments=True)
    assert table.index.tolist() == [4, 6, 8, 9]
    assert table.to_numpy().tolist() == [["1", "two"], ["'3'", "four\nlines"], ["", ""], ["5", "6"]]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a,b\n1,2\n0,5,10\n", 3, "3 fields where the header has 2; field 'b'; found '0,5,10'"),
        ("a,b\n\n\n1,2,\n", 4, "3 fields where the header has 2"),
        ('a,b\n"x\ny",2\n1\n', 4, "1 fields where the header has 2; field 'b'; found '1'"),
        ("a,b,a\n1,2,3\n", 1, "names a column twice; field 'a'"),
        ("", None, "it has no header line"),
        ("\n\n", None, "it has no header line"),
    ],
)
def test_what_is_no_table_is_refused(
    tmp_path: Path, text: str, line: int | None, says: str
) -> None:
    path = write(tmp_path / "x.csv", text)
    for read in (tables.texts, tables.typed):
        with pytest.raises(BadFile) as error:
            read(path)
        assert says in str(error.value)
        assert error.value.line == line


def test_a_byte_order_mark_is_no_part_of_a_heading(tmp_path: Path) -> None:
    assert list(tables.texts(write(tmp_path / "x.csv", "\ufeffa,b\r\n1,2\r\n"))) == ["a", "b"]


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5).map(str.strip)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5))
def test_what_pandas_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    import pandas as pd

    path = tmp_path_factory.mktemp("tables") / "x.csv"
    pd.DataFrame(rows, columns=["a", "b", "c"]).to_csv(path, index=False)
    assert list(tables.texts(path).itertuples(index=False, name=None)) == rows


def test_numbers_are_numbers_and_the_rest_texts(tmp_path: Path) -> None:
    table = tables.typed(write(tmp_path / "x.csv", "# note\nn,x,word\n1,0.1,a\n2,,007b\n"))
    assert table["n"].tolist() == [1, 2]
    assert table["x"].isna().tolist() == [False, True]
    assert table["word"].tolist() == ["a", "007b"]
    assert table.index.tolist() == [3, 4]


JOBS = "arrival_s,duration_s,gpus\n0,5,1\n"
CHAIN = (
    "layer,forward_s,backward_s,activation_bytes,cut_bytes,parameter_bytes\n"
    "embed,0.1,0.2,100,100,10\nhead,0.1,0.2,100,100,10\n"
)
PROFILE = "stage,instruction,frequency,time,energy\n0,forward,1400,0.1,20\n0,backward,1400,0.2,40\n"
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "jobs": (JOBS, cluster.from_csv),
    "requests": ("arrival_s,prompt_tokens,output_tokens\n0,5,1\n", serving.from_csv),
    "chain": (CHAIN, planner.Chain.read),
    "profile": (PROFILE, lambda path: EnergyProfile.from_csv(path, blocking_power_w=70.0)),
}
"""A right file of each reader of an engine's."""


@pytest.mark.parametrize("kind", READERS)
def test_no_reader_shifts_a_row_with_a_field_too_many(kind: str, tmp_path: Path) -> None:
    text, read = READERS[kind]
    path = tmp_path / "x.csv"
    read(write(path, text))
    read(write(path, f"\ufeff{text}"))
    header, *rows = text.splitlines()
    for more in (",", ",5"):  # a comma at the end, a decimal comma
        every = "\n".join([header, *(row + more for row in rows)])
        one = "\n".join([header, *rows, rows[-1] + more])
        for wrong, line in ((every, 2), (one, len(rows) + 2)):
            with pytest.raises(BadFile, match="fields where the header has") as error:
                read(write(path, wrong))
            assert error.value.line == line
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadFile, match="is a folder"):
        read(tmp_path / "folder.csv")


def test_the_paper_s_points_are_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "papers" / "zeus"
    folder.mkdir(parents=True)
    write(folder / "points.csv", "x,y\n1,2\n0,5,10\n")
    with pytest.raises(BadFile, match=r"points\.csv:3: .*3 fields where the header has 2"):
        points.load(tmp_path, "zeus")
