"""The batch of most goodput on an allocation of GPUs, and what the allocation is worth.

A larger batch keeps more GPUs busy but learns less from each example. With φ the gradient noise
scale and M0 the batch size the job was tuned for, an example of a batch of M is worth
(φ + M0) / (φ + M) of one at M0, the statistical efficiency. Goodput is throughput times that.

Source: Pollux (OSDI'21), §3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.errors import UsageError
from labkit.kit.describe import Count, NonNegative, checked, description
from labkit.tuning.goodput.large_batch import efficiency
from labkit.tuning.goodput.step_fit import ComputeLaw, SyncLaw
from labkit.tuning.goodput.step_fit import fit as fit_step_times
from labkit.tuning.goodput.step_times import StepTimes, allocation_of

Allocations = Annotated[Sequence[tuple[Count, Count]], MinLen(1)]
"""Pairs of nodes and GPUs."""
_MOST_SIZES = 512  # batch sizes of one GPU that a search tries; all of them up to here


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """Examples of one GPU at a time, and gradients before the last; arrays where allocations were.

    All are 0 where no allowed batch reaches the initial size.
    """

    goodput: Any
    atomic_bsz: Any
    accum_steps: Any


@description(slots=True)
class GoodputModel:
    """Step times of a job, with the noise scale of its gradient at one moment of training.

    ``noise_scale`` is in examples (``noise.GradientNoise.noise_scale``); it grows as training
    goes. Without it and ``init_batch_size`` the model knows throughput alone.
    """

    step_times: StepTimes
    init_batch_size: Count | None = None
    noise_scale: NonNegative | None = None

    @checked
    def goodput(
        self,
        num_nodes: ArrayLike,
        num_gpus: ArrayLike,
        atomic_bsz: ArrayLike,
        accum_steps: ArrayLike = 0,
    ) -> NDArray[np.float64]:
        """Useful examples a second: throughput × efficiency. Arrays broadcast.

        Raises UsageError where a batch is smaller than the initial size: that has no efficiency.
        """
        batch = np.asarray(num_gpus) * np.asarray(atomic_bsz) * (np.asarray(accum_steps) + 1)
        init, noise_scale = self._moment()
        worth = efficiency(batch, init_batch_size=init, noise_scale=noise_scale)
        return worth * self.step_times.throughput(num_nodes, num_gpus, atomic_bsz, accum_steps)

    @checked
    def optimize(
        self,
        num_nodes: ArrayLike,
        num_gpus: ArrayLike,
        max_batch_size: Count | None = None,
        atomic_bsz_range: tuple[Count, Count] | None = None,
        accumulation: bool = False,
    ) -> Optimum:
        """The batch of most goodput on each allocation.

        Args:
            max_batch_size: of all GPUs and accumulation steps; default: the initial size.
            atomic_bsz_range: least and most examples one GPU may hold at a time; default: 1 to
                ``max_batch_size``.
            accumulation: allow gradient accumulation.

        All sizes are tried where one GPU may hold no more than 512 of them; beyond, a geometric
        grid of as many, with the measured sizes, whose ratio is below 1.02 for batches up to
        30,000 examples a GPU. The number of steps is the best there is, in closed form. Raises
        UsageError where no allocation can have a batch of the initial size or above.
        """
        init, _ = self._moment()
        limit = init if max_batch_size is None else max_batch_size
        low, high = atomic_bsz_range or (1, limit)
        if limit < init:
            raise UsageError(f"max_batch_size must be >= init_batch_size {init}, got {limit}")
        if not 1 <= low <= high:
            raise UsageError(f"atomic_bsz_range must ascend from 1 or more, got ({low}, {high})")
        nodes, gpus = allocation_of(num_nodes, num_gpus)
        if not gpus.size:
            raise UsageError("num_nodes and num_gpus must hold one allocation or more")
        places = zip(nodes.ravel().tolist(), gpus.ravel().tolist(), strict=True)
        best = np.array([self._best(*place, limit, low, high, accumulation) for place in places])
        if not best[:, 0].any():
            raise UsageError(
                f"no batch of {init} to {limit} examples can be split over "
                f"{', '.join(map(str, np.unique(gpus)))} GPUs with {low} to {high} a GPU"
                f"{'' if accumulation else '; allow accumulation'}"
            )
        goodput, size, steps = (column.reshape(nodes.shape)[()] for column in best.T)
        return Optimum(goodput=goodput, atomic_bsz=size.astype(int), accum_steps=steps.astype(int))

    def _best(
        self, nodes: int, gpus: int, limit: int, low: int, high: int, accumulation: bool
    ) -> tuple[float, int, int]:
        """Goodput, batch size of one GPU and steps of an allocation; zeros where none fits."""
        init, noise_scale = self._moment()
        knots = [int(size) for size, _ in self.step_times.measured]
        size = _integers(low, min(high, limit // gpus), [-(-init // gpus), *knots])
        fewest = -(-init // (gpus * size))
        parts = limit // (gpus * size)
        if not accumulation:
            parts = np.minimum(parts, 1)
        fits = fewest <= parts
        if not fits.any():
            return 0.0, 0, 0
        size = size[fits]
        fewest = fewest[fits]
        parts = parts[fits]
        # With x gradients of g seconds and c more for the synchronisation that they leave, goodput
        # is in proportion to x / ((φ + K·m·x)(g·x + c)): it has one peak, at x² = φ·c / (K·m·g).
        grad = self.step_times.grad_s(size)
        rest = np.maximum(self.step_times.step_time_s(nodes, gpus, size) - grad, 0.0)
        ideal = np.clip(np.sqrt(noise_scale * rest / (gpus * size * grad)), fewest, parts)
        step = np.stack([np.floor(ideal), np.ceil(ideal)]).astype(np.intp) - 1
        values = self.goodput(nodes, gpus, size, step)
        which = np.unravel_index(values.argmax(), values.shape)
        return float(values[which]), int(size[which[1]]), int(step[which])

    def _moment(self) -> tuple[int, float]:
        if self.init_batch_size is None or self.noise_scale is None:
            raise UsageError(
                "goodput needs init_batch_size and noise_scale: give them to fit, or "
                "replace(model, init_batch_size=..., noise_scale=...)"
            )
        return self.init_batch_size, self.noise_scale


@checked
def fit(
    frame: pd.DataFrame,
    *,
    init_batch_size: int | None = None,
    noise_scale: float | None = None,
    compute: ComputeLaw = "measured",
    sync: SyncLaw = "doubling",
) -> GoodputModel:
    """A model of the step times measured in ``frame``; laws and errors as ``step_fit.fit``.

    ``compute="linear", sync="linear"`` is the form that Pollux fits.
    """
    times = fit_step_times(frame, compute=compute, sync=sync)
    return GoodputModel(step_times=times, init_batch_size=init_batch_size, noise_scale=noise_scale)


# ---------------------------------------------------------------- tables for figures


@checked
def surface(
    model: GoodputModel,
    allocations: Allocations,
    *,
    max_batch_size: Count,
    atomic_bsz_range: tuple[Count, Count],
) -> pd.DataFrame:
    """Goodput by allocation and total batch size, each on its fewest accumulations.

    Columns: num_nodes, num_gpus, batch_size (on a geometric grid, at most), atomic_bsz,
    accum_steps, goodput.
    """
    init, _ = model._moment()
    sizes = np.unique(np.geomspace(init, max_batch_size, 60).astype(int))
    low, high = atomic_bsz_range
    tables = []
    for nodes, gpus in allocations:
        parts = np.maximum(-(-sizes // (gpus * high)), 1)
        each = sizes // (gpus * parts)
        table = pd.DataFrame({"batch_size": gpus * each * parts, "atomic_bsz": each})
        table = table.assign(num_nodes=nodes, num_gpus=gpus, accum_steps=parts - 1)
        table = table[(each >= low) & (table["batch_size"] >= init)].drop_duplicates("batch_size")
        place = (table[name] for name in ("num_nodes", "num_gpus", "atomic_bsz", "accum_steps"))
        tables.append(table.assign(goodput=model.goodput(*place)))
    return pd.concat(tables, ignore_index=True)


@checked
def speedups(model: GoodputModel, allocations: Allocations, **limits: Any) -> pd.DataFrame:
    """What each allocation is worth in GPUs: its best goodput over one GPU's.

    ``limits``: those of :meth:`GoodputModel.optimize`. Columns: num_nodes, num_gpus, batch_size,
    atomic_bsz, accum_steps, goodput, speedup, speedup_fraction (of the number of GPUs),
    throughput_speedup (of the chosen batch, efficiency apart).

    Source: Pollux §4.2 (SPEEDUP).
    """
    nodes, gpus = np.array(allocations).T
    best = model.optimize(nodes, gpus, **limits)
    single = model.optimize(1, 1, **limits)
    table = pd.DataFrame(
        {
            "num_nodes": nodes,
            "num_gpus": gpus,
            "batch_size": gpus * best.atomic_bsz * (best.accum_steps + 1),
            "atomic_bsz": best.atomic_bsz,
            "accum_steps": best.accum_steps,
            "goodput": best.goodput,
            "speedup": best.goodput / single.goodput,
        }
    )
    table = table[table["goodput"] > 0].reset_index(drop=True)
    table["speedup_fraction"] = table["speedup"] / table["num_gpus"]
    base = model.step_times.throughput(1, 1, single.atomic_bsz, single.accum_steps)
    place = table["num_nodes"], table["num_gpus"], table["atomic_bsz"], table["accum_steps"]
    table["throughput_speedup"] = model.step_times.throughput(*place) / base
    return table


def _integers(low: int, high: int, extra: Iterable[int]) -> NDArray[np.intp]:
    """All integers from low to high if not too many, else a geometric grid and extra."""
    if high - low < _MOST_SIZES:
        return np.arange(low, high + 1)
    grid = np.unique(np.geomspace(low, high, _MOST_SIZES).round().astype(np.intp))
    return np.union1d(grid, [n for n in extra if low <= n <= high]).astype(np.intp)
