"""A download gives up in seconds, says why, and does not bother a failed host again."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from labkit import datasets
from labkit.datasets import download

from .conftest import FILES, Book

TIME = "measured/time.csv"
POWER = "measured/power.csv"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ANSWER_S", 1.5)
    monkeypatch.setattr(download, "STALL_S", 1.5)


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A host that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepted: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    accepted.append(listening.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        for connection in accepted:
            connection.close()


def reason_for(path: str) -> str:
    with pytest.raises(datasets.DatasetUnavailable) as caught:
        datasets.open(f"bench/{path}")
    assert f"bench/{path}" in str(caught.value)
    return caught.value.reason


def test_a_silent_host_is_given_up_in_seconds_and_not_tried_again(
    book: Book, silent_address: str
) -> None:
    book.register(address=silent_address)
    started_s = time.monotonic()
    assert "did not answer for 5 s" in reason_for(TIME)
    first_s = time.monotonic() - started_s
    assert first_s < 8
    first = reason_for(POWER)
    assert time.monotonic() - started_s - first_s < 0.5
    assert first == reason_for(TIME), "the reason reads the same each time"
    assert book.kept() == []


def test_a_refused_connection_is_told_at_once(book: Book) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    book.register(address=address)  # nobody listens there any more
    started_s = time.monotonic()
    assert "connection refused" in reason_for(TIME)
    assert time.monotonic() - started_s < 2
    assert address.removeprefix("http://") in reason_for(TIME)


def test_a_name_that_does_not_resolve_is_told(book: Book) -> None:
    book.register(address="http://labkit.invalid")  # reserved: never resolves (RFC 6761)
    started_s = time.monotonic()
    assert "labkit.invalid" in reason_for(TIME)
    assert time.monotonic() - started_s < 8


@pytest.mark.usefixtures("impatient")
def test_a_resolver_that_hangs_is_given_up(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: object, **__: object) -> None:
        release.wait(30)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    book.register(address="http://labkit.invalid")
    started_s = time.monotonic()
    assert "did not answer" in reason_for(TIME)
    assert time.monotonic() - started_s < 6
    release.set()


@pytest.mark.usefixtures("impatient")
def test_a_body_that_stops_is_given_up_and_nothing_is_kept(book: Book) -> None:
    stop = threading.Event()
    size = 10 * download.CHUNK_BYTES

    def stall(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(size))
        request.end_headers()
        request.wfile.write(b"x" * (2 * download.CHUNK_BYTES))
        request.wfile.flush()
        stop.wait(20)

    book.server.answers[TIME] = stall
    started_s = time.monotonic()
    assert "went silent" in reason_for(TIME)
    assert time.monotonic() - started_s < 8
    stop.set()
    assert book.kept() == []


@pytest.mark.usefixtures("impatient")
def test_a_trickle_is_given_up(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes keep coming, so no single wait is long; the whole is bounded all the same."""
    monkeypatch.setattr(download, "CHUNK_BYTES", 1)
    stop = threading.Event()

    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "10000")
        request.end_headers()
        while not stop.wait(0.05):
            request.wfile.write(b"x")
            request.wfile.flush()

    book.server.answers[TIME] = trickle
    started_s = time.monotonic()
    assert "bytes in 3 s" in reason_for(TIME)
    assert time.monotonic() - started_s < 8
    stop.set()


def test_a_body_without_end_is_cut_off(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "EXCESS_BYTES", 1000)

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(b"x" * 4096)

    book.server.answers[TIME] = endless
    assert "far more bytes than published" in reason_for(TIME)
    assert book.kept() == []


def test_a_connection_that_breaks_off_is_told(book: Book) -> None:
    def break_off(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(FILES[TIME])))
        request.end_headers()
        request.wfile.write(FILES[TIME][:5])

    book.server.answers[TIME] = break_off
    assert "broke off" in reason_for(TIME)
    assert book.kept() == []


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_is_told_and_the_hosts_other_files_are_still_fetched(
    book: Book, status: int
) -> None:
    book.publish()
    book.server.refuse(TIME, status)
    assert f"HTTP {status}" in reason_for(TIME)
    assert datasets.open(f"bench/{POWER}").read_bytes() == FILES[POWER]


def test_only_one_try_is_made(book: Book) -> None:
    book.server.refuse(TIME, 503)
    reason_for(TIME)
    assert book.server.asked == {TIME: 1}


def test_fetch_goes_on_after_a_failure(book: Book) -> None:
    book.publish()
    book.server.refuse(TIME, 404)
    book.server.serve(POWER, b"not this")
    problems = datasets.fetch("bench")
    assert sorted(type(problem).__name__ for problem in problems) == [
        "CorruptDownload",
        "DatasetUnavailable",
    ]
    assert {path.read_bytes() for path in book.kept()} == {
        FILES["notes.txt"],
        FILES["other/power.csv"],
    }


def test_nothing_is_printed_where_nobody_watches(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    book.publish(TIME)
    datasets.open(f"bench/{TIME}")
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_a_watched_stderr_and_leaves_stdout_clean(
    book: Book, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    book.publish(TIME)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    datasets.open(f"bench/{TIME}")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "time.csv" in printed.err
