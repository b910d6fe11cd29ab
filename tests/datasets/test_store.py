"""Where a file comes from, and that only the published bytes ever pass."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import datasets
from labkit.datasets import download
from labkit.errors import LabkitError, UsageError

from .conftest import FILES, Book, sha256

TIME = "measured/time.csv"
WRONG = FILES[TIME].replace(b"0.1", b"0.2")  # the same length


def test_the_cache_is_used_before_the_mirror_and_the_mirror_before_the_network(book: Book) -> None:
    book.publish(TIME)
    mirrored = book.put_in_mirror(TIME)
    cached = book.put_in_cache(TIME)
    assert datasets.open(f"bench/{TIME}") == cached
    cached.unlink()
    assert datasets.open(f"bench/{TIME}") == mirrored
    assert not book.server.asked
    mirrored.unlink()
    assert datasets.open(f"bench/{TIME}") == cached
    assert book.server.asked == {TIME: 1}


def test_a_mirrored_file_is_used_in_place(book: Book) -> None:
    mirrored = book.put_in_mirror(TIME)
    assert datasets.open(f"bench/{TIME}") == mirrored
    assert not book.cache.exists()


def test_a_download_is_kept_and_not_fetched_twice(book: Book) -> None:
    book.publish(TIME)
    first = datasets.open(f"bench/{TIME}")
    assert first.read_bytes() == FILES[TIME]
    assert datasets.open(f"bench/{TIME}") == first
    assert book.server.asked == {TIME: 1}
    assert book.kept() == [first]


def test_the_end_of_a_path_names_a_file_where_only_one_ends_so(book: Book) -> None:
    mirrored = book.put_in_mirror(TIME)
    assert datasets.open("bench/time.csv") == mirrored
    with pytest.raises(UsageError, match=r"'power.csv' names 2 files .*measured/power.*other/pow"):
        datasets.open("bench/power.csv")
    with pytest.raises(UsageError):
        datasets.open("bench/ime.csv")  # a path ends at a folder, not inside a name


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        ("bnch/measured/time.csv", "did you mean 'bench'"),
        ("bench/measured/tme.csv", "did you mean 'measured/time.csv'"),
        ("bench/tine.csv", "did you mean 'time.csv'"),
        ("bench", "write bench/PATH"),
        ("bench/", "write bench/PATH"),
        ("", "no dataset ''"),
    ],
)
def test_an_unknown_name_is_answered_with_what_is_near(
    book: Book, reference: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        datasets.open(reference)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "../../x",
        "../bench/notes.txt",
        "measured/../notes.txt",
        "/etc/hostname",
        "./notes.txt",
        "..",
    ],
)
def test_a_path_cannot_leave_its_dataset(book: Book, path: str) -> None:
    book.put_in_mirror("notes.txt")
    book.publish()
    with pytest.raises(UsageError):
        datasets.open(f"bench/{path}")
    assert not book.server.asked


def test_wrong_bytes_in_the_mirror_are_refused_and_left_there(book: Book) -> None:
    book.publish(TIME)
    mirrored = book.put_in_mirror(TIME, WRONG)
    with pytest.raises(datasets.CorruptDownload) as caught:
        datasets.open(f"bench/{TIME}")
    message = str(caught.value)
    for part in (f"bench/{TIME}", str(mirrored), sha256(FILES[TIME]), sha256(WRONG), "replace"):
        assert part in message
    assert caught.value.exit_code == 1
    assert mirrored.read_bytes() == WRONG
    assert not book.server.asked, "a wrong mirror is told, not papered over by a download"
    assert book.kept() == []


@pytest.mark.parametrize("content", [WRONG, FILES[TIME][:-1], FILES[TIME] + b"\n", b""])
def test_a_wrong_download_is_refused_and_leaves_nothing(book: Book, content: bytes) -> None:
    book.server.serve(TIME, content)
    with pytest.raises(datasets.CorruptDownload) as caught:
        datasets.open(f"bench/{TIME}")
    message = str(caught.value)
    url = f"{book.server.address}/{TIME}"
    for part in (f"bench/{TIME}", url, sha256(FILES[TIME]), sha256(content), "Nothing was kept"):
        assert part in message
    assert book.kept() == []
    book.publish(TIME)  # once the server is right again, so are we
    assert datasets.open(f"bench/{TIME}").read_bytes() == FILES[TIME]


def test_a_wrong_download_does_not_replace_what_is_kept(book: Book) -> None:
    kept = book.put_in_cache("notes.txt")
    book.server.serve(TIME, WRONG)
    with pytest.raises(datasets.CorruptDownload):
        datasets.open(f"bench/{TIME}")
    assert book.kept() == [kept]


def test_a_download_writes_through_no_link(book: Book, tmp_path: Path) -> None:
    """Neither the file's own place nor that of its unfinished copy leads out of the cache."""
    outside = [tmp_path / "kept.txt", tmp_path / "partial.txt"]
    content = FILES["notes.txt"]
    links = [book.cached("notes.txt"), book.cache / "partial" / sha256(content)]
    for link, target in zip(links, outside, strict=True):
        target.write_bytes(b"somebody's own")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    book.publish()
    path = datasets.open("bench/notes.txt")
    assert path.read_bytes() == content
    assert not path.is_symlink()
    assert [target.read_bytes() for target in outside] == [b"somebody's own"] * 2


