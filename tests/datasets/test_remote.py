"""Each registered address is asked for its headers: every answer a host can give, on loopback."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.datasets import remote
from labkit.datasets.remote import Address, Answer
from labkit.workbook.queue import intake

SIZE = 12
RELEASE = threading.Event()
LOCK = threading.Lock()


class Host(BaseHTTPRequestHandler):
    """Answers by the path: what it is called is what it does."""

    asked: Counter[str]
    seen: list[dict[str, str]]
    at_once: list[int]
    under_way: int

    def answer(self) -> None:
        path = self.path.strip("/")
        is_head = self.command == "HEAD"
        self.asked[f"{self.command} {path}"] += 1
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        if path.isdecimal():
            self.say(int(path))
        elif path.startswith("only-get"):
            ranged = "Range" in self.headers and path == "only-get"
            self.say(405) if is_head else self.say(206 if ranged else 200, ranged=ranged)
        elif path == "empty":
            self.say(405) if is_head else self.say(416, {"Content-Range": "bytes */0"})
        elif path.startswith("to-"):  # to-301-PLACE
            _, status, place = path.split("-", 2)
            self.say(int(status), {"Location": place.replace("_", ":").replace("!", "/")})
        elif path == "circle":
            self.say(302, {"Location": "/circle"})
        elif path == "reset":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.request.close()
        elif path == "silent":
            RELEASE.wait(20)
        elif path == "slow":
            with LOCK:
                Host.under_way += 1
                self.at_once.append(self.under_way)
            time.sleep(0.15)
            with LOCK:  # before the answer, which lets the next one come
                Host.under_way -= 1
            self.say(200)
        else:
            self.say(200, {"Content-Encoding": "gzip"} if path == "gzip" else {})

    def say(self, status: int, more: dict[str, str] | None = None, *, ranged: bool = False) -> None:
        headers = dict(more or {})
        self.send_response(status)
        if ranged:
            headers["Content-Range"] = f"bytes 0-0/{SIZE}"
        if status == 200 and self.path != "/mute":
            headers["Content-Length"] = str(SIZE)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    do_HEAD = do_GET = answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a host that has just been started."""
    RELEASE.clear()
    Host.asked = Counter()
    Host.seen = []
    Host.at_once = []
    Host.under_way = 0
    http = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    http.daemon_threads = True
    http.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up on us
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LABKIT_OFFLINE", raising=False)
    yield f"http://127.0.0.1:{http.server_address[1]}"
    RELEASE.set()
    http.shutdown()
    http.server_close()


def asked(url: str, size_bytes: int | None = SIZE) -> Answer:
    (answer,) = remote.ask([Address(url=url, size_bytes=size_bytes)])
    return answer


@pytest.mark.parametrize(
    ("path", "state", "words"),
    [
        ("200", "fine", "size as registered"),
        ("mute", "fine", "size not told"),
        ("gzip", "fine", "size not told"),  # what is compressed on the way is of another size
        ("only-get", "fine", "size as registered"),
        ("only-get-whole", "fine", "size as registered"),
        ("404", "gone", "HTTP 404"),
        ("410", "gone", "HTTP 410"),
        ("403", "refused", "HTTP 403"),
        ("429", "refused", "HTTP 429"),
        ("500", "refused", "HTTP 500"),
        ("to-302-200", "fine", "size as registered"),
        ("to-307-404", "gone", "HTTP 404"),
        ("to-301-404", "gone", "HTTP 404"),
        ("to-302-to-301-200", "fine", "size as registered"),  # what moved was a detour's end
        ("to-302-file_!!!etc!passwd", "refused", "redirects to file:///etc/passwd"),
        ("to-301-to-301-to-301-to-301-to-301-to-301-200", "refused", "more than 5 redirects"),
        ("reset", "unreachable", "connection reset by peer"),
    ],
)
def test_every_answer_has_its_word(host: str, path: str, state: str, words: str) -> None:
    answer = asked(f"{host}/{path}")
    assert (answer.state, answer.words) == (state, words)


def test_another_size_is_a_change(host: str) -> None:
    for path in ("200", "only-get", "to-301-200"):
        answer = asked(f"{host}/{path}", 99)
        assert (answer.state, answer.words) == ("changed", f"{SIZE} bytes, 99 registered")
    assert asked(f"{host}/empty", 0).state == "fine"
    assert asked(f"{host}/200", None).words == ""


@pytest.mark.parametrize("status", [301, 308])
def test_a_move_for_good_gives_the_new_address(host: str, status: int) -> None:
    assert asked(f"{host}/to-{status}-200").moved_to == f"{host}/200"
    twice = asked(f"{host}/to-{status}-to-{status}-200")
    assert (twice.state, twice.words) == ("moved", f"to {host}/200")
    then_elsewhere = asked(f"{host}/to-{status}-to-302-200")
    assert then_elsewhere.moved_to == f"{host}/to-302-200"


def test_a_circle_of_redirects_ends(host: str) -> None:
    assert asked(f"{host}/circle").words == "more than 5 redirects"
    assert Host.asked == {"HEAD circle": 6}


