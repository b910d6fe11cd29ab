"""What a cluster's own accounting exports: jobs as Slurm recorded them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.cluster.jobs.jobs import Trace, trace_of
from labkit.errors import BadFile
from labkit.kit.arrivals import texts_of
from labkit.kit.describe import checked

if TYPE_CHECKING:
    import pandas as pd

COMMAND = "sacct -a -P -o JobID,Submit,ElapsedRaw,AllocTRES,User"
_GPUS = re.compile(r"gres/gpu(?::[^=,]+)?=(\d+)")


@checked
def from_slurm(path: str | Path) -> Trace:
    """The GPU jobs of an export such as ``sacct -a -P -o JobID,Submit,ElapsedRaw,AllocTRES,User``.

    A job's duration is the time it ran, also where it failed or was cancelled; times count from the
    first submission. Steps of a job, jobs without a GPU and jobs that never ran are left out; the
    trace's name says how many.

    Raises:
        BadFile: it is no such export, no job of it held a GPU, or a value cannot be.
    """
    path, valid = Path(path), f"what `{COMMAND}` prints"
    table = texts_of(path, sep="|", valid=valid)
    for column in ("JobID", "Submit", "ElapsedRaw", "AllocTRES"):
        if column not in table:
            raise BadFile(
                path, "a column is missing", line=1, field=column,
                value=", ".join(map(str, table.columns)), valid=valid,
            )  # fmt: skip
    jobs, left_out = _gpu_jobs(table)
    if jobs.empty:
        raise BadFile(path, f"no row is a GPU job that ran ({left_out})", valid="gres/gpu=N")
    spelt = {"ids": "JobID", "arrival_s": "Submit", "duration_s": "ElapsedRaw", "gpus": "gpus"}
    spelt |= {"tenant": "User"} if "User" in jobs else {}
    return trace_of(jobs, path, spelt, f"{path.name} (left out: {left_out})")


def _gpu_jobs(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows that are GPU jobs which ran, and what the others are."""
    step = table["JobID"].str.contains(".", regex=False)
    gpus = table["AllocTRES"].str.extract(_GPUS)[0]
    without = ~step & (gpus.isna() | (gpus == "0"))
    idle = ~step & ~without & table["ElapsedRaw"].str.strip().isin(["", "0"])
    left_out = (
        f"{step.sum():,} steps, {without.sum():,} jobs without a GPU, {idle.sum():,} that never ran"
    )
    return table.assign(gpus=gpus)[~(step | without | idle)], left_out


def is_slurm(path: Path) -> bool:
    """Whether a file begins as ``sacct -P`` does."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            heading = lines.readline().strip().split("|")
    except OSError:
        return False
    return "JobID" in heading and len(heading) > 1
