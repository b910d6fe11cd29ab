"""Recording a trace of one's own: small real trainings over batch sizes and seeds.

    grid = record.Grid(networks=("mlp",), batch_sizes=(16, 64, 256), seeds=(1, 2, 3))
    record.record(grid, folder, meter=record.find_meter("cpu"))
    tuning.load(folder)

Epochs to target are real, and so is the time of an epoch. Energy is real where the machine has a
counter: a GPU's, with its power limits swept just in time, or a processor's at the one limit it
runs under. Elsewhere it is modelled (:mod:`capping`). Every file and table says which.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
from annotated_types import MinLen

from labkit import __version__, extras
from labkit.errors import BadFile, BadValue, LabkitError, UsageError, not_among
from labkit.files import read_text, write_atomically
from labkit.kit.describe import Count, Distinct, Positive, Seeds, description
from labkit.tuning.configurations.power_limits import Slice, profile_limits
from labkit.tuning.recording.capping import CapModel
from labkit.tuning.recording.meters import GpuMeter, RaplMeter, machine, period_error
from labkit.tuning.recording.training import DATASET, TITLES, Accuracy, Training, load_digits, train
from labkit.tuning.traces.job import Workload
from labkit.tuning.traces.trace import META, POWER, TRAIN

if TYPE_CHECKING:
    from labkit.tuning.recording.training import Data

    AnyMeter = GpuMeter | RaplMeter | None
    Cells = dict[str, dict[str, Any]]
    Row = tuple[Any, ...]

PARTIAL = "partial.json"
OPTIMIZER = "sgd"
SLICE_S = 2.0
"""A slice on a GPU lasts at least this long: its counter moves some ten times a second."""
_CLOCKS = {
    "epoch_s": "wall time of the training steps",
    "cpu_s": "processor time of the one thread that trains, the wall time of an idle machine",
}
_BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512)
_ROW = ["dataset", "network", "batch_size", "optimizer"]
_POWER = ["power_limit", "time_per_epoch", "average_power", "energy_source", "time_source"]


@description(slots=True)
class Grid:
    """What to record: every network at every batch size with every seed.

    Attributes:
        networks: ``"mlp"`` and ``"cnn"`` (:data:`training.TITLES`).
        batch_sizes: examples of a step.
        seeds: a run each.
        targets: validation accuracies whose first epoch is written down.
        max_epochs: a run ends here at the latest.
        default_batch_size, default_target: of the job that the trace describes.
        base_learning_rate: at the default batch size; it grows with the square root of the size.
    """

    networks: Annotated[tuple[str, ...], MinLen(1), Distinct()] = ("mlp", "cnn")
    batch_sizes: Annotated[tuple[Count, ...], MinLen(1), Distinct()] = _BATCH_SIZES
    seeds: Seeds = (1, 2, 3, 4, 5)
    targets: Annotated[tuple[Accuracy, ...], MinLen(1), Distinct()] = (0.9, 0.95, 0.97, 0.98)
    max_epochs: Count = 50
    default_batch_size: Count = 64
    default_target: float = 0.97
    base_learning_rate: Positive = 0.1

    def __post_init__(self) -> None:
        for name, valid in (("batch_size", self.batch_sizes), ("target", self.targets)):
            value = getattr(self, f"default_{name}")
            if value not in valid:
                listed = ", ".join(f"{v:g}" for v in valid)
                raise BadValue(f"default_{name} {value:g} must be among {name}s {listed}")
        self.trainings()  # refuses what no run can have

    def learning_rate(self, batch_size: int) -> float:
        """The learning rate of runs at a batch size."""
        scale = (batch_size / self.default_batch_size) ** 0.5
        return round(self.base_learning_rate * scale, 6)

    def trainings(self) -> list[Training]:
        """Every run, seed by seed, so that a disturbance does not fall on one batch size alone."""
        return [
            Training(
                network=network,
                batch_size=batch_size,
                rng=seed,
                learning_rate=self.learning_rate(batch_size),
                max_epochs=self.max_epochs,
                targets=self.targets,
            )
            for seed, network, batch_size in product(self.seeds, self.networks, self.batch_sizes)
        ]

    def workloads(self) -> dict[str, Workload]:
        """What ``TrainingTrace.job`` needs to know of each network, as ``digits-mlp``."""
        return {
            f"{DATASET}-{network}": Workload(
                title=TITLES[network],
                network=network,
                optimizer=OPTIMIZER,
                default_batch_size=self.default_batch_size,
                target_metric=self.default_target,
                metric_name="validation accuracy",
                max_epochs=self.max_epochs,
                dataset=DATASET,
            )
            for network in self.networks
        }


def record(
    grid: Grid,
    folder: str | Path,
    *,
    device: str = "cpu",
    meter: AnyMeter = None,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "labkit.tuning.record.record",
    tell: Callable[[str], None] = lambda _: None,
) -> Cells:
    """Train the grid and write ``train.csv``, ``power.csv`` and ``meta.json`` into ``folder``.

    A recording cut short keeps its finished runs in ``partial.json``.

    Args:
        grid: what to train.
        folder: where the trace goes.
        device: ``"cpu"`` or ``"cuda"``.
        meter: the energy counter (:func:`find_meter`); None where energy is to be modelled.
        resume: go on with the same grid on the same machine and libraries.
        overwrite: replace what is there; nothing is replaced otherwise.
        command: what the files say they were made by.
        tell: hears of each start.

    Returns:
        What each run did, by ``network/batch size/seed``.

    Raises:
        UsageError: a trace or an unfinished recording is there and neither ``resume`` nor
            ``overwrite`` was given, or there is nothing, or another grid's, to resume; or torch or
            scikit-learn is missing.
    """
    extras.need("tuning.record", "torch", "torch", "sklearn")
    folder = Path(folder)
    identity = {
        "grid": json.loads(json.dumps(asdict(grid))),
        "device": device,
        "machine": machine(),
        "versions": {"python": platform.python_version(), "labkit": __version__}
        | {name: metadata.version(name) for name in ("torch", "scikit-learn", "numpy")},
    }
    cells = _cells_so_far(folder, identity, resume=resume, overwrite=overwrite)
    bench = Bench(data=load_digits(device), device=device, meter=meter, tell=tell)
    trainings = grid.trainings()
    for training in trainings:
        if (name := _name(training)) in cells:
            continue
        number = f"{len(cells) + 1}/{len(trainings)}"
        tell(f"{number} {training.network}, batch {training.batch_size}, seed {training.rng}")
        cells[name] = bench.cell(training)
        write_atomically(folder / PARTIAL, _json(identity | {"cells": cells}))
    _write_trace(grid, folder, bench, cells, identity | {"command": command})
    return cells


def _write_trace(
    grid: Grid, folder: Path, bench: Bench, cells: Cells, identity: dict[str, Any]
) -> None:
    """Write the finished runs as a trace, and forget that they were once unfinished."""
    # modelled energy needs only how fast the processor is, so there its own time counts, which
    # other work on the machine does not stretch; counted energy belongs to the wall time
    clock = "cpu_s" if bench.meter is None and bench.device == "cpu" else "epoch_s"
    places = {network: place for place, network in enumerate(grid.networks)}
    trainings = grid.trainings()
    trainings.sort(key=lambda training: (places[training.network], training.batch_size))
    tables = {
        TRAIN: _train_table(trainings, cells),
        POWER: _power_table(trainings, cells, clock, bench),
    }
    meta = identity | _meta(grid, cells, bench.meter, clock) | _counter_error(cells, bench)
    note = (
        f"# Recorded by labkit tuning record; epochs measured, energy {meta['energy_source']}. "
        f"{META} beside this file says how.\n"
    )
    for name, table in tables.items():
        write_atomically(folder / name, note + table.to_csv(index=False, float_format="%.6g"))
    write_atomically(folder / META, _json(meta))
    (folder / PARTIAL).unlink(missing_ok=True)


def find_meter(device: str) -> AnyMeter:
    """The energy counter of this machine; None where its processor has none.

    Args:
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        UsageError: there is no such device, or no GPU whose counter may be read.
    """
    if device not in ("cpu", "cuda"):
        raise not_among("device", device, ("cpu", "cuda"))
    try:
        return GpuMeter() if device == "cuda" else RaplMeter()
    except LabkitError as error:
        if device == "cuda":
            raise UsageError(f"device {device!r}: {error}") from None
        return None


# ---------------------------------------------------------------- runs, one cell of the grid each


def _name(training: Training) -> str:
    """The name of a run in what was recorded."""
    return f"{training.network}/{training.batch_size}/{training.rng}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Runs trainings: it has their images, the device, its counter, and who hears of each."""

    data: Data
    device: str
    meter: Any  # a counter, or None
    tell: Callable[[str], None]
    windows_s: list[float] = field(default_factory=list)
    """How long each window was in which a sweep of power limits read the counter."""

    def cell(self, training: Training) -> dict[str, Any]:
        """Train one run of the grid and say what it did."""
        if self.meter is not None:
            self.meter.begin()
        done = train(training, self.data, device=self.device)
        took = None if self.meter is None else self.meter.end()
        return {
            "epochs_to": {f"{target:g}": done.epochs_to(target) for target in training.targets},
            "num_epochs": len(done.accuracies),
            "epoch_s": statistics.median(done.epoch_s),
            "cpu_s": statistics.median(done.cpu_s),
            "power_w": None if took is None else took.energy_j / took.time_s,
            "window_s": None if took is None else took.time_s,
        }

    def swept(self, trainings: Iterable[Training], epoch_s: dict[Any, float]) -> list[Row]:
        """Measure an epoch under every limit the device lets set, on epochs of its own, as rows."""
        rows = []
        try:
            for training in trainings:
                place = training.network, training.batch_size
                self.tell(f"{training.network}, batch {training.batch_size}: power limits")
                run = partial(self._slice, training, max(1, math.ceil(SLICE_S / epoch_s[place])))
                rows += [
                    (
                        *place,
                        part.power_limit_w,
                        part.time_s,
                        part.energy_j / part.time_s,
                        "measured",
                        "measured",
                    )
                    for part in profile_limits(run, self.meter.power_limits_w)
                ]
        finally:
            self.meter.reset()
        return rows

    def _slice(self, training: Training, number: int, power_limit_w: float) -> Slice:
        """Time an epoch as the mean of ``number`` of them, after one that settles the clock."""
        self.meter.set_limit(power_limit_w)
        train(replace(training, max_epochs=1, targets=(1.0,)), self.data, device=self.device)
        self.meter.begin()
        train(replace(training, max_epochs=number, targets=(1.0,)), self.data, device=self.device)
        took = self.meter.end()
        self.windows_s.append(took.time_s)
        time_s = took.time_s / number
        energy_j = took.energy_j / number
        return Slice(power_limit_w=power_limit_w, time_s=time_s, energy_j=energy_j)


