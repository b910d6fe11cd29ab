"""Blocks of a model's parameters on servers: how evenly, and in how many requests a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from labkit.cluster.running.rounds import Floats, Ints
from labkit.errors import BadValue
from labkit.kit.describe import Count, checked

_SMALL = 0.01  # of a server's fair part: below it a block counts as a request, not as bytes (§5.3)
_SPLIT_FROM = 1e6  # parameters from which MXNet divides a block over all servers (its default)
_HASH = 9973  # by which MXNet spreads the numbers of its blocks


@dataclass(frozen=True, kw_only=True)
class Balance:
    """By server: ``parameters`` held, and ``requests`` that a worker sends in a step."""

    parameters: Floats
    requests: Ints

    @property
    def imbalance(self) -> float:
        """The fullest server's parameters over the mean."""
        return float(self.parameters.max() / self.parameters.mean())


@checked
def balance(
    parameters: ArrayLike, servers: Count, *, rule: Literal["fit", "hash"] = "fit",
    numbers: Sequence[int] | None = None,
) -> Balance:  # fmt: skip
    """Assign blocks of so many parameters, in the model's order, to servers.

    ``hash`` is MXNet's default: block k goes to server 9973·k modulo their number, one of a million
    or more in equal parts to all; ``numbers`` are other k than the blocks' places. ``fit`` is
    Optimus's, with a = all parameters / servers:
    1. take blocks from the largest to the smallest;
    2. of one larger than a, fill servers up to a, the emptiest first, until a part is left that
       fits;
    3. a block (or part) up to a goes to the fullest server that has room for it below a, or else to
       the emptiest; one below a hundredth of a to the server with the fewest requests.

    Source: Optimus (EuroSys'18) §5.3, and the authors' program.
    """
    blocks = np.asarray(parameters, dtype=float)
    if blocks.ndim != 1 or not (blocks > 0).all() or not blocks.size:
        raise BadValue("balance: parameters must be a list of numbers above 0, one a block")
    held, requests = np.zeros(servers), np.zeros(servers, dtype=np.int64)
    if rule == "hash":
        for number, size in zip(numbers or range(blocks.size), blocks, strict=True):
            to = slice(None) if size >= _SPLIT_FROM else number * _HASH % servers
            held[to] += size / (servers if size >= _SPLIT_FROM else 1)
            requests[to] += 1
        return Balance(parameters=held, requests=requests)
    part = blocks.sum() / servers
    for size in np.sort(blocks)[::-1]:
        left = float(size)
        while left > part * (1 + 1e-12):
            emptiest = int(held.argmin())
            filled = part - held[emptiest]
            held[emptiest] += filled
            requests[emptiest] += 1
            left -= filled
        room = part * (1 + 1e-12) - held - left
        if size < _SMALL * part:
            to = int(requests.argmin())
        else:
            to = int(
                np.where(room >= 0, room, np.inf).argmin() if room.max() >= 0 else held.argmin()
            )
        held[to] += left
        requests[to] += 1
    return Balance(parameters=held, requests=requests)
