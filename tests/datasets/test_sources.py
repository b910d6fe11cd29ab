"""What a notebook is given: published, or a stand-in that nobody can overlook; never a mixture."""

from __future__ import annotations

import re

import pytest

from labkit import datasets
from labkit.errors import LabkitError, UsageError

from .conftest import COMMIT, FILES, Book

TIME = "measured/time.csv"
POWER = "measured/power.csv"
BOTH = [TIME, POWER]


def banner(source: datasets.Source) -> dict[str, str]:
    return source._repr_mimebundle_()


@pytest.fixture
def offline(book: Book) -> Book:
    book.monkeypatch.setenv("LABKIT_OFFLINE", "1")
    return book


def test_published_files_are_given_with_a_quiet_credit(book: Book) -> None:
    for path in BOTH:
        book.put_in_mirror(path)
    source = datasets.source("bench", BOTH)
    assert not source.is_standin
    assert source.name == "bench"
    assert source.path(TIME).read_bytes() == FILES[TIME]
    assert source.path("time.csv") == source.path(TIME)
    text = banner(source)["text/plain"]
    assert "\n" not in text
    for part in ("Bench <times> & powers", "lab/bench", COMMIT[:7], "MIT"):
        assert part in text
    assert "stand-in" not in text.lower()


def test_the_banner_is_the_same_however_the_files_came(book: Book) -> None:
    for path in BOTH:
        book.put_in_mirror(path)
    from_mirror = banner(datasets.source("bench", BOTH))
    book.monkeypatch.delenv("LABKIT_DATA_MIRROR")
    book.publish()
    downloaded = banner(datasets.source("bench", BOTH))
    book.monkeypatch.setenv("LABKIT_OFFLINE", "1")
    assert len(book.kept()) == len(BOTH)
    from_cache = banner(datasets.source("bench", BOTH))
    assert from_mirror == downloaded == from_cache


def test_one_missing_file_makes_the_whole_source_a_standin(offline: Book) -> None:
    mirrored = offline.put_in_mirror(TIME)
    source = datasets.source("bench", BOTH)
    assert source.is_standin
    assert "LABKIT_OFFLINE" in source.reason
    assert mirrored not in source.files.values()
    profiles = offline.root / "data" / "profiles"
    assert {source.path(path).parent for path in BOTH} == {profiles}


def test_the_standin_banner_is_loud_and_says_why(offline: Book) -> None:
    bundle = banner(datasets.source("bench", [*BOTH, "notes.txt"]))
    for text in bundle.values():
        assert "STAND-IN DATA" in text
        assert "not the published measurements" in text
        assert "LABKIT_OFFLINE is set" in text
        assert "labkit data fetch bench" in text
        assert "notes.txt" in text, "what has no stand-in is told"
    assert "not judged" in bundle["text/plain"]
    assert "<times>" not in bundle["text/html"], "the title is escaped"


def test_the_banner_gives_the_reason_of_the_run_that_looked(offline: Book) -> None:
    """Who set LABKIT_OFFLINE for its kernels says why; the reader must not look for a setting."""
    offline.monkeypatch.setenv("LABKIT_OFFLINE_REASON", "the host did not answer")
    text = banner(datasets.source("bench", BOTH))["text/plain"]
    assert "the host did not answer" in text
    assert "LABKIT_OFFLINE is set" not in text


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb as WCAG 2.1 defines it."""
    digits = colour.lstrip("#")
    digits = "".join(d * 2 for d in digits) if len(digits) == 3 else digits
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_standin_banner_can_be_read_by_everyone(offline: Book) -> None:
    """Text and ground differ in lightness, not only in hue: WCAG's stricter contrast, 7:1."""
    html = banner(datasets.source("bench", BOTH))["text/html"]
    style = re.search(r'style="([^"]+)"', html)
    assert style is not None
    colours = dict(re.findall(r"(?:^|;)(background|color):(#[0-9a-f]+)", style.group(1)))
    dark, light = sorted(luminance(colour) for colour in colours.values())
    assert len(colours) == 2
    assert (light + 0.05) / (dark + 0.05) >= 7


def test_a_file_without_standin_is_absent_and_says_so(offline: Book) -> None:
    source = datasets.source("bench", [*BOTH, "notes.txt"])
    assert source.has(TIME)
    assert not source.has("notes.txt")
    with pytest.raises(LabkitError, match=r"notes\.txt has no stand-in") as caught:
        source.path("notes.txt")
    assert "source.has" in str(caught.value)


def test_a_source_without_any_standin_is_still_not_published(offline: Book) -> None:
    source = datasets.source("bench", ["notes.txt"])
    assert source.is_standin
    assert not source.files
    assert "STAND-IN DATA" in banner(source)["text/plain"]