def _cells_so_far(
    folder: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool
) -> Cells:
    """Read the finished runs to go on from; what is there is left alone unless asked to be
    replaced.
    """
    if resume and overwrite:
        raise UsageError("either resume a recording or overwrite it, not both")
    if overwrite:
        return {}
    path = folder / PARTIAL
    if there := [name for name in (TRAIN, POWER, META) if (folder / name).exists()]:
        raise UsageError(
            f"{folder} already holds a trace ({', '.join(there)}): record elsewhere, or give "
            "overwrite=True"
        )
    if not resume and path.exists():
        raise UsageError(
            f"{path} is a recording that did not end: give resume=True to go on with it, or "
            "overwrite=True to start anew"
        )
    if not resume:
        return {}
    if not path.exists():
        raise UsageError(f"nothing to resume: there is no {path}")
    try:
        state = json.loads(read_text(path))
        cells = dict(state["cells"])
    except (json.JSONDecodeError, KeyError, TypeError):
        raise BadFile(path, "not an unfinished recording; overwrite=True starts anew") from None
    for key, value in identity.items():
        if state.get(key) != value:
            raise UsageError(
                f"{path} was recorded with another {key}: {state.get(key)}, now {value}; "
                "record elsewhere, or start anew with overwrite=True"
            )
    return cells


