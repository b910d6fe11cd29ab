"""How numbers are written on the wire: as they are, or as small whole numbers with a scale a block.

A block of ``block`` numbers x is written as one scale s = max|x| / (2^(bits-1) - 1) in 32 bits and
round(x / s) in ``bits`` bits each.

Source: block quantisation as in Wang et al. 2023 (ZeRO++), §3.1.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from labkit.kit.describe import Count, description

SCALE_BYTES = 4


@description(slots=True)
class Coding:
    """What a number becomes on the wire.

    Attributes:
        bits: of a number; None sends it as it is.
        block: numbers that share a scale.
    """

    bits: Annotated[int, Ge(2), Le(16)] | None = None
    block: Count = 256

    def wire_bytes(self, num_bytes: np.ndarray, element_bytes: int) -> np.ndarray:
        """Bytes on the wire of messages of so many bytes of numbers.

        >>> int(Coding(bits=4, block=256).wire_bytes(np.array([4096]), 4)[0])  # 1,024 numbers
        528
        """
        if self.bits is None:
            return num_bytes
        numbers = num_bytes // element_bytes
        scales = -(-numbers // self.block)
        return -(-numbers * self.bits // 8) + scales * SCALE_BYTES

    def as_received(self, values: np.ndarray) -> np.ndarray:
        """What the numbers are after they were written and read again."""
        if self.bits is None:
            return values.copy()
        padded = np.zeros(-(-len(values) // self.block) * self.block, dtype=values.dtype)
        padded[: len(values)] = values
        blocks = padded.reshape(-1, self.block)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
        levels = 2 ** (self.bits - 1) - 1
        scale = np.where(largest > 0, largest / levels, 1)
        return (np.round(blocks / scale) * scale).reshape(-1)[: len(values)].astype(values.dtype)


PLAIN = Coding()
"""Numbers are sent as they are."""
