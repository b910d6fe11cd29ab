"""What GPUs draw, and how much slower they compute, by power limit; and what draws power besides.

A power trace of one GPU (Zeus) gives both for the batch sizes it was taken at. Data parallelism
puts the same GPU there several times over, with time spent waiting for the network between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue, UsageError, shown
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.tuning.traces.job import Job, check_tables


@description(slots=True)
class GpuPower:
    """Relative speed and draw of one GPU while it computes, by its batch size and power limit.

    Rows are batch sizes of one GPU, columns power limits, both ascending. Speed is 1 at the
    highest limit. Between batch sizes both are interpolated over their logarithm; outside, the
    nearest counts. NaN stands for a pair that was not profiled, which is interpolated as well.
    """

    power_limits_w: Annotated[tuple[Positive, ...], MinLen(1)]
    batch_sizes: Annotated[tuple[Count, ...], MinLen(1)]
    relative_speed: tuple[tuple[Any, ...], ...]
    busy_power_w: tuple[tuple[Any, ...], ...]
    origin: str = "the given power model"

    def __post_init__(self) -> None:
        check_tables(self, "relative_speed", "busy_power_w")
        for name in ("relative_speed", "busy_power_w"):
            if np.isnan(getattr(self, name)).all(axis=0).any():
                raise BadValue(
                    f"{name} must be known at one batch size or more of each power limit; got "
                    f"{getattr(self, name)}"
                )

    @classmethod
    @checked
    def from_job(cls, job: Job) -> GpuPower:
        """Read the power of a GPU from a job of its power trace, without the job's
        ``host_power_w``.

        Batch sizes that were not profiled at the highest limit are left out, since speed is
        relative to it, and so are limits that only those were profiled at.
        """
        rows = np.flatnonzero(job.profiled[:, -1])
        columns = np.flatnonzero(job.profiled[rows].any(axis=0))
        time_s = job.epoch_time_s[np.ix_(rows, columns)]
        power_w = np.array(job.average_power_w)[np.ix_(rows, columns)]
        holes = f" ({job.num_holes} pairs not profiled)" if job.num_holes else ""
        return cls(
            power_limits_w=tuple(job.power_limits_w[i] for i in columns),
            batch_sizes=tuple(job.batch_sizes[i] for i in rows),
            relative_speed=tuple(map(tuple, (time_s[:, -1:] / time_s).tolist())),
            busy_power_w=tuple(map(tuple, power_w.tolist())),
            origin=f"the power trace of {job.title}{holes}",
        )

    @checked
    def scaled(self, max_power_w: Positive) -> GpuPower:
        """Suppose a GPU whose highest limit is another: limits and draw change in proportion.

        This is a guess, for a GPU that was never profiled; the origin says so.
        """
        ratio = max_power_w / self.power_limits_w[-1]
        watts = tuple(tuple(ratio * w for w in row) for row in self.busy_power_w)
        return replace(
            self,
            power_limits_w=tuple(ratio * limit for limit in self.power_limits_w),
            busy_power_w=watts,
            origin=f"{self.origin} (a guess: scaled from {self.power_limits_w[-1]:g} W to "
            f"{max_power_w:g} W)",
        )

    @checked
    def at(self, atomic_bsz: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Interpolate relative speed and draw in watts: batch sizes of one GPU × power limits."""
        known = np.log(np.array(self.batch_sizes, dtype=float))
        sizes = np.asarray(atomic_bsz, dtype=float)
        if not (np.isfinite(sizes) & (sizes > 0)).all():
            raise BadValue(f"atomic_bsz must be finite and above 0; got {shown(atomic_bsz)}")
        size = np.log(sizes)
        speed, watts = (
            np.stack([_interpolated(size, known, column) for column in np.array(table).T], -1)
            for table in (self.relative_speed, self.busy_power_w)
        )
        return speed, watts

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the GPUs' power, as sentences."""
        return (
            f"Each GPU computes and draws as in {self.origin} at its own batch size, however many "
            "there are; a power limit slows the computation and leaves the network as it is.",
        )


def _interpolated(x: NDArray, known: NDArray, values: NDArray) -> NDArray[np.float64]:
    """Interpolate linearly between the values that are not NaN; outside them the nearest counts."""
    there = ~np.isnan(values)
    return np.interp(x, known[there], values[there])


@description(slots=True)
class HostPower:
    """Says what draws power beside GPUs that compute, for as long as the job holds its nodes."""

    node_power_w: NonNegative = 0.0
    """CPU, memory, fans and network of each node."""
    idle_gpu_power_w: NonNegative = 0.0
    """A GPU that holds no replica, on nodes taken whole."""
    gpus_per_node: Count | None = None
    """With it, nodes are taken whole and their other GPUs idle; without it, they are someone's."""

    @checked
    def idle_gpus(self, num_nodes: ArrayLike, num_gpus: ArrayLike) -> NDArray[np.float64]:
        """How many GPUs of its nodes a job does not use.

        Raises:
            UsageError: the job uses more than there are.
        """
        num_nodes = np.atleast_1d(num_nodes)
        num_gpus = np.atleast_1d(num_gpus)
        for name, counts in (("num_nodes", num_nodes), ("num_gpus", num_gpus)):
            if not np.isfinite(counts).all():
                raise BadValue(f"{name} must be finite; got {shown(counts)}")
        if num_nodes.shape != num_gpus.shape:
            raise BadValue(
                f"num_nodes and num_gpus must have one shape; got {num_nodes.shape} and "
                f"{num_gpus.shape}"
            )
        if self.gpus_per_node is None:
            return np.zeros(num_gpus.shape)
        idle = num_nodes * self.gpus_per_node - num_gpus
        if (idle < 0).any():
            where = int(np.flatnonzero(idle < 0)[0])
            raise UsageError(
                f"{num_gpus[where]} GPUs do not fit on {num_nodes[where]} node(s) of "
                f"{self.gpus_per_node}"
            )
        return idle.astype(float)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the hosts' power, as sentences."""
        waits = "A GPU that waits for the network draws as if it computed."
        host = (
            f"Each node draws {self.node_power_w:g} W besides its GPUs."
            if self.node_power_w
            else "Energy is that of the GPUs alone: CPU, memory and cooling are left out."
        )
        taken = (
            "GPUs of a node that the job does not use are not charged to it."
            if self.gpus_per_node is None
            else f"Nodes of {self.gpus_per_node} GPUs are taken whole; those left over idle at "
            f"{self.idle_gpu_power_w:g} W."
        )
        return (waits, host, taken)
