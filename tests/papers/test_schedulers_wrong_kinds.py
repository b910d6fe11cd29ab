"""Public descriptions and functions of papers on clusters, fed with every wrong kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import LabkitError
from labkit.papers import (
    elasticflow,
    gandiva,
    gavel,
    hare,
    hived,
    liquid,
    mlaas,
    optimus,
    pollux,
    ray,
    synergy,
    tiresias,
)
from tests import kinds

OWNED = cluster.Trace(arrival_s=[0, 1], duration_s=[2, 3], gpus=[1, 2], tenant=("a", "b"))
CELLS = hived.Hierarchy()
RATES = cluster.Rates(kinds=("",), gpus=(1, 2), work_per_s=[[1.0, 1.5]])
RACKS = liquid.Racks(racks=1, nodes=2, gpus=2, node_bytes_per_s=1.0, rack_bytes_per_s=1.0)
WORKERS = liquid.draw_workers(RACKS, num_jobs=2, load=0.5)
ROUNDS = hare.Rounds(
    arrival_s=[0.0], weight=[1.0], rounds=[1], tasks=[1], task_s=[[1.0]], sync_s=[0.1]
)
DISPATCH = ray.Dispatch(nodes=2)
TABLE = cluster.Throughputs(
    kinds=("",), gpu_types=("gpu",), alone=np.ones((1, 1)), shared=np.ones((1, 1, 1))
)
GPUS = cluster.Cluster.nodes(1, gpus=4)
DESCRIPTIONS: list[Any] = [CELLS, RACKS, WORKERS, ROUNDS, DISPATCH, elasticflow.edf()]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    gavel.figure_speeds: {"table": TABLE},
    gandiva.search_hours: {"policy": cluster.fifo(), "num_trials": 3, "seeds": range(2)},
    hived.Buddies: {"hierarchy": CELLS, "roots": {"node": 1}},
    hived.Reserved: {"hierarchy": CELLS, "cells": {"node": 1}, "physical": None},
    ray.Runtime: {},
    ray.dispatch_tasks: {"dispatch": DISPATCH, "tasks_per_s": 10.0, "num_tasks": 9},
    hare.draw_rounds: {
        "steps_per_s": [[1.0, 2.0]],
        "counts": (1, 1),
        "num_jobs": 2,
        "load": 0.5,
    },
    liquid.draw_workers: {"racks": RACKS, "num_jobs": 2, "load": 0.5},
    elasticflow.edf: {},
    elasticflow.policy: {},
    mlaas.estimates: {"trace": OWNED, "by": ["tenant"]},
    liquid.evolve: {"jobs": WORKERS, "racks": RACKS, "population": 4, "generations": 2},
    elasticflow.figure_scaling: {"rates": RATES},
    tiresias.gittins: {"service_gpu_s": [1.0, 2.0, 5.0]},
    tiresias.gittins_index: {"service": [1.0, 2.0], "attained": [0.0]},
    ray.mean_latency_s: {"dispatch": DISPATCH, "tasks_per_s": 10.0},
    hived.cells_for: {"trace": OWNED, "most_load": 0.8},
    hived.nodes_for: {"trace": OWNED, "most_load": 0.8},
    liquid.place: {"racks": RACKS, "free": [2, 2], "gpus": 1},
    liquid.compare: {"racks": RACKS, "batches": [WORKERS], "ways": [liquid.Way.BEST_FIT]},
    hived.refusals: {
        "hierarchy": CELLS,
        "roots": {"node": 2},
        "tenants": {"a": {"node": 2}},
        "requests": 50,
    },
    liquid.simulate: {"jobs": WORKERS, "racks": RACKS, "way": liquid.Way.BEST_FIT},
    hare.schedule: {"jobs": ROUNDS},
    hived.simulate: {
        "trace": OWNED,
        "tenants": {"a": {"node": 1}, "b": {"node": 1}},
        "policy": cluster.fifo(),
        "sharing": hived.Sharing.QUOTA,
    },
    tiresias.slices: {"quantum_s": 60.0, "longest_s": 300.0},
    elasticflow.time_slicing: {},
    pollux.train: {"work": None, "cluster": GPUS, "policy": "fair", "goodput": {}},
    pollux.workload: {},
}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
def test_fields(valid: Any) -> None:
    kinds.check_fields(valid)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    kinds.check_arguments(function, FUNCTIONS[function])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no file": (lambda: synergy.load_needs("/dev/null/nope"), "/dev/null/nope: "),
    "no table of needs": (lambda: synergy.load_needs(__file__), r"\.py:?"),
    "no function": (lambda: ray.recover(5), "program must be a function; got 5"),
    "no value": (lambda: ray.recover(lambda submit: 5), "program must return a value"),
    "too few numbers": (
        lambda: optimus.place_blocks([1, 2], 2, rule="hash", numbers=[1]),
        "numbers must be one a block, 2; got 1",
    ),
    "more free than there are": (
        lambda: liquid.place(RACKS, [3, 0], 3),
        "free must be a whole number for each of 2 nodes, from 0 to 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_named(case: str) -> None:
    call, problem_said = REFUSED[case]
    with pytest.raises(LabkitError, match=problem_said):
        call()
