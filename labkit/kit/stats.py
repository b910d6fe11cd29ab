"""Statistics that every engine's studies share: the interval of a mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.errors import BadValue, shown


def mean_interval(values: Any) -> tuple[float, float, float]:
    """Find the mean with its 95 % interval by Student's t; the ends are NaN for a single value.

    Raises:
        BadValue: there is no value, or one is no number.

    >>> mean, low, high = mean_interval([1.0, 2.0, 3.0])
    >>> mean, round(low, 3), round(high, 3)
    (2.0, -0.484, 4.484)
    """
    from scipy.special import stdtrit  # scipy.stats takes most of a second to load

    try:
        sample = np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError, MemoryError):
        raise BadValue(f"values must be numbers; got {shown(values)}") from None
    if sample.size == 0:
        raise BadValue("values: an interval needs at least one value, got none")
    mean = float(sample.mean())
    if sample.size == 1:
        return mean, float("nan"), float("nan")
    half = float(stdtrit(sample.size - 1, 0.975) * sample.std(ddof=1) / np.sqrt(sample.size))
    return mean, mean - half, mean + half
