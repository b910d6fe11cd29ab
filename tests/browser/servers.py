"""JupyterLab and Voilà as a reader starts them, on a free port of this machine, for one test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOKEN = "a-token-of-the-tests"
STARTS_WITHIN_S = 90


@contextmanager
def serving(*command: str, folder: Path, ready: str = "/api/status") -> Iterator[str]:
    """The address of a server started as ``python -m COMMAND``; the server ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = str(Path(__file__).resolve().parents[2])
    environment = {
        k: v for k, v in os.environ.items() if k not in ("JPY_SESSION_NAME", "LABKIT_LIVE")
    }
    environment |= {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    log = folder / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command)],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=out,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(server, f"{address}{ready}?token={TOKEN}", log)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=10)
        except OSError:
            time.sleep(0.3)
        else:
            return
    raise AssertionError(f"no answer from {address}:\n{log.read_text()[-2000:]}")


LAB = (
    "jupyterlab",
    "--no-browser",
    "--port={port}",
    "--ip=127.0.0.1",
    f"--IdentityProvider.token={TOKEN}",
    "--LabApp.expose_app_in_browser=True",
    "--ContentsManager.pre_save_hook=labkit.workbook.normalise.keep_outputs",
    "--allow-root",
    "--LabApp.extension_manager=readonly",
)
