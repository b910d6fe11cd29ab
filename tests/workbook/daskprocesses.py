"""A Dask scheduler and workers as processes on loopback, to be killed by tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Processes:
    """One scheduler at a fixed port, and workers by name, each in a folder and workbook of its own.

    Leaving the context ends them all, with everything they started.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.running):
            self.kill(name)

    def scheduler(self) -> None:
        self._start("scheduler", "dask_scheduler", "--port", str(self.port), folder=self.folder)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as caller:
                if caller.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError("the scheduler did not start")

    def worker(self, name: str, root: Path, *, nanny: bool = False) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        options = ["--name", name, "--nthreads", "1", "--nanny" if nanny else "--no-nanny"]
        options += ["--local-directory", str(folder), "--memory-limit", "0"]
        self._start(name, "dask_worker", self.address, *options, folder=folder, root=root)

    def _start(
        self, name: str, module: str, *options: str, folder: Path, root: Path | None = None
    ) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        environment.pop("LABKIT_ROOT", None)
        if root is not None:
            environment["LABKIT_ROOT"] = str(root)
        command = [sys.executable, "-m", f"distributed.cli.{module}", *options]
        command += ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log
            )

    def below(self, name: str) -> list[psutil.Process]:
        try:
            return psutil.Process(self.running[name].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self, name: str) -> None:
        """SIGKILL this process alone: what it started must end by itself."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
