"""What one rank sends and receives, counted inside the rank: collectives, sockets.

Loads torch: only what runs inside a rank imports it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Where the message stands in each operation's arguments, and the collective it is.
_OPERATIONS = {
    "allreduce_": ("all-reduce", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "allgather_": ("all-gather", 0),
    "_allgather_base_": ("all-gather", 0),
    "reduce_scatter_": ("reduce-scatter", 1),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "alltoall_": ("all-to-all", 1),
    "alltoall_base_": ("all-to-all", 1),
    "send": ("send", 0),
    "recv_": ("receive", 0),
}
# linux/tcp.h: tcpi_bytes_received, eight bytes at this offset of struct tcp_info.
_TCP_INFO = 11
_RECEIVED_OFFSET = 128


class CollectiveMeter(TorchDispatchMode):
    """Sees every collective that is issued, from Python or from C++, with its message's size."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = ""
        self._seen: dict[tuple[str, str, int], list[int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing here is compiled; to be kept from compiling loads torch's compiler
        first.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.namespace == "c10d":
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: tuple) -> None:
        """Count a collective's message, unless it belongs to no collective that is known."""
        name = func.overloadpacket.__name__
        if name in {"barrier", "monitored_barrier_"}:
            return
        kind, position = _OPERATIONS[name]
        tensors = tree_leaves(args[position])
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        group = next(dist.ProcessGroup.unbox(a) for a in args if isinstance(a, torch.ScriptObject))
        seen = self._seen.setdefault((self.phase, kind, group.size()), [0, 0])
        seen[0] += size
        seen[1] += 1

    def summary(self) -> list[dict[str, Any]]:
        """List message bytes and calls by phase, collective and size of the group, in order seen.

        The message is what an all-reduce or a broadcast is given, an all-gather's output, a
        reduce-scatter's or an all-to-all's input.
        """
        return [
            {"phase": phase, "collective": kind, "ranks": ranks, "message_bytes": size, "calls": n}
            for (phase, kind, ranks), (size, n) in self._seen.items()
        ]


Address = tuple[str, int]


def received_by_connection() -> dict[tuple[Address, Address], int] | None:
    """Read how many bytes this process has received on each TCP connection, by its near and far
    address.

    They are the kernel's (TCP_INFO), so they count what really went over the wire, whatever the
    collective library made of our calls. It is None where nobody can say (anything but Linux).
    """
    if sys.platform != "linux":
        return None
    received = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in {socket.AF_INET, socket.AF_INET6}:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
                ends = connection.getsockname()[:2], connection.getpeername()[:2]
        except OSError:  # closed meanwhile, or listening
            continue
        if len(info) >= _RECEIVED_OFFSET + 8:
            received[ends] = struct.unpack_from("Q", info, _RECEIVED_OFFSET)[0]
    return received


def received_bytes() -> int | None:
    """Read how many bytes this process has received on all its TCP connections; None where nobody
    can say.
    """
    received = received_by_connection()
    return None if received is None else sum(received.values())
