"""Traces of jobs: who asks for how many GPUs, when, and for how long.

A job is gang-scheduled: it holds all its GPUs at once or none. Its work is the seconds it runs on
them at speed 1; a pool of a cluster may run it faster or slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadFile, BadValue, shown
from labkit.kit import tables
from labkit.kit.arrivals import (
    Arrivals,
    Column,
    counts,
    from_table,
    read_csv,
    seconds,
    spellings,
)
from labkit.kit.describe import Count, Positive, Whole, checked, description

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "arrival_s": seconds("arrival_s", "submit_time", "submission_time", dates=True),
    "duration_s": seconds("duration_s", "duration", above_0=True),
    "gpus": counts("gpus", "num_gpu", "num_gpus", "gpu_num", least=1),
    "deadline_s": Column(
        spellings=("deadline_s", "deadline"),
        allows=lambda due, arrival: due >= arrival,
        valid="a number of seconds from 0 after the job's arrival, or nothing (inf) for none",
        default=inf,
    ),
    "estimate_s": Column(
        spellings=("estimate_s",),
        allows=lambda estimate, _: estimate > 0,
        valid="a number of seconds above 0, or nothing (inf) for none",
        default=inf,
    ),
    "recorded_start_s": Column(
        spellings=("recorded_start_s", "start_s", "start_time"),
        allows=lambda start, arrival: start >= arrival,
        valid="a number of seconds from 0 not before the job's arrival, or nothing (inf)",
        default=inf,
        dates=True,
    ),
    "priority": Column(
        spellings=("priority",),
        allows=lambda priority, _: np.isfinite(priority),
        valid="a finite number; the greatest comes first",
        default=0.0,
    ),
    "ids": Column(spellings=("job_id", "id", "jobid"), valid="every id once", unique=True),
    "gpu": Column(spellings=("gpu", "gpu_type")),
    "tenant": Column(spellings=("tenant", "user", "vc")),
    "kind": Column(spellings=("kind", "model", "model_name")),
}

NEEDED = ("arrival_s", "duration_s", "gpus")
"""The columns that every trace has."""
RECORDED = ("estimate_s", "recorded_start_s", "priority")
"""Columns of numbers that tables show only where a job has one."""


@description(eq=False)
class Trace(Arrivals):
    """Jobs in order of arrival; jobs that arrive together keep the order they are given in.

    Attributes:
        arrival_s: when each job is submitted.
        duration_s: how long it runs on its GPUs at speed 1, without being stopped.
        gpus: how many GPUs it holds while it runs.
        deadline_s: by when it should be done (the same clock as ``arrival_s``); ``inf`` for no
            deadline; default: no job has one.
        estimate_s: how long its user said that it runs; ``inf`` where nothing was said.
        recorded_start_s: when it started where it was recorded, to put simulated waits beside the
            recorded ones; it decides nothing. ``inf``: it is not known.
        priority: the greatest comes first under policies that look at it.
        ids: names; default: the numbers from 0.
        gpu: the GPU type each job needs, "" for any; default: any.
        tenant, kind: whose it is, and what it runs; default: nothing is known.
        name: of the trace, as tables show it.

    Raises:
        BadValue: a time is negative or not finite, a number of GPUs is no whole number from 1, an
            id stands twice, or columns differ in length.
    """

    arrival_s: ArrayLike
    duration_s: ArrayLike
    gpus: ArrayLike
    deadline_s: ArrayLike = ()
    estimate_s: ArrayLike = ()
    recorded_start_s: ArrayLike = ()
    priority: ArrayLike = ()
    ids: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    name: str = "trace"

    COLUMNS: ClassVar[dict[str, Column]] = COLUMNS
    ROW: ClassVar[str] = "job"

    def _reordered(self, texts: Mapping[str, tuple[str, ...]], order: list[int]) -> None:
        """A job keeps its place in the input as its name where it has no other."""
        ids = texts["ids"] or tuple(map(str, range(len(order))))
        super()._reordered({**texts, "ids": ids}, order)

    @checked
    def id_of(self, job: Whole) -> str:
        """The name of the job at a place of the trace.

        Raises:
            BadValue: there is no such job.
        """
        return self._names[self.index_of(job)]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return self.ids or tuple(map(str, range(len(self))))

    @checked
    def index_of(self, job: str | int) -> int:
        """The place of a job, by its id, or the place itself.

        Raises:
            BadValue: there is no such job.
        """
        if isinstance(job, int):
            if 0 <= job < len(self):
                return job
            raise BadValue(f"{self.name} has no job at place {job}; valid: 0 to {len(self) - 1}")
        if job not in self._places:
            raise BadValue(
                f"{self.name} has no job {shown(job)}; valid: an id such as {self._names[0]!r}, "
                f"or a place from 0 to {len(self) - 1}"
            )
        return self._places[job]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: job for job, name in enumerate(self._names)}

    @property
    def work_gpu_s(self) -> NDArray[np.float64]:
        """GPU-seconds of each job at speed 1."""
        return self.column("gpus") * self.column("duration_s")

    @checked
    def offered_load(self, num_gpus: Count) -> float:
        """Work that arrives in a second of the arrivals' span over what so many GPUs can do."""
        arrival = self.column("arrival_s")
        span_s = float(arrival[-1] - arrival[0])
        return float(self.work_gpu_s.sum()) / (num_gpus * span_s) if span_s > 0 else float("inf")

    @checked
    def at_once(self, jobs: Sequence[int], *, grid_s: Positive) -> Trace:
        """Some jobs, all arriving at 0, in order of the time they had until their deadlines.

        That time is rounded down to a grid.

        Raises:
            BadValue: there is no such job.
        """
        if not jobs or not all(0 <= job < len(self) for job in jobs):
            raise BadValue(f"at_once: jobs must be among 0 to {len(self) - 1}; got {list(jobs)}")
        time_s = (self.column("deadline_s") - self.column("arrival_s")) // grid_s * grid_s
        rows = sorted(jobs, key=lambda job: float(time_s[job]))
        columns: dict[str, Any] = {
            name: tuple(getattr(self, name)[row] for row in rows)
            for name in self.COLUMNS
            if len(getattr(self, name))
        }
        start_s = np.zeros(len(rows))
        return self.changed(**columns | {"arrival_s": start_s, "deadline_s": time_s[rows]})

    @checked
    def has(self, column: str) -> bool:
        """Whether a job has a value of its own in a column of numbers, such as ``estimate_s``.

        Raises:
            UsageError: there is no such column.
        """
        return bool((self.column(column) != self.COLUMNS[column].default).any())

    def frame(self) -> pd.DataFrame:
        """One row a job, in order of arrival; columns of :data:`RECORDED` where a job has one."""
        unknown = [name for name in RECORDED if not self.has(name)]
        table = super().frame().drop(columns=["ids", *unknown], errors="ignore")
        table.insert(0, "job_id", list(self._names))
        return table


