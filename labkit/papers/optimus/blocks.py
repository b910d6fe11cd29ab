"""Blocks of parameters on servers: by Optimus's rule, and by MXNet's default.

Source: Optimus (EuroSys'18) §5.3, and the authors' program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import BadValue
from labkit.kit.describe import Count, checked

if TYPE_CHECKING:
    import pandas as pd

_SMALL = 0.01  # of a server's fair part: below it a block counts as a request, not as bytes (§5.3)
_SPLIT_FROM = 1e6  # parameters from which MXNet divides a block over all servers (its default)
_HASH = 9973  # by which MXNet spreads the numbers of its blocks


@checked
def place_blocks(
    blocks: ArrayLike,
    servers: Count,
    *,
    rule: Literal["fit", "hash"] = "fit",
    numbers: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Blocks of so many parameters each, in the model's order, on servers.

    ``hash`` is MXNet's default: block k goes to server 9973·k modulo their number, one of a million
    or more in equal parts to all. ``fit`` is Optimus's, with a = all parameters / servers, from the
    largest block to the smallest:

    1. of one larger than a, fill the emptiest servers up to a until a part is left that fits;
    2. a block (or part) up to a goes to the fullest server that has room for it below a, or else to
       the emptiest; one below a hundredth of a to the server with the fewest requests.

    Args:
        blocks: parameters of each.
        servers: how many.
        rule: ``fit`` or ``hash``.
        numbers: of ``hash``: other k than the blocks' places.

    Returns:
        One row a server: ``parameters`` held, ``requests`` that a worker sends it in a step.

    Source: Optimus (EuroSys'18) §5.3, and the authors' program.
    """
    import pandas as pd

    sizes = np.asarray(blocks, dtype=float)
    if sizes.ndim != 1 or not sizes.size or not (sizes > 0).all():
        raise BadValue("place_blocks: blocks must be a list of numbers above 0")
    if numbers is not None and len(numbers) != sizes.size:
        raise BadValue(
            f"place_blocks: numbers must be one a block, {sizes.size}; got {len(numbers)}"
        )
    held = np.zeros(servers)
    requests = np.zeros(servers, dtype=np.int64)
    part = sizes.sum() / servers * (1 + 1e-12)
    if rule == "hash":
        for number, size in zip(numbers or range(sizes.size), sizes, strict=True):
            is_split = size >= _SPLIT_FROM
            own = slice(None) if is_split else number * _HASH % servers
            held[own] += size / servers if is_split else size
            requests[own] += 1
        sizes = sizes[:0]
    for left in np.sort(sizes)[::-1]:
        is_small = left < _SMALL * part
        while left > part:
            to = held.argmin()
            left -= part - held[to]
            held[to] = part
            requests[to] = requests[to] + 1
        room = part - held - left
        fullest = np.where(room >= 0, room, np.inf).argmin() if room.max() >= 0 else held.argmin()
        to = requests.argmin() if is_small else fullest
        held[to] = held[to] + left
        requests[to] = requests[to] + 1
    return pd.DataFrame({"parameters": held, "requests": requests})
