"""Slurm's accounting as a trace: which rows are jobs, what they held, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import cluster
from labkit.cluster.inputs.published import from_path_or_name
from labkit.errors import BadFile

EXPORT = """\
JobID|Submit|ElapsedRaw|AllocTRES|User
7|2026-03-01T10:00:00|3600|billing=8,cpu=8,gres/gpu=4,node=1|ada
7.batch|2026-03-01T10:00:00|3600|cpu=8,gres/gpu=4|
8|2026-03-01T09:59:30|60|cpu=4,node=1|bo
9|2026-03-01T10:01:00|0|gres/gpu=2|bo
10|2026-03-01T09:59:00|120|cpu=2,gres/gpu:a100=2|bo
"""


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.txt"
    path.write_text(EXPORT)
    return path


def test_jobs_that_held_gpus_are_the_trace(export: Path) -> None:
    trace = cluster.from_slurm(export)
    assert trace.frame().to_dict("list") == {
        "job_id": ["10", "7"],
        "arrival_s": [0, 60],
        "duration_s": [120, 3600],
        "gpus": [2, 4],
        "deadline_s": [float("inf")] * 2,
        "tenant": ["bo", "ada"],
    }
    assert "1 steps, 1 jobs without a GPU, 1 that never ran" in trace.name


def test_commands_know_an_export_by_its_heading(export: Path) -> None:
    assert len(from_path_or_name(str(export))) == 2


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("AllocTRES", "TRES", "AllocTRES"),
        ("2026-03-01T10:00:00|3600|billing", "yesterday|3600|billing", "yesterday"),
        ("|120|", "|two minutes|", "jobs.txt:6: no number; field 'ElapsedRaw'"),
        ("\n10|", "\n7|", "an id stands twice"),
        ("gres/gpu", "gres/tpu", "no row is a GPU job that ran"),
    ],
)
def test_what_cannot_be_is_named(export: Path, old: str, new: str, complaint: str) -> None:
    export.write_text(EXPORT.replace(old, new))
    with pytest.raises(BadFile, match=complaint):
        cluster.from_slurm(export)


def test_a_job_that_still_runs_has_no_duration_yet(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|Submit|ElapsedRaw|AllocTRES|State\n"
        "1|2026-03-01T10:00:00|50|gres/gpu=1|RUNNING\n"
        "2|2026-03-01T10:00:00|60|gres/gpu=1|CANCELLED by 1000\n"
    )
    trace = cluster.from_slurm(path)
    assert trace.column("duration_s").tolist() == [60]
    assert "1 not finished" in trace.name


def test_elapsed_is_read_as_sacct_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    text = (
        "JobID|Submit|Elapsed|AllocTRES\n"
        "1|2026-03-01T10:00:00|00:04:31|gres/gpu=1\n"
        "2|2026-03-01T10:00:00|1-00:01:52|gres/gpu=1\n"
        "3|2026-03-01T10:00:00||gres/gpu=1\n"
    )
    path.write_text(text)
    assert cluster.from_slurm(path).column("duration_s").tolist() == [271, 86512]
    path.write_text(text.replace("00:04:31", "04:31"))
    with pytest.raises(BadFile, match=r"jobs.txt:2: .*'Elapsed'.*'04:31'.*\[days-\]hours"):
        cluster.from_slurm(path)