def test_a_source_holds_only_what_was_asked_for(book: Book) -> None:
    book.put_in_mirror(TIME)
    source = datasets.source("bench", [TIME])
    assert not source.has(POWER)
    with pytest.raises(LabkitError, match="was not asked for"):
        source.path(POWER)
    with pytest.raises(UsageError, match=r"has no file 'tme.csv'.*did you mean 'time.csv'"):
        source.path("tme.csv")


def test_wrong_bytes_are_never_replaced_by_a_standin(book: Book) -> None:
    """Not even where another file cannot be had, which alone would call for the stand-in."""
    book.put_in_mirror(TIME, b"other bytes")
    for path in BOTH:
        with pytest.raises(datasets.CorruptDownload):
            datasets.source("bench", BOTH)
        book.publish(path)


def test_a_missing_standin_file_is_told(offline: Book) -> None:
    (offline.root / "data" / "profiles" / "ours_power.csv").unlink()
    with pytest.raises(LabkitError, match=r"ours_power\.csv, the stand-in of bench/measured/power"):
        datasets.source("bench", BOTH)


def test_tables_keep_every_digit_and_skip_a_standins_header(book: Book) -> None:
    book.put_in_mirror(TIME)
    published = datasets.source("bench", [TIME]).frame(TIME)
    assert published.columns.tolist() == ["batch_size", "time_s"]
    assert published["time_s"].tolist() == [0.1, 0.30000000000000004]
    book.monkeypatch.delenv("LABKIT_DATA_MIRROR")
    book.monkeypatch.setenv("LABKIT_OFFLINE", "1")
    ours = datasets.source("bench", [TIME]).frame(TIME)
    assert ours.columns.tolist() == published.columns.tolist()
    assert ours["time_s"].tolist() == [0.2]


def test_one_file_can_be_named_with_its_dataset(book: Book) -> None:
    mirrored = book.put_in_mirror(TIME)
    assert datasets.source("bench/measured/time.csv").path(TIME) == mirrored
    with pytest.raises(UsageError, match="is one file"):
        datasets.source("bench/measured/time.csv", [POWER])


@pytest.mark.parametrize("files", ["time.csv", []])
def test_files_are_a_list_that_is_not_empty(book: Book, files: object) -> None:
    with pytest.raises(UsageError):
        datasets.source("bench", files)  # type: ignore[arg-type]


def test_available_means_all_here_and_intact(offline: Book) -> None:
    assert not datasets.available("bench", BOTH)
    offline.put_in_mirror(TIME)
    assert datasets.available("bench", [TIME])
    assert datasets.available(f"bench/{TIME}")
    assert not datasets.available("bench", BOTH)
    offline.put_in_cache(POWER)
    assert datasets.available("bench", BOTH)
    assert not datasets.available("bench"), "all of the dataset, where no file is named"
    offline.put_in_cache(POWER, b"damaged")
    assert not datasets.available("bench", BOTH)


def test_available_downloads_nothing(book: Book) -> None:
    book.publish()
    assert not datasets.available("bench")
    assert datasets.fingerprint("bench").startswith("stand-in:")
    assert not book.server.asked


def test_the_fingerprint_follows_what_would_be_read(offline: Book) -> None:
    standin = datasets.fingerprint("bench", BOTH)
    assert standin.startswith("stand-in:")
    ours = offline.root / "data" / "profiles" / "ours_time.csv"
    ours.write_bytes(ours.read_bytes() + b"16,0.4\n")
    changed = datasets.fingerprint("bench", BOTH)
    assert changed.startswith("stand-in:")
    assert changed != standin

    for path in BOTH:
        offline.put_in_mirror(path)
    mirrored = datasets.fingerprint("bench", BOTH)
    assert not mirrored.startswith("stand-in:")
    assert mirrored == datasets.fingerprint("bench", BOTH[::-1])
    assert mirrored != datasets.fingerprint("bench", [TIME])

    for path in BOTH:
        offline.put_in_cache(path)
    assert datasets.fingerprint("bench", BOTH) == mirrored

    offline.cached(TIME).unlink()
    offline.put_in_mirror(TIME, b"other bytes")
    assert datasets.fingerprint("bench", BOTH).startswith("corrupt:")


def test_needed_expands_what_a_notebook_declares(book: Book) -> None:
    assert datasets.needed([]) == {}
    assert datasets.needed(["bench/time.csv", "bench/notes.txt", "bench/notes.txt"]) == {
        "bench": ("measured/time.csv", "notes.txt")
    }
    assert datasets.needed(["bench/notes.txt", "bench"]) == {"bench": tuple(sorted(FILES))}
    with pytest.raises(UsageError, match="no dataset 'bnech'; did you mean 'bench'"):
        datasets.needed(["bnech"])
