"""Traces of jobs: who asks for how many GPUs, when, and for how long.

A job is gang-scheduled: it holds all its GPUs at once or none. Its work is the seconds it runs on
them at speed 1; a pool of a cluster may run it faster or slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadFile, BadValue
from labkit.kit.describe import Count, Positive, checked, description

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {  # spellings of each column, ours first; others are of published traces
    "id": ("job_id", "id", "jobid"),
    "arrival_s": ("arrival_s", "submit_time", "submission_time"),
    "duration_s": ("duration_s", "duration"),
    "gpus": ("gpus", "num_gpu", "num_gpus"),
    "deadline_s": ("deadline_s", "deadline"),
    "gpu": ("gpu", "gpu_type"),
    "tenant": ("tenant", "user", "vc"),
    "kind": ("kind", "model", "model_name"),
}
NEEDED = ("arrival_s", "duration_s", "gpus")
TEXTS = ("gpu", "tenant", "kind")
VALID = {
    "arrival_s": "a finite number of seconds, at least 0",
    "duration_s": "a finite number of seconds, above 0",
    "gpus": "a whole number, at least 1",
    "deadline_s": "a number of seconds from 0 after the job's arrival, or nothing (inf) for none",
    "id": "every id once",
}


class _Fault(NamedTuple):
    """The first value of a column that cannot be."""

    column: str
    job: int
    value: object
    problem: str = "the value is not allowed"


def _fault(columns: Mapping[str, NDArray[np.float64]], ids: Sequence[str]) -> _Fault | None:
    """The first fault of a trace's columns, or None."""
    arrival, gpus = columns["arrival_s"], columns["gpus"]
    wrong = {
        "arrival_s": ~(np.isfinite(arrival) & (arrival >= 0)),
        "duration_s": ~(np.isfinite(columns["duration_s"]) & (columns["duration_s"] > 0)),
        "gpus": ~(np.isfinite(gpus) & (gpus >= 1) & (gpus == np.floor(gpus)) & (gpus < 2**31)),
        "deadline_s": ~(columns["deadline_s"] >= arrival),
    }
    for name, is_wrong in wrong.items():
        if is_wrong.any():
            job = int(np.argmax(is_wrong))
            return _Fault(name, job, columns[name][job].item())
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        job = next(row for row, name in enumerate(ids) if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        return _Fault("id", job, ids[job], "an id stands twice")
    return None


@description
@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Jobs in order of arrival; jobs that arrive together keep the order they are given in.

    Attributes:
        arrival_s: when each job is submitted.
        duration_s: how long it runs on its GPUs at speed 1, without being stopped.
        gpus: how many GPUs it holds while it runs.
        deadline_s: by when it should be done (the same clock as ``arrival_s``); ``inf`` for no
            deadline; default: no job has one.
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
    ids: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    name: str = "trace"

    def __post_init__(self) -> None:
        arrays = {name: self._column(name) for name in NEEDED}
        num_jobs = arrays["arrival_s"].size
        due = self._column("deadline_s")
        arrays["deadline_s"] = due if due.size else np.full(num_jobs, np.inf)
        lengths = {name: array.size for name, array in arrays.items()}
        lengths |= {n: len(getattr(self, n)) for n in ("ids", *TEXTS) if getattr(self, n)}
        for name, length in lengths.items():
            if length != num_jobs or not num_jobs:
                raise BadValue(
                    f"Trace.{name} must have one entry a job; got {length} where arrival_s has "
                    f"{num_jobs}; valid: one job or more, every column of the same length"
                )
        if fault := _fault(arrays, self.ids):
            column = "ids" if fault.column == "id" else fault.column
            raise BadValue(
                f"Trace.{column}[{fault.job}]: {fault.problem}; found {fault.value!r}; "
                f"valid: {VALID[fault.column]}"
            )
        order = np.argsort(arrays["arrival_s"], kind="stable")
        for name, array in arrays.items():
            sorted_array = array[order].astype(np.int64 if name == "gpus" else np.float64)
            sorted_array.setflags(write=False)
            object.__setattr__(self, name, sorted_array)
        if not np.array_equal(order, np.arange(num_jobs)):
            ids = self.ids or tuple(map(str, range(num_jobs)))
            object.__setattr__(self, "ids", tuple(ids[job] for job in order))
            for name in TEXTS:
                texts = getattr(self, name)
                object.__setattr__(self, name, tuple(texts[job] for job in order) if texts else ())

    def _column(self, name: str) -> NDArray[np.float64]:
        array = np.asarray(getattr(self, name), dtype=float)
        if array.ndim != 1:
            raise BadValue(f"Trace.{name} must be a list of numbers, one a job; got {array!r}")
        return array

    def __len__(self) -> int:
        return self.column("arrival_s").size

    def column(self, name: str) -> NDArray[Any]:
        """A column of numbers, read-only, such as ``arrival_s``."""
        return np.asarray(getattr(self, name))

    def id_of(self, job: int) -> str:
        """The name of the job at a place of the trace."""
        return self.ids[job] if self.ids else str(job)

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
                f"{self.name} has no job {job!r}; valid: an id such as {self.id_of(0)!r}, or a "
                f"place from 0 to {len(self) - 1}"
            )
        return self._places[job]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {self.id_of(job): job for job in range(len(self))}

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
    def head(self, num_jobs: int) -> Trace:
        """The first jobs alone.

        Raises:
            BadValue: there are fewer, or ``num_jobs`` is below 1.
        """
        if not 1 <= num_jobs <= len(self):
            raise BadValue(f"head: num_jobs must be from 1 to {len(self)}; got {num_jobs}")
        names = (*NEEDED, "deadline_s", "ids", *TEXTS)
        columns: dict[str, Any] = {name: getattr(self, name)[:num_jobs] for name in names}
        return Trace(**columns, name=self.name)

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
            for name in ("duration_s", "gpus", "ids", *TEXTS)
            if len(getattr(self, name))
        }
        start_s = np.zeros(len(rows))
        return Trace(**columns, arrival_s=start_s, deadline_s=time_s[rows], name=self.name)

    def frame(self) -> pd.DataFrame:
        """One row a job, in order of arrival."""
        import pandas as pd

        columns: dict[str, Any] = {"job_id": [self.id_of(job) for job in range(len(self))]}
        columns |= {name: self.column(name) for name in (*NEEDED, "deadline_s")}
        columns |= {name: list(getattr(self, name)) for name in TEXTS if getattr(self, name)}
        return pd.DataFrame(columns)


