"""Traces of recurring training jobs: epochs to a target, and time and power under a power limit.

Two tables, measured apart and joined by batch size, are enough to replay a job under any batch
size and power limit: the power limit slows epochs down but does not change what they compute, so
epochs to target depend on the batch size only, and time and power of an epoch on both.

Source: Zeus (NSDI'23), §4.1 and its published traces.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.errors import BadFile, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labkit.datasets import Source

TRAIN_FILE = "summary_train.csv"
POWER_FILE = "summary_power_{gpu}.csv"

_WORKLOAD = ["dataset", "network", "optimizer"]
_TRAIN_KEY = [*_WORKLOAD, "batch_size", "target_metric", "run"]
_POWER_KEY = [*_WORKLOAD, "batch_size", "power_limit"]
_TRAIN_COLUMNS = [*_TRAIN_KEY, "learning_rate", "target_epoch"]
_POWER_COLUMNS = [*_POWER_KEY, "time_per_epoch", "average_power"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a user submits: a model, its default batch size and when training counts as done."""

    title: str
    network: str
    optimizer: str
    default_batch_size: int
    target_metric: float
    metric_name: str
    max_epochs: int
    higher_is_better: bool = True


PUBLISHED: dict[str, Workload] = {
    "cifar100": Workload(
        title="ShuffleNet-v2, CIFAR-100",
        network="shufflenetv2",
        optimizer="adadelta",
        default_batch_size=1024,
        target_metric=0.60,
        metric_name="accuracy",
        max_epochs=100,
    ),
    "imagenet": Workload(
        title="ResNet-50, ImageNet",
        network="resnet50",
        optimizer="adadelta",
        default_batch_size=256,
        target_metric=0.65,
        metric_name="accuracy",
        max_epochs=100,
    ),
    "squad": Workload(
        title="BERT, SQuAD",
        network="bert_base_uncased",
        optimizer="adamw",
        default_batch_size=32,
        target_metric=84.0,
        metric_name="F1",
        max_epochs=6,
    ),
    "librispeech": Workload(
        title="DeepSpeech2, LibriSpeech",
        network="deepspeech2",
        optimizer="adamw",
        default_batch_size=256,
        target_metric=40.0,
        metric_name="word error rate (%)",
        max_epochs=16,
        higher_is_better=False,
    ),
    "movielens-1m": Workload(
        title="NeuMF, MovieLens-1M",
        network="ncf",
        optimizer="adam",
        default_batch_size=1024,
        target_metric=0.41,
        metric_name="NDCG",
        max_epochs=100,
    ),
    "sentiment140": Workload(
        title="BERT, Sentiment140",
        network="bert_base_uncased",
        optimizer="adamw",
        default_batch_size=128,
        target_metric=0.84,
        metric_name="accuracy",
        max_epochs=10,
    ),
}
"""The six workloads as the authors' artifact defines them (b0, target, epoch limit).

Source: ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/run_alibaba.py.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One recurring job on one GPU: all that a policy may choose, and what each choice does.

    Rows of the tables are batch sizes, columns power limits, both ascending. ``inf`` epochs mean
    that this run never reached the target.
    """

    name: str
    title: str
    default_batch_size: int
    target_metric: float
    max_epochs: int
    batch_sizes: tuple[int, ...]
    power_limits_w: tuple[float, ...]
    epochs_to_target: tuple[tuple[float, ...], ...]
    """Per batch size, one entry per recorded run."""
    time_per_epoch_s: tuple[tuple[float, ...], ...]
    average_power_w: tuple[tuple[float, ...], ...]
    learning_rates: tuple[float, ...] = field(default=())
    host_power_w: float = 0.0
    """Drawn by the rest of the server for as long as the job runs; 0 counts the GPU alone."""

    def __post_init__(self) -> None:
        if self.default_batch_size not in self.batch_sizes:
            raise UsageError(
                f"job {self.name!r}: default_batch_size {self.default_batch_size} is not in the "
                f"trace; there are {', '.join(map(str, self.batch_sizes))}"
            )
        if self.max_epochs < 1:
            raise UsageError(f"job {self.name!r}: max_epochs must be >= 1, got {self.max_epochs}")
        if not 0 <= self.host_power_w < math.inf:
            raise UsageError(
                f"job {self.name!r}: host_power_w must be >= 0, got {self.host_power_w}"
            )

    @property
    def max_power_w(self) -> float:
        """The highest power limit, which the cost charges time at (MaxPower in the paper)."""
        return self.power_limits_w[-1]

    @property
    def default_index(self) -> int:
        return self.batch_sizes.index(self.default_batch_size)

    @property
    def epoch_time_s(self) -> NDArray[np.float64]:
        """Seconds an epoch takes, batch size × power limit."""
        return np.array(self.time_per_epoch_s)

    @property
    def epoch_energy_j(self) -> NDArray[np.float64]:
        """Joules an epoch takes, batch size × power limit, with ``host_power_w`` if any."""
        return self.epoch_time_s * (np.array(self.average_power_w) + self.host_power_w)

    @property
    def num_recurrences(self) -> int:
        """How often the paper lets a job recur: twice the number of configurations."""
        return 2 * len(self.batch_sizes) * len(self.power_limits_w)