def test_a_damaged_cached_file_is_fetched_again(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = book.put_in_cache(TIME, WRONG)
    book.publish(TIME)
    with caplog.at_level(logging.WARNING, logger="labkit.datasets"):
        assert datasets.open(f"bench/{TIME}") == damaged
    assert damaged.read_bytes() == FILES[TIME]
    assert "is damaged" in caplog.text


def test_a_damaged_cached_file_gives_way_to_the_mirror(book: Book) -> None:
    book.put_in_cache(TIME, WRONG)
    mirrored = book.put_in_mirror(TIME)
    assert datasets.open(f"bench/{TIME}") == mirrored


def test_a_damaged_cached_file_is_never_handed_out(book: Book) -> None:
    book.put_in_cache(TIME, WRONG)
    book.monkeypatch.setenv("LABKIT_OFFLINE", "1")
    with pytest.raises(datasets.DatasetUnavailable, match="cached copy was damaged"):
        datasets.open(f"bench/{TIME}")
    assert not datasets.available("bench", [TIME])


def test_a_damaged_cached_file_that_cannot_be_fetched_again_does_not_stay(book: Book) -> None:
    book.put_in_cache(TIME, WRONG)
    with pytest.raises(datasets.DatasetUnavailable, match=r"cached copy was damaged.*HTTP 404"):
        datasets.open(f"bench/{TIME}")
    assert book.kept() == []


def test_what_a_killed_process_left_is_not_mistaken_for_a_file(book: Book) -> None:
    left = book.cache / "partial" / sha256(FILES[TIME])
    left.parent.mkdir(parents=True)
    left.write_bytes(FILES[TIME][:10])
    book.publish(TIME)
    found = datasets.open(f"bench/{TIME}")
    assert found.read_bytes() == FILES[TIME]
    assert book.kept() == [found]


def test_offline_means_that_nothing_is_asked(book: Book) -> None:
    book.publish()
    book.monkeypatch.setenv("LABKIT_OFFLINE", "1")
    with pytest.raises(datasets.DatasetUnavailable, match="LABKIT_OFFLINE"):
        datasets.open(f"bench/{TIME}")
    assert not book.server.asked
    book.monkeypatch.setenv("LABKIT_OFFLINE", "0")
    assert datasets.open(f"bench/{TIME}").is_file()


def test_two_processes_fetch_a_file_once(book: Book) -> None:
    book.server.serve(TIME, FILES[TIME], delay_s=0.5)
    code = f"from labkit import datasets; print(datasets.open('bench/{TIME}'))"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=60)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert printed == [str(book.cached(TIME))] * 2
    assert book.cached(TIME).read_bytes() == FILES[TIME]
    assert book.server.asked == {TIME: 1}


def test_a_cache_that_cannot_be_written_is_told(book: Book, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    book.monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "file" / "cache"))
    book.publish()
    with pytest.raises(datasets.DatasetUnavailable, match=r"not writable.*set LABKIT_CACHE"):
        datasets.open(f"bench/{TIME}")


def test_a_disk_that_fills_up_during_a_download_is_told_and_keeps_nothing(book: Book) -> None:
    def full(self: object, piece: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    book.publish()
    book.monkeypatch.setattr(download._Transfer, "write", full)
    told = rf"No space left on device: \S*{TIME}\); set LABKIT_CACHE"
    with pytest.raises(datasets.DatasetUnavailable, match=told):
        datasets.open(f"bench/{TIME}")
    assert not book.cached(TIME).exists()
    assert list((datasets.cache_folder() / "partial").iterdir()) == []


def test_a_file_that_cannot_be_read_is_told(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored = book.put_in_mirror(TIME)
    opened = Path.open

    def refuse(self: Path, *arguments: object, **options: object) -> object:
        if self == mirrored:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(LabkitError, match=r"time\.csv cannot be read: Permission denied"):
        datasets.open(f"bench/{TIME}")


def test_a_mirror_that_is_no_folder_is_told(book: Book) -> None:
    book.monkeypatch.setenv("LABKIT_DATA_MIRROR", str(book.root / "nowhere"))
    with pytest.raises(UsageError, match=r"LABKIT_DATA_MIRROR=.*is not a folder"):
        datasets.open(f"bench/{TIME}")


def test_a_relative_mirror_starts_from_the_workbook(book: Book, tmp_path: Path) -> None:
    mirrored = book.put_in_mirror(TIME)
    book.monkeypatch.setenv("LABKIT_DATA_MIRROR", os.path.join("..", "mirror"))
    (tmp_path / "elsewhere").mkdir()
    book.monkeypatch.chdir(tmp_path / "elsewhere")  # as in a notebook's kernel
    assert datasets.open(f"bench/{TIME}") == mirrored


def test_the_cache_defaults_to_the_systems_folder(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home-cache"))
    assert datasets.cache_folder().name == "labkit"
    if sys.platform == "linux":
        assert datasets.cache_folder() == tmp_path / "home-cache" / "labkit"


def test_importing_is_light() -> None:
    heavy = "{'pandas', 'numpy', 'pooch', 'requests', 'pydantic', 'filelock', 'tqdm'}"
    code = f"import sys, labkit.datasets; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
