"""Really run: one function on several processes of ``torch.distributed`` on this machine.

What the ranks returned comes back with what went over the wire, so a notebook or an engine can
check a parallel program's numbers and count its bytes. The caller itself never loads torch.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit import extras
from labkit.errors import LabkitError
from labkit.kit import scratch
from labkit.kit.describe import Count, Positive, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksRun:
    """What the ranks of one run returned, and what they sent each other."""

    results: tuple[Any, ...]
    """What the function returned, by rank."""
    received_bytes: np.ndarray | None
    """``[to, from]``: bytes that a rank's TCP connections to another received during the function,
    read from the kernel; None where the system cannot tell (anything but Linux)."""

    def across_bytes(self, ranks_per_node: int) -> int:
        """Add up the bytes that crossed between nodes, were each ``ranks_per_node`` ranks in turn a
        node.

        Raises:
            LabkitError: the system does not say what connections received.
        """
        if self.received_bytes is None:
            raise LabkitError("bytes on the wire are read from Linux; this system does not tell")
        node = np.arange(len(self.results)) // ranks_per_node
        return int(self.received_bytes[node[:, None] != node[None, :]].sum())


@checked
def on_ranks(
    function: Callable[..., Any] | str,
    num_ranks: Count,
    *arguments: Any,
    timeout_s: Positive = 120.0,
) -> RanksRun:
    """Call ``function(rank, *arguments)`` on ``num_ranks`` processes joined by gloo.

    ``torch.distributed`` is ready when the function starts; each rank computes on one thread. The
    first call starts a server, which loads torch; every call's ranks are new processes forked from
    there, so nothing of one call reaches the next. All end with this process, however it ends, and
    the ranks after ``timeout_s`` at the latest.

    Args:
        function: defined anywhere, also in a notebook (it travels by value, with what it closes
            over); or the ``"module:name"`` of one whose module the caller need not load.
        arguments: what it is called with after the rank.
        num_ranks: how many processes.
        timeout_s: how long they may take.

    Raises:
        LabkitError: torch is missing, a rank failed (its traceback is in the message), time ran
            out, or the function cannot be sent.
    """
    import cloudpickle

    with scratch.folder(scratch.RANKS) as folder:
        try:
            (folder / "call").write_bytes(cloudpickle.dumps((function, arguments)))
        except Exception as error:
            raise LabkitError(f"the function cannot be sent to the ranks: {error}") from error
        _run(folder, function if isinstance(function, str) else "", num_ranks, timeout_s)
        reports = [
            cloudpickle.loads((folder / f"rank{rank}").read_bytes()) for rank in range(num_ranks)
        ]
    return RanksRun(
        results=tuple(report["result"] for report in reports),
        received_bytes=_matrix([report["connections"] for report in reports]),
    )


def _matrix(connections: list[dict[tuple, int] | None]) -> np.ndarray | None:
    """Arrange bytes by receiver and sender.

    A connection's two ends know it by the same pair of addresses, each the other way round.
    """
    ends: dict[tuple, tuple[int, int]] = {}
    for rank, table in enumerate(connections):
        if table is None:
            return None
        ends |= {end: (rank, size) for end, size in table.items()}
    received = np.zeros((len(connections), len(connections)), dtype=np.int64)
    for (near, far), (rank, size) in ends.items():
        if (far, near) in ends:  # what remains is the store's, which no rank owns alone
            received[rank, ends[far, near][0]] += size
    return received


class _Server:
    """The process that ranks are forked from: it has loaded torch and waits for calls."""

    def __init__(self) -> None:
        self.calls, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "labkit.kit.rank_process", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                # A kernel at its end asks what runs in its group to end, and waits for seconds
                # for what it then sees as a zombie.
                process_group=0,
            )

    def run(self, folder: Path, name: str, num_ranks: int, timeout_s: float) -> bool:
        """Run the folder's call, to a function of that name if it has one, and tell whether it
        ended well.
        """
        call = name, folder, num_ranks, timeout_s, os.getcwd(), _environment()
        try:
            self.calls.send(call)
            if not self.calls.poll(timeout_s):
                raise LabkitError(f"the ranks did not finish within {timeout_s:g} s")
            return bool(self.calls.recv())
        except (EOFError, OSError):
            errors = self.process.communicate()[1].decode(errors="replace")
            ended = f"their server ended with {self.process.returncode}"
            raise LabkitError(_failure(errors or ended)) from None

    def end(self) -> None:
        """End the server; the ranks end with it."""
        self.calls.close()
        self.process.kill()
        with self.process:
            pass


_server: _Server | None = None
_turn = threading.Lock()  # one call at a time


def _run(folder: Path, name: str, num_ranks: int, timeout_s: float) -> None:
    """Run the ranks to their end, from the server of the last call if it is still there."""
    global _server
    with _turn:
        if _server is None or _server.process.poll() is not None:
            _end()
            _server = _Server()
        try:
            well = _server.run(folder, name, num_ranks, timeout_s)
        except BaseException:
            _end()
            raise
    if not well:
        raise LabkitError(_failure((folder / "log").read_text(errors="replace")))


@atexit.register
def _end() -> None:
    """End the server, if there is one."""
    global _server
    if _server:
        _server.end()
    _server = None


def _forget() -> None:
    """Forget the server in a fork: it answers its maker, who alone may wait for it."""
    global _server, _turn
    if _server:
        _server.calls.close()
        _server.process.returncode = 0
    _server = None
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _environment() -> dict[str, str]:
    """List the environment in which ranks find labkit and compute on one thread."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def _failure(errors: str) -> str:
    """Say why the ranks failed: by the first failing rank's own traceback where there is one."""
    if rank := re.search(
        r"-- Process (\d+) terminated with the following error:(.*)", errors, re.S
    ):
        return f"rank {rank[1]} failed:\n{rank[2].strip()}"
    if rank := re.search(r"process (\d+) terminated with (.*)", errors):
        return f"rank {rank[1]} ended with {rank[2]}"
    if "No module named 'torch'" in errors:
        return str(extras.lacking("measuring", ["torch"], "torch"))
    return f"the ranks failed to start: {' '.join(errors.split())[-500:] or 'no message'}"
