"""CPU seconds of calls that take less than a clock's tick: repeated until there are enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def median_cpu_s(work: Callable[[], Any], least_s: float = 0.3) -> float:
    """Median CPU seconds of a call, of three at least, which take so long together."""
    took: list[float] = []
    while sum(took) < least_s or len(took) < 3:
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return float(np.median(took))
