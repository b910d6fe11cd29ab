"""Every field of every public description and every argument of every public function, fed with
every wrong kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import LabkitError
from tests.wrong_kinds import WRONG, problem, problems

TRACE = cluster.Trace(arrival_s=[0.0, 1.0], duration_s=[2.0, 3.0], gpus=[1, 2])
GPUS = cluster.Cluster.nodes(1, gpus=4)
RUN = cluster.simulate(TRACE, GPUS, cluster.fifo())
TABLE = cluster.Throughputs(
    kinds=("",), gpu_types=("gpu",), alone=np.ones((1, 1)), shared=np.ones((1, 1, 1))
)
LAS = cluster.share_policy("las")
DESCRIPTIONS: list[Any] = [TRACE, GPUS, GPUS.pools[0], cluster.las2d(), TABLE, LAS]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    cluster.bound: {"trace": TRACE, "cluster": GPUS},
    cluster.generate_continuous: {"num_jobs": 3, "jobs_per_hour": 1.0},
    cluster.figure_pairs: {"table": TABLE},
    cluster.share_policy: {"name": "las"},
    cluster.compare: {"trace": TRACE, "cluster": GPUS, "policies": [LAS], "windows": [(0, 2)]},
    TABLE.cluster: {},
    TABLE.misjudged: {"error": 0.1},
    cluster.priority_policy: {"name": "x", "key": lambda trace: trace.gpus},
    cluster.fifo: {},
    cluster.figure_jct: {"runs": [RUN]},
    cluster.figure_sweep: {"table": cluster.sweep([TRACE], [GPUS], [cluster.fifo()])},
    cluster.figure_timeline: {"run": RUN},
    cluster.from_csv: {"path": "jobs.csv"},
    cluster.from_slurm: {"path": "jobs.txt"},
    cluster.generate: {"num_jobs": 3},
    cluster.load: {"name": "itp-elasticflow"},
    cluster.named: {"text": "fifo"},
    cluster.simulate: {"trace": TRACE, "cluster": GPUS, "policy": cluster.fifo()},
    cluster.sjf: {},
    cluster.srsf: {},
    cluster.srtf: {},
    cluster.sweep: {"traces": [TRACE], "clusters": [GPUS], "policies": [cluster.fifo()]},
    cluster.Cluster.nodes: {"nodes": 1},
    RUN.summary: {},
    RUN.why: {"job": 0},
    TRACE.head: {"count": 1},
    TRACE.index_of: {"job": 1},
    TRACE.offered_load: {"num_gpus": 4},
}
RATES = cluster.Rates(kinds=("",), gpus=(1, 2), work_per_s=[[1.0, 1.5]])
DESCRIPTIONS += [RATES]
FUNCTIONS |= {
    cluster.load_elastic: {},
    cluster.load_throughputs: {"path": "speeds.json"},
}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
def test_fields(valid: Any) -> None:
    given = {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}
    assert problems(type(valid), given, given, WRONG) == []
    assert problem(lambda: type(valid)(**given, nonsense=1)) == ""
    assert problem(lambda: type(valid)("text", 5, None)) == ""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    given = FUNCTIONS[function]
    assert problems(function, given, inspect.signature(function).parameters, WRONG) == []
    assert problem(lambda: function(**given, nonsense=1)) == ""


@pytest.mark.parametrize("queues", [cluster.las, cluster.las2d])
@pytest.mark.parametrize("value", WRONG, ids=[f"wrong{i}" for i in range(len(WRONG))])
def test_thresholds(queues: Callable[..., Any], value: Any) -> None:
    assert problem(lambda: queues(value)) == ""
    assert problem(lambda: queues(restart_s=value)) == ""


def test_the_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"cluster\.simulate: trace must be a Trace; got 'text'"):
        cluster.simulate("text", GPUS, cluster.fifo())
