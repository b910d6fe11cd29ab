"""Traces by name, from published data sets; of Slurm's accounting; and synthetic ones."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from labkit.cluster.inputs.logs import from_pods, from_swf, is_pods, is_swf
from labkit.cluster.inputs.rates import Rates
from labkit.cluster.inputs.traces import Trace, from_csv
from labkit.errors import BadFile, BadValue, UsageError, not_among
from labkit.files import shipped
from labkit.kit import tables
from labkit.kit.arrivals import MOST_S, from_table
from labkit.kit.describe import Count, Positive, Whole, checked

if TYPE_CHECKING:
    import pandas as pd

ITP = "itp-elasticflow"
TIRESIAS = "tiresias-nsdi19"
GAVEL = "gavel-osdi20"
PARTS = {
    ITP: (*(f"{number:02}" for number in range(1, 11)), "195job"),
    TIRESIAS: ("60_job",),
    GAVEL: (
        "philly",
        "0e4a51",
        "103959",
        "11cb48",
        "2869ce",
        "6214e9",
        "6c71a0",
        "7f04ca",
        "b436b2",
        "e13805",
        "ed69ec",
        "ee9e8c",
    ),
}
"""Published traces and their parts: ten Microsoft clusters over two months of 2021, the 195 jobs of
ElasticFlow's testbed; Tiresias's sample; Philly's virtual clusters, all and one by one."""
PHILLY = "scheduler/traces/msr/seed=0/{}.trace"
STEPS_PER_S = "data/papers/gavel/steps_per_s.csv"
"""Rates with which Gavel's authors made recorded seconds steps of kinds of jobs that they drew."""
STANDIN_PART = "06"
"""The cluster that is replaced, where it cannot be had, by a model of its jobs."""
RAW = "data/raw-traces.tar.gz"
DRAWN = "data/elasticflow-traces.tar.gz"
ELASTIC = "elasticflow-asplos23"
TESTBED = "ElasticFlow/traces_for_ElasticFlow/elasticVpollux_e.csv"
THROUGHPUTS = "ElasticFlow/scheduler/throughputs"
MODELS = {
    "T4": ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"),
    "A100": ("bert", "deepspeech2", "gpt2", "inception3", "resnet50", "vgg16"),
}
"""Models with a table of iterations a second by batch size and GPUs, by GPU type."""
SIZES = (1, 2, 4, 8, 16, 32, 64)
GPUS = {1: 0.7, 2: 0.1, 4: 0.1, 8: 0.1}
"""GPUs of synthetic jobs and their shares."""
SACCT = "sacct -a -P -o JobID,Submit,ElapsedRaw,AllocTRES,State,User"
NumJobs = Annotated[int, Ge(1), Le(10**7)]
"""Jobs that are drawn at most; more would fill the memory of whoever asks."""
Sigma = Annotated[float, Ge(0), Le(5)]
"""Spread of logarithms; at 5 the longest of a thousand jobs is 10⁶ times the median."""
_UNFINISHED = ("PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED", "CONFIGURING")
"""States in which the time that a job has run so far is not how long it takes."""
_SACCT_ELAPSED = r"^(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)$"
_SACCT_GPUS = re.compile(r"gres/gpu(?::[^=,]+)?=(\d+)")


@checked
def load(name: str, *, part: str | None = None) -> Trace:
    """A published trace.

    Args:
        name: ``itp-elasticflow``, ``tiresias-nsdi19`` or ``gavel-osdi20``.
        part: which of its traces, such as ``06``; default: the first. ``195job`` has the models
            and deadlines that ElasticFlow's authors drew, as all parts of :func:`load_elastic`.

    Where part 06 of ``itp-elasticflow`` or a part of ``gavel-osdi20`` cannot be had, its stand-in,
    and the trace's name says so. In ``gavel-osdi20`` the tenant is a job's virtual cluster, whose
    clock starts with its first job; its kind was drawn.

    Raises:
        UsageError: there is no such trace or part.
        DatasetUnavailable: it is not on this machine and cannot be downloaded.
    """
    from labkit import datasets

    if name not in PARTS:
        raise not_among("trace", name, PARTS)
    part = part or PARTS[name][0]
    if part not in PARTS[name]:
        raise not_among(f"part of {name}", part, PARTS[name])
    if name == GAVEL:
        return _virtual_clusters(PARTS[GAVEL][1:] if part == "philly" else (part,), part)
    if name == TIRESIAS:
        path = datasets.open(f"{name}/simulator/{part}.csv")
        return from_table(Trace, tables.texts(path), path, {}, f"{name}/{part}")
    archive = DRAWN if part == "195job" else RAW
    path, table, is_standin = _member(part, archive, dtype=str, keep_default_na=False)
    title = f"{name}/{part}{', stand-in' * is_standin}"
    lines = table.index + 2  # below the headings
    return from_table(Trace, table.astype(str).set_axis(lines), path, {}, title)


