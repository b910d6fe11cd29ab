"""Traces recorded with ``labkit tuning record``: where they are, and reading one.

A recorded trace is a folder with ``train.csv``, ``power.csv`` (columns as published by Zeus) and
``meta.json`` (who made it, on what, with which versions, and whether energy was measured).
Those under ``data/measured/`` belong to the project and are known by name.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from labkit.errors import BadFile, LabkitError, not_among
from labkit.files import project_root, read_text
from labkit.tuning.trace import TrainingTrace
from labkit.tuning.workloads import Workload

TRAIN, POWER, META = "train.csv", "power.csv", "meta.json"
HOME = Path("data") / "measured"


def names(root: Path | None = None) -> list[str]:
    """The recorded traces that belong to the project."""
    try:
        home = (root or project_root()) / HOME
    except LabkitError:
        return []
    return sorted(path.parent.name for path in home.glob(f"*/{META}"))


def holds(source: str) -> bool:
    """Whether ``source`` names a recorded trace, or a folder with one."""
    return (Path(source) / META).is_file() or source in names()


def folder_of(source: str | Path) -> Path:
    """The folder of a recorded trace.

    Raises:
        UsageError: there is none of that name.
    """
    if (Path(source) / META).is_file():
        return Path(source)
    if str(source) not in names():
        raise not_among("recorded trace", str(source), names())
    return project_root() / HOME / str(source)


def load(source: str | Path) -> TrainingTrace:
    """A recorded trace with the defaults of its workloads.

    Raises:
        UsageError: there is none of that name.
        BadFile: one of its files is missing or malformed.
    """
    folder = folder_of(source)
    told = meta(folder)
    return TrainingTrace.from_csv(
        folder / TRAIN, folder / POWER, told["machine"]["name"], _workloads(folder, told)
    )


def meta(source: str | Path) -> dict[str, Any]:
    """What ``meta.json`` says: command, machine, versions, date, energy source, workloads.

    Raises:
        BadFile: it is missing, is not JSON, or lacks what a trace needs.
    """
    path = folder_of(source) / META
    try:
        told = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise BadFile(path, f"not JSON: {error.msg}", line=error.lineno) from None
    for key in ("machine", "workloads", "energy_source"):
        if not isinstance(told, dict) or key not in told:
            raise BadFile(path, "lacks a field", field=key, valid="as labkit tuning record writes")
    return told


def _workloads(folder: Path, told: dict[str, Any]) -> dict[str, Workload]:
    known = {field.name for field in fields(Workload)}
    found = {}
    for name, spec in told["workloads"].items():
        try:
            found[name] = Workload(**spec)
        except TypeError:
            wrong = sorted(set(spec) ^ known)
            raise BadFile(
                folder / META,
                "a workload with missing or unknown fields",
                field=f"workloads.{name}",
                value=", ".join(wrong),
                valid=", ".join(sorted(known)),
            ) from None
    return found
