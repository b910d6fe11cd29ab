"""How fast kinds of jobs run on each number of GPUs."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray

from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue
from labkit.kit.describe import Count, checked, description

MostGpus = Annotated[int, Ge(1), Le(10**6)]
Floats = NDArray[np.float64]


@description(eq=False)
class Rates:
    """Work a second by kind of job and number of GPUs.

    Attributes:
        kinds: of the jobs, as the trace's ``kind`` has them.
        gpus: the numbers of GPUs listed, rising.
        work_per_s: kind × number; 1 is the speed at which ``duration_s`` was stated.

    Raises:
        BadValue: the table's shape does not match, or a rate is negative or not finite.
    """

    kinds: Annotated[tuple[str, ...], MinLen(1)]
    gpus: Annotated[tuple[Count, ...], MinLen(1)]
    work_per_s: Floats

    def __post_init__(self) -> None:
        table = np.array(self.work_per_s, dtype=float)
        wanted = (len(self.kinds), len(self.gpus))
        if table.shape != wanted or not (np.isfinite(table) & (table >= 0)).all():
            raise BadValue(
                f"Rates.work_per_s must be kinds × gpus, here {wanted}, of finite numbers from 0; "
                f"got shape {table.shape}"
            )
        object.__setattr__(self, "work_per_s", table)

    @checked
    def times(self, most: MostGpus) -> dict[str, Floats]:
        """Seconds of one unit of work on 1 to ``most`` GPUs, by kind.

        Between listed numbers the logarithms are interpolated; NaN beyond those that can run.
        """
        listed = np.log(self.gpus)
        wanted = np.log(np.arange(1, most + 1))
        times_s = {}
        for kind, rates in zip(self.kinds, self.work_per_s, strict=True):
            able = rates > 0
            line = np.interp(wanted, listed[able], np.log(rates[able]), np.nan, np.nan)
            times_s[kind] = np.exp(-line)
        return times_s

    @checked
    def of(self, trace: Trace) -> Floats:
        """Work a second of each job, by number of GPUs."""
        kinds = trace.kind or (self.kinds[0],) * len(trace)
        if unknown := set(kinds) - set(self.kinds):
            raise BadValue(
                f"Rates.kinds lacks {min(unknown)!r} of {trace.name}; it has "
                f"{', '.join(self.kinds)}"
            )
        return self.work_per_s[[self.kinds.index(kind) for kind in kinds]]