@checked
def from_csv(
    path: str | Path,
    *,
    columns: dict[str, str] | None = None,
    name: str | None = None,
    leaves_out: bool = False,
) -> Trace:
    """A trace from a CSV file with a row of headings and one row a job.

    Args:
        path: the file. Needed columns: ``arrival_s``, ``duration_s``, ``gpus``; used where they
            are there: ``job_id``, ``deadline_s``, ``gpu``, ``tenant``, ``kind``, ``estimate_s``,
            ``recorded_start_s``, ``priority``. The spellings of published traces
            (``submit_time``, ``num_gpu``, ``start_time``, …) are known.
        columns: the file's own spellings, such as ``{"arrival_s": "Submit"}``.
        name: of the trace; default: the file's.
        leaves_out: whether rows without a GPU (0 or nothing) and rows without a duration (nothing:
            such a job never ran, or runs still) are left out; the trace's name says how many.
            Otherwise such a row is refused.

    Raises:
        BadFile: a column is missing or a value cannot be; names the row, the column, the value.
        BadValue: ``columns`` names a column that traces do not have.
    """
    if not leaves_out:
        return read_csv(Trace, path, columns or {}, name)
    path = Path(path)
    table = tables.texts(path)
    jobs, left_out = _jobs_that_ran(table, spellings(Trace, table, path, columns or {}))
    if len(jobs) == 0 < len(table):
        raise BadFile(path, f"no row is a GPU job that ran ({left_out})")
    title = name or path.stem
    if len(jobs) < len(table):
        title = f"{title} (left out: {left_out})"
    return from_table(Trace, jobs, path, columns or {}, title)


def _jobs_that_ran(table: pd.DataFrame, spelt: Mapping[str, str]) -> tuple[pd.DataFrame, str]:
    """The rows with GPUs and a duration, and what the others are."""
    without = table[spelt["gpus"]].isin(["", "0"])
    idle = ~without & (table[spelt["duration_s"]] == "")
    left_out = f"{without.sum():,} jobs without a GPU, {idle.sum():,} without a duration"
    return table[~(without | idle)], left_out
