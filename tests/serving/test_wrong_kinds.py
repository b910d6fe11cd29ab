"""Every field of every public description and every argument of every public function, fed with
every wrong kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit import serving
from labkit.errors import LabkitError
from tests.cluster.test_wrong_kinds import WRONG
from tests.wrong_kinds import assert_arguments_are_checked, assert_fields_are_checked

REQUESTS = serving.generate(2, 5, prompt_tokens=(1, 9), output_tokens=(1, 4))
PROFILE = serving.TokenProfile(weights_s=0.02, token_s=1e-4)
BATCHER = serving.Batcher(max_batch=4)
RUN = serving.simulate(REQUESTS, PROFILE, BATCHER)
SERVER: dict[str, Any] = {"requests": REQUESTS, "profile": PROFILE}
DESCRIPTIONS: list[Any] = [REQUESTS, PROFILE, BATCHER]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    serving.figure_latency: {
        "table": serving.sweep(**SERVER, batchers={"a": BATCHER}, rates_per_s=[1.0])
    },
    serving.figure_requests: {"runs": {"a": RUN}},
    serving.from_csv: {"path": "requests.csv"},
    serving.generate: {"rate_per_s": 2, "count": 3},
    serving.load: {"name": "azure-llm-2023"},
    serving.merge_streams: {"parts": [REQUESTS]},
    serving.bound: {**SERVER, "server": BATCHER},
    serving.simulate: {**SERVER, "server": BATCHER},
    serving.sweep: {**SERVER, "batchers": {"ours": BATCHER}, "rates_per_s": [1.0]},
    serving.TokenProfile.roofline: {"model": "gpt3-175b", "accelerator": "A100-40GB", "tensor": 16},
    PROFILE.alone_s: {"requests": REQUESTS},
    PROFILE.seconds: {"tokens": 3},
    PROFILE.slower: {"factor": 2.0},
    RUN.why: {"request": 0},
    REQUESTS.at_rate: {"rate_per_s": 1},
    REQUESTS.head: {"count": 2},
}

# Batch servers and groups.
BATCHES = serving.BatchProfile(name="p", latency_s=(0.1, 0.15), std_s=(0.0, 0.01))
SESSION = serving.Session(model="m", profile=BATCHES, rate_per_s=1.0, slo_s=1.0)
SLOT = serving.Slot(session=SESSION, batch=2, rate_per_s=1.0)
BATCH_SERVER = serving.BatchServer(slots=(SLOT,))
MODEL = serving.ServedModel(name="", latency_s=0.1, memory_bytes=1.0)
GROUP = serving.Group(models=("",), stages=2)
DESCRIPTIONS += [
    BATCHES,
    SLOT,
    BATCH_SERVER,
    serving.BatchServers(servers=(BATCH_SERVER,)),
    SESSION,
    MODEL,
    GROUP,
    serving.Groups(groups=(GROUP,)),
]
FUNCTIONS |= {
    serving.traffic: {"rates_per_s": {"m": 2.0}, "seconds": 3.0},
    serving.highest_load: {"attainment": lambda load: float(load < 2), "low": 1.0, "high": 3.0},
    serving.figure_lines: {"table": pd.DataFrame({"a": [1.0]}), "title": "t", "x": "x", "y": "y"},
    serving.BatchProfile.read: {"path": "profile.txt"},
    BATCHES.best: {"limit_s": 0.2},
    BATCHES.largest: {"limit_s": 0.2},
}

# One GPU and its clients.
PROGRAM = serving.Program(name="p", blocks=(1, 2), total_s=(1.0, 2.0), wave_s=((1.0,), (1.0,)))
CLIENT = serving.Client(program="p")
DESCRIPTIONS += [PROGRAM, CLIENT, serving.Gpu(mode="streams")]
DESCRIPTIONS += [serving.Workload(clients=(CLIENT,), until_s=9.0)]
FUNCTIONS |= {
    serving.Program.read: {"profile": "kernels.csv"},
    serving.load_programs: {"source": None},
}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
def test_fields(valid: Any) -> None:
    assert_fields_are_checked(valid, WRONG)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert_arguments_are_checked(function, FUNCTIONS[function], WRONG)


DOORS: dict[str, dict[str, Any]] = {
    "batch servers": {
        "requests": REQUESTS,
        "profile": {"m": BATCHES},
        "server": serving.BatchServers(servers=(BATCH_SERVER,)),
    },
    "groups": {
        "requests": REQUESTS,
        "profile": [MODEL],
        "server": serving.Groups(groups=(GROUP,)),
    },
    "gpu": {
        "requests": serving.Workload(clients=(CLIENT,), until_s=9.0),
        "profile": {"p": PROGRAM},
        "server": serving.Gpu(mode="streams"),
    },
}


@pytest.mark.parametrize("kind", DOORS)
def test_every_kind_of_server_behind_the_one_door(kind: str) -> None:
    given = DOORS[kind]
    assert serving.simulate(**given).summary()
    assert len(serving.simulate(**given).frame()) >= 1
    assert_arguments_are_checked(serving.simulate, given, WRONG)
    others = [DOORS[other]["requests"] for other in DOORS if other != kind] + [PROFILE]
    assert_arguments_are_checked(serving.simulate, given, others)


def test_the_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"serving\.generate: count must be a whole number"):
        serving.generate(1, "many")
