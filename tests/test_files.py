"""Files are written whole, found from anywhere, and refused with the line that is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from labkit import files
from labkit.errors import BadFile, UsageError


class Shelf(BaseModel):
    model_config = ConfigDict(extra="forbid")
    books: list[dict[str, int]]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", "old")

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_write_keeps_the_file_s_mode(tmp_path: Path) -> None:
    path = write(tmp_path / "run.sh", "old")
    path.chmod(0o755)
    files.write_atomically(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o755)


def test_the_root_is_found_from_a_folder_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    write(tmp_path / files.MARKER, "")
    below = tmp_path / "notebooks" / "energy"
    below.mkdir(parents=True)
    assert files.project_root(below) == tmp_path.resolve()


def test_a_wrong_root_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    with pytest.raises(UsageError, match=r"LABKIT_ROOT=.*holds no reading_queue\.yaml"):
        files.project_root()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("books:\n  - {a: 1}\n  - {b: [}\n", 3, "not valid YAML"),
        ("books:\n  - {a: 1}\nbooks: []\n", 3, "duplicate key"),
        ("books:\n  - {a: 1}\n  - {b: two}\n", 3, "field 'books.1.b'"),
        ("books: []\nshop: 1\n", 2, "field 'shop'"),
        ("[]\n", None, "whole file"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int | None, says: str
) -> None:
    path = write(tmp_path / "shelf.yaml", text)
    with pytest.raises(BadFile) as caught:
        files.validate(path, files.load_yaml(path), Shelf)
    assert caught.value.line == line
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is missing"):
        files.load_yaml(tmp_path / "none.yaml")


def test_an_item_of_a_mapping_is_described_by_its_own_field(tmp_path: Path) -> None:
    class Book(BaseModel):
        pages: int = Field(description="how many pages")

    class Library(BaseModel):
        shelves: dict[str, Book] = Field(description="by name")

    path = write(tmp_path / "library.yaml", "shelves:\n  upper:\n    pages: many\n")
    with pytest.raises(BadFile, match="how many pages") as caught:
        files.validate(path, files.load_yaml(path), Library)
    assert caught.value.line == 3