# ---------------------------------------------------------------- what is written


def _meta(grid: Grid, cells: Cells, meter: AnyMeter, clock: str) -> dict[str, Any]:
    """Write down how the trace was made: its energy, its clock and what its workloads are."""
    stretch = statistics.median(cell["epoch_s"] / cell["cpu_s"] for cell in cells.values())
    return {
        "script": "labkit/tuning/recording/record.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "energy_source": "modelled" if meter is None else "measured",
        "counter": "none" if meter is None else meter.source,
        "energy_model": asdict(CapModel()) if meter is None else None,
        "time_per_epoch": f"{_CLOCKS[clock]}: the median over the epochs of a run, and "
        "of the runs of a batch size the least",
        "wall_over_cpu_time": round(stretch, 3),
        "workloads": {name: asdict(spec) for name, spec in grid.workloads().items()},
    }


def _counter_error(cells: Cells, bench: Bench) -> dict[str, Any]:
    """Write down how far off the counter's steps put energy at most, and what is documented.

    It is of the shortest window: a slice at a power limit on a GPU, a whole run elsewhere.
    """
    if bench.meter is None:
        return {}
    of_runs = [cell["window_s"] for cell in cells.values() if cell.get("window_s")]
    shortest_s = min(bench.windows_s or of_runs)
    return {
        "counter_period_s": bench.meter.period_s,
        "shortest_window_s": shortest_s,
        "counter_error_fraction": period_error(bench.meter.period_s, shortest_s),
        "counter_documented": bench.meter.documented,
    }


