"""Files are written whole, found from anywhere, and refused with the line that is wrong."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from labkit import files
from labkit.cli import main
from labkit.errors import BadFile, UsageError

ROOT = files.project_root()


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


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    path = write(shared / "queue.yaml", "old")
    link = tmp_path / "queue.yaml"
    link.symlink_to("shared/queue.yaml")
    files.write_atomically(link, "new")
    assert (link.is_symlink(), path.read_text()) == (True, "new")
    ahead = tmp_path / "ahead.yaml"
    ahead.symlink_to("shared/later.yaml")
    files.write_atomically(ahead, "first")
    assert (shared / "later.yaml").read_text() == "first"
    assert [p.name for p in shared.glob(".*")] == []


def test_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomically(pipe, "rows")
    assert os.read(reader, 10) == b"rows"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    full = tmp_path / "full"  # a link, so that no device can be lost should the test fail
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="full") as caught:
        files.write_atomically(full, "rows")
    assert caught.value.filename == str(full)
    assert full.is_symlink()


def test_the_root_is_found_from_a_folder_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    write(tmp_path / files.MARKER, "")
    below = tmp_path / "notebooks" / "energy"
    below.mkdir(parents=True)
    assert files.project_root(below) == tmp_path.resolve()


def test_shipped_data_are_the_workbook_s_own_else_the_installed_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    package = tmp_path / "site-packages" / "labkit"
    monkeypatch.setattr(files, "PACKAGE", package)
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    with pytest.raises(UsageError, match=r"no workbook found: neither .*outside nor a folder"):
        files.shipped("data/models.yaml")
    (package / "data").mkdir(parents=True)
    write(package / "data" / "models.yaml", "")
    assert files.shipped("data/models.yaml") == package / "data" / "models.yaml"
    workbook = tmp_path / "workbook"
    workbook.mkdir()
    write(workbook / files.MARKER, "")
    assert files.shipped("data/models.yaml", workbook) == package / "data" / "models.yaml"
    (workbook / "data").mkdir()
    write(workbook / "data" / "models.yaml", "")
    assert files.shipped("data/models.yaml", workbook) == workbook / "data" / "models.yaml"
    monkeypatch.chdir(workbook)
    assert files.shipped("data/models.yaml") == workbook.resolve() / "data" / "models.yaml"
    monkeypatch.setenv("LABKIT_ROOT", str(outside))
    with pytest.raises(UsageError, match=r"LABKIT_ROOT=.* is not a workbook"):
        files.shipped("data/models.yaml")


def test_a_working_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (["queue"], ["results", "--csv", "x.csv"], ["memory", "plan", "llama-2-7b"]):
        assert main(words) == 2
        assert "the working directory is gone" in capsys.readouterr().err


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


SCALARS = """
a: 010
b: 1_000
c: 1e5
d: 0x1F
e: 0o17
f: [no, on, yes, y]
g: 2024-01-02
h: [.inf, -.inf, ~, null, True]
i:
j: 12:30
k: '5'
l: [-1.5e-3, +.5, 1., 1e+3, -5, 1.2.3]
m: &anchor {x: 1, y: [2, 3]}
n: {<<: *anchor, x: 4}
o: [*anchor, "two\\nlines"]
p: >-
  folded
  text
"""


def same_as_ruamel(ours: Any, theirs: Any) -> None:
    """Values, kinds and lines of a tree beside those of ruamel's round trip."""
    if isinstance(theirs, dict | list):
        assert isinstance(ours, dict if isinstance(theirs, dict) else list)
        assert len(ours) == len(theirs)
        for part in theirs if isinstance(theirs, dict) else range(len(theirs)):
            if part in theirs.lc.data:  # it stands here, and is not merged from elsewhere
                lines = theirs.lc.key if isinstance(theirs, dict) else theirs.lc.item
                assert files.line_of(ours, (part,)) == lines(part)[0] + 1
            same_as_ruamel(ours[part], theirs[part])
    else:
        kind = next(k for k in (bool, int, float, str, type(None)) if isinstance(theirs, k))
        assert type(ours) is kind
        assert ours == kind(theirs) if kind is not type(None) else theirs is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        files.MARKER,
        *sorted(
            p.relative_to(ROOT).as_posix()
            for top in ("data", "labkit")
            for p in (ROOT / top).rglob("*.yaml")
        ),
    ],
)
def test_yaml_is_read_as_another_parser_reads_it(path: str) -> None:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import RoundTripConstructor as Base

    class Constructor(Base):
        """Dates as texts."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", Base.construct_yaml_str)
    parser = YAML(typ="rt")
    parser.Constructor = Constructor
    text = (ROOT / path).read_text(encoding="utf-8") if path else SCALARS
    same_as_ruamel(files.parse_yaml(Path("x.yaml"), text), parser.load(text))


@pytest.mark.parametrize(
    "text",
    [
        "&a {b: *a}\n",
        "a: {b: 1}\n---\nc: 2\n",
        "? [1]\n: 2\n",
        "a: *none\n",
        "a: \x00\n",
        "a: 1\nb: 2\na: 3\n",
    ],
)
def test_what_is_no_single_mapping_of_text_is_refused(text: str) -> None:
    with pytest.raises(BadFile, match=r"x\.yaml.*not valid YAML"):
        files.parse_yaml(Path("x.yaml"), text)


@pytest.mark.parametrize("depth", [files.DEEPEST, 330, 25_000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")])
def test_depth_is_bounded_before_the_parser_runs_out_of_stack(
    tmp_path: Path, opened: str, closed: str, depth: int
) -> None:
    """In a process of its own: the parser in C ends it with a segmentation fault."""
    path = write(tmp_path / "x.yaml", f"a:\n {opened * depth}1{closed * depth}\n")
    code = "import sys, pathlib, labkit.files as f; f.load_yaml(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], stderr=subprocess.PIPE, text=True
    )
    says = rf"BadFile: {path}:2: not valid YAML: lists or mappings more than {files.DEEPEST} deep"
    assert says in done.stderr
    if opened != "? ":  # a key that is no text is refused anyway
        nested = opened * (files.DEEPEST - 2) + "1" + closed * (files.DEEPEST - 2)
        assert files.parse_yaml(path, f"a:\n {nested}\n")


@pytest.mark.parametrize(
    "number", ["9" * 4301, "0x" + "f" * 4000, "1_" * 2000 + "1", "-" + "1" * 1000]
)
def test_a_whole_number_of_thousands_of_digits_is_refused(number: str) -> None:
    with pytest.raises(BadFile, match=r"x\.yaml:2.*a whole number of more than 1000 digits"):
        files.parse_yaml(Path("x.yaml"), f"a: 1\nb: {number}\n")
    assert files.parse_yaml(Path("x.yaml"), f"b: {'9' * 1000}\n")["b"] == 10**1000 - 1


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