@dataclass(frozen=True, kw_only=True)
class TrainingTrace:
    """Epochs to target of repeated training runs, beside the power trace of one GPU."""

    train: pd.DataFrame
    power: pd.DataFrame
    gpu: str = ""

    @classmethod
    def from_csv(cls, train_csv: str | Path, power_csv: str | Path, gpu: str = "") -> TrainingTrace:
        """Read the two files of a trace (columns as published by Zeus; ``#`` lines are comments).

        An empty ``target_epoch`` says that the run never reached the target.

        Raises:
            BadFile: a column is missing, a value is not a positive number, or a row is repeated.
        """
        train = _read(Path(train_csv), _TRAIN_COLUMNS, _TRAIN_KEY, optional="target_epoch")
        power = _read(Path(power_csv), _POWER_COLUMNS, _POWER_KEY)
        train["target_epoch"] = train["target_epoch"].fillna(math.inf)
        return cls(train=train, power=power, gpu=gpu)

    @property
    def names(self) -> list[str]:
        """The workloads that can be replayed: trained and profiled, as the keys of :meth:`job`."""
        both = set(self.train["dataset"].unique()) & set(self.power["dataset"].unique())
        return [name for name in PUBLISHED if name in both] + sorted(both - set(PUBLISHED))

    def jobs(self, **overrides: Any) -> list[Job]:
        """Every workload of :attr:`names` as a :class:`Job`."""
        return [self.job(name, **overrides) for name in self.names]

    def job(self, name: str, **overrides: Any) -> Job:
        """The recurring job ``name`` with its published defaults.

        Args:
            name: dataset of the workload (one of :attr:`names`).
            overrides: ``network``, ``optimizer``, ``default_batch_size``, ``target_metric``,
                ``max_epochs``, ``title`` or ``host_power_w``; a workload that is not among
                ``PUBLISHED`` needs the first five.

        The published default batch size is clamped to the largest that fits the GPU (was
        profiled), as the authors' artifact does; one given here must be in the trace.

        Raises UsageError where there is no such workload, target or setting.
        """
        spec = self._spec(name, overrides)
        train, power = self._rows(name, spec)
        batch_sizes = sorted({*train["batch_size"]} & {*power["batch_size"]})
        if not batch_sizes:
            raise UsageError(f"workload {name!r}: no batch size was both trained and profiled")
        default = int(spec["default_batch_size"])
        if "default_batch_size" not in overrides:
            default = min(default, batch_sizes[-1])
        limits = sorted(set(power["power_limit"]))
        grids = _grids(name, power, batch_sizes, limits)
        runs = dict(list(train.sort_values("run").groupby("batch_size")["target_epoch"]))
        rates = dict(zip(train["batch_size"], train["learning_rate"], strict=True))
        return Job(
            name=name,
            title=spec["title"],
            default_batch_size=default,
            target_metric=float(spec["target_metric"]),
            max_epochs=int(spec["max_epochs"]),
            batch_sizes=tuple(int(b) for b in batch_sizes),
            power_limits_w=tuple(float(p) for p in limits),
            epochs_to_target=tuple(tuple(map(float, runs[b])) for b in batch_sizes),
            time_per_epoch_s=grids["time_per_epoch"],
            average_power_w=grids["average_power"],
            learning_rates=tuple(float(rates[b]) for b in batch_sizes),
            host_power_w=float(spec["host_power_w"]),
        )

    def each_default(self) -> list[Job]:
        """Every workload with every batch size in turn as the user's default."""
        return [
            replace(job, default_batch_size=size) for job in self.jobs() for size in job.batch_sizes
        ]

    def each_target(self, *names: str) -> list[Job]:
        """The workloads (default: all) at every target recorded for them, easiest first."""
        return [
            self.job(name, target_metric=target)
            for name in names or self.names
            for target in self.targets(name)
        ]

    def targets(self, name: str, **overrides: Any) -> list[float]:
        """The target metrics recorded for a workload, from the easiest to the hardest."""
        spec = self._spec(name, overrides)
        rows = _select(self.train, name, spec)
        return sorted(set(rows["target_metric"]), reverse=not spec["higher_is_better"])

    def coverage(self) -> pd.DataFrame:
        """What was recorded per workload: batch sizes trained, profiled and usable (both), runs.

        ``learning_rate_exponent`` is the slope of log learning rate over log batch size.
        """
        rows = []
        for name in self.names:
            spec = self._spec(name, {})
            train, power = _select(self.train, name, spec), _select(self.power, name, spec)
            trained, profiled = set(train["batch_size"]), set(power["batch_size"])
            sizes, rates = np.log(train["batch_size"]), np.log(train["learning_rate"])
            rows.append(
                {
                    "workload": spec["title"],
                    "optimizer": spec["optimizer"],
                    "trained": len(trained),
                    "profiled": len(profiled),
                    "usable": len(trained & profiled),
                    "fewest_runs": int(train.groupby("batch_size")["run"].nunique().min()),
                    "power_limits": power["power_limit"].nunique(),
                    "learning_rate_exponent": round(float(np.polyfit(sizes, rates, 1)[0]), 9) + 0.0,
                }
            )
        return pd.DataFrame(rows)

    def _spec(self, name: str, overrides: dict[str, Any]) -> dict[str, Any]:
        if name not in self.names:
            raise UsageError(
                f"no workload {name!r} in this trace; there are: {', '.join(self.names)}"
            )
        spec: dict[str, Any] = {"title": name, "host_power_w": 0.0, "higher_is_better": True}
        if name in PUBLISHED:
            known = PUBLISHED[name]
            spec |= {key: getattr(known, key) for key in known.__slots__}
        allowed = {*Workload.__slots__, "host_power_w"}
        if unknown := set(overrides) - allowed:
            raise UsageError(
                f"job has no setting {', '.join(sorted(unknown))}; there are: "
                f"{', '.join(sorted(allowed))}"
            )
        spec |= overrides
        needed = ("network", "optimizer", "default_batch_size", "target_metric", "max_epochs")
        if missing := [key for key in needed if key not in spec]:
            raise UsageError(
                f"workload {name!r} has no published defaults: give {', '.join(missing)}"
            )
        return spec

    def _rows(self, name: str, spec: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
        train, power = _select(self.train, name, spec), _select(self.power, name, spec)
        target = float(spec["target_metric"])
        recorded = sorted(set(train["target_metric"]))
        if target not in recorded:
            raise UsageError(
                f"workload {name!r}: target_metric {target:g} was not recorded; there are: "
                f"{', '.join(f'{t:g}' for t in recorded)}"
            )
        return train[train["target_metric"] == target], power


def load(source: str | Source = "zeus-nsdi23", *, gpu: str = "v100") -> TrainingTrace:
    """The trace of one GPU from a data set laid out as ``zeus-nsdi23`` (or its stand-in).

    Args:
        source: a data set's name, or one already opened (``paper.data(...)``).
        gpu: as in the name of the power trace, e.g. ``v100`` or ``a40``.

    Raises:
        LabkitError: the source does not hold that GPU's power trace.
        BadFile: a file is malformed.
    """
    power_file = POWER_FILE.format(gpu=gpu)
    if isinstance(source, str):
        from labkit import datasets

        source = datasets.source(source, [TRAIN_FILE, power_file])
    return TrainingTrace.from_csv(source.path(TRAIN_FILE), source.path(power_file), gpu)


def _select(table: pd.DataFrame, name: str, spec: dict[str, Any]) -> pd.DataFrame:
    return table[
        (table["dataset"] == name)
        & (table["network"] == spec["network"])
        & (table["optimizer"] == spec["optimizer"])
    ]


def _grids(
    name: str, power: pd.DataFrame, batch_sizes: list[int], limits: list[float]
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Time and power as tuples of rows; every pair of batch size and limit must be there."""
    grids = {}
    for column in ("time_per_epoch", "average_power"):
        grid = power.pivot(index="batch_size", columns="power_limit", values=column)
        grid = grid.reindex(index=batch_sizes, columns=limits)
        if grid.isna().any(axis=None):
            rows, cols = np.nonzero(grid.isna().to_numpy())
            missing = [(batch_sizes[i], limits[j]) for i, j in zip(rows, cols, strict=True)]
            raise UsageError(
                f"workload {name!r}: {len(missing)} pairs of batch size and power limit were not "
                f"profiled, the first is {missing[0]}"
            )
        grids[column] = tuple(tuple(map(float, row)) for row in grid.to_numpy())
    return grids


def _read(path: Path, columns: list[str], key: list[str], optional: str = "") -> pd.DataFrame:
    """One file of a trace, checked; see :meth:`TrainingTrace.from_csv`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise BadFile(path, f"cannot be read: {error}") from None
    numbered = [(n, t) for n, t in enumerate(lines, 1) if t.strip() and not t.startswith("#")]
    text = "\n".join(t for _, t in numbered)
    try:
        table = pd.read_csv(io.StringIO(text))
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise BadFile(path, f"not a table: {error}", valid=",".join(columns)) from None
    if missing := [c for c in columns if c not in table.columns]:
        raise BadFile(path, f"lacks column {', '.join(missing)}", line=1, valid=",".join(columns))
    row_lines = [n for n, _ in numbered[1:]]
    for column in set(columns) - set(_WORKLOAD) - {"run"}:
        table[column] = _positive(path, table[column], row_lines, blank=column == optional)
    repeated = np.flatnonzero(table.duplicated(key))
    if len(repeated):
        row = int(repeated[0])
        raise BadFile(
            path,
            f"{len(repeated)} rows repeat an earlier one",
            line=row_lines[row],
            field=", ".join(key),
            value=", ".join(str(table[c].iloc[row]) for c in key),
            valid="each combination once",
        )
    return table[columns]


def _positive(path: Path, values: pd.Series, lines: list[int], *, blank: bool) -> pd.Series:
    numbers = pd.to_numeric(values, errors="coerce")
    fine = (numbers > 0) & (numbers < math.inf)
    if blank:
        fine |= values.isna()
    wrong = np.flatnonzero(~fine)
    if len(wrong):
        raise BadFile(
            path,
            "not a positive number",
            line=lines[int(wrong[0])],
            field=str(values.name),
            value=str(values.iloc[int(wrong[0])]),
            valid="a positive number" + (", or empty for never" if blank else ""),
        )
    return numbers