def _train_table(trainings: list[Training], cells: Cells) -> pd.DataFrame:
    """Make a row for each run and target; epochs are missing where the target was never reached."""
    columns = [*_ROW, "learning_rate", "run", "target_metric", "target_epoch"]
    rows = [
        (
            DATASET,
            training.network,
            training.batch_size,
            OPTIMIZER,
            training.learning_rate,
            training.rng,
            target,
            cells[_name(training)]["epochs_to"][f"{target:g}"],
        )
        for training in trainings
        for target in sorted(training.targets)
    ]
    return pd.DataFrame(rows, columns=columns).astype({"target_epoch": "Int64"})


def _power_table(trainings: list[Training], cells: Cells, clock: str, bench: Bench) -> pd.DataFrame:
    """Table an epoch's time and power by network, batch size and limit; say what is modelled."""
    places = [(training.network, training.batch_size) for training in trainings]
    table = pd.DataFrame([cells[_name(training)] for training in trainings])
    runs = table.groupby(pd.MultiIndex.from_tuples(places), sort=False)
    epoch_s: dict[Any, float] = runs[clock].min().to_dict()
    rows: list[Row]
    if bench.meter is None:
        rows = CapModel().rows(epoch_s)
    elif isinstance(bench.meter, GpuMeter):
        first = dict(zip(reversed(places), reversed(trainings), strict=True))
        rows = bench.swept([first[place] for place in epoch_s], epoch_s)
    else:
        power_w: dict[Any, float] = runs["power_w"].median().to_dict()
        # where the limit is unknown, the highest average draw, rounded up, stands for it
        limit_w = bench.meter.limit_w() or float(math.ceil(max(power_w.values())))
        rows = [
            (*place, limit_w, seconds, power_w[place], "measured", "measured")
            for place, seconds in epoch_s.items()
        ]
    power = pd.DataFrame(rows, columns=["network", "batch_size", *_POWER])
    return power.assign(dataset=DATASET, optimizer=OPTIMIZER)[[*_ROW, *_POWER]]


def _json(content: dict[str, Any]) -> str:
    """Write a file's text as JSON."""
    return json.dumps(content, indent=1) + "\n"
