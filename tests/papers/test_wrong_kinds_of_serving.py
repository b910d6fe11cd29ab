"""Every field and argument of the papers on serving, planning and swapping, fed with every wrong
kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from labkit import planner, serving
from labkit.models import Model
from labkit.papers import (
    alpaserve,
    antman,
    dapple,
    effscale_inference,
    nexus,
    orca,
    pipeswitch,
    reef,
)
from labkit.serving.device.kernels import Program
from tests import kinds

REQUESTS = serving.generate(2, 5, prompt_tokens=(1, 9), output_tokens=(1, 4))
BATCHER = serving.Batcher(max_batch=4)
SERVER: dict[str, Any] = {
    "requests": REQUESTS,
    "profile": serving.TokenProfile(weights_s=0.02, token_s=1e-4),
}
PALM = effscale_inference.Partition(model=Model.preset("palm-540b"))
BATCHES = serving.BatchProfile(name="p", latency_s=(0.1, 0.15), std_s=(0.0, 0.01))
SESSION = serving.Session(model="m", profile=BATCHES, rate_per_s=1.0, slo_s=1.0)
PACKING = nexus.pack([SESSION])
STAGE = nexus.Stage(model="m", profile=BATCHES)
MODEL = serving.ServedModel(name="", latency_s=0.1, memory_bytes=1.0)
PROGRAM = Program(name="p", blocks=(1, 2), total_s=(1.0, 2.0), wave_s=((1.0,), (1.0,)))
LAYERS = pipeswitch.Layers(compute_s=(1.0, 2.0), parameter_bytes=(1.0, 2.0))
LINK = pipeswitch.Link(bandwidth_bytes_per_s=1.0)
SENT: dict[str, Any] = {"layers": LAYERS, "link": LINK}
CHAIN = planner.Chain.even(3, forward_s=0.1, backward_s=0.2)

DESCRIPTIONS: list[Any] = [PALM, STAGE, nexus.Method(), LAYERS, LINK]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    alpaserve.place: {
        "requests": REQUESTS,
        "models": [MODEL],
        "num_gpus": 2,
        "memory_bytes": 1.0,
    },
    antman.beside: {
        "owner": PROGRAM,
        "guests": [PROGRAM],
        "mode": "streams",
        "idle_share": 0.2,
        "until_s": 9.0,
    },
    antman.pairs: {
        "programs": {"a": PROGRAM, "b": PROGRAM},
        "ways": {"streams": "x"},
        "idle_share": 0.2,
        "until_s": 9.0,
    },
    dapple.published_plan: {
        "chain": CHAIN,
        "cluster": planner.Fabric.flat(3, bandwidth_bytes_per_s=1e9),
        "num_microbatches": 4,
    },
    effscale_inference.frontier: {"partitions": {"a": PALM}, "batches": [4]},
    effscale_inference.layouts: {"partition": PALM, "tokens": [64]},
    PALM.cache_bytes: {"batch": 2, "context": 3},
    PALM.layer_bytes: {"tokens": 8},
    PALM.longest_context: {"batch": 2},
    PALM.step: {"batch": 2},
    PALM.ways: {"tokens": 8},
    nexus.fractional_bound: {"sessions": [SESSION]},
    nexus.fullest_packing: {"sessions": [SESSION], "num_gpus": 2},
    nexus.linear_profile: {"alpha_ms": 1.0, "beta_ms": 2.0, "max_batch": 3},
    nexus.oblivious: {"sessions": [SESSION], "num_gpus": 2},
    nexus.pack: {"sessions": [SESSION]},
    nexus.Method().plan: {"sessions": [SESSION], "num_gpus": 2},
    nexus.profile_of_rate: {"alpha_ms": 1.0, "slo_s": 0.1, "best_per_s": 500.0},
    nexus.profile_through: {"name": "p", "small": (8, 75.0), "large": (16, 100.0)},
    nexus.published_profiles: {},
    nexus.late_share: {"plan": PACKING, "rate_per_s": 3.0, "count": 9},
    nexus.run_plan: {"plan": PACKING, "rate_per_s": 3.0, "count": 9},
    nexus.share_prefix: {"sessions": [SESSION]},
    nexus.specialised_copies: {"profiles": [BATCHES], "count": 3, "slo_s": 1.0},
    nexus.split_latency: {"stages": [STAGE], "slo_s": 1.0, "step_s": 0.1},
    nexus.sustained_rate: {"plan": PACKING, "count": 99},
    orca.capacity: {**SERVER, "batchers": {"ours": BATCHER}},
    orca.gain: {**SERVER, "new": {"a": BATCHER}, "old": {"b": BATCHER}},
    pipeswitch.best_groups: SENT,
    pipeswitch.bound_s: SENT,
    pipeswitch.Link.fit: {
        "layers": LAYERS,
        "whole_s": 6.0,
        "layer_by_layer_s": 6.5,
        "streamed_s": 6.0,
    },
    pipeswitch.stream: {**SENT, "groups": [1, 1]},
    LINK.shared: {"gpus": 2},
    reef.workload_of: {
        "rows": pd.DataFrame({"model": ["a"], "real_time": [True], "rate_per_s": [1.0]}),
        "programs": {"a": PROGRAM},
        "until_s": 9.0,
    },
}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
def test_fields(valid: Any) -> None:
    kinds.check_fields(valid)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
def test_arguments(function: Callable[..., Any]) -> None:
    kinds.check_arguments(function, FUNCTIONS[function])
