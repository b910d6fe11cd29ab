"""Real servers of a session: what a page's token opens, what is left behind, and that they stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from labkit.workbook.run import processes
from tests.export import synthetic

pytest.importorskip("jupyterlab", reason="JupyterLab is not installed (extra: lab)")
pytest.importorskip("voila", reason="Voilà is not installed (extra: lab)")
pytestmark = pytest.mark.slow

STARTS_WITHIN_S = 120
STOPS_WITHIN_S = 40
ALPHA = "/voila/render/notebooks/energy/alpha.ipynb"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Server(NamedTuple):
    """A server that was started, and the token of whoever started it."""

    process: subprocess.Popen[bytes]
    port: int
    token: str

    def ask(self, method: str, path: str, *, body: str = "", **headers: str) -> Answer:
        """One request, without the token unless a header carries it; redirects stay unfollowed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        return Answer(answer.status, dict(answer.getheaders()), text)

    def ask_with_token(self, method: str, path: str, body: str = "") -> Answer:
        return self.ask(method, path, body=body, Authorization=f"token {self.token}")


@contextmanager
def started(root: Path, home: Path, *command: str, token: str, port: int = 0) -> Iterator[Server]:
    """A command of ours that serves; at the block's end it is told to stop, and does."""
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    words = [*command, "--no-browser", f"--port={port}"]
    words += [] if command[0] == "panel" else ["--allow-root"]
    environment = os.environ | {
        "HOME": str(home),
        "JUPYTER_TOKEN": token,
        "LABKIT_ROOT": str(root),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):
        environment.pop(name, None)
    log = home.parent / f"{command[0]}-{port}.log"
    with log.open("w") as out:
        run = [sys.executable, "-c", f"from labkit.cli import main; main({words})"]
        process = subprocess.Popen(run, cwd=root, env=environment, stdout=out, stderr=out)
    server = Server(process, port, token)
    until = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            server.ask("GET", "/login")
            break
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
    try:
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"lives on after SIGTERM:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = synthetic.make(tmp_path_factory.mktemp("servers") / "workbook")
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    path.with_name("beta.ipynb").write_bytes(path.read_bytes())
    (root / "page.html").write_text("<script>1</script>")
    return root


@pytest.fixture(scope="module")
def home(root: Path) -> Path:
    home = root.parent / "home"
    home.mkdir()
    return home


@pytest.fixture(scope="module")
def lab(root: Path, home: Path) -> Iterator[Server]:
    with started(root, home, "lab", token="token-of-lab-0123") as server:
        yield server


@pytest.fixture(scope="module")
def deck(root: Path, home: Path) -> Iterator[Server]:
    with started(root, home, "present", "alpha", token="token-of-a-deck-0123") as server:
        yield server


@pytest.fixture
def dashboard() -> Iterator[tuple[int, list[str]]]:
    """Something else that listens on this machine, as Dask's dashboard does; what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield listener.server_port, asked
        listener.shutdown()


# --- what the token of a page opens ---


def test_the_token_of_a_deck_opens_the_deck(deck: Server) -> None:
    assert deck.ask("GET", "/labkit/deck/alpha").status == 302  # to the login page
    assert deck.ask_with_token("GET", "/labkit/deck/alpha").status == 200


@pytest.mark.parametrize(
    "request_line",
    [
        "PUT /api/contents/evil.ipynb",
        "DELETE /api/contents/notebooks/energy/beta.ipynb",
        "PATCH /api/contents/notebooks/energy/beta.ipynb",
        "POST /api/contents/notebooks",
        "GET /api/contents",
        "GET /api/contents/notebooks/energy/alpha.ipynb",
        "GET /api/kernels",
        "POST /api/kernels",
        "POST /api/sessions",
        "GET /api/sessions",
        "POST /api/terminals",
        "POST /api/shutdown",
        "PUT /api/config/x",
        "GET /api/kernelspecs",
        "GET /api/status",
        "GET /files/page.html",
        "GET /view/page.html",
        "GET /nbconvert/html/notebooks/energy/alpha.ipynb",
        "GET /voila",
        "GET /voila/tree/notebooks",
        "GET /voila/files/page.html",
        "GET /voila/api/contents/notebooks",
        "GET /voila/render/notebooks/energy/beta.ipynb",
        "GET /voila/render/notebooks/energy/../energy/alpha.ipynb",
        "GET /voila/render/evil.ipynb",
        "POST /voila/render/notebooks/energy/alpha.ipynb",
        "GET /labkit/deck/beta",
        "GET /lab",
        "GET /tree",
        "GET /lsp/status",
        "GET /proxy/80/",
        "GET /proxy/absolute/80/",
        "GET //api/contents",
        "GET /%61pi/contents",
        "GET /static/%0a/api/contents",
    ],
)
def test_the_token_of_a_deck_opens_nothing_else(
    deck: Server, root: Path, request_line: str
) -> None:
    method, path = request_line.split()
    notebook = '{"type": "notebook", "format": "json", "content": {"cells": []}}'
    before = sorted(root.rglob("*.ipynb"))
    assert deck.ask_with_token(method, path, notebook).status in (403, 404)
    assert sorted(root.rglob("*.ipynb")) == before


def test_no_page_reaches_what_else_listens_here(
    deck: Server, lab: Server, dashboard: tuple[int, list[str]]
) -> None:
    """Lab's token runs code in any case, and may look at a dashboard; without one nobody does."""
    port, asked = dashboard
    for path in (f"/proxy/{port}/status", f"/proxy/absolute/{port}/status"):
        assert deck.ask_with_token("GET", path).status == 404
        assert lab.ask("GET", path).status in (302, 403)
    assert asked == []


