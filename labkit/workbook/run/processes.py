"""Ending processes for good: a notebook's kernel and whatever it started go with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

RUN_MARK = "LABKIT_RUN_ID"
"""Environment variable every kernel of a run carries, so that a killed run's can be told."""


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below ``pid``, as they stand now; empty where it is gone."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end(processes: Iterable[psutil.Process], *, wait_s: float = 5.0) -> None:
    """Kill ``processes`` and the process groups they lead; psutil guards against reused ids."""
    import psutil

    chosen = list(processes)
    for process in chosen:
        with contextlib.suppress(psutil.Error, OSError):
            leads = os.name == "posix" and os.getpgid(process.pid) == process.pid
            if leads and process.is_running():
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    psutil.wait_procs(chosen, timeout=wait_s)


def end_tree(pid: int) -> None:
    """Kill ``pid`` and every process below it."""
    import psutil

    below = descendants(pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        end([*below, psutil.Process(pid)])


def end_marked(run_id: str) -> None:
    """Kill what is left of the run ``run_id``, found by its mark."""
    import psutil

    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK) == run_id and process.pid != os.getpid():
                left.append(process)
    end(left)


def socket_prefix(run_id: str | None = None, pid: int | None = None) -> str:
    """How the socket folders of a run's kernels are named (default: the run this process is in).

    With ``pid``, those that this process of the run has set up.
    """
    mark = os.environ.get(RUN_MARK, "kernel") if run_id is None else run_id
    return f"labkit-{mark[:8]}-" + (f"{pid}-" if pid else "")


def remove_sockets(prefix: str) -> None:
    """Remove the socket folders named so, of kernels that are gone."""
    for base in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(base).glob(f"{prefix}*"):
            shutil.rmtree(folder, ignore_errors=True)
