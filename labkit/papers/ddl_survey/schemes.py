"""What each all-reduce scheme sends, what that costs, and where two schemes cross.

Source: §2.5 (from memory): tree, butterfly, pipeline, and reduce-scatter with gather.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import numpy as np

SCHEMES = ("tree", "butterfly", "pipeline", "reduce-scatter and gather")
"""The survey's schemes, in its order."""

Seconds = Callable[[np.ndarray], np.ndarray]


def messages(scheme: str, num_ranks: int) -> list[float]:
    """The messages that follow one another in a scheme, each as a share of the whole.

    Args:
        num_ranks: a power of two.

    >>> messages("reduce-scatter and gather", 8)
    [0.5, 0.25, 0.125, 0.125, 0.25, 0.5]
    """
    rounds = int(log2(num_ranks))
    halves = [0.5 ** (step + 1) for step in range(rounds)]
    return {
        "tree": [1.0] * (2 * rounds),
        "butterfly": [1.0] * rounds,
        "pipeline": [1 / num_ranks] * (2 * (num_ranks - 1)),
        "reduce-scatter and gather": halves + halves[::-1],
    }[scheme]


def scheme_s(scheme: str, num_ranks: int, num_bytes: np.ndarray, message_s: Seconds) -> np.ndarray:
    """Seconds of a scheme, by the seconds of its messages.

    Args:
        num_bytes: of the whole vector, shape (sizes,).
        message_s: seconds of one message by its bytes, such as a link's.
    """
    sizes = np.asarray(num_bytes, dtype=float)
    total = np.zeros_like(sizes)
    for share in messages(scheme, num_ranks):
        total = total + message_s(share * sizes)
    return total


def bound_s(
    num_ranks: int, num_bytes: np.ndarray, latency_s: float, s_per_byte: float
) -> np.ndarray:
    """The lower bound: ⌈log₂ P⌉ latencies, and all but a P-th of the vector sent twice."""
    sizes = np.asarray(num_bytes, dtype=float)
    return log2(num_ranks) * latency_s + 2 * (num_ranks - 1) / num_ranks * s_per_byte * sizes


def crossover_bytes(
    first: str, second: str, num_ranks: int, message_s: Seconds, sizes: np.ndarray
) -> float:
    """The smallest size from which on the second scheme is never slower than the first.

    Args:
        sizes: at which both are compared, rising.

    Returns:
        The first of ``sizes`` where the second is always as fast, infinity where it never is.
    """
    ahead = scheme_s(first, num_ranks, sizes, message_s)
    behind = scheme_s(second, num_ranks, sizes, message_s)
    slower = np.flatnonzero(behind > ahead)
    if slower.size == 0:
        return float(sizes[0])
    if slower[-1] == len(sizes) - 1:
        return float("inf")
    return float(sizes[slower[-1] + 1])