@checked
def load_elastic(
    part: str = "T4", *, limits: dict[str, Count] | None = None
) -> tuple[Trace, Rates]:
    """Jobs as ElasticFlow's authors drew them, and how fast each runs on 1, 2, 4, … 64 GPUs.

    A job's kind is its model, batch size and the GPUs asked for: speed 1 is that on those GPUs.

    Args:
        part: ``T4``, the 195 jobs of its Fig. 8a with rates of T4 GPUs; or a part of
            ``itp-elasticflow`` with rates of A100 GPUs.
        limits: the most GPUs that a model may have; default: all that were profiled.

    Source: ElasticFlow (ASPLOS'23), the traces of its artifact.

    Raises:
        UsageError: there is no such part.
        DatasetUnavailable: a file is not on this machine and cannot be downloaded.
    """
    from labkit import datasets

    if part not in ("T4", *PARTS[ITP]):
        raise not_among(f"part of {ELASTIC}", part, ("T4", *PARTS[ITP]))
    gpu = "T4" if part == "T4" else "A100"
    paths = [f"{THROUGHPUTS}_{gpu}/{model}.csv" for model in MODELS[gpu]]
    source = datasets.source(ELASTIC, [TESTBED, *paths] if gpu == "T4" else paths)
    tables = {}  # by model and batch size: iterations a second on each number of GPUs
    for model, path in zip(MODELS[gpu], paths, strict=True):
        for row in source.frame(path).itertuples(index=False):
            tables[model, int(row[0])] = np.array(row[1:], dtype=float)
    jobs = source.frame(TESTBED) if gpu == "T4" else _member(part, DRAWN)[1]
    jobs = jobs.rename(
        columns={"submission_time": "submit_time", "num_iteration": "iteration", "deadline": "ddl"}
    )
    keys = list(zip(jobs["model_name"], jobs["batch_size"], jobs["num_gpu"], strict=True))
    sizes = np.array(SIZES)
    rows = {}
    rate_asked = {}
    for model, batch, asked in dict.fromkeys(keys):
        most = (limits or {}).get(model, max(SIZES))
        rate = np.nan_to_num(tables[model, batch])
        largest = np.flatnonzero((rate > 0) & (sizes <= asked))[-1]  # profiled, at most asked
        rate_asked[model, batch, asked] = rate[largest]
        rows[f"{model}/{batch}/{asked}"] = np.where(sizes <= most, rate, 0) / rate[largest]
    trace = Trace(
        arrival_s=jobs["submit_time"],
        deadline_s=jobs["ddl"],
        gpus=jobs["num_gpu"],
        duration_s=jobs["iteration"] / [rate_asked[key] for key in keys],
        ids=tuple(map(str, jobs["job_id"])),
        kind=tuple("/".join(map(str, key)) for key in keys),
        name=f"{ELASTIC}/{part}",
    )
    return trace, Rates(kinds=tuple(rows), gpus=SIZES, work_per_s=np.array(list(rows.values())))


def _member(part: str, archive: str, **reading: Any) -> tuple[Path, pd.DataFrame, bool]:
    """A part of ``itp-elasticflow``: where it stands, its table, and whether it is a stand-in."""
    import pandas as pd

    from labkit import datasets

    if part == STANDIN_PART and (source := datasets.source(ITP, [archive])).is_standin:
        return source.path(archive), source.frame(archive), True
    path = datasets.open(f"{ITP}/{archive}")
    name = f"{part}.csv" if part == "195job" else f"cluster{part}.csv"
    with tarfile.open(path) as files:
        stream = files.extractfile(name)
        if stream is None:
            raise BadFile(path, "the archive lacks a file", field=name)
        return path / name, pd.read_csv(stream, **reading), False


def _virtual_clusters(parts: tuple[str, ...], name: str) -> Trace:
    """The jobs of some virtual clusters of Philly, or the stand-ins of all of them."""
    import pandas as pd

    from labkit import datasets

    source = datasets.source(GAVEL, [PHILLY.format(part) for part in parts])
    jobs = []
    for part in parts:
        path = source.path(PHILLY.format(part))
        table = tables.texts(path, comments=True) if source.is_standin else in_seconds(path)
        jobs.append(table.assign(tenant=part))
    name = f"{GAVEL}/{name}{', stand-in' * source.is_standin}"
    return from_table(Trace, pd.concat(jobs), path, {}, name)


