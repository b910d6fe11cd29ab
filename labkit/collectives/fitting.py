"""Fitting a line to measured collectives: seconds = α + β · bytes, with its error.

The sum of squared relative errors is smallest, so that small messages count as much as large ones;
neither α nor β is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Positive, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A line through measured seconds.

    Attributes:
        latency_s: α, of a message of no bytes.
        s_per_byte: β.
        median_error_fraction: of the measured points, how far off the line is.
        worst_error_fraction: of the measured points, at most.
        num_points: that were measured.
    """

    latency_s: float
    s_per_byte: float
    median_error_fraction: float
    worst_error_fraction: float
    num_points: int

    def time_s(self, num_bytes: float) -> float:
        """Seconds of a message by the line."""
        return self.latency_s + self.s_per_byte * num_bytes

    def why(self) -> str:
        """One sentence: the line and how far off it is."""
        return (
            f"{self.latency_s * 1e6:.3g} µs and {self.s_per_byte * 1e9:.3g} s/GB through "
            f"{self.num_points} points: half of them within {self.median_error_fraction:.1%}, all "
            f"within {self.worst_error_fraction:.0%}"
        )


@checked
def fit(num_bytes: Sequence[NonNegative], time_s: Sequence[Positive]) -> Fit:
    """Fit a line to measured seconds.

    Args:
        num_bytes: of each message.
        time_s: that each took.

    Raises:
        BadValue: the two have different lengths, or fewer than two sizes are among them.

    >>> fit([0, 1e6, 2e6], [1e-5, 1.01e-3, 2.01e-3]).latency_s.__round__(7)
    1e-05
    """
    sizes = np.array(num_bytes, dtype=float)
    seconds = np.array(time_s, dtype=float)
    if sizes.shape != seconds.shape:
        raise BadValue(
            f"collectives.fit: {len(sizes)} num_bytes for {len(seconds)} time_s; one each is valid"
        )
    if len(set(sizes.tolist())) < 2:
        raise BadValue("collectives.fit: num_bytes must hold at least two different sizes")
    scale = max(sizes.max(), 1.0)  # both columns near one, as the solver likes them
    columns = np.stack([np.ones(len(sizes)), sizes / scale], axis=1) / seconds[:, None]
    (latency_s, at_largest), _ = nnls(columns, np.ones(len(sizes)))
    line_s = latency_s + at_largest * sizes / scale
    errors = np.abs(line_s / seconds - 1)
    return Fit(
        latency_s=float(latency_s),
        s_per_byte=float(at_largest / scale),
        median_error_fraction=float(np.median(errors)),
        worst_error_fraction=float(errors.max()),
        num_points=len(sizes),
    )
