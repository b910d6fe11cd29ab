"""A small workbook whose registry points at a server of our own on the loopback."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from labkit.datasets import download

COMMIT = "c0ffee" * 6 + "c0ff"
FILES = {
    "measured/time.csv": b"batch_size,time_s\n8,0.1\n16,0.30000000000000004\n",
    "measured/power.csv": b"batch_size,power_w\n8,100\n16,180\n",
    "other/power.csv": b"batch_size,power_w\n8,90\n",
    "notes.txt": b"what was measured\n",
}
STANDINS = {
    "measured/time.csv": "data/profiles/ours_time.csv",
    "measured/power.csv": "data/profiles/ours_power.csv",
}
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Server:
    """Serves ``answers`` by path; counts what it was asked."""

    address: str
    answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def serve(self, path: str, content: bytes, *, delay_s: float = 0.0) -> None:
        def answer(request: BaseHTTPRequestHandler) -> None:
            time.sleep(delay_s)
            request.send_response(200)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content)

        self.answers[path] = answer

    def refuse(self, path: str, status: int) -> None:
        self.answers[path] = lambda request: request.send_error(status)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/")
            shelf.asked[path] += 1
            answer = shelf.answers.get(path)
            if answer is None:
                self.send_error(404)
            else:
                answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up on us
    shelf = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield shelf
    http.shutdown()
    http.server_close()


@dataclass
class Book:
    """A workbook folder with one dataset, ``bench``, and empty cache and mirror beside it."""

    root: Path
    cache: Path
    mirror: Path
    server: Server
    monkeypatch: pytest.MonkeyPatch

    def register(self, *, address: str = "", standins: dict[str, str] | None = None) -> None:
        """Write the registry; its files are published at ``address``."""
        standins = STANDINS if standins is None else standins
        lines = [
            "datasets:",
            "  bench:",
            '    title: "Bench <times> & powers"',
            "    origin: https://example.org/lab/bench",
            f"    commit: {COMMIT}",
            "    licence: MIT",
            "    citation: bench24",
            "    notes: Time in seconds, power in watts.",
            "    files:",
        ]
        for path, content in FILES.items():
            lines += [
                f"      - path: {path}",
                f"        url: {address or self.server.address}/{path}",
                f"        sha256: {sha256(content)}",
                f"        bytes: {len(content)}",
            ]
            if path in standins:
                lines.append(f"        standin: {standins[path]}")
        (self.root / "data").mkdir(exist_ok=True)
        (self.root / "data" / "datasets.yaml").write_text("\n".join(lines) + "\n")

    def publish(self, *paths: str) -> None:
        """Let the server have the files (default: all)."""
        for path in paths or FILES:
            self.server.serve(path, FILES[path])

    def put_in_mirror(self, path: str, content: bytes | None = None) -> Path:
        """Put a file in the mirror, and set ``LABKIT_DATA_MIRROR``."""
        self.monkeypatch.setenv("LABKIT_DATA_MIRROR", str(self.mirror))
        return _put(self.mirror / "bench" / path, FILES[path] if content is None else content)

    def put_in_cache(self, path: str, content: bytes | None = None) -> Path:
        return _put(self.cached(path), FILES[path] if content is None else content)

    def cached(self, path: str) -> Path:
        return self.cache / "datasets" / "bench" / COMMIT[:12] / path

    def kept(self) -> list[Path]:
        """Every file in the cache folder but the locks."""
        found = (path for path in self.cache.rglob("*") if path.is_file())
        return sorted(path for path in found if path.suffix != ".lock")

    def make_standins(self) -> None:
        _put(self.root / STANDINS["measured/time.csv"], b"# a model\nbatch_size,time_s\n8,0.2\n")
        _put(self.root / STANDINS["measured/power.csv"], b"# a model\nbatch_size,power_w\n8,1\n")


def _put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Iterator[Book]:
    root = tmp_path / "workbook"
    (root / "data").mkdir(parents=True)
    (root / "reading_queue.yaml").write_text("")
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    for name in ("LABKIT_DATA_MIRROR", "LABKIT_OFFLINE", *PROXIES):
        monkeypatch.delenv(name, raising=False)
    made = Book(root, tmp_path / "cache", tmp_path / "mirror", server, monkeypatch)
    made.register()
    made.make_standins()
    download._unreachable.clear()
    yield made
    download._unreachable.clear()