def in_seconds(path: Path) -> pd.DataFrame:
    """A trace of Gavel's, with durations: the least whole seconds that make as many steps."""
    import pandas as pd

    rates = pd.read_csv(shipped(STEPS_PER_S), index_col="kind")["steps_per_s"]
    columns = ["kind", "command", "option", "needs_data", "steps", "arrival_s", "gpus"]
    table = pd.read_csv(path, sep="\t", names=columns, dtype=str, keep_default_na=False)
    steps = pd.to_numeric(table["steps"], errors="coerce")
    rate = table["kind"].map(rates)
    if (wrong := rate.isna() | ~(steps >= 1)).any():
        row = int(wrong.argmax())
        field = "steps" if rate.notna()[wrong].iloc[0] else "kind"
        raise BadFile(
            path,
            "the value is not allowed",
            line=row + 1,
            field=field,
            value=table[field][row],
            valid=f"a kind of {STEPS_PER_S}, and a number of steps from 1",
        )
    table = table.assign(duration_s=np.ceil(steps / rate).astype(int).astype(str))
    return table.set_index(table.index + 1)  # the lines: there are no headings


@checked
def generate(
    num_jobs: NumJobs,
    *,
    num_gpus: Count = 64,
    load: Positive = 0.8,
    mean_duration_s: Positive = 3600.0,
    sigma: Sigma = 1.5,
    gpus: Annotated[dict[Count, Positive], MinLen(1)] | None = None,
    slack: Positive | None = None,
    kinds: tuple[str, ...] = (),
    rng: np.random.Generator | Whole = 0,
) -> Trace:
    """A synthetic trace: Poisson arrivals that offer ``load`` of what ``num_gpus`` can do.

    Args:
        num_jobs: how many.
        num_gpus: of the cluster that ``load`` is stated for.
        mean_duration_s: of a job.
        load: mean work a second over GPUs; above 1 the queue grows without end.
        sigma: spread of the logarithms of durations, which are lognormal.
        gpus: GPUs of a job and their weights; default: :data:`GPUS`.
        slack: the deadline comes after 1 to 1 + 2 × slack durations, evenly; None: no deadlines.
        kinds: of jobs, each as likely as another; default: nothing is known.
        rng: a generator or a seed.

    >>> trace = generate(1000, num_gpus=64, load=0.8, rng=1)
    >>> len(trace), round(trace.offered_load(64), 1)
    (1000, 0.8)
    """
    draw = np.random.default_rng(rng)
    weights = gpus or GPUS
    sizes = np.array(list(weights))
    shares = np.array(list(weights.values())) / sum(weights.values())
    gap_s = float(shares @ sizes) * mean_duration_s / (load * num_gpus)
    arrival_s = np.cumsum(draw.exponential(gap_s, num_jobs))
    if not arrival_s[-1] + mean_duration_s <= MOST_S:
        raise BadValue(
            f"generate: mean_duration_s, load, num_gpus and num_jobs must make jobs that come "
            f"within {MOST_S:.0e} s; the last would come at {arrival_s[-1]:.2g} s"
        )
    unit = draw.lognormal(-(sigma**2) / 2, sigma, num_jobs)
    duration_s = np.maximum(mean_duration_s * unit, np.finfo(float).tiny)
    due = arrival_s + duration_s * (1 + 2 * (slack or 0) * draw.random(num_jobs))
    return Trace(
        arrival_s=arrival_s,
        duration_s=duration_s,
        gpus=draw.choice(sizes, num_jobs, p=shares),
        deadline_s=() if slack is None else due,
        kind=tuple(draw.choice(kinds, num_jobs).tolist()) if kinds else (),
        name=f"generated (lognormal, load {load:g})",
    )


