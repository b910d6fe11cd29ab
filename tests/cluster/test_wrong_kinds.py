"""Every field of every public description and every argument of every public function, fed with
every wrong kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import cluster
from labkit.errors import LabkitError
from tests.wrong_kinds import problem, problems

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    9.5,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "text",
    b"bytes",
    [],
    [1],
    ["text"],
    [None],
    (),
    (1, 2),
    ((1.0,), ("x",)),
    {},
    {"a": 1},
    {1: -2},
    {1, 2},
    object(),
    int,
    len,
    np.array([]),
    np.array([[1.0, np.nan]]),
    np.float64(2.5),
    np.int64(-3),
    np.bool_(True),
    pd.DataFrame({"a": [1]}),
    pd.Series(["x"]),
    Path("nowhere"),
    1 + 2j,
    range(0),
    range(3),
)
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
    cluster.continuous: {"num_jobs": 3, "jobs_per_hour": 1.0},
    cluster.figure_pairs: {"table": TABLE},
    cluster.figure_speeds: {"table": TABLE},
    cluster.search_hours: {"policy": cluster.fifo(), "num_trials": 3, "draws": 2},
    cluster.share_policy: {"name": "las"},
    cluster.simulate_shares: {"trace": TRACE, "cluster": GPUS, "policy": LAS},
    cluster.sweep_shares: {
        "traces": {0: TRACE},
        "cluster": GPUS,
        "policies": [LAS],
        "windows": [(0, 2)],
    },
    TABLE.cluster: {},
    TABLE.misjudged: {"error": 0.1},
    cluster.by: {"name": "x", "key": lambda trace: trace.gpus},
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

# Elastic jobs, placement, tasks in rounds, the runtime.
OWNED = cluster.Trace(arrival_s=[0, 1], duration_s=[2, 3], gpus=[1, 2], tenant=("a", "b"))
CELLS = cluster.Hierarchy()
RATES = cluster.Rates(kinds=("",), gpus=(1, 2), work_per_s=[[1.0, 1.5]])
RACKS = cluster.Racks(racks=1, nodes=2, gpus=2, node_bytes_per_s=1.0, rack_bytes_per_s=1.0)
WORKERS = cluster.draw_workers(RACKS, num_jobs=2, load=0.5)
ROUNDS = cluster.Rounds(
    arrival_s=[0.0], weight=[1.0], rounds=[1], tasks=[1], task_s=[[1.0]], sync_s=[0.1]
)
DISPATCH = cluster.Dispatch(nodes=2)
DESCRIPTIONS += [CELLS, RATES, RACKS, WORKERS, ROUNDS, DISPATCH, cluster.edf()]
FUNCTIONS |= {
    cluster.Buddies: {"hierarchy": CELLS, "roots": {"node": 1}},
    cluster.Reserved: {"hierarchy": CELLS, "cells": {"node": 1}, "physical": None},
    cluster.Runtime: {},
    cluster.dispatch_tasks: {"dispatch": DISPATCH, "tasks_per_s": 10.0, "num_tasks": 9},
    cluster.draw_rounds: {
        "steps_per_s": [[1.0, 2.0]],
        "counts": (1, 1),
        "num_jobs": 2,
        "load": 0.5,
    },
    cluster.draw_workers: {"racks": RACKS, "num_jobs": 2, "load": 0.5},
    cluster.edf: {},
    cluster.elasticflow: {},
    cluster.estimates: {"trace": OWNED, "by": ["tenant"]},
    cluster.evolve: {"jobs": WORKERS, "racks": RACKS, "population": 4, "generations": 2},
    cluster.figure_scaling: {"rates": RATES},
    cluster.gittins: {"service_gpu_s": [1.0, 2.0, 5.0]},
    cluster.gittins_index: {"service": [1.0, 2.0], "attained": [0.0]},
    cluster.load_elastic: {},
    cluster.load_throughputs: {"path": "speeds.json"},
    cluster.mean_latency_s: {"dispatch": DISPATCH, "tasks_per_s": 10.0},
    cluster.nodes_for: {"trace": OWNED, "most_load": 0.8},
    cluster.place: {"racks": RACKS, "free": [2, 2], "gpus": 1},
    cluster.place_all: {"racks": RACKS, "batches": [WORKERS], "hows": ["best-fit"]},
    cluster.refusals: {
        "hierarchy": CELLS,
        "roots": {"node": 2},
        "tenants": {"a": {"node": 2}},
        "requests": 50,
    },
    cluster.run_on_links: {"jobs": WORKERS, "racks": RACKS, "how": "best-fit"},
    cluster.schedule: {"jobs": ROUNDS},
    cluster.share: {
        "trace": OWNED,
        "tenants": {"a": {"node": 1}, "b": {"node": 1}},
        "policy": cluster.fifo(),
        "sharing": "quota",
    },
    cluster.slices: {"quantum_s": 60.0, "longest_s": 300.0},
    cluster.time_slicing: {},
    cluster.train: {"work": None, "cluster": GPUS, "policy": "fair", "goodput": {}},
    cluster.workload: {},
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