@checked
def from_csv(
    path: str | Path, *, columns: dict[str, str] | None = None, name: str | None = None
) -> Trace:
    """A trace from a CSV file with a row of headings and one row a job.

    Args:
        path: the file. Needed columns: ``arrival_s``, ``duration_s``, ``gpus``; used where they
            are there: ``job_id``, ``deadline_s``, ``gpu``, ``tenant``, ``kind``. The spellings of
            published traces (``submit_time``, ``num_gpu``, …) are known.
        columns: the file's own spellings, such as ``{"arrival_s": "Submit"}``.
        name: of the trace; default: the file's.

    Raises:
        BadFile: a column is missing or a value cannot be; names the row, the column, the value.
        BadValue: ``columns`` names a column that traces do not have.
    """
    import pandas as pd

    path = Path(path)
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise BadFile(path, "the file is missing") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise BadFile(path, f"is no table: {problem}", valid="a CSV file with headings") from None
    return trace_of(table, path, columns or {}, name or path.stem)


def trace_of(table: pd.DataFrame, path: Path, columns: Mapping[str, str], name: str) -> Trace:
    """The trace that a table of texts holds; ``path`` is where errors say it stands."""
    spelt = _spellings(table, path, columns)
    if table.empty:
        raise BadFile(path, "holds no jobs", valid="one row a job below the headings")
    numbers: dict[str, Any] = {
        column: _numbers(table[spelt[column]], path, column)
        for column in (*NEEDED, "deadline_s")
        if column in spelt
    }
    numbers.setdefault("deadline_s", np.full(len(table), np.inf))
    ids = tuple(table[spelt["id"]].str.strip()) if "id" in spelt else ()
    if fault := _fault(numbers, ids):
        _refuse(path, fault, spelt.get(fault.column, fault.column))
    texts: dict[str, Any] = {c: tuple(table[spelt[c]].str.strip()) for c in TEXTS if c in spelt}
    return Trace(**numbers, **texts, ids=ids, name=name)


def _spellings(table: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> dict[str, str]:
    """The file's heading of each of our columns that it has."""
    if unknown := set(columns) - set(COLUMNS):
        raise BadValue(
            f"from_csv: columns names {sorted(unknown)[0]!r}; valid: {', '.join(COLUMNS)}"
        )
    spelt = dict(columns)
    for column, names in COLUMNS.items():
        near = [name for name in names if name in table.columns]
        if column not in spelt and near:
            spelt[column] = near[0]
    for column in dict.fromkeys([*NEEDED, *spelt]):
        heading = spelt.get(column)
        if heading is None or heading not in table.columns:
            raise BadFile(
                path, "a column is missing", line=1, field=heading or column,
                value=", ".join(map(str, table.columns)),
                valid=f"a column {' or '.join(COLUMNS[column])}, or columns={{{column!r}: …}}",
            )  # fmt: skip
    return spelt


def _numbers(texts: pd.Series[str], path: Path, column: str) -> NDArray[np.float64]:
    """A column as numbers; an empty cell is no deadline, and a fault in every other column."""
    import pandas as pd

    values = pd.to_numeric(texts.str.strip(), errors="coerce").to_numpy(dtype=float)
    if column == "deadline_s":
        values = np.where(texts.str.strip() == "", np.inf, values)
    if np.isnan(values).any():
        job = int(np.argmax(np.isnan(values)))
        _refuse(path, _Fault(column, job, texts.iloc[job], "no number"), str(texts.name))
    return values


def _refuse(path: Path, fault: _Fault, heading: str) -> NoReturn:
    raise BadFile(
        path, fault.problem, line=fault.job + 2, field=heading, value=fault.value,
        valid=VALID[fault.column],
    )  # fmt: skip
