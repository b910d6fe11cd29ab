"""Whatever is asked of cluster: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import cluster
from labkit.cluster.inputs import throughputs
from labkit.errors import BadFile, BadValue, LabkitError
from tests import kinds

TRACE = cluster.Trace(
    arrival_s=[0.0, 1.0], duration_s=[2.0, 3.0], gpus=[1, 2], deadline_s=[9.0, 9.0]
)
GPUS = cluster.Cluster.nodes(1, gpus=4)
TABLE = cluster.Throughputs(
    kinds=("",), gpu_types=("gpu",), alone=np.ones((1, 1)), shared=np.ones((1, 1, 1))
)
LAS = cluster.share_policy("las")
RATES = cluster.Rates(kinds=("",), gpus=(1, 2), work_per_s=[[1.0, 1.5]])
CSV = (
    "job_id,arrival_s,duration_s,gpus,deadline_s,gpu,tenant,kind\n"
    "a,0,10,1,90,,x,m\n"
    "b,1.5,6,2,90,,y,n\n"
)
SACCT = (
    "JobID|Submit|ElapsedRaw|AllocTRES|State|User\n"
    "1|2026-01-01T00:00:00|10|gres/gpu=2|COMPLETED|a\n"
    "2|2026-01-01T00:00:09|20|gres/gpu=1|COMPLETED|b\n"
)
SWF = "1 0 5 10 2 -1 -1 2 20 -1 1 1 1 -1 0 1 -1 -1\n2 9 -1 20 1 -1 -1 1 30 -1 1 2 1 -1 0 1 -1 -1\n"
PODS = (
    "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
    "a,1,1000,0,9,1\n"
    "b,2,1000,5,20,6\n"
)
SPEEDS = {
    gpu: {
        str((kind, 1)): {"null": 1.0, str(("A3C", 1)): [0.5, 0.5]} for kind in throughputs.KINDS[:2]
    }
    for gpu in throughputs.GPU_TYPES
}


def fields_of(valid: Any) -> dict[str, Any]:
    return {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}


def examples() -> Mapping[str, Mapping[str, Any]]:
    fifo = cluster.fifo()
    run = cluster.simulate(TRACE, GPUS, fifo)
    both = {"trace": TRACE, "cluster": GPUS}
    table = cluster.sweep([TRACE], [GPUS], [fifo])
    allocator = cluster.Allocator(name="none")
    described = (TRACE, GPUS, GPUS.pools[0], TABLE, RATES, cluster.las2d(), allocator)
    return {
        **{type(each).__name__: fields_of(each) for each in described},
        "SharePolicy": fields_of(LAS),
        "OwnLoop": {"name": "own", "round_s": 60.0, "restart_s": 1.0},
        "MarginalGains": {"name": "gains", "step_s": np.ones((2, 4)), "steps_left": len},
        "FairShares": {"name": "fair", "most": np.array([1, 2]), "bundle": 1},
        "bound": both,
        "compare": {**both, "policies": [fifo], "warmup": 0.0, "windows": []},
        "compare:windows": {**both, "policies": [LAS], "windows": [(0, 2)]},
        "divide": {
            "values": np.array([[9.0, 4.0, 3.0], [9.0, 5.0, 1.0]]),
            "room": 3,
            "sizes": np.arange(3),
        },
        "figure_jct": {"runs": [run], "bound": cluster.bound(TRACE, GPUS)},
        "figure_pairs": {"table": TABLE, "gpu": 0},
        "figure_sweep": {"table": table[["policy", "gpus", "mean_jct_s", "bound_jct_s"]]},
        "figure_timeline": {"run": run},
        "from_csv": {"path": kinds.file("a.csv", CSV), "columns": {"gpus": "gpus"}},
        "from_pods": {"path": kinds.file("pods.csv", PODS)},
        "from_slurm": {"path": kinds.file("a.txt", SACCT)},
        "from_swf": {"path": kinds.file("a.swf", SWF), "processors_per_gpu": 2},
        "fifo": {"blocks": True},
        "generate": {
            "num_jobs": 3,
            "num_gpus": 8,
            "load": 0.8,
            "mean_duration_s": 60.0,
            "sigma": 1.5,
            "gpus": {1: 0.5, 2: 0.5},
            "slack": 1.0,
            "kinds": ("a", "b"),
        },
        "generate_continuous": {"num_jobs": 3, "jobs_per_hour": 1.0},
        "las": {"thresholds_s": (1.0, 2.0), "restart_s": 1.0},
        "las2d": {"thresholds_gpu_s": (1.0, 2.0), "restart_s": 1.0},
        "load": {"name": "itp-elasticflow", "part": "06"},
        "load_elastic": {"part": "T4", "limits": {"bert": 4}},
        "load_throughputs": {},
        "named": {"text": "las:3,4", "restart_s": 1.0},
        "priority_policy": {"name": "x", "key": lambda trace: trace.gpus},
        "share_policy": {"name": "las", "settings": {"round_s": 60.0}},
        "simulate": {**both, "policy": fifo, "window": (0, 2)},
        "simulate:shares": {**both, "policy": LAS, "keeps_segments": True},
        "sjf": {},
        "srsf": {"restart_s": 1.0},
        "srtf": {"restart_s": 1.0},
        "sweep": {"traces": [TRACE], "clusters": [GPUS], "policies": [fifo]},
        "Cluster.nodes": {"nodes": 1, "gpus": 4, "gpu": "a"},
        "Pool.speed_of": {"kind": ""},
        "Rates.times": {"most": 2},
        "Rates.of": {"trace": TRACE},
        "Run.summary": {"warmup": 0.0, "window": (0, 2)},
        "Run.why": {"job": 0, "most": 2},
        "Throughputs.cluster": {"gpus": (2,)},
        "Throughputs.misjudged": {"error": 0.1},
        "Throughputs.of": {"kinds": [""]},
        "Trace.at_once": {"jobs": [0, 1], "grid_s": 1.0},
        "Trace.changed": {"columns": {"gpus": [1, 1]}},
        "Trace.column": {"name": "gpus"},
        "Trace.has": {"column": "estimate_s"},
        "Trace.head": {"count": 1},
        "Trace.id_of": {"job": 1},
        "Trace.index_of": {"job": 1},
        "Trace.names_of": {"texts": True},
        "Trace.offered_load": {"num_gpus": 4},
    }


def objects() -> Mapping[str, Any]:
    made = (TRACE, GPUS, GPUS.pools[0], TABLE, RATES, cluster.las2d())
    run = cluster.simulate(TRACE, GPUS, cluster.fifo())
    return {type(each).__name__: each for each in made} | {
        "Active": cluster.Active(*[np.zeros(0)] * 7, {}),
        "Run": run,
        "SharePolicy": LAS,
        "Shares": cluster.Shares(np.zeros((0, 1))),
        "State": None,
        "Bound": cluster.bound(TRACE, GPUS),
    }


WRITTEN_BY_USERS = "its subclasses write it; it is called with what a run makes"
ROOM = kinds.Room(
    cluster,
    examples,
    objects,
    left_out={
        f"{name}.{method}": WRITTEN_BY_USERS
        for name, method in (
            ("Allocator", "decide"),
            ("FairShares", "decide"),
            ("MarginalGains", "decide"),
            ("SharePolicy", "decide"),
            ("OwnLoop", "run"),
        )
    },
    also={
        "las.thresholds_s": "thresholds must rise",
        "las2d.thresholds_gpu_s": "thresholds must rise",
        "named.text": "policy ",
        "divide.sizes": "values must be",
        "Throughputs.of.kinds": "no kind",
        "Throughputs.kinds": "alone must be .* of shape",
        "Throughputs.gpu_types": "alone must be .* of shape",
    },
    strange={
        r"deadline_s\.inf": "a job without a deadline",
        r"estimate_s\.inf": "a job of which its user said nothing",
        r"recorded_start_s\.inf": "a job whose start was not recorded",
        r"\b(step_s|most)\.*(nan|inf)": "beyond the most GPUs that a job may have",
        r"utilisation_fraction\.nan": "a run that writes down no stretches",
    },
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str) -> None:
    ROOM.check(name)


ODD_CSV = kinds.tables(CSV)
ODD_SACCT = kinds.tables(SACCT, sep="|")
ODD_SPEEDS = kinds.documents(SPEEDS)
ODD_SWF = kinds.tables(SWF, sep=" ")
ODD_PODS = kinds.tables(PODS)
NOT_SAID = r"(deadline_s|estimate_s|recorded_start_s)\.inf"


@pytest.mark.parametrize("content", ODD_CSV, ids=kinds.numbered(ODD_CSV))
def test_odd_files_of_jobs(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(cluster.from_csv, tmp_path / "a.csv", content, strange=NOT_SAID)


@pytest.mark.parametrize("content", ODD_SACCT, ids=kinds.numbered(ODD_SACCT))
def test_odd_exports_of_slurm(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(cluster.from_slurm, tmp_path / "a.txt", content, strange=NOT_SAID)


@pytest.mark.parametrize("content", ODD_SWF, ids=kinds.numbered(ODD_SWF))
def test_odd_logs(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(cluster.from_swf, tmp_path / "a.swf", content, strange=NOT_SAID)


@pytest.mark.parametrize("content", ODD_PODS, ids=kinds.numbered(ODD_PODS))
def test_odd_pods(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(cluster.from_pods, tmp_path / "a.csv", content, strange=NOT_SAID)


@pytest.mark.parametrize("content", ODD_SPEEDS, ids=kinds.numbered(ODD_SPEEDS))
def test_odd_files_of_speeds(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(cluster.load_throughputs, tmp_path / "a.json", content)


@pytest.mark.parametrize("cell", ["True", "1_000", "0x10", "1e300", "١", "--1"])
@pytest.mark.parametrize("column", ["arrival_s", "duration_s", "gpus"])
def test_what_is_no_number_is_refused(column: str, cell: str, tmp_path: Path) -> None:
    row = {"arrival_s": "0", "duration_s": "1", "gpus": "1", column: cell}
    path = tmp_path / "a.csv"
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    with pytest.raises(BadFile, match=rf"a\.csv:2: .*field '{column}'"):
        cluster.from_csv(path)


def test_two_names_of_one_column_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    with pytest.raises(BadValue, match="makes 'arrival_s' both duration_s and arrival_s"):
        cluster.from_csv(path, columns={"duration_s": "arrival_s"})


def test_a_file_of_speeds_must_be_one() -> None:
    path = kinds.file("speeds.json", json.dumps(SPEEDS))
    with pytest.raises(BadFile, match=r"speeds\.json: has no speed"):
        cluster.load_throughputs(path)


def test_the_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"cluster\.simulate: trace must be a Trace; got 'text'"):
        cluster.simulate("text", GPUS, cluster.fifo())
