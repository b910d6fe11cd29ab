"""Every field of every public description and every argument of every public function, fed with
every wrong kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit import serving
from labkit.errors import LabkitError
from labkit.models import Model
from labkit.serving.device import guests, kernels, timeline, transfers
from tests.cluster.test_wrong_kinds import WRONG
from tests.wrong_kinds import problem, problems

REQUESTS = serving.generate(2, 5, prompt_tokens=(1, 9), output_tokens=(1, 4))
PROFILE = serving.TokenProfile(weights_s=0.02, token_s=1e-4)
BATCHER = serving.Batcher(max_batch=4)
RUN = serving.simulate(REQUESTS, PROFILE, BATCHER)
SERVER: dict[str, Any] = {"requests": REQUESTS, "profile": PROFILE}
PALM = serving.Partition(model=Model.preset("palm-540b"))
DESCRIPTIONS: list[Any] = [REQUESTS, PROFILE, BATCHER, PALM]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    serving.figure_latency: {
        "table": serving.sweep(**SERVER, batchers={"a": BATCHER}, rates_per_s=[1.0])
    },
    serving.figure_requests: {"runs": {"a": RUN}},
    serving.from_csv: {"path": "requests.csv"},
    serving.generate: {"rate_per_s": 2, "count": 3},
    serving.frontier: {"partitions": {"a": PALM}, "batches": [4]},
    serving.layouts: {"partition": PALM, "tokens": [64]},
    serving.load: {"name": "azure-llm-2023"},
    serving.together: {"parts": [REQUESTS]},
    serving.bound: {**SERVER, "batcher": BATCHER},
    serving.capacity: {**SERVER, "batchers": {"ours": BATCHER}},
    serving.gain: {**SERVER, "new": {"a": BATCHER}, "old": {"b": BATCHER}},
    serving.simulate: {**SERVER, "batcher": BATCHER},
    serving.sweep: {**SERVER, "batchers": {"ours": BATCHER}, "rates_per_s": [1.0]},
    serving.TokenProfile.roofline: {"model": "gpt3-175b", "accelerator": "A100-40GB", "tensor": 16},
    PALM.cache_bytes: {"batch": 2, "context": 3},
    PALM.layer_bytes: {"tokens": 8},
    PALM.longest_context: {"batch": 2},
    PALM.step: {"batch": 2},
    PALM.ways: {"tokens": 8},
    PROFILE.alone_s: {"requests": REQUESTS},
    PROFILE.seconds: {"tokens": 3},
    PROFILE.slower: {"factor": 2.0},
    RUN.why: {"request": 0},
    REQUESTS.at_rate: {"rate_per_s": 1},
    REQUESTS.head: {"count": 2},
}

# Batch servers, packing, groups.
BATCHES = serving.BatchProfile(name="p", latency_s=(0.1, 0.15), std_s=(0.0, 0.01))
SESSION = serving.Session(model="m", profile=BATCHES, rate_per_s=1.0, slo_s=1.0)
SLOT = serving.Slot(session=SESSION, batch=2, rate_per_s=1.0)
BATCH_SERVER = serving.BatchServer(slots=(SLOT,))
STAGE = serving.Stage(model="m", profile=BATCHES)
MODEL = serving.ServedModel(name="", latency_s=0.1, memory_bytes=1.0)
GROUP = serving.Group(models=("",), stages=2)
DESCRIPTIONS += [BATCHES, SLOT, BATCH_SERVER, SESSION, STAGE, MODEL, GROUP]
FUNCTIONS |= {
    serving.copies: {"profiles": [BATCHES], "count": 3, "slo_s": 1.0},
    serving.planned: {"way": "prefixes", "sessions": [SESSION], "num_gpus": 2},
    serving.run_plan: {"plan": serving.pack([SESSION]), "rate_per_s": 3.0, "count": 9},
    serving.sustained: {"plan": serving.pack([SESSION]), "count": 99},
    serving.fill: {"sessions": [SESSION], "num_gpus": 2},
    serving.share_prefix: {"sessions": [SESSION]},
    serving.traffic: {"rates_per_s": {"m": 2.0}, "seconds": 3.0},
    serving.fractional_bound: {"sessions": [SESSION]},
    serving.highest: {"attainment": lambda load: float(load < 2), "low": 1.0, "high": 3.0},
    serving.figure_lines: {"table": pd.DataFrame({"a": [1.0]}), "title": "t", "x": "x", "y": "y"},
    serving.line: {"alpha_ms": 1.0, "beta_ms": 2.0, "max_batch": 3},
    serving.oblivious: {"sessions": [SESSION], "num_gpus": 2},
    serving.pack: {"sessions": [SESSION]},
    serving.place: {
        "requests": REQUESTS,
        "models": [MODEL],
        "num_gpus": 2,
        "memory_bytes": 1.0,
    },
    serving.published_profiles: {},
    serving.read_profile: {"path": "profile.txt"},
    serving.serve: {"requests": REQUESTS, "servers": (BATCH_SERVER,)},
    serving.serve_groups: {"requests": REQUESTS, "groups": [GROUP], "models": [MODEL]},
    serving.split_latency: {"stages": [STAGE], "slo_s": 1.0, "step_s": 0.1},
    BATCHES.best: {"limit_s": 0.2},
    BATCHES.largest: {"limit_s": 0.2},
}

# One GPU and its clients.
PROGRAM = kernels.Program(name="p", blocks=(1, 2), total_s=(1.0, 2.0), wave_s=((1.0,), (1.0,)))
CLIENT = timeline.Client(program=PROGRAM)
LAYERS = transfers.Layers(compute_s=(1.0, 2.0), parameter_bytes=(1.0, 2.0))
LINK = transfers.Link(bandwidth_bytes_per_s=1.0)
SENT: dict[str, Any] = {"layers": LAYERS, "link": LINK}
DESCRIPTIONS += [PROGRAM, CLIENT, timeline.Gpu(), LAYERS, LINK]
FUNCTIONS |= {
    guests.beside: {
        "owner": PROGRAM,
        "guests": [PROGRAM],
        "mode": "streams",
        "idle_share": 0.2,
        "until_s": 9.0,
    },
    guests.pairs: {
        "programs": {"a": PROGRAM, "b": PROGRAM},
        "ways": {"streams": "x"},
        "idle_share": 0.2,
        "until_s": 9.0,
    },
    kernels.Program.read: {"profile": "kernels.csv"},
    kernels.programs: {"source": None},
    timeline.clients_of: {
        "rows": pd.DataFrame({"model": ["a"], "real_time": [True], "rate_per_s": [1.0]}),
        "programs": {"a": PROGRAM},
        "until_s": 9.0,
    },
    timeline.simulate: {"clients": [CLIENT], "mode": "streams", "until_s": 9.0},
    transfers.best_groups: SENT,
    transfers.bound_s: SENT,
    transfers.Link.fit: {
        "layers": LAYERS,
        "whole_s": 6.0,
        "layer_by_layer_s": 6.5,
        "streamed_s": 6.0,
    },
    transfers.stream: {**SENT, "groups": [1, 1]},
    transfers.ways_s: SENT,
    LINK.shared: {"gpus": 2},
}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
def test_fields(valid: Any) -> None:
    given = {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}
    assert problems(type(valid), given, given, WRONG) == []
    assert problem(lambda: type(valid)(**given, nonsense=1)) == ""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    given = FUNCTIONS[function]
    assert problems(function, given, inspect.signature(function).parameters, WRONG) == []
    assert problem(lambda: function(**given, nonsense=1)) == ""


def test_the_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"serving\.generate: count must be a whole number"):
        serving.generate(1, "many")