@checked
def from_slurm(path: str | Path) -> Trace:
    """The GPU jobs of an export, such as that of ``sacct -a -P`` with the columns below.

    Needed columns: ``JobID``, ``Submit``, ``AllocTRES``, and ``ElapsedRaw`` or ``Elapsed``; used
    where they are there: ``State``, ``User``, ``Start`` (when it was recorded to start). A job's
    duration is the time it ran, also where it failed or was cancelled; times count from the first
    submission. Steps of a job, jobs without a GPU, jobs that never ran and, by ``State``, those
    that run still are left out; the trace's name says how many.

    Raises:
        BadFile: it is no such export, no job of it held a GPU, or a value cannot be.
    """
    path = Path(path)
    valid = f"what `{SACCT}` prints"
    table = tables.texts(path, sep="|", valid=valid)
    if "ElapsedRaw" not in table and "Elapsed" in table:
        table = table.assign(ElapsedRaw=_elapsed_s(table["Elapsed"], path))
    for column in ("JobID", "Submit", "ElapsedRaw", "AllocTRES"):
        if column not in table:
            raise BadFile(
                path,
                "a column is missing",
                line=1,
                field=column,
                value=", ".join(map(str, table.columns)),
                valid=valid,
            )
    jobs, left_out = _gpu_jobs(table)
    if jobs.empty:
        raise BadFile(path, f"no row is a GPU job that ran ({left_out})", valid="gres/gpu=N")
    spelt = {"ids": "JobID", "arrival_s": "Submit", "duration_s": "ElapsedRaw", "gpus": "gpus"}
    spelt |= {"tenant": "User"} if "User" in jobs else {}
    if "Start" in jobs:
        jobs = jobs.assign(Start=jobs["Start"].replace(["Unknown", "None"], ""))
        spelt["recorded_start_s"] = "Start"
    return from_table(Trace, jobs, path, spelt, f"{path.name} (left out: {left_out})")


def _gpu_jobs(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows that are GPU jobs which ran, and what the others are."""
    step = table["JobID"].str.contains(".", regex=False)
    gpus = table["AllocTRES"].str.extract(_SACCT_GPUS)[0]
    without = ~step & (gpus.isna() | (gpus == "0"))
    idle = ~step & ~without & table["ElapsedRaw"].str.strip().isin(["", "0"])
    left_out = (
        f"{step.sum():,} steps, {without.sum():,} jobs without a GPU, {idle.sum():,} that never ran"
    )
    others = step | without | idle
    if "State" in table:
        unfinished = ~others & table["State"].str.strip().isin(_UNFINISHED)
        left_out += f", {unfinished.sum():,} not finished"
        others |= unfinished
    return table.assign(gpus=gpus)[~others], left_out


def _elapsed_s(texts: pd.Series[str], path: Path) -> pd.Series[str]:
    """Seconds of ``[days-]hours:minutes:seconds``, as texts; empty ones stay empty.

    Raises:
        BadFile: a text is neither.
    """
    import pandas as pd

    parts = texts.str.strip().str.extract(_SACCT_ELAPSED)
    wrong = parts["seconds"].isna() & (texts.str.strip() != "")
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise BadFile(
            path,
            "the value is not allowed",
            line=row + 2,
            field="Elapsed",
            value=texts.iloc[row],
            valid="[days-]hours:minutes:seconds",
        )
    days, hours, minutes, seconds = (pd.to_numeric(parts[name]).fillna(0) for name in parts)
    total = ((24 * days + hours) * 60 + minutes) * 60 + seconds
    return total.astype(int).astype(str).where(parts["seconds"].notna(), "")


def is_slurm(path: Path) -> bool:
    """Whether a file begins as ``sacct -P`` does."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            heading = lines.readline().strip().split("|")
    except OSError:
        return False
    return "JobID" in heading and len(heading) > 1


def from_path_or_name(
    text: str, columns: dict[str, str] | None = None, *, processors_per_gpu: int = 1
) -> Trace:
    """What commands take: a file in any format that is known here, or a published ``name[/part]``.

    Args:
        text: which.
        columns: a CSV file's own headings, by ours. Of a CSV file, jobs without a GPU and jobs
            without a duration are left out, as :func:`from_csv` says.
        processors_per_gpu: as of :func:`from_swf`.
    """
    name, slash, part = text.partition("/")
    if name in PARTS:
        return load(name, part=part or None)
    if Path(text).suffix or slash:
        other = is_swf(text) or is_slurm(Path(text))
        if other and columns:
            raise UsageError(
                f"columns are those of a CSV file; {text} is in a format whose columns are known; "
                "valid: no columns"
            )
        if is_swf(text):
            return from_swf(text, processors_per_gpu=processors_per_gpu)
        if is_slurm(Path(text)):
            return from_slurm(text)
        if is_pods(text) and not columns:
            return from_pods(text)
        return from_csv(text, columns=columns, leaves_out=True)
    raise UsageError(f"{not_among('trace', text, PARTS)}; or give a CSV file")
