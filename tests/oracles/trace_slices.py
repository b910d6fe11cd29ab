"""The just-in-time profile of a trace, slice by slice: another way to what a replay charges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from labkit.errors import UsageError
from labkit.tuning.configurations.power_limits import Slice, profile_limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labkit.tuning.traces.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSlices:
    """Slices of an epoch as a trace has it: each limit that the batch size was profiled at gets an
    equal share of one epoch's work."""

    job: Job
    batch_size: int

    def __post_init__(self) -> None:
        if self.batch_size not in self.job.batch_sizes:
            raise UsageError(
                f"job {self.job.name!r}: batch size {self.batch_size} is not in the trace; there "
                f"are {', '.join(map(str, self.job.batch_sizes))}"
            )

    @property
    def power_limits_w(self) -> tuple[float, ...]:
        """The limits that the batch size was profiled at, ascending."""
        known = self.job.profiled[self.job.batch_sizes.index(self.batch_size)]
        return tuple(w for w, there in zip(self.job.power_limits_w, known, strict=True) if there)

    def run_slice(self, power_limit_w: float) -> Slice:
        job = self.job
        limits = self.power_limits_w
        if power_limit_w not in limits:
            raise UsageError(
                f"job {job.name!r}: power limit {power_limit_w:g} W was not profiled; there are "
                f"{', '.join(f'{w:g}' for w in limits)}"
            )
        place = job.batch_sizes.index(self.batch_size), job.power_limits_w.index(power_limit_w)
        share = 1 / len(limits)
        return Slice(
            power_limit_w=power_limit_w,
            time_s=float(job.epoch_time_s[place]) * share,
            energy_j=float(job.epoch_energy_j[place]) * share,
        )


def profile_job(job: Job) -> list[tuple[Slice, ...]]:
    """What the first epoch of each batch size tells: one profile a batch size, in their order."""
    slices = [TraceSlices(job=job, batch_size=size) for size in job.batch_sizes]
    return [profile_limits(runner.run_slice, runner.power_limits_w) for runner in slices]


def taken(profile: tuple[Slice, ...]) -> tuple[float, float]:
    """Seconds and joules of all slices together."""
    return sum(p.time_s for p in profile), sum(p.energy_j for p in profile)


def overheads(job: Job, limits: NDArray[np.intp]) -> pd.DataFrame:
    """What knowing the limit costs on a batch size's first epoch, once it runs at ``limits``.

    Columns: batch_size, power_limit_w, overhead_s, overhead_j (may be negative: a slice at a
    lower limit can take less energy than the chosen one), overhead_fraction (energy, of an epoch).
    """
    rows = []
    for index, (size, profile) in enumerate(zip(job.batch_sizes, profile_job(job), strict=True)):
        chosen = job.power_limits_w[int(limits[index])]
        (at_chosen,) = [part for part in profile if part.power_limit_w == chosen]
        profile_s, profile_j = taken(profile)
        extra_j = profile_j - len(profile) * at_chosen.energy_j
        rows.append(
            {
                "batch_size": size,
                "power_limit_w": chosen,
                "overhead_s": profile_s - len(profile) * at_chosen.time_s,
                "overhead_j": extra_j,
                "overhead_fraction": extra_j / job.epoch_energy_j[index, int(limits[index])],
            }
        )
    return pd.DataFrame(rows)
