"""Measured speeds of kinds of jobs by GPU type, alone and in pairs, and jobs drawn of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray

from labkit import files
from labkit.cluster.inputs.clusters import Cluster, Pool
from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadFile, BadValue, not_among
from labkit.kit import tables
from labkit.kit.arrivals import MOST_S
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.kit.rules import Distinct

SOURCE = "gavel-osdi20"
GPU_TYPES = ("v100", "p100", "k80")
KINDS = (
    *(f"ResNet-18 (batch size {size})" for size in (16, 32, 64, 128, 256)),
    *(f"ResNet-50 (batch size {size})" for size in (16, 32, 64, 128)),
    *(f"Transformer (batch size {size})" for size in (16, 32, 64, 128, 256)),
    *(f"LM (batch size {size})" for size in (5, 10, 20, 40, 80)),
    *(f"Recommendation (batch size {size})" for size in (512, 1024, 2048, 4096, 8192)),
    "A3C",
    "CycleGAN",
)
"""Kinds of jobs in the order in which Gavel's generator draws them."""
NumDrawn = Annotated[int, Ge(1), Le(10**6)]
Spread = Annotated[float, Ge(0), Le(10)]
"""Of logarithms; beyond, a speed would be wrong by powers of 10 beyond all that is known."""
WIDE = KINDS[:19]
"""Kinds that also run on 2, 4 or 8 GPUs."""


