"""Traces of recurring training jobs: epochs to a target, and time and power under a power limit.

A trace is a published data set's, or one recorded with ``labkit tuning record``: a folder with
``train.csv``, ``power.csv`` (columns as published by Zeus) and ``meta.json`` (who made it, on what,
with which versions, and whether energy was measured). Those under ``data/measured/`` belong to the
project and are known by name. A folder without ``meta.json`` is somebody's own sweep: what its
workloads start from is derived from the two tables (:mod:`labkit.tuning.traces.sweeps`).

Source: Zeus (NSDI'23), §4.1 and its published traces.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.errors import BadFile, BadValue, LabkitError, UsageError, not_among, shown
from labkit.files import load_yaml, shipped
from labkit.kit.describe import NonNegative, checked, description
from labkit.tuning.traces import checks, sweeps
from labkit.tuning.traces.job import PUBLISHED, Job, Workload

if TYPE_CHECKING:
    from labkit.datasets import Source

TRAIN_FILE = "summary_train.csv"
POWER_FILE = "summary_power_{gpu}.csv"
DEFAULT_GPU = "v100"
TRAIN = "train.csv"
POWER = "power.csv"
META = "meta.json"
HOME = "data/measured"


@description
class TrainingTrace:
    """Epochs to target of repeated training runs, beside the power trace of one GPU.

    ``workloads`` holds the defaults (b0, target, epoch limit) of the workloads known by name.
    """

    train: pd.DataFrame
    power: pd.DataFrame
    gpu: str = ""
    workloads: Mapping[str, Workload] = field(default_factory=lambda: PUBLISHED)
    standin: str = ""
    """Why the files are ours in place of a data set's, and so nothing was measured; else empty."""
    is_own_sweep: bool = False
    """Whether ``workloads`` were derived from the two tables, since no ``meta.json`` says them."""

    def __post_init__(self) -> None:
        checks.check_tables(self.train, self.power)

    @classmethod
    @checked
    def from_csv(
        cls,
        train_csv: str | Path,
        power_csv: str | Path,
        gpu: str = "",
        workloads: Mapping[str, Workload] = PUBLISHED,
    ) -> TrainingTrace:
        """Read the two files of a trace (columns as published by Zeus; ``#`` lines are comments).

        An empty ``target_epoch`` says that the run never reached the target. The power file may
        say in ``energy_source`` whether its energy was ``measured`` or ``modelled``.

        Warns (IncompleteTrace, ImplausiblePower) of what :meth:`gaps` lists, with counts; raises
        BadFile where a field is missing or not a positive number, or rows contradict each other.
        """
        train = checks.read_train(Path(train_csv))
        power = checks.read_power(Path(power_csv))
        checks.warn_of(Path(train_csv), checks.gaps(train, power))
        return cls(train=train, power=power, gpu=gpu, workloads=workloads)

    def __repr__(self) -> str:
        what = f"{self.gpu or 'unnamed GPU'}{', stand-in' if self.standin else ''}"
        return f"TrainingTrace({what}: {', '.join(self.names)})"

    @property
    def energy_source(self) -> str:
        """``measured`` or ``modelled``; empty where the power file does not say."""
        if "energy_source" not in self.power:
            return ""
        return " and ".join(sorted(set(self.power["energy_source"])))

    @property
    def names(self) -> list[str]:
        """The names of the workloads that can be replayed, trained and profiled; :meth:`job` takes
        them.
        """
        both = set(self.train["dataset"].unique()) & set(self.power["dataset"].unique())
        known = {name: spec.dataset or name for name, spec in self.workloads.items()}
        named = [name for name, dataset in known.items() if dataset in both]
        return named + sorted(both - set(known.values()))

    @checked
    def gaps(self, name: str = "") -> pd.DataFrame:
        """List what the files lack of a full grid (for one workload), and what is hard to believe.

        Each workload and kind of gap has a row: dataset, network, optimizer, gap, count, detail
        (the first).
        """
        table = checks.gaps(self.train, self.power)
        return _select(table, self._spec(name, {})) if name else table

    @checked
    def jobs(self, **overrides: Any) -> list[Job]:
        """Read every workload of :attr:`names` as a :class:`Job`."""
        return [self.job(name, **overrides) for name in self.names]

    @checked
    def job(self, name: str, *, host_power_w: NonNegative = 0.0, **overrides: Any) -> Job:
        """Read the recurring job ``name`` with its published defaults.

        The published default batch size is clamped to the largest below it that fits the GPU (was
        profiled), as the authors' artifact does; one given here must be in the trace. Pairs of
        batch size and power limit that were not profiled are warned of (IncompleteTrace): they are
        holes of the job, which nothing runs at or chooses.

        Args:
            name: one of :attr:`names`.
            host_power_w: drawn by the rest of the server.
            overrides: ``network``, ``optimizer``, ``default_batch_size``, ``target_metric``,
                ``max_epochs`` or ``title``; a workload without defaults of its own (``workloads``)
                needs the first five.

        Raises:
            UsageError: there is no such workload, target or setting, or no batch size was both
                trained and profiled.
        """
        spec = self._spec(name, overrides)
        train, power = self._rows(name, spec)
        batch_sizes = sorted({*train["batch_size"]} & {*power["batch_size"]})
        if not batch_sizes:
            raise UsageError(f"workload {name!r}: no batch size was both trained and profiled")
        default = spec.default_batch_size
        if "default_batch_size" not in overrides:
            default = max([b for b in batch_sizes if b <= default], default=batch_sizes[0])
        power = power[power["batch_size"].isin(batch_sizes)]
        limits = sorted(set(power["power_limit"]))
        checks.warn_of_holes(f"workload {name!r}{f' on {self.gpu}' if self.gpu else ''}", power)
        train = train.sort_values("run", key=lambda runs: runs.str.rjust(12))  # 2 before 10
        runs = dict(list(train.groupby("batch_size")["target_epoch"]))
        return Job(
            name=name,
            title=spec.title,
            default_batch_size=default,
            target_metric=float(spec.target_metric),
            max_epochs=spec.max_epochs,
            batch_sizes=tuple(int(b) for b in batch_sizes),
            power_limits_w=tuple(float(p) for p in limits),
            epochs_to_target=tuple(tuple(map(float, runs[b])) for b in batch_sizes),
            time_per_epoch_s=_grid(power, "time_per_epoch"),
            average_power_w=_grid(power, "average_power"),
            host_power_w=host_power_w,
        )

    def each_default(self) -> list[Job]:
        """Read every workload with every batch size in turn as the user's default."""
        return [
            replace(job, default_batch_size=size) for job in self.jobs() for size in job.batch_sizes
        ]

    @checked
    def each_target(self, *names: str) -> list[Job]:
        """Read the workloads (default: all) at every target recorded for them, easiest first."""
        return [
            self.job(name, target_metric=target)
            for name in names or self.names
            for target in self.targets(name)
        ]

    @checked
    def targets(self, name: str, **overrides: Any) -> list[float]:
        """List the target metrics recorded for a workload, from the easiest to the hardest.

        Args:
            name: one of :attr:`names`.
            overrides: as :meth:`job` takes them.
        """
        spec = self._spec(name, overrides)
        rows = _select(self.train, spec)
        return sorted(set(rows["target_metric"]), reverse=not spec.higher_is_better)

    def coverage(self) -> pd.DataFrame:
        """Count what was recorded per workload: batch sizes trained, profiled and usable (both),
        runs.

        ``learning_rate_exponent`` is the slope of log learning rate over log batch size.
        """
        rows = []
        for name in self.names:
            spec = self._spec(name, {})
            train = _select(self.train, spec)
            power = _select(self.power, spec)
            trained = set(train["batch_size"])
            profiled = set(power["batch_size"])
            sizes = np.log(train["batch_size"])
            rates = np.log(train["learning_rate"])
            rows.append(
                {
                    "workload": spec.title,
                    "optimizer": spec.optimizer,
                    "trained": len(trained),
                    "profiled": len(profiled),
                    "usable": len(trained & profiled),
                    "fewest_runs": int(train.groupby("batch_size")["run"].nunique().min()),
                    "power_limits": power["power_limit"].nunique(),
                    "learning_rate_exponent": round(float(np.polyfit(sizes, rates, 1)[0]), 9) + 0.0,
                }
            )
        return pd.DataFrame(rows)

    def _spec(self, name: str, overrides: dict[str, Any]) -> Workload:
        """Put the published defaults of a workload and what overrides them together."""
        if name not in self.names:
            raise not_among("workload of this trace", name, self.names)
        known = self.workloads.get(name)
        given = {"title": name, "metric_name": ""} if known is None else asdict(known)
        given |= overrides
        needed = ("network", "optimizer", "default_batch_size", "target_metric", "max_epochs")
        if missing := [key for key in needed if key not in given]:
            raise UsageError(
                f"workload {name!r} has no published defaults: give {', '.join(missing)}"
            )
        return Workload(**given | {"dataset": given.get("dataset") or name})

    def _rows(self, name: str, spec: Workload) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Select the train and power rows of a workload, at its target."""
        for key in ("network", "optimizer"):
            theirs = self.train.loc[self.train["dataset"] == spec.dataset, key].unique()
            if (value := getattr(spec, key)) not in theirs:
                raise not_among(f"{key} of {name} in the trace", value, theirs)
        train = _select(self.train, spec)
        target = float(spec.target_metric)
        recorded = sorted(set(train["target_metric"]))
        if target not in recorded:
            raise UsageError(
                f"workload {name!r}: target_metric {target:g} was not recorded; there are: "
                f"{', '.join(f'{t:g}' for t in recorded)}"
            )
        return train[train["target_metric"] == target], _select(self.power, spec)


def _select(table: pd.DataFrame, spec: Workload) -> pd.DataFrame:
    """Select the rows of one workload."""
    own = [getattr(spec, key) for key in checks.WORKLOAD]
    return table[(table[checks.WORKLOAD] == own).all(axis=1)]


def _grid(power: pd.DataFrame, column: str) -> tuple[tuple[float, ...], ...]:
    """Put a column in rows of batch sizes, columns of power limits; a pair without a row is NaN."""
    grid = power.pivot(index="batch_size", columns="power_limit", values=column)
    return tuple(tuple(map(float, row)) for row in grid.to_numpy())


# ---------------------------------------------------------------- traces by name


def names() -> list[str]:
    """List the recorded traces that belong to the project."""
    try:
        home = shipped(HOME)
    except LabkitError:
        return []
    return sorted(path.parent.name for path in home.glob(f"*/{META}"))


def folder_of(source: str | Path) -> Path | None:
    """Find the folder of a recorded trace, or a folder given as one; None where there is none."""
    with suppress(OSError, ValueError):  # a name that no file can have names no folder
        if any((Path(source) / name).is_file() for name in (META, TRAIN, POWER)):
            return Path(source)
    return shipped(HOME) / str(source) if str(source) in names() else None


@checked
def load(source: str | Path | Source = "zeus-nsdi23", *, gpu: str | None = None) -> TrainingTrace:
    """Load a trace by name: of a data set laid out as ``zeus-nsdi23``, or one recorded here.

    Gaps of a data set are known: :meth:`TrainingTrace.gaps` lists them, and nothing is warned of.

    Args:
        source: a data set's name, one already opened (``paper.data(...)``), or a recorded trace:
            its name (``digits``, which needs no network), a folder ``labkit tuning record`` made,
            or a folder with ``train.csv`` and ``power.csv`` alone.
        gpu: as in the name of the power trace: ``v100`` (the default), ``a40``; a recorded trace
            has one machine and takes none; of a folder without ``meta.json`` it is what the GPU is
            called.

    Raises:
        UsageError: there is no such source, it does not hold that GPU's power trace, or ``gpu`` is
            given for a recorded trace.
        BadFile: a file is missing or malformed.
    """
    folder = folder_of(source) if isinstance(source, str | Path) else None
    if folder is not None and not (folder / META).exists():
        return _own_sweep(folder, gpu or "unnamed GPU")
    if folder is not None:
        if gpu is not None:
            raise UsageError(
                f"{str(source)!r} was recorded on one machine: leave gpu ({shown(gpu)}) out"
            )
        content = meta(folder)
        machine = content["machine"]["name"]
        specs = _workloads(folder, content)
        return TrainingTrace.from_csv(folder / TRAIN, folder / POWER, machine, specs)
    if isinstance(source, Path):
        _refuse_folder(source)
        raise not_among("recorded trace", str(source), names())
    gpu = gpu or DEFAULT_GPU
    if isinstance(source, str):
        source = _opened(source, gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", checks.TraceWarning)
        power_csv = source.path(POWER_FILE.format(gpu=gpu))
        trace = TrainingTrace.from_csv(source.path(TRAIN_FILE), power_csv, gpu)
    return replace(trace, standin=source.reason if source.is_standin else "")


def _own_sweep(folder: Path, gpu: str) -> TrainingTrace:
    """Read the two tables of a folder, and derive from them what its workloads start from."""
    for name, valid in ((TRAIN, sweeps.TRAIN_TEXT), (POWER, sweeps.POWER_TEXT)):
        if not (folder / name).exists():
            raise BadFile(folder / name, "the file is missing", valid=f"a table with {valid}")
    trace = TrainingTrace.from_csv(folder / TRAIN, folder / POWER, gpu, {})
    workloads = sweeps.workloads(trace.train, trace.power)
    if not workloads:
        raise BadFile(
            folder / POWER,
            f"profiles no workload that {TRAIN} beside it trains",
            field=", ".join(checks.WORKLOAD),
            valid="a batch size that both files have, of the same " + ", ".join(checks.WORKLOAD),
        )
    return replace(trace, workloads=workloads, is_own_sweep=True)


def _refuse_folder(folder: Path) -> None:
    """Refuse a folder that holds no table of a trace; what is no folder is left to the caller."""
    with suppress(OSError, ValueError):
        if folder.is_dir():
            valid = f"{TRAIN} ({sweeps.TRAIN_TEXT}) and {POWER} ({sweeps.POWER_TEXT})"
            raise BadFile(folder, "a folder without the tables of a trace", valid=valid)


def _opened(name: str, gpu: str) -> Source:
    """Open the files of a data set's trace; what it lacks is said in terms of traces."""
    from labkit import datasets
    from labkit.datasets.registry import load_registry

    pattern = re.compile(f"(?:.*/)?{POWER_FILE.format(gpu='([^/]+)')}")
    traced = {
        dataset.name: [m[1] for file in dataset.files if (m := pattern.fullmatch(file.path))]
        for dataset in load_registry().datasets.values()
    }
    if not traced.get(name):
        _refuse_folder(Path(name))
        known = [*filter(traced.get, traced), *names()]
        raise UsageError(
            f"{not_among('trace', name, known)}; or a folder with {TRAIN} and {POWER}, as `labkit "
            "tuning outcomes --help` says"
        )
    if gpu not in traced[name]:
        raise not_among(f"power trace of {name} for", gpu, traced[name])
    power_file = POWER_FILE.format(gpu=gpu)
    source = datasets.source(name, [TRAIN_FILE, power_file])
    if not source.has(power_file):
        raise UsageError(
            f"the {gpu} power trace of {name} is not on this machine and has no stand-in: "
            f"{source.reason}; `labkit data fetch {name}` downloads it"
        )
    return source


def meta(folder: Path) -> dict[str, Any]:
    """Read ``meta.json``: command, machine, versions, date, energy source, workloads.

    Raises:
        BadFile: it is missing, cannot be read, or lacks what a trace needs.
    """
    path = folder / META
    content = load_yaml(path)  # JSON is YAML too
    for key in ("machine", "workloads", "energy_source"):
        if not isinstance(content, dict) or key not in content:
            raise BadFile(path, "lacks a field", field=key, valid="as labkit tuning record writes")
    return content


def _workloads(folder: Path, content: dict[str, Any]) -> dict[str, Workload]:
    """Read the workloads of a trace's ``meta.json``."""
    workloads = {}
    for name, spec in content["workloads"].items():
        try:
            workloads[name] = Workload(**spec)
        except (TypeError, BadValue) as error:
            raise BadFile(folder / META, str(error), field=f"workloads.{name}") from None
    return workloads
