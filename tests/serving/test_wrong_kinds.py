"""Whatever is asked of serving: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import datasets, serving
from labkit.errors import LabkitError
from tests import kinds

REQUESTS = serving.generate(2, 5, prompt_tokens=(1, 9), output_tokens=(1, 4))
PROFILE = serving.TokenProfile(weights_s=0.02, token_s=1e-4)
BATCHER = serving.Batcher(max_batch=4)
SERVER: dict[str, Any] = {"requests": REQUESTS, "profile": PROFILE}
CSV = "arrival_s,prompt_tokens,output_tokens,slo_s,model\n0,5,10,1,a\n1.5,6,2,,b\n"
BATCH_CSV = "batch,latency(us),std(us),memory(B)\n1,6277.4,22.4,949944320\n2,7000,1,949944320\n"
KERNELS_CSV = "kernel,blocks,total_us,waves_us\na,60,10,2 4 6\nb,30,5,1 2\n"
KERNELS = {"kernel_latency": {"a": {"total_latency": 10, "latency": [2, 4]}}}
GRAPH = {"kernels": [{"name": "a", "launch_params": [2, 3, 1, 64]}]}

# Batch servers and groups.
BATCHES = serving.BatchProfile(name="p", latency_s=(0.1, 0.15), std_s=(0.0, 0.01))
SESSION = serving.Session(model="m", profile=BATCHES, rate_per_s=1.0, slo_s=1.0)
SLOT = serving.Slot(session=SESSION, batch=2, rate_per_s=1.0)
BATCH_SERVER = serving.BatchServer(slots=(SLOT,))
BATCH_SERVERS = serving.BatchServers(servers=(BATCH_SERVER,))
MODEL = serving.ServedModel(name="", latency_s=0.1, memory_bytes=1.0)
GROUP = serving.Group(models=("",), stages=2)
GROUPS = serving.Groups(groups=(GROUP,))

# One GPU and its clients.
PROGRAM = serving.Program(name="p", blocks=(1, 2), total_s=(1.0, 2.0), wave_s=((1.0,), (1.0,)))
CLIENT = serving.Client(program="p", arrival_s=(0.0, 4.0), real_time=True)
WORKLOAD = serving.Workload(clients=(CLIENT,), until_s=9.0)
GPU = serving.Gpu(mode="streams")
DOORS: dict[str, dict[str, Any]] = {
    "batch servers": {
        "requests": REQUESTS,
        "profile": {"m": BATCHES},
        "server": BATCH_SERVERS,
    },
    "groups": {
        "requests": REQUESTS,
        "profile": [MODEL],
        "server": GROUPS,
    },
    "gpu": {
        "requests": WORKLOAD,
        "profile": {"p": PROGRAM},
        "server": GPU,
    },
}


def fields_of(valid: Any) -> dict[str, Any]:
    return {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}


def examples() -> Mapping[str, Mapping[str, Any]]:
    table = serving.sweep(**SERVER, batchers={"a": BATCHER}, rates_per_s=[1.0])
    batches = kinds.file("a.txt", BATCH_CSV)
    gpu_run = serving.simulate(**DOORS["gpu"])
    described = (REQUESTS, PROFILE, BATCHER, BATCHES, SESSION, SLOT, BATCH_SERVER, BATCH_SERVERS)
    described += (MODEL, GROUP, GROUPS, PROGRAM, CLIENT, WORKLOAD, GPU)
    return {
        **{type(each).__name__: fields_of(each) for each in described},
        **{f"simulate:{door}": given for door, given in DOORS.items()},
        "figure_latency": {
            "table": table[["batcher", "throughput_per_s", "median_token_s"]],
            "limit_s": 1.0,
            "bound_per_s": 2.0,
            "paper": [(1.0, 2.0)],
        },
        "figure_requests": {"runs": {"a": serving.simulate(**SERVER, server=BATCHER)}},
        "figure_lines": {"table": pd.DataFrame({"a": [1.0, 2.0]}), "title": "t", "x": "x"},
        "from_csv": {"path": kinds.file("a.csv", CSV), "columns": {"slo_s": "slo_s"}},
        "generate": {
            "rate_per_s": 2,
            "count": 3,
            "cv": 1.0,
            "prompt_tokens": (0, 4),
            "output_tokens": (1, 4),
            "slo_s": 2.0,
        },
        "load": {"name": "azure-llm-2023"},
        "merge_streams": {"parts": [REQUESTS]},
        "bound": {**SERVER, "server": BATCHER},
        "simulate": {**SERVER, "server": BATCHER},
        "sweep": {**SERVER, "batchers": {"ours": BATCHER}, "rates_per_s": [1.0]},
        "traffic": {"rates_per_s": {"m": 2.0}, "seconds": 3.0, "slo_s": {"m": 1.0}, "cv": 1.0},
        "highest_load": {
            "attainment": lambda load: float(load < 2),
            "low": 1.0,
            "high": 3.0,
            "steps": 4,
        },
        "program_paths": {"models": ["vgg"]},
        "load_programs": {"source": datasets.source("reef-osdi22"), "models": ["vgg"]},
        "BatchProfile.read": {"path": batches},
        "BatchProfile.slower": {"factor": 2.0},
        "BatchProfile.best": {"limit_s": 0.2},
        "BatchProfile.largest": {"limit_s": 0.2, "per_request_s": 0.1},
        "Group.stage_s": {"model": MODEL},
        "GpuRun.latency_s": {"real_time": True},
        "GpuRun.over": {"base": gpu_run},
        "Program.longer": {"times": 2.0},
        "Program.read": {"profile": kinds.file("k.csv", KERNELS_CSV)},
        "Program.read:json": {
            "profile": kinds.file("k.profile.json", json.dumps(KERNELS)),
            "graph": kinds.file("k.json", json.dumps(GRAPH)),
        },
        "Program.resident": {"kernel": 0, "units": 60},
        "Program.slowed": {"kernel": 0, "others": 1.0, "units": 60},
        "Requests.at_rate": {"rate_per_s": 1},
        "Requests.head": {"count": 2},
        "Requests.column": {"name": "arrival_s"},
        "Requests.names_of": {"texts": True},
        "Requests.changed": {"columns": {"slo_s": np.ones(5)}},
        "Run.why": {"request": 0},
        "TokenProfile.alone_s": {"requests": REQUESTS, "batch": 2},
        "TokenProfile.seconds": {"tokens": 3, "sequences": 2, "cached": 4},
        "TokenProfile.slower": {"factor": 2.0},
        "TokenProfile.roofline": {
            "model": "gpt3-175b",
            "accelerator": "A100-40GB",
            "tensor": 16,
            "stages": 1,
        },
    }


def objects() -> Mapping[str, Any]:
    made = (REQUESTS, PROFILE, BATCHES, GROUP, PROGRAM, CLIENT, WORKLOAD, GPU, BATCHER)
    asked = serving.Asked(number=0, arrival_s=0.0, prompt_tokens=1, output_tokens=1)
    runs = {
        "Asked": asked,
        "Run": serving.simulate(**SERVER, server=BATCHER),
        "Served": serving.simulate(**DOORS["batch servers"]),
        "GpuRun": serving.simulate(**DOORS["gpu"]),
        "Bound": serving.bound(**SERVER, server=BATCHER),
    }
    return {type(each).__name__: each for each in made} | runs


ROOM = kinds.Room(
    serving,
    examples,
    objects,
    also={
        "simulate.server": "(profile|requests) must be",  # of the kind that this server takes
        "simulate.profile": "no program of the clients",
        "load_programs.models": "no program",
    },
    strange={
        r"slo_s\.inf": "a request without an objective",
        r"\b(end_s|latency_s|p99_latency_s|median_latency_s)\.nan": "a request that was dropped",
    },
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str) -> None:
    ROOM.check(name)


ODD_CSV = kinds.tables(CSV)
ODD_BATCHES = kinds.tables(BATCH_CSV)
ODD_KERNELS = kinds.tables(KERNELS_CSV)
ODD_PROFILES = kinds.documents(KERNELS)
ODD_GRAPHS = kinds.documents(GRAPH)


@pytest.mark.parametrize("content", ODD_CSV, ids=kinds.numbered(ODD_CSV))
def test_odd_files_of_requests(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(serving.from_csv, tmp_path / "a.csv", content, strange=r"slo_s\.inf")


@pytest.mark.parametrize("content", ODD_BATCHES, ids=kinds.numbered(ODD_BATCHES))
def test_odd_files_of_batches(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(serving.BatchProfile.read, tmp_path / "a.txt", content)


@pytest.mark.parametrize("content", ODD_KERNELS, ids=kinds.numbered(ODD_KERNELS))
def test_odd_files_of_kernels(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(lambda path: serving.Program.read(path), tmp_path / "a.csv", content)


@pytest.mark.parametrize("content", ODD_PROFILES, ids=kinds.numbered(ODD_PROFILES))
def test_odd_profiles_of_kernels(content: bytes, tmp_path: Path) -> None:
    graph = kinds.file("k.json", json.dumps(GRAPH))
    profile = tmp_path / "k.profile.json"
    kinds.check_file(lambda path: serving.Program.read(path, graph), profile, content)


@pytest.mark.parametrize("content", ODD_GRAPHS, ids=kinds.numbered(ODD_GRAPHS))
def test_odd_graphs_of_kernels(content: bytes, tmp_path: Path) -> None:
    profile = kinds.file("k.profile.json", json.dumps(KERNELS))
    kinds.check_file(lambda path: serving.Program.read(profile, path), tmp_path / "k.json", content)


@pytest.mark.parametrize("kind", DOORS)
def test_every_kind_of_server_behind_the_one_door(kind: str) -> None:
    given = DOORS[kind]
    assert serving.simulate(**given).summary()
    assert len(serving.simulate(**given).frame()) >= 1


def test_the_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"serving\.generate: count must be a whole number"):
        serving.generate(1, "many")
