"""Traces by name: published data sets, and those recorded with ``labkit tuning record``.

A recorded trace is a folder with ``train.csv``, ``power.csv`` (columns as published by Zeus) and
``meta.json`` (who made it, on what, with which versions, and whether energy was measured).
Those under ``data/measured/`` belong to the project and are known by name.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import BadFile, BadValue, LabkitError, UsageError, not_among
from labkit.files import project_root, read_text
from labkit.kit.describe import checked
from labkit.tuning.traces.checks import TraceWarning
from labkit.tuning.traces.job import Workload
from labkit.tuning.traces.trace import TrainingTrace

if TYPE_CHECKING:
    from labkit.datasets import Source

TRAIN_FILE = "summary_train.csv"
POWER_FILE = "summary_power_{gpu}.csv"
DEFAULT_GPU = "v100"
TRAIN, POWER, META = "train.csv", "power.csv", "meta.json"
HOME = Path("data") / "measured"


def names() -> list[str]:
    """The recorded traces that belong to the project."""
    try:
        home = project_root() / HOME
    except LabkitError:
        return []
    return sorted(path.parent.name for path in home.glob(f"*/{META}"))


def folder_of(source: str | Path) -> Path | None:
    """The folder of a recorded trace, or a folder given as one; None where there is none."""
    if (Path(source) / META).is_file():
        return Path(source)
    return project_root() / HOME / str(source) if str(source) in names() else None


@checked
def load(source: str | Path | Source = "zeus-nsdi23", *, gpu: str | None = None) -> TrainingTrace:
    """A trace by name: of a data set laid out as ``zeus-nsdi23``, or one recorded here.

    Args:
        source: a data set's name, one already opened (``paper.data(...)``), or a recorded trace:
            its name (``digits``, which needs no network) or a folder ``labkit tuning record`` made.
        gpu: as in the name of the power trace: ``v100`` (the default), ``a40``; a recorded trace
            has one machine and takes none.

    Gaps of a data set are known: :meth:`TrainingTrace.gaps` lists them, and nothing is warned of.

    Raises:
        UsageError: there is no such source, it does not hold that GPU's power trace, or ``gpu`` is
            given for a recorded trace.
        BadFile: a file is missing or malformed.
    """
    folder = folder_of(source) if isinstance(source, str | Path) else None
    if folder is not None:
        if gpu is not None:
            raise UsageError(
                f"{str(source)!r} was recorded on one machine: leave gpu ({gpu!r}) out"
            )
        content = meta(folder)
        machine, specs = content["machine"]["name"], _workloads(folder, content)
        return TrainingTrace.from_csv(folder / TRAIN, folder / POWER, machine, specs)
    if isinstance(source, Path):
        raise not_among("recorded trace", str(source), names())
    gpu = gpu or DEFAULT_GPU
    if isinstance(source, str):
        source = _opened(source, gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        power_csv = source.path(POWER_FILE.format(gpu=gpu))
        trace = TrainingTrace.from_csv(source.path(TRAIN_FILE), power_csv, gpu)
    return replace(trace, standin=source.reason if source.is_standin else "")


def _opened(name: str, gpu: str) -> Source:
    """The files of a data set's trace; what it lacks is said in terms of traces."""
    from labkit import datasets
    from labkit.datasets.registry import load_registry

    pattern = re.compile(f"(?:.*/)?{POWER_FILE.format(gpu='([^/]+)')}")
    traced = {
        dataset.name: [m[1] for file in dataset.files if (m := pattern.fullmatch(file.path))]
        for dataset in load_registry().datasets.values()
    }
    if not traced.get(name):
        known = [*filter(traced.get, traced), *names()]
        raise UsageError(
            f"{not_among('trace', name, known)}; a folder that `labkit tuning record` wrote holds "
            f"{META} and two tables"
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
    """What ``meta.json`` says: command, machine, versions, date, energy source, workloads; raises
    BadFile where it is missing, is not JSON, or lacks what a trace needs."""
    path = folder / META
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadFile(path, f"not JSON: {error.msg}", line=error.lineno) from None
    for key in ("machine", "workloads", "energy_source"):
        if not isinstance(content, dict) or key not in content:
            raise BadFile(path, "lacks a field", field=key, valid="as labkit tuning record writes")
    return content


def _workloads(folder: Path, content: dict[str, Any]) -> dict[str, Workload]:
    workloads = {}
    for name, spec in content["workloads"].items():
        try:
            workloads[name] = Workload(**spec)
        except (TypeError, BadValue) as error:
            raise BadFile(folder / META, str(error), field=f"workloads.{name}") from None
    return workloads
