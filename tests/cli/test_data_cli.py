"""``labkit data`` as a person meets it: what it prints, where, and its exit codes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from labkit.cli import data
from labkit.datasets import download
from labkit.errors import LabkitError

FILES = {"runs/time.csv": b"batch_size,time_s\n8,0.1\n", "runs/power.csv": b"batch_size,power_w\n"}
COMMIT = "ab" * 20


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """All that was printed, on one line, however the terminal wrapped it."""
        return " ".join(f"{self.out} {self.err}".split())


def labkit(*arguments: str) -> Outcome:
    """Run the command as ``labkit.cli.main`` does: errors of ours are a message and a code."""
    app = typer.Typer(rich_markup_mode="rich")
    app.callback()(lambda: None)
    app.add_typer(data.commands)
    result = CliRunner().invoke(app, list(arguments), terminal_width=200)
    if isinstance(result.exception, LabkitError):
        return Outcome(result.exception.exit_code, result.stdout, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def published() -> Iterator[dict[str, bytes]]:
    """What the loopback server serves, by path; ``address`` under the empty path."""
    served: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = served.get(self.path.removeprefix("/"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served[""] = f"http://127.0.0.1:{http.server_address[1]}".encode()
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    yield served
    http.shutdown()
    http.server_close()


@pytest.fixture(autouse=True)
def workbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: dict[str, bytes]
) -> Iterator[Path]:
    """A workbook with the datasets ``runs24`` (two files) and ``other`` (one)."""
    address = published[""].decode()
    lines = ["datasets:"]
    for name, paths in (("runs24", FILES), ("other", {"other.csv": b"x\n"})):
        lines += [
            f"  {name}:",
            f"    title: The {name} measurements",
            f"    origin: https://example.org/lab/{name}",
            f"    commit: {COMMIT}",
            "    licence: BSD-3-Clause",
            f"    citation: paper-{name}",
            "    notes: Time in seconds.",
            "    files:",
        ]
        for path, content in paths.items():
            digest = hashlib.sha256(content).hexdigest()
            lines += [f"      - path: {path}", f"        url: {address}/{path}"]
            lines += [f"        sha256: {digest}", f"        bytes: {len(content)}"]
    (tmp_path / "data").mkdir()
    (tmp_path / "reading_queue.yaml").write_text("")
    (tmp_path / "data" / "datasets.yaml").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("LABKIT_DATA_MIRROR", "LABKIT_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    download._unreachable.clear()
    yield tmp_path
    download._unreachable.clear()


def row(outcome: Outcome, name: str) -> list[str]:
    return next(line.split() for line in outcome.out.splitlines() if line.startswith(name))


def test_the_list_says_what_is_here_what_is_missing_and_the_licence(
    published: dict[str, bytes],
) -> None:
    before = labkit("data")
    assert before.code == 0
    assert row(before, "runs24")[1] == "0/2"
    assert "missing" in row(before, "runs24")
    assert {"BSD-3-Clause", "paper-runs24"} <= set(row(before, "runs24"))
    published |= FILES
    assert labkit("data", "fetch", "runs24/time.csv").code == 0
    after = labkit("data")
    assert row(after, "runs24")[1] == "1/2"
    assert "cache 1, missing 1" in after.words
    assert row(after, "other")[1] == "0/1"


def test_the_list_tells_a_mirror_and_a_damaged_file_in_it(
    workbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_DATA_MIRROR", "mirror")
    for path, content in FILES.items():
        (workbook / "mirror" / "runs24" / path).parent.mkdir(parents=True, exist_ok=True)
        (workbook / "mirror" / "runs24" / path).write_bytes(content)
    assert row(labkit("data"), "runs24")[3] == "mirror"
    (workbook / "mirror" / "runs24" / "runs" / "time.csv").write_bytes(b"else")
    assert "damaged 1, mirror 1" in labkit("data").words


def test_fetch_brings_everything_once_asked(published: dict[str, bytes]) -> None:
    published |= {**FILES, "other.csv": b"x\n"}
    done = labkit("data", "fetch")
    assert done.code == 0
    assert "runs24: 2 of 2 files here" in done.out
    assert "other: 1 of 1 files here" in done.out
    assert labkit("data", "verify").words == "3 files intact, 0 damaged copies, 0 not here"


def test_fetch_goes_on_after_a_failure_and_ends_with_1(published: dict[str, bytes]) -> None:
    published["other.csv"] = b"x\n"
    done = labkit("data", "fetch")
    assert done.code == 1
    assert "runs24: 0 of 2 files here" in done.out
    assert "other: 1 of 1 files here" in done.out
    assert "2 files not fetched (2 of runs24): HTTP 404" in done.words
    assert "stand-ins" in done.err


def test_fetch_tells_a_wrong_download_in_full(workbook: Path, published: dict[str, bytes]) -> None:
    wrong = b"a sign-in page"
    published |= {**FILES, "runs/time.csv": wrong}
    done = labkit("data", "fetch", "runs24")
    assert done.code == 1
    for path, content in (("runs/time.csv", wrong), ("runs/time.csv", FILES["runs/time.csv"])):
        assert path in done.err
        assert hashlib.sha256(content).hexdigest() in done.err
    kept = [p for p in (workbook / "cache" / "datasets").rglob("*") if p.is_file()]
    assert [path.name for path in kept] == ["power.csv"]


def test_every_name_is_checked_before_anything_is_fetched(
    workbook: Path, published: dict[str, bytes]
) -> None:
    published |= FILES
    done = labkit("data", "fetch", "runs24", "othr")
    assert done.code == 2
    assert "did you mean 'other'" in done.err
    assert not (workbook / "cache").exists()


def test_show_tells_units_licence_and_files() -> None:
    done = labkit("data", "show", "runs24")
    assert done.code == 0
    for part in ("Time in seconds.", "BSD-3-Clause", "paper-runs24", COMMIT[:12], "time.csv", "24"):
        assert part in done.words


def test_path_prints_the_path_alone(published: dict[str, bytes]) -> None:
    published |= FILES
    done = labkit("data", "path", "runs24/time.csv")
    assert done.code == 0
    assert done.err == ""
    assert Path(done.out.removesuffix("\n")).read_bytes() == FILES["runs/time.csv"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("path", "runs24/tim.csv"), "did you mean 'time.csv'"),
        (("path", "runs24"), "write runs24/PATH"),
        (("path", "runs24/../../x"), "has no file"),
        (("show", "runs23"), "did you mean 'runs24'"),
        (("verify", "runs23"), "did you mean 'runs24'"),
    ],
)
def test_wrong_use_ends_with_2_and_a_hint(arguments: tuple[str, ...], hint: str) -> None:
    done = labkit("data", *arguments)
    assert done.code == 2
    assert hint in done.err


def test_a_file_that_cannot_be_had_ends_with_1() -> None:
    done = labkit("data", "path", "runs24/time.csv")
    assert done.code == 1
    assert "HTTP 404" in done.err
    assert done.out == ""


def test_a_malformed_registry_ends_with_2(workbook: Path) -> None:
    registry = workbook / "data" / "datasets.yaml"
    registry.write_text(registry.read_text().replace("licence: BSD-3-Clause", "licence: ''"))
    done = labkit("data")
    assert done.code == 2
    assert "datasets.yaml:6" in done.err


def test_verify_finds_what_is_damaged(workbook: Path, published: dict[str, bytes]) -> None:
    published |= FILES
    labkit("data", "fetch", "runs24")
    cached = next((workbook / "cache" / "datasets").rglob("time.csv"))
    cached.write_bytes(b"damaged")
    done = labkit("data", "verify")
    assert done.code == 1
    assert "1 files intact, 1 damaged copies, 1 not here" in done.words
    assert str(cached) in done.words
    assert hashlib.sha256(b"damaged").hexdigest() in done.words


def test_help_shows_examples() -> None:
    for command in ((), ("fetch",), ("show",), ("path",)):
        done = labkit("data", *command, "--help")
        assert done.code == 0
        assert "Example" in done.out
