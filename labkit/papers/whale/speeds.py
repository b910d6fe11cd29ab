"""Seconds of a training step on V100 and P100 by batch size, from Gavel's measured throughputs.

Source: data set ``gavel-osdi20``, steps a second of one GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from labkit.cluster import Throughputs

GPU_TYPES = ("v100", "p100")
MODELS = ("ResNet-50", "Transformer", "LM")
"""Models of the notebook, as Gavel calls them."""
OTHERS = ("ResNet-18", "Recommendation")
"""Models that Gavel measured at several batch sizes as well."""
_KIND = re.compile(r"(.+) \(batch size (\d+)\)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Speed:
    """Seconds of a model's step on one type of GPU, by batch size: measured, and a line.

    Attributes:
        sizes: batch sizes that were measured, rising.
        seconds: of a step at each.
        fixed_s, sample_s: of the line fixed_s + sample_s · batch through them, by least squares
            of relative errors; neither is negative.
    """

    sizes: np.ndarray
    seconds: np.ndarray
    fixed_s: float
    sample_s: float

    def step_s(self, batch: float) -> float:
        """Seconds of a step by the line; an empty batch takes none."""
        return self.fixed_s + self.sample_s * batch if batch > 0 else 0.0

    @property
    def error(self) -> float:
        """The line's largest relative error at a measured size."""
        line_s = self.fixed_s + self.sample_s * self.sizes
        return float(np.abs(line_s / self.seconds - 1).max())


def fit(sizes: np.ndarray, seconds: np.ndarray) -> Speed:
    """A line through measured steps.

    >>> line = fit(np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 9.0]))
    >>> round(line.fixed_s, 9), round(line.sample_s, 9), round(line.error, 9)
    (1.0, 2.0, 0.0)
    """
    from scipy.optimize import nnls

    terms = np.stack([np.ones_like(sizes), sizes], axis=1)
    (fixed_s, sample_s), _ = nnls(terms / seconds[:, None], np.ones_like(seconds))
    return Speed(sizes=sizes, seconds=seconds, fixed_s=float(fixed_s), sample_s=float(sample_s))


def read_speeds(table: Throughputs) -> dict[str, dict[str, Speed]]:
    """By model and GPU type, the speeds of every model that was measured at several batches."""
    batches: dict[str, dict[int, int]] = {}
    for row, kind in enumerate(table.kinds):
        if found := _KIND.fullmatch(kind):
            batches.setdefault(found[1], {})[int(found[2])] = row
    speeds: dict[str, dict[str, Speed]] = {}
    for model, rows in batches.items():
        sizes = np.array(sorted(rows), dtype=float)
        order = [rows[int(size)] for size in sizes]
        speeds[model] = {}
        for gpu in GPU_TYPES:
            steps_per_s = table.alone[order, table.gpu_types.index(gpu)]
            speeds[model][gpu] = fit(sizes, 1 / steps_per_s)
    return speeds


def usual_batch(speeds: Mapping[str, Speed]) -> int:
    """The second largest batch that was measured, so that a larger share is measured as well."""
    return int(speeds["v100"].sizes[-2])
