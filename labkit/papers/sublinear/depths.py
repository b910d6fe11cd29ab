"""Peaks of memory over depth: of equal blocks that run, and of ResNets whose bytes are captured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from labkit import swap
from labkit.papers.sublinear.blocks import Residual

WORDS: dict[str, str] = {
    "all-kept": "nothing recomputed",
    "square-root": "equal segments",
    "best-equal": "equal, number searched",
    "searched": "searched segments",
    "recursive": "recursion",
    "each-block": "each block by itself",
}
"""Ways to recompute, in the paper's words: the engine's, and :func:`best_equal`."""

_ROWS = 256
_WIDTH = 16
_FLOAT_BYTES = 4


def tracked_peaks(num_blocks: Sequence[int], methods: Iterable[str]) -> pd.DataFrame:
    """Peaks of steps that really run, as torch's tracker counts them, in outputs of one block.

    Args:
        num_blocks: how many equal blocks each network has.
        methods: names of :data:`labkit.swap.METHODS`.

    Returns:
        A row a number of blocks, a column a method.
    """
    output_bytes = _FLOAT_BYTES * _ROWS * _WIDTH
    peaks: dict[str, list[float]] = {}
    for method in methods:
        peaks[method] = []
        for number in num_blocks:
            plan = swap.plan(swap.Chain.even(number), method)
            held = swap.tracked_bytes(partial(_blocks, number), (_ROWS, _WIDTH), plan)
            peaks[method].append(held / output_bytes)
    return pd.DataFrame(peaks, index=pd.Index(num_blocks, name="blocks"))


def _blocks(number: int) -> list[Residual]:
    return [Residual(_WIDTH) for _ in range(number)]


def growth(peaks: pd.Series) -> float:
    """The exponent of peaks against the numbers of blocks in their index.

    >>> round(growth(pd.Series([2.0, 4.0, 8.0], index=[4, 16, 64])), 3)
    0.5
    """
    slope, _ = np.polyfit(np.log(peaks.index.to_numpy(float)), np.log(peaks.to_numpy()), 1)
    return float(slope)


def least_bytes(chain: swap.Chain) -> float:
    """What no plan of whole blocks goes below: the largest block's own backward pass.

    It holds the block's input and output, their gradients, and what the block keeps.
    """
    between = chain.between_bytes
    return float(np.max(2 * (between[1:] + between[:-1]) + np.array(chain.kept_bytes)))


def best_equal(chain: swap.Chain) -> swap.Plan:
    """As many equal segments as need the least memory, of as many tries as Algorithm 3 has.

    It is Algorithm 1, with its number of segments tried out from two to half of the blocks.
    """
    tries = np.geomspace(2, max(chain.num_blocks // 2, 2), 60)
    plans = [
        swap.segments(chain, number) for number in np.unique(tries.round().astype(int)).tolist()
    ]
    return min(plans, key=lambda plan: plan.replay().peak_bytes)


def plan_bytes(layers: Iterable[int], methods: Iterable[str], *, batch: int) -> pd.DataFrame:
    """Feature maps of ResNets by depth and method, and the least that any plan needs.

    Args:
        layers: convolutions of each ResNet.
        methods: keys of :data:`WORDS`.
        batch: images of 224 × 224.

    Returns:
        A row a ResNet and method, the method "bound" included: ``layers``, ``parameters``,
        ``method``, ``maps_bytes`` (the peak) and ``added_fraction`` (of a step's operations).
    """
    rows = []
    for depth in layers:
        chain, parameters = swap.capture(partial(swap.resnet, depth), (batch, 3, 224, 224))
        network = {"layers": depth, "parameters": parameters}
        for method in methods:
            plan = best_equal(chain) if method == "best-equal" else swap.plan(chain, method)
            run = plan.replay()
            peak = {"maps_bytes": run.peak_bytes, "added_fraction": run.added_fraction}
            rows.append({**network, "method": method, **peak})
        least = {"maps_bytes": least_bytes(chain), "added_fraction": np.nan}
        rows.append({**network, "method": "bound", **least})
    return pd.DataFrame(rows)