@description(eq=False)
class Throughputs:
    """Steps a second of kinds of jobs on one GPU.

    Attributes:
        kinds, gpu_types: names of the rows and columns.
        alone: kind × GPU type.
        shared: kind × other kind × GPU type: steps a second of the first while it shares the GPU
            with the other; 0: the two do not fit.
    """

    kinds: Annotated[tuple[str, ...], MinLen(1), Distinct()]
    gpu_types: Annotated[tuple[str, ...], MinLen(1), Distinct()]
    alone: NDArray[np.float64]
    shared: NDArray[np.float64]

    def __post_init__(self) -> None:
        rows = len(self.kinds)
        columns = len(self.gpu_types)
        for name, shape in (("alone", (rows, columns)), ("shared", (rows, rows, columns))):
            array = np.asarray(getattr(self, name), dtype=float)
            if array.shape != shape or not (np.isfinite(array) & (array >= 0)).all():
                raise BadValue(
                    f"Throughputs.{name} must be finite numbers from 0, of shape {shape}; "
                    f"got an array of shape {array.shape}"
                )
            object.__setattr__(self, name, array)
        if not (self.alone[:, 0] > 0).all():
            raise BadValue("Throughputs.alone must be above 0 on the first GPU type")

    @checked
    def of(self, kinds: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Speeds of kinds alone and in pairs, over each kind's alone on the first GPU type.

        Raises:
            BadValue: a kind is not in the table.
        """
        if unknown := [kind for kind in kinds if kind not in self.kinds]:
            raise not_among("kind", unknown[0], self.kinds)
        rows = [self.kinds.index(kind) for kind in kinds]
        first = self.alone[rows, :1]
        return self.alone[rows] / first, self.shared[np.ix_(rows, rows)] / first[:, :, None]

    @property
    def packed(self) -> NDArray[np.float64]:
        """Kind × other × GPU type: what two jobs on one GPU get done, over one job's time alone."""
        return packed(self.alone, self.shared)

    @checked
    def cluster(self, *gpus: Count) -> Cluster:
        """Pools of so many GPUs of each type, with the speeds of all kinds."""
        if len(gpus) != len(self.gpu_types):
            raise BadValue(
                f"cluster: gpus must be {len(self.gpu_types)} numbers of GPUs "
                f"({', '.join(self.gpu_types)}); got {len(gpus)}"
            )
        columns = self.of(self.kinds)[0].T.tolist()
        speeds = [dict(zip(self.kinds, own, strict=True)) for own in columns]
        pools = [
            Pool(nodes=1, gpus_per_node=number, gpu=gpu, speeds=own)
            for gpu, number, own in zip(self.gpu_types, gpus, speeds, strict=True)
        ]
        return Cluster(pools=tuple(pools))

    @checked
    def misjudged(self, error: Spread, *, rng: np.random.Generator | Whole = 0) -> Throughputs:
        """The same with every speed wrong by a lognormal factor of this spread."""
        draw = np.random.default_rng(rng)
        factor = np.exp(error * draw.standard_normal(self.alone.shape))
        return Throughputs(
            kinds=self.kinds,
            gpu_types=self.gpu_types,
            alone=self.alone * factor,
            shared=self.shared * factor[:, None, :],
        )


def packed(alone: NDArray[np.float64], shared: NDArray[np.float64]) -> NDArray[np.float64]:
    """As :attr:`Throughputs.packed`; 0 where two jobs do not fit."""
    part = shared / np.where(alone > 0, alone, np.inf)[:, None, :]
    other = part.transpose(1, 0, 2)
    return np.where((part > 0) & (other > 0), part + other, 0.0)


def _name(kind: str, gpus: int) -> str:
    """A kind of job on so many GPUs, as tables have it."""
    return kind if gpus == 1 else f"{kind} on {gpus}"


@checked
def load_throughputs(path: str | Path | None = None, *, wide: bool = False) -> Throughputs:
    """The 26 kinds of jobs that Gavel's authors measured on V100, P100 and K80.

    Args:
        path: their file, or its stand-in (CSV); default: the registered file.
        wide: and 19 of them on 2, 4 and 8 GPUs, as kinds of their own; a stand-in has the speeds
            of one GPU for them.

    Raises:
        DatasetUnavailable: the file is not on this machine and cannot be downloaded.
        BadFile: it is no such table, or lacks a kind or a GPU.
    """
    from labkit import datasets

    file = Path(path or datasets.open(f"{SOURCE}/scheduler/simulation_throughputs.json"))
    rows = [(kind, 1) for kind in KINDS]
    rows += [(kind, gpus) for gpus in (2, 4, 8) for kind in WIDE] if wide else []
    read = _read_csv(file) if file.suffix == ".csv" else _read_json(file)
    shared = np.zeros((len(rows), len(rows), len(GPU_TYPES)))
    try:
        alone = np.array([[read(gpu, row, None) for gpu in GPU_TYPES] for row in rows])
        for (k, row), (other, name) in product(enumerate(rows), repeat=2):
            if row[1] == name[1]:
                shared[k, other] = [read(gpu, row, name) for gpu in GPU_TYPES]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadFile(file, f"has no speed {error} of {', '.join(GPU_TYPES)}") from None
    kinds = tuple(_name(*row) for row in rows)
    with files.holding(file, "steps a second of every kind of job on every GPU type, above 0"):
        return Throughputs(kinds=kinds, gpu_types=GPU_TYPES, alone=alone, shared=shared)


def _read_json(file: Path) -> Callable[..., float]:
    table = files.load_json(file)

    def read(gpu: str, row: tuple[str, int], other: tuple[str, int] | None) -> float:
        speeds = table[gpu][str(row)]
        return float(speeds["null"] if other is None else speeds[str(other)][0])

    return read


def _read_csv(file: Path) -> Callable[..., float]:
    table = tables.typed(file, missing=False)
    if not {"gpu", "kind", "other", "steps_per_s"} <= set(table):
        raise BadFile(file, "needs the columns gpu, kind, other, steps_per_s")
    speeds = table.set_index(["gpu", "kind", "other"])["steps_per_s"].to_dict()

    def read(gpu: str, row: tuple[str, int], other: tuple[str, int] | None) -> float:
        return float(speeds[gpu, row[0], other[0] if other else ""])

    return read


@checked
def generate_continuous(
    num_jobs: NumDrawn, *, jobs_per_hour: Positive | None, rng: Whole = 0, wide: bool = False
) -> Trace:
    """A continuous trace as Gavel's simulator draws it, to the last digit.

    A fifth of the jobs lasts 10³ to 10⁴ minutes on V100s, the others 10^1.5 to 10³, uniform in the
    logarithm; every kind is as likely.

    Args:
        num_jobs: how many.
        jobs_per_hour: of Poisson arrivals; None: all come at once.
        rng: a seed. Two of Python's generators are used, since the published runs are of their
            seeds: ``rng + 2`` for jobs, ``rng + 3`` for arrivals.
        wide: whether jobs have 1, 2, 4 or 8 GPUs with the shares 0.7, 0.1, 0.15, 0.05; else one.

    Source: Gavel (OSDI'20) §7.1, and its program ``utils.generate_job``.

    >>> generate_continuous(2, jobs_per_hour=6.0).kind
    ('ResNet-18 (batch size 64)', 'Transformer (batch size 16)')
    """
    jobs = random.Random(rng + 2)
    arrivals = random.Random(rng + 3)
    now_s = 0.0
    rows = []
    for _ in range(num_jobs):
        size = jobs.uniform(0, 1)
        gpus = _num_gpus(size) if wide else 1
        low, high = (3.0, 4.0) if jobs.random() >= 0.8 else (1.5, 3.0)
        duration_s = 60 * 10 ** jobs.uniform(low, high)
        kind = jobs.choice(KINDS)
        while gpus > 1 and kind not in WIDE:
            kind = jobs.choice(KINDS)
        rows.append((now_s, duration_s, gpus, _name(kind, gpus)))
        if jobs_per_hour is not None:
            now_s += -math.log(1.0 - arrivals.random()) * 3600.0 / jobs_per_hour
    arrival_s, durations_s, sizes, kinds = zip(*rows, strict=True)
    if arrival_s[-1] > MOST_S:
        raise BadValue(
            f"generate_continuous: jobs_per_hour must be high enough for {num_jobs} jobs to come "
            f"within {MOST_S:.0e} s; got {jobs_per_hour:g}"
        )
    rate = "at once" if jobs_per_hour is None else f"{jobs_per_hour:g} jobs/h"
    return Trace(
        arrival_s=arrival_s,
        duration_s=durations_s,
        gpus=sizes,
        kind=kinds,
        name=f"continuous ({rate}, seed {rng})",
    )


def _num_gpus(size: float) -> int:
    """GPUs of a wide job, from a number drawn evenly from 0 to 1."""
    if size < 0.7:
        return 1
    if size <= 0.8:
        return 2
    return 4 if size < 0.95 else 8