def test_a_server_listens_once_and_only_here(deck: Server, lab: Server) -> None:
    psutil = pytest.importorskip("psutil", reason="it lists who listens (extra: lab)")
    for server in (deck, lab):
        connections = psutil.Process(server.process.pid).net_connections("inet")
        listening = [tuple(each.laddr) for each in connections if each.status == "LISTEN"]
        assert listening == [("127.0.0.1", server.port)]


# --- Lab ---


def test_lab_takes_no_orders_from_a_text_and_installs_nothing(lab: Server) -> None:
    name = "@jupyterlab/apputils-extension:sanitizer"
    setting = json.loads(lab.ask_with_token("GET", f"/lab/api/settings/{name}").text)
    assert setting["schema"]["properties"]["allowCommandLinker"]["default"] is False
    assert "@jupyterlab/extensionmanager-extension" in lab.ask_with_token("GET", "/lab").text
    order = '{"cmd": "install", "extension_name": "x"}'
    assert lab.ask_with_token("POST", "/lab/api/extensions", order).status >= 400


def test_a_file_that_lab_serves_stands_in_a_sandbox(lab: Server) -> None:
    answer = lab.ask_with_token("GET", "/files/page.html")
    assert answer.status == 200
    assert "sandbox" in answer.headers["Content-Security-Policy"]


def test_lab_leaves_nothing_in_the_home(lab: Server, root: Path, home: Path) -> None:
    """No language server was looked for, and what was deleted lies in the project."""
    (root / "drop.txt").write_text("kept")
    assert lab.ask_with_token("GET", "/lsp/status").status in (200, 404)
    assert lab.ask_with_token("GET", "/api/contents/notebooks/energy/alpha.ipynb").status == 200
    assert lab.ask_with_token("DELETE", "/api/contents/drop.txt").status == 204
    (dropped,) = (root / "results" / "lab" / "trash").iterdir()
    assert dropped.read_text() == "kept"
    inside = dropped.relative_to(root).as_posix()
    assert lab.ask_with_token("DELETE", f"/api/contents/{inside}").status == 204
    assert not dropped.exists()
    time.sleep(2)  # what looks for language servers would have begun by now
    assert [path for path in home.rglob("*") if path.is_file()] == []


# --- start and stop ---


def test_what_opened_a_server_does_not_open_the_next_one(root: Path, home: Path) -> None:
    with started(root, home, "present", "alpha", token="the-first-token-01") as first:
        page = f"/labkit/deck/alpha?token={first.token}"
        cookies = first.ask("GET", page).headers["Set-Cookie"].split(";")[0]
        assert first.ask("GET", "/labkit/deck/alpha", Cookie=cookies).status == 200
    again = started(root, home, "present", "alpha", token="the-second-token-2", port=first.port)
    with again as second:
        assert second.ask("GET", page).status == 302
        assert second.ask("GET", "/labkit/deck/alpha", Cookie=cookies).status == 302
        assert second.ask_with_token("GET", "/labkit/deck/alpha").status == 200


@pytest.mark.parametrize("after_s", [0.3, 2.0])
def test_a_server_stops_while_its_page_loads(root: Path, home: Path, after_s: float) -> None:
    """``started`` waits for its end. A request that was not finished kept it alive."""
    with started(root, home, "present", "alpha", token="a-token-of-tests-1") as server:

        def load() -> None:
            with suppress(OSError, http.client.HTTPException):  # it ends in the middle
                server.ask_with_token("GET", ALPHA)

        threading.Thread(target=load, daemon=True).start()
        time.sleep(after_s)


def test_no_runtime_file_outlives_its_server(root: Path, home: Path) -> None:
    """They hold the token, the key of cookies, and the sockets of kernels."""
    base = Path(processes.short_folder())
    with started(root, home, "present", "alpha", token="a-token-of-tests-2") as server:
        (file,) = base.glob(f"labkit-server-*/jpserver-{server.process.pid}.json")
        assert server.token in file.read_text()
        assert file.parent.stat().st_mode & 0o077 == 0  # only its user enters
    assert not file.parent.exists()
    kept = [path for path in (root / "results" / "lab").rglob("*") if path.is_file()]
    assert not any(server.token.encode() in path.read_bytes() for path in kept)
