"""Bytes of messages: keys and values, cached key lists, and values whose zeros are compressed.

The compressor's size is counted by Snappy's format: a run of zeros becomes copies of at most 64
bytes, three bytes each, so no message shrinks by more than 64/3 times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 8  # int64 (§5.1)
VALUE_BYTES = 8  # double (§5.1)
HASH_BYTES = 8  # that stand for a cached list of keys
_COPY = 64  # bytes that an element of Snappy's format copies at most
_SHORT = 11  # bytes that its short form copies at most


def compressed_bytes(nonzero: NDArray[np.bool_]) -> int:
    """Bytes of doubles in Snappy's format, if only zeros repeat.

    Args:
        nonzero: for each value, in order, whether it is not zero.

    >>> compressed_bytes(np.zeros(800, dtype=bool)), 800 * VALUE_BYTES
    (302, 6400)
    """
    return int(compressed_parts(nonzero, np.array([0, len(nonzero)]))[0])


def compressed_parts(nonzero: NDArray[np.bool_], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of several messages, see :func:`compressed_bytes`.

    Args:
        nonzero: of all messages, one after the other.
        borders: where each message starts, and where the last one ends.
    """
    if not len(nonzero):
        return np.zeros(len(borders) - 1, dtype=np.int64)
    begins = np.zeros(len(nonzero), dtype=bool)
    begins[borders[:-1][borders[:-1] < len(nonzero)]] = True
    begins[1:] |= nonzero[1:] != nonzero[:-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=len(nonzero)) * VALUE_BYTES
    # A literal: its length in one byte up to 60, two up to 256, three beyond; then its bytes.
    literal = lengths + 1 + (lengths > 60) + (lengths > 256)
    # Zeros: copies of 64 bytes; the rest is a short copy of two bytes, or one of three.
    rest = lengths % _COPY
    zeros = 3 * (lengths // _COPY) + 2 * (rest > 0) + (rest > _SHORT)
    sizes = np.where(nonzero[starts], literal, zeros)
    message = np.searchsorted(borders, starts, side="right") - 1
    totals = np.bincount(message, weights=sizes, minlength=len(borders) - 1)
    return totals.astype(np.int64) + 2 * (np.diff(borders) > 0)  # the length of all, in front
