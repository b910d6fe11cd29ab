"""Ending processes for good: a notebook's kernel and whatever it started go with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.kit import scratch

if TYPE_CHECKING:
    import psutil

RUN_MARK = "LABKIT_RUN_ID"
"""Environment variable every kernel of a run carries, so that a killed run's can be told."""
KERNEL_MARK = "LABKIT_KERNEL_ID"
"""Environment variable of one kernel and all it starts, daemons included: they leave its tree."""
_SERVERS = "labkit-servers-"
_AFTER_ITS_OWN = -101
"""multiprocessing removes its folder at the exit priority -100."""
_LONGEST_SOCKET_FOLDER = 40
"""A Unix socket's path holds about 100 bytes, whatever the file system allows; ours add 60."""
MAX_SWEEPS = 10
"""How often what carries a mark is looked for: a process may start another while it is ended."""


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below ``pid``, as they stand now; empty where it is gone."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def death(who: str, exit_code: int | None) -> str:
    """How a process ended. Linux ends one with signal 9 where the machine has no memory left."""
    if exit_code == -signal.SIGKILL:
        return f"{who} was killed (signal 9), as by a machine that is out of memory"
    if exit_code is not None and exit_code < 0:
        return f"{who} was ended by signal {-exit_code}"
    return f"{who} ended itself (exit code {exit_code})"


def end(processes: Iterable[psutil.Process], *, wait_s: float = 5.0) -> None:
    """Kill ``processes`` and the process groups they lead; psutil guards against reused ids."""
    import psutil

    chosen = list(processes)
    for process in chosen:
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == process.pid and process.is_running():
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    psutil.wait_procs(chosen, timeout=wait_s)


def end_tree(pid: int) -> None:
    """Kill ``pid`` and every process below it."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        end([*descendants(pid), psutil.Process(pid)])


def end_marked(value: str, mark: str = RUN_MARK) -> None:
    """Kill every process but this one whose environment has ``value`` for ``mark``."""
    import psutil

    for _ in range(MAX_SWEEPS):
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(mark) == value and process.pid != os.getpid():
                    left.append(process)
        if not left:
            return
        end(left)


@cache
def claim_servers() -> None:
    """Let multiprocessing keep its sockets in a folder that this process holds a lock on.

    A process that is killed leaves the folder, but not the lock.
    """
    folder, _ = scratch.claimed(_SERVERS, short_folder())  # locked as long as the process lives
    util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=_AFTER_ITS_OWN)
    usual = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = usual


def sweep_folders() -> None:
    """Remove the temporary folders of processes that were killed: of servers and of ranks."""
    scratch.sweep(_SERVERS, short_folder())
    scratch.sweep(scratch.RANKS)


def short_folder() -> str:
    """Where temporary files go, if a Unix socket's path can be that long; else ``/tmp``."""
    base = tempfile.gettempdir()
    return base if len(base.encode()) <= _LONGEST_SOCKET_FOLDER else "/tmp"


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
