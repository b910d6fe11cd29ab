"""The ranks' side of :func:`labkit.kit.ranks.on_ranks`: torch is loaded once, then ranks fork.

Started as ``python -m labkit.kit.rank_process CONNECTION``, a file descriptor. Each call comes in a
folder; every rank writes its report there. Nothing else imports this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pkgutil
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from labkit.kit.meters import received_by_connection

_START = "fork" if sys.platform == "linux" else "spawn"
_CONTEXT: Any = multiprocessing.get_context(_START)
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>: the signal to get when the thread that forked us ends


def _load(folder: Path) -> tuple[Callable, tuple]:
    """Read the function to call, and its arguments."""
    function, arguments = cloudpickle.loads((folder / "call").read_bytes())
    return pkgutil.resolve_name(function) if isinstance(function, str) else function, arguments


def run_rank(rank: int, folder: Path, num_ranks: int, timeout_s: float) -> None:
    """Live one rank's life: join, call, write what came of it, leave.

    Args:
        rank: its number.
        folder: where the call is read and results are written.
        num_ranks: how many there are.
        timeout_s: how long to wait for the others.
    """
    _die_with_parent()
    function, arguments = _load(folder)  # a function of a notebook's only travels as bytes
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    _use_loopback()
    store = dist.FileStore(str(folder / "store"), num_ranks)
    wait = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=wait)
    dist.barrier()
    before = received_by_connection()
    # All have read before any sends; through the store, since a barrier would send bytes itself.
    store.set(f"read {rank}", "")
    store.wait([f"read {other}" for other in range(num_ranks)], wait)
    result = function(rank, *arguments)
    after = received_by_connection()
    report = {
        "result": result,
        "connections": after and {end: n - (before or {}).get(end, 0) for end, n in after.items()},
    }
    (folder / f"rank{rank}").write_bytes(cloudpickle.dumps(report))
    dist.barrier()  # a rank that leaves early would close connections others still read
    dist.destroy_process_group()


def _use_loopback() -> None:
    """Join over the loopback: gloo else looks up the host's name, which not all machines can."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = [name for name in ("lo", "lo0") if name in names]
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]


def _die_with_parent() -> None:
    """Leave at once when the process that made this one is gone, also if it is gone already.

    On Linux the kernel sees to it. A thread that looks cannot be relied on: torch's FileStore, for
    one, keeps Python's lock while it retries, for minutes, to open a file whose folder is gone.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    maker = parent.pid  # not os.getppid(): that may be another's by now
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        """Look whether the parent is gone, and leave."""
        while os.getppid() == maker:
            time.sleep(0.5)
        os._exit(1)

    if os.getppid() != maker:
        os._exit(1)
    if sys.platform != "linux":
        threading.Thread(target=watch, daemon=True).start()


def serve(calls: Connection) -> None:
    """Run one call after another, until the caller is gone, however it went."""
    while True:
        try:
            name, folder, *call = calls.recv()
        except EOFError:
            return
        with contextlib.suppress(Exception):  # raised again, and reported, by the leader
            pkgutil.resolve_name(name)  # a module that has a name stays loaded for later calls
        leader = _CONTEXT.Process(target=lead, args=(folder, *call))
        leader.start()
        if calls in wait([calls, leader.sentinel]):  # nothing is sent meanwhile: the caller left
            leader.kill()
            shutil.rmtree(folder, ignore_errors=True)
            return
        leader.join()
        calls.send(leader.exitcode == 0)


def lead(
    folder: Path, num_ranks: int, timeout_s: float, working: str, environment: dict[str, str]
) -> None:
    """Lead one call: load the function, so that its modules are loaded once, and fork the ranks.

    The first rank that fails ends the others and raises here.

    Args:
        folder: where the call is read and results are written.
        num_ranks: how many ranks to fork.
        timeout_s: how long they may take.
        working: the caller's working directory.
        environment: the caller's environment variables.
    """
    _die_with_parent()
    os.dup2(os.open(folder / "log", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    os.chdir(working)
    os.environ.clear()
    os.environ.update(environment)
    _load(folder)
    call = folder, num_ranks, timeout_s
    ranks = start_processes(run_rank, call, num_ranks, join=False, daemon=True, start_method=_START)
    while not ranks.join():
        pass


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
