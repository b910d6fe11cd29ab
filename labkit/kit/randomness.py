"""The one spelling of randomness: an argument ``rng``, a seed or NumPy's generator."""

from __future__ import annotations

import numpy as np

from labkit.kit.describe import Whole

Rng = Whole | np.random.Generator
"""A whole number stands for ``numpy.random.default_rng`` of it; a generator goes on from where it
is."""


def seed_of(rng: Rng) -> int:
    """A seed for what has generators of its own, as torch has: the number, or one that is drawn.

    >>> seed_of(3), seed_of(np.random.default_rng(0)) == seed_of(np.random.default_rng(0))
    (3, True)
    """
    return int(rng.integers(2**31)) if isinstance(rng, np.random.Generator) else rng
