"""Seconds of an algorithm by the size of its message, priced once and asked many times.

Which links a program uses, with how many messages and which share of the message, does not depend
on the size. So each step is the largest of a few lines α + β · bytes, and a program a sum of those:

    seconds(M) = Σ over steps of max over links (messages · latency + share · M / bandwidth)
                 + M · Σ over steps of (share added) / add rate

Chunks count as even, which whole numbers of a message are only nearly.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from labkit.collectives.building import Name, Pieces, Workers, check_rows, program
from labkit.collectives.costing import Cost, cost
from labkit.collectives.programs import Op
from labkit.kit.describe import Count, checked
from labkit.kit.fabric import Fabric

_CHUNK_BYTES = 1 << 20
"""Of the program that is priced, for each of its workers squared: even chunks for every builder."""


class MessageTime:
    """A function from bytes, one number or an array, to seconds.

    It is made from a program's cost for a message of so many bytes.

    Attributes:
        steps: for each different step, the lines of its links as (seconds, seconds a byte), shape
            (links, 2), and how many steps are alike.
        adding_s_per_byte: seconds of adding up for each byte of the message.
    """

    def __init__(self, priced: Cost, message: int) -> None:
        loads = priced.loads
        fabric = priced.fabric
        waiting_s = loads.num_messages * fabric.latencies_s[loads.level]
        s_per_byte = loads.num_bytes / message / fabric.bandwidths_bytes_per_s[loads.level]
        lines = np.stack([waiting_s, s_per_byte], axis=1)
        starts = np.flatnonzero(np.diff(loads.step, prepend=-1))
        kinds = Counter(
            tuple(map(tuple, np.unique(step, axis=0))) for step in np.split(lines, starts[1:])
        )
        self.steps = [(np.array(kind), count) for kind, count in kinds.items()]
        added = float(priced.added_bytes.sum()) / message
        self.adding_s_per_byte = added / priced.fabric.add_bytes_per_s

    def __call__(self, num_bytes: Any) -> Any:
        """Seconds of messages of so many bytes; none takes no time."""
        sizes = np.asarray(num_bytes, dtype=float)
        seconds = self.adding_s_per_byte * sizes
        for lines, count in self.steps:
            links = lines[:, 0] + lines[:, 1] * sizes[..., None]
            seconds = seconds + count * links.max(axis=-1)
        seconds = np.where(sizes > 0, seconds, 0.0)
        return seconds if seconds.ndim else float(seconds)


@checked
def message_time(
    name: Name,
    fabric: Fabric,
    *,
    op: Op = "all-reduce",
    num_workers: Workers | None = None,
    per_node: Count | None = None,
    num_servers: Workers | None = None,
    num_pieces: Pieces = 1,
) -> MessageTime:
    """A function from a message's bytes to its seconds, by an algorithm on a fabric.

    Args:
        num_workers: of the fabric's devices; None takes all that are no servers.
        per_node, num_servers, num_pieces: as :func:`labkit.collectives.program` takes them.

    >>> fabric = Fabric.flat(4, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    >>> seconds = message_time("ring", fabric)
    >>> seconds([4_000, 4_000_000]).round(6).tolist()
    [6.6e-05, 0.00606]
    """
    check_rows(num_workers or 1, num_servers or 0, num_pieces)
    workers = num_workers or fabric.num_devices - (num_servers or 0)
    message = _CHUNK_BYTES * workers * workers * (num_servers or 1) * num_pieces
    written = program(
        name,
        workers,
        message,
        op=op,
        per_node=per_node,
        num_servers=num_servers,
        num_pieces=num_pieces,
    )
    return MessageTime(cost(written, fabric), message)
