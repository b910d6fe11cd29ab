"""Recurring jobs: what a user submits again and again, and what each choice for it does.

Two tables, measured apart and joined by batch size, are enough to replay a job under any batch
size and power limit: the power limit slows epochs down but does not change what they compute, so
epochs to target depend on the batch size only, and time and power of an epoch on both.

Source: Zeus (NSDI'23), §4.1.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.errors import BadValue, UsageError, shown
from labkit.kit.describe import AnyNumber, Count, NonNegative, Positive, description


@description(slots=True)
class Job:
    """One recurring job on one GPU: all that a policy may choose, and what each choice does.

    Rows of the tables are batch sizes, columns power limits, both ascending. ``inf`` epochs mean
    that this run never reached the target. A pair of batch size and power limit that was not
    profiled is a *hole*: NaN in both tables. Every batch size has at least one profiled limit.
    """

    name: str
    title: str
    default_batch_size: Count
    target_metric: float
    max_epochs: Count
    batch_sizes: Annotated[tuple[Count, ...], MinLen(1)]
    power_limits_w: Annotated[tuple[Positive, ...], MinLen(1)]
    epochs_to_target: tuple[Annotated[tuple[AnyNumber, ...], MinLen(1)], ...]
    """Per batch size, one entry per recorded run."""
    time_per_epoch_s: tuple[tuple[Any, ...], ...]
    average_power_w: tuple[tuple[Any, ...], ...]
    host_power_w: NonNegative = 0.0
    """Drawn by the rest of the server for as long as the job runs; 0 counts the GPU alone."""

    def __post_init__(self) -> None:
        if self.default_batch_size not in self.batch_sizes:
            raise UsageError(
                f"job {self.name!r}: default_batch_size {self.default_batch_size} is not in the "
                f"trace; there are batch_sizes {', '.join(map(str, self.batch_sizes))}"
            )
        if len(self.epochs_to_target) != len(self.batch_sizes):
            raise BadValue(
                f"job {self.name!r}: epochs_to_target must have a row for each of "
                f"{len(self.batch_sizes)} batch_sizes, got {len(self.epochs_to_target)}"
            )
        check_tables(self, "time_per_epoch_s", "average_power_w")
        if (np.isnan(self.time_per_epoch_s) != np.isnan(self.average_power_w)).any():
            raise UsageError(
                f"job {self.name!r}: time_per_epoch_s and average_power_w must be NaN for the same "
                "pairs of batch size and power limit"
            )
        if not self.profiled.any(axis=1).all():
            size = self.batch_sizes[int((~self.profiled.any(axis=1)).argmax())]
            raise UsageError(
                f"job {self.name!r}: batch size {size} was not profiled at any power limit; leave "
                "it out"
            )

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """Whether a pair was profiled, batch size × power limit; where it was not is a hole."""
        return ~np.isnan(self.time_per_epoch_s)

    @property
    def num_holes(self) -> int:
        """How many pairs of batch size and power limit were not profiled."""
        return int((~self.profiled).sum())

    @property
    def baseline(self) -> tuple[int, int]:
        """Indices of what the user would run: b0 at the highest limit it was profiled at."""
        return self.default_index, int(np.flatnonzero(self.profiled[self.default_index])[-1])

    @property
    def max_power_w(self) -> float:
        """The highest power limit, which the cost charges time at (MaxPower in the paper)."""
        return self.power_limits_w[-1]

    @property
    def default_index(self) -> int:
        """The place of b0 among the batch sizes."""
        return self.batch_sizes.index(self.default_batch_size)

    @property
    def epoch_time_s(self) -> NDArray[np.float64]:
        """Seconds an epoch takes, batch size × power limit; NaN in a hole."""
        return np.array(self.time_per_epoch_s)

    @property
    def epoch_energy_j(self) -> NDArray[np.float64]:
        """Joules of an epoch, with the host if any, batch size × power limit; NaN in a hole."""
        return self.epoch_time_s * (np.array(self.average_power_w) + self.host_power_w)

    @property
    def num_recurrences(self) -> int:
        """How often the paper lets a job recur: twice the number of configurations."""
        return 2 * int(self.profiled.sum())


def check_tables(record: Any, *names: str) -> None:
    """Refuse tables of a record that do not fit its ascending ``batch_sizes`` × ``power_limits_w``.

    Raises:
        BadValue: sizes or limits do not ascend, a table has another shape, or holds anything but
            numbers above 0 and NaN for pairs that were not profiled.
    """
    for name in ("batch_sizes", "power_limits_w"):
        if list(getattr(record, name)) != sorted(set(getattr(record, name))):
            raise BadValue(f"{name} must ascend, got {getattr(record, name)}")
    sizes = len(record.batch_sizes)
    limits = len(record.power_limits_w)
    for name in names:
        table = getattr(record, name)
        if len(table) != sizes or any(len(row) != limits for row in table):
            raise BadValue(
                f"{name} must have a row for each of {sizes} batch sizes and a column for each of "
                f"{limits} power limits, as batch_sizes and power_limits_w say"
            )
        if not all(np.isscalar(value) for row in table for value in row):
            raise BadValue(f"{name} must hold numbers; got {shown(table)}")
        values = np.asarray(table)
        if values.dtype.kind not in "if" or (values <= 0).any() or np.isinf(values).any():
            raise BadValue(
                f"{name} must be positive and finite, or NaN where a pair was not profiled"
            )


# ---------------------------------------------------------------- what is submitted


@description(slots=True)
class Workload:
    """What a user submits: a model, its default batch size and when training counts as done."""

    title: str
    network: str
    optimizer: str
    default_batch_size: Count
    target_metric: float
    metric_name: str
    max_epochs: Count
    higher_is_better: bool = True
    dataset: str = ""
    """As in the trace's ``dataset`` column; empty where it is the workload's own name."""


_ACCURACY = "accuracy"
_ERRORS = "word error rate (%)"
_FIELDS = (
    "title",
    "network",
    "optimizer",
    "default_batch_size",
    "target_metric",
    "metric_name",
    "max_epochs",
)
_PUBLISHED: tuple[tuple[Any, ...], ...] = (
    ("cifar100", "ShuffleNet-v2, CIFAR-100", "shufflenetv2", "adadelta", 1024, 0.6, _ACCURACY, 100),
    ("imagenet", "ResNet-50, ImageNet", "resnet50", "adadelta", 256, 0.65, _ACCURACY, 100),
    ("squad", "BERT, SQuAD", "bert_base_uncased", "adamw", 32, 84.0, "F1", 6),
    ("librispeech", "DeepSpeech2, LibriSpeech", "deepspeech2", "adamw", 256, 40.0, _ERRORS, 16),
    ("movielens-1m", "NeuMF, MovieLens-1M", "ncf", "adam", 1024, 0.41, "NDCG", 100),
    ("sentiment140", "BERT, Sentiment140", "bert_base_uncased", "adamw", 128, 0.84, _ACCURACY, 10),
)
PUBLISHED: dict[str, Workload] = {
    name: Workload(**dict(zip(_FIELDS, row, strict=True)), higher_is_better=_ERRORS not in row)
    for name, *row in _PUBLISHED
}
"""The six workloads as the authors' artifact defines them (b0, target, epoch limit).

Source: ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/run_alibaba.py.
"""
