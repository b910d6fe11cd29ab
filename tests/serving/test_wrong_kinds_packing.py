"""The same as ``test_wrong_kinds`` for batch servers, packing and groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit import serving
from tests.cluster.test_wrong_kinds import WRONG
from tests.wrong_kinds import problem, problems

REQUESTS = serving.generate(2, 5, prompt_tokens=(1, 9), output_tokens=(1, 4))
PROFILE = serving.BatchProfile(name="p", latency_s=(0.1, 0.15), std_s=(0.0, 0.01))
SLOT = serving.Slot(model="", profile=PROFILE, batch=2, rate_per_s=1.0)
SERVER = serving.BatchServer(slots=(SLOT,))
RUN = serving.serve(REQUESTS, (SERVER,))
SESSION = serving.Session(model="m", profile=PROFILE, rate_per_s=1.0, slo_s=1.0)
STAGE = serving.Stage(model="m", profile=PROFILE)
MODEL = serving.ServedModel(name="", latency_s=0.1, memory_bytes=1.0)
GROUP = serving.Group(models=("",), stages=2)
DESCRIPTIONS: list[Any] = [PROFILE, SLOT, SERVER, SESSION, STAGE, MODEL, GROUP]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    serving.copies: {"profiles": [PROFILE], "count": 3, "slo_s": 1.0},
    serving.planned: {"way": "prefixes", "sessions": [SESSION], "num_gpus": 2},
    serving.run_plan: {"plan": serving.pack([SESSION]), "rate_per_s": 3.0, "count": 9},
    serving.sustained: {"plan": serving.pack([SESSION]), "count": 99},
    serving.fill: {"sessions": [SESSION], "num_gpus": 2},
    serving.share_prefix: {"sessions": [SESSION]},
    serving.stream: {"sessions": [SESSION], "seconds": 2.0},
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
    serving.serve: {"requests": REQUESTS, "servers": (SERVER,)},
    serving.serve_groups: {"requests": REQUESTS, "groups": [GROUP], "models": [MODEL]},
    serving.split_latency: {"stages": [STAGE], "slo_s": 1.0, "step_s": 0.1},
    GROUP.stage_s: {"model": MODEL},
    PROFILE.best: {"limit_s": 0.2},
    PROFILE.largest: {"limit_s": 0.2},
    RUN.summary: {},
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
