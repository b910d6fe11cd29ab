"""Traces from the logs of others: the Standard Workload Format, and pods as Alibaba published them.

A log has rows that are no job of a GPU cluster. They are left out, and the trace's name says how
many, and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadFile
from labkit.files import read_text
from labkit.kit import tables
from labkit.kit.arrivals import from_table
from labkit.kit.describe import Count, checked

if TYPE_CHECKING:
    import pandas as pd

SWF_FIELDS = (
    "job",
    "submit_s",
    "wait_s",
    "run_s",
    "processors",
    "cpu_s",
    "memory_kb",
    "processors_asked",
    "time_asked_s",
    "memory_asked_kb",
    "status",
    "user",
    "group",
    "program",
    "queue",
    "partition",
    "job_before",
    "think_s",
)
"""The fields of a line of the Standard Workload Format, in order; -1 means that it is not known."""
SWF_PARTS = (2, 3, 4)
"""Status of a line that is a part of a job; another line is the whole of it."""
SWF_VALID = f"{len(SWF_FIELDS)} numbers a line, as the Standard Workload Format has them"
POD_COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
POD_VALID = f"the columns {', '.join(POD_COLUMNS)}, as Alibaba's pods of 2023 have them"
WHOLE_MILLI = 1000
"""Thousandths of a GPU that are the whole of it."""


@checked
def from_swf(path: str | Path, *, processors_per_gpu: Count = 1) -> Trace:
    """Read the jobs of a log in the Standard Workload Format (``;`` begins a comment).

    A job holds its processors over ``processors_per_gpu`` as GPUs, rounded up. Its processors are
    those that it was given, or where these are not known, those that it asked for. The time that it
    asked for is its ``estimate_s``; its ``recorded_start_s`` is its submission and its wait. Parts
    of jobs (status 2 to 4), jobs that never ran and those without processors are left out; the
    trace's name says how many. A partition is a cluster of its own: where a log has several, the
    name says that they are read as one.

    Args:
        path: the log.
        processors_per_gpu: how many of its processors stand for a GPU.

    Raises:
        BadFile: a line has not 18 numbers, a value cannot be, or no job of it ran.

    Source: Chapin et al. (1999), Benchmarks and standards for the evaluation of parallel job
    schedulers; the field list of the Parallel Workloads Archive, version 2.2.
    """
    path = Path(path)
    table = _swf_table(path)
    held = table["processors"].where(table["processors"] > 0, table["processors_asked"])
    part = table["status"].isin(SWF_PARTS)
    idle = ~part & ~(table["run_s"] > 0)
    without = ~part & ~idle & ~(held > 0)
    left_out = (
        f"{part.sum():,} parts of jobs, {idle.sum():,} that never ran, "
        f"{without.sum():,} without processors"
    )
    kept = ~(part | idle | without)
    if not kept.any():
        raise BadFile(path, f"no line is a job that ran ({left_out})", valid=SWF_VALID)
    table = table[kept]
    asked_s = table["time_asked_s"]
    jobs = table.assign(
        gpus=np.ceil(held[kept] / processors_per_gpu),
        estimate_s=asked_s.where(asked_s > 0, np.inf),
        recorded_start_s=(table["submit_s"] + table["wait_s"]).where(table["wait_s"] >= 0, np.inf),
    )
    numbers = {
        "arrival_s": "submit_s",
        "duration_s": "run_s",
        "gpus": "gpus",
        "estimate_s": "estimate_s",
        "recorded_start_s": "recorded_start_s",
    }
    texts = {"ids": "job", "tenant": "user"}
    rows = jobs[list(numbers.values())].map(repr)
    for field in texts.values():
        whole = jobs[field].map("{:.0f}".format)
        rows[field] = whole.where(jobs[field] >= 0, "")
    name = f"{path.name} (left out: {left_out}{_partitions(table['partition'])})"
    return from_table(Trace, rows, path, {**numbers, **texts}, name)


def _partitions(partition: pd.Series[float]) -> str:
    """Say that jobs of several partitions are read as those of one cluster."""
    count = partition[partition >= 0].nunique()
    return f"; {count:,} partitions read as one cluster" if count > 1 else ""


def _swf_table(path: Path) -> pd.DataFrame:
    """Read a log's numbers; the index holds their lines.

    Raises:
        BadFile: there is no file, or a line has not 18 numbers.
    """
    import pandas as pd

    try:
        lines = read_text(path).splitlines()
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}", valid=SWF_VALID) from None
    rows = {}
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or line.lstrip().startswith(";"):
            continue
        if len(fields) != len(SWF_FIELDS):
            raise BadFile(
                path,
                f"a line of {len(fields)} fields",
                line=number,
                value=line.strip(),
                valid=SWF_VALID,
            )
        rows[number] = fields
    if not rows:
        raise BadFile(path, "holds no jobs", valid=SWF_VALID)
    texts = pd.DataFrame.from_dict(rows, orient="index", columns=list(SWF_FIELDS))
    table = texts.apply(pd.to_numeric, errors="coerce").astype(float)
    wrong = ~np.isfinite(table.to_numpy())
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise BadFile(
            path,
            "no number",
            line=int(texts.index[row]),
            field=SWF_FIELDS[column],
            value=texts.iloc[row, column],
            valid=SWF_VALID,
        )
    return table


@checked
def is_swf(path: str | Path) -> bool:
    """Tell whether a file is a log in the Standard Workload Format, by its name or first line."""
    path = Path(path)
    return path.suffix == ".swf" or _first_line(path).startswith(";")


@checked
def from_pods(path: str | Path) -> Trace:
    """Read the pods of Alibaba's GPU cluster of 2023 that held a GPU, as jobs.

    A pod arrives at its ``creation_time`` and runs from its ``scheduled_time`` to its
    ``deletion_time``; where the file has no scheduled times, from its creation. A part of a GPU
    (``gpu_milli`` below 1000) counts as a whole one, since a job holds whole GPUs here. The type of
    GPU that a pod asks for is not kept. Pods without a GPU, those that were never scheduled, and
    those that ran still in the log's last second are left out; the trace's name says how many.

    Args:
        path: such as ``openb_pod_list_default.csv``.

    Raises:
        BadFile: a column is missing, a value cannot be, or no pod of it ran on a GPU.

    Source: Weng et al. (ATC'23), Beware of fragmentation; ``cluster-trace-gpu-v2023`` of
    ``alibaba/clusterdata``.
    """
    path = Path(path)
    pods = tables.texts(path, needed=POD_COLUMNS, valid=POD_VALID)
    created = _numbers(path, pods, "creation_time")
    deleted = _numbers(path, pods, "deletion_time")
    gpus = _numbers(path, pods, "num_gpu")
    milli = _numbers(path, pods, "gpu_milli")
    starts = "scheduled_time" if "scheduled_time" in pods else "creation_time"
    scheduled = _numbers(path, pods, starts)
    without = ~(gpus > 0)
    pending = ~without & ~(deleted > scheduled)  # an empty time is NaN
    running = ~without & ~pending & (deleted == deleted.max())
    if "pod_phase" in pods:
        running &= pods["pod_phase"] == "Running"
    left_out = (
        f"{without.sum():,} pods without a GPU, {pending.sum():,} that never ran, "
        f"{running.sum():,} not finished"
    )
    kept = ~(without | pending | running)
    if not kept.any():
        raise BadFile(path, f"no pod ran on a GPU to its end ({left_out})", valid=POD_VALID)
    part = kept & (milli < WHOLE_MILLI)
    jobs = pods[kept].assign(
        gpus=gpus[kept].map(repr),
        arrival_s=created[kept].map(repr),
        duration_s=(deleted - scheduled)[kept].map(repr),
    )
    spelt = {"ids": "name", "gpus": "gpus", "arrival_s": "arrival_s", "duration_s": "duration_s"}
    spelt |= {"recorded_start_s": starts} if starts == "scheduled_time" else {}
    name = f"{path.name} (left out: {left_out}; {part.sum():,} parts of a GPU count as one each)"
    return from_table(Trace, jobs, path, spelt, name)


def _numbers(path: Path, table: pd.DataFrame, column: str) -> pd.Series[float]:
    """Parse a column as numbers; an empty field is NaN.

    Raises:
        BadFile: a text is neither.
    """
    import pandas as pd

    numbers = pd.to_numeric(table[column], errors="coerce").astype(float)
    wrong = (table[column] != "") & ~np.isfinite(numbers)
    if wrong.any():
        line = wrong.idxmax()
        raise BadFile(
            path, "no number", line=line, field=column, value=table[column][line], valid=POD_VALID
        )
    return numbers


@checked
def is_pods(path: str | Path) -> bool:
    """Tell whether a file begins with the headings of Alibaba's pods."""
    return set(POD_COLUMNS) <= set(_first_line(Path(path)).split(","))


def _first_line(path: Path) -> str:
    """Return a file's first line, or nothing where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return lines.readline().strip().removeprefix("\ufeff")
    except OSError:
        return ""