def test_headers_alone_are_asked_for(host: str) -> None:
    (answer,) = remote.ask([Address(url=f"{host}/200", headers={"Accept": "application/x-bibtex"})])
    assert answer.state == "fine"
    assert Host.asked == {"HEAD 200": 1}
    assert Host.seen[0]["accept"] == "application/x-bibtex"
    asked(f"{host}/only-get")
    assert Host.seen[-1]["range"] == "bytes=0-0"


def test_a_silent_host_is_given_up_and_not_asked_again(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ANSWER_S", 0.4)
    monkeypatch.setattr(remote, "AT_ONCE", 2)
    began_s = time.monotonic()
    answers = [*remote.ask(Address(url=f"{host}/silent") for _ in range(40))]
    assert time.monotonic() - began_s < 8  # 40 of them, two at once, would take 8 s
    assert {(answer.state, answer.words) for answer in answers} == {
        ("unreachable", "no answer in 0.4 s")
    }
    assert Host.asked["HEAD silent"] <= 4


def test_a_host_that_answers_is_forgiven_two_misses(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "AT_ONCE", 1)
    paths = ["200", "reset", "reset", "200", "reset", "200"]
    states = [answer.state for answer in remote.ask(Address(url=f"{host}/{p}") for p in paths)]
    assert states == ["fine", *["unreachable"] * 2, "fine", *["unreachable"] * 2]
    assert Host.asked == {"HEAD 200": 2, "HEAD reset": 3}


def test_a_few_are_asked_at_once_and_answers_keep_their_order(host: str) -> None:
    paths = [*["slow"] * 12, "404", "200"]
    answers = [*remote.ask(Address(url=f"{host}/{path}") for path in paths)]
    assert [answer.state for answer in answers] == ["fine"] * 12 + ["gone", "fine"]
    assert 1 < max(Host.at_once) <= remote.AT_ONCE
    assert len(Host.seen) == 15  # the 404 was asked for twice


# ---------------------------------------------------------------- the command


@pytest.fixture
def workbook(tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workbook whose registry and look-ups point at the host; its two files stand there."""
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setattr(intake, "RESOLVER", host)
    (tmp_path / "data").mkdir()
    (tmp_path / "reading_queue.yaml").write_text("papers: []\n")
    (tmp_path / "data" / "papers.bib").write_text(
        "@misc{a, title={A}, author={B, C}, year=2020, eprint={2001.00001}, doi={10.1145/1.2}}\n"
    )
    register(tmp_path, host, "200", "only-get")
    return tmp_path


def register(root: Path, host: str, *paths: str) -> None:
    dataset = {"title": "t", "origin": f"{host}/lab/repo", "commit": "ab" * 20, "licence": "MIT"}
    files = [
        {"path": path, "url": f"{host}/{path}", "sha256": "0" * 64, "bytes": SIZE} for path in paths
    ]
    dataset |= {"citation": "a", "notes": "n"}
    text = json.dumps({"datasets": {"bench": {**dataset, "files": files}}})
    (root / "data" / "datasets.yaml").write_text(text)


def test_the_command_prints_a_line_each_and_a_sum(
    workbook: Path, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify", "--remote"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"fine        {host}/200  size as registered"
    assert lines[2:] == [
        f"fine        {host}/lab/repo",
        f"fine        {host}/10.48550/arXiv.2001.00001",
        f"fine        {host}/10.1145/1.2",
        "5 fine",
    ]
    assert main(["data", "verify", "--remote", "bench/200"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 fine"  # the file and its repository


def test_outside_a_workbook_no_paper_is_looked_up(
    workbook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labkit.cli.data.workbook_around", lambda: None)
    assert main(["data", "verify", "--remote"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 fine"  # two files and their repository


@pytest.mark.parametrize(
    ("path", "code"), [("404", 1), ("mute", 0), ("500", 0), ("to-301-200", 0), ("reset", 0)]
)
def test_what_is_gone_or_changed_ends_with_1(
    workbook: Path, host: str, capsys: pytest.CaptureFixture[str], path: str, code: int
) -> None:
    register(workbook, host, "200", path)
    assert main(["data", "verify", "--remote", "--json", "bench"]) == code
    records = json.loads(capsys.readouterr().out)
    assert [record["url"] for record in records] == [
        f"{host}/{part}" for part in ("200", path, "lab/repo")
    ]
    assert records[0] | {"url": ""} == {
        "url": "",
        "state": "fine",
        "words": "size as registered",
        "size_bytes": SIZE,
        "registered_bytes": SIZE,
        "moved_to": None,
    }


def test_without_a_network_it_says_so_once(
    workbook: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    register(workbook, nobody, "a", "b", "c")
    monkeypatch.setattr(intake, "RESOLVER", nobody)
    began_s = time.monotonic()
    assert main(["data", "verify", "--remote"]) == 1
    assert time.monotonic() - began_s < remote.ANSWER_S
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line == "no network: none of 6 addresses answered (connection refused)"
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    assert main(["data", "verify", "--remote"]) == 1
    assert "LABKIT_OFFLINE" in capsys.readouterr().err
