"""Every field of every public description and every argument of every function, every wrong kind.

Whatever is given, there is an answer or one paragraph: never a raw Python error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from labkit.pipeline.choice.candidates import Grid
from labkit.pipeline.choice.joint import Search
from tests.wrong_kinds import assert_answers_or_paragraphs

WRONG: tuple[Any, ...] = (
    None, "text", "", float("nan"), float("inf"), -1, 0, 9.5, [], {}, object(), True, [None],
    ["text"], np.array([1.5]), (1, 2, 3, 4, 5),
)  # fmt: skip


@pytest.fixture(scope="module")
def right(tmp_path_factory: Any) -> Any:
    """Arguments with which every public function and description works."""
    rows = [
        (stage, kind, mhz, work * 100 / mhz, work * 100 / mhz * (90 + mhz**3 / 1e7))
        for stage in range(2)
        for kind, work in (("forward", 1.0), ("backward", 2.0))
        for mhz in (1400, 1200, 1000, 800)
    ]
    table = pd.DataFrame(rows, columns=["stage", "instruction", "frequency", "time", "energy"])
    profile = pipeline.EnergyProfile.from_frame(table, blocking_power_w=80.0)
    schedule = pipeline.build("1f1b", 2, 2)
    costs = pipeline.Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
    line = pipeline.simulate(schedule, costs)
    chosen = pipeline.plan(schedule, profile)
    sized = {"profile": profile, "num_microbatches": 2}
    both = {"schedule": schedule, "profile": profile}
    marks = pipeline.compare({"a": chosen}, bounds=False)
    traded = Search(**sized, schedules=("1f1b",)).tradeoff()
    folder = tmp_path_factory.mktemp("wrong")
    order = folder / "order.csv"
    pipeline.save_order(schedule, order)
    return {
        "Costs": {"forward_s": 1.0, "backward_s": 1.0},
        "EnergyProfile": {f.name: getattr(profile, f.name) for f in fields(profile)},
        "EnergyProfile.for_schedule": {"self": profile, "schedule": schedule},
        "EnergyProfile.from_frame": {"table": profile.frame(), "blocking_power_w": 80.0},
        "EnergyProfile.restage": {"self": profile, "stages": [0, 1], "scale": [1.0, 1.0]},
        "EnergyProfile.scaled": {"self": profile, "factor": 1.1},
        "EnergyProfile.split_backward": {"self": profile, "weight_fraction": 0.5},
        "EnergyProfile.stage_table": {"self": profile, "stage": 0},
        "EnergyProfile.with_dominance": {"self": profile, "dominance": "raw"},
        "Grid": sized,
        "Network": {"latency_s": 1.0},
        "Plan": {f.name: getattr(chosen, f.name) for f in fields(chosen)},
        "Schedule": {f.name: getattr(schedule, f.name) for f in fields(schedule)},
        "Search": {**sized, "schedules": ("1f1b",)},
        "build": {
            "name": "envpipe",
            "num_stages": 2,
            "num_microbatches": 2,
            "max_in_flight": 2,
            "early_forwards": 0,
        },
        "build:zb-v": {
            "name": "zb-v",
            "num_stages": 2,
            "num_microbatches": 2,
            "durations_s": (1.0, 1.0, 1.0),
        },
        "build:dapple": {"name": "dapple", "num_stages": 2, "num_microbatches": 2, "warmup": "a"},
        "build:hanayo": {"name": "hanayo", "num_stages": 2, "num_microbatches": 2, "num_waves": 1},
        "build_for": {"profile": profile, "name": "1f1b", "num_microbatches": 2},
        "choose": {**sized, "schedules": ("1f1b",), "num_chunks": (2,), "num_caps": 2},
        "closed_form_bubble_ratio": {"schedule": schedule, "forward_s": 1.0, "backward_s": 1.0},
        "compare": {"plans": {"a": chosen}},
        "early_forwards": sized,
        "figure_frontier": {"front": pipeline.frontier(**both, num_points=2), "plans": marks},
        "figure_idle": {"table": line.idle_frame()},
        "figure_memory": {"table": line.memory_frame()},
        "figure_plans": {"table": marks.assign(method="optimal")},
        "figure_timeline": {"table": chosen.frame(), "colour": "clock"},
        "figure_tradeoff": {"table": traded},
        "fitted": {"profile": profile, "name": "zb-h1", "num_microbatches": 2},
        "frontier": {**both, "num_points": 2},
        "load_order": {"path": order},
        "outer_envelope": {"schedule": schedule},
        "plan": {**both, "method": "envpipe", "deadline_s": 10.0, "reconfigure": "greedy"},
        "plan:zeus-local": {**both, "method": "zeus-local", "eta": 0.5},
        "plan:perseus": {**both, "method": "perseus", "unit_s": 0.01},
        "save_order": {"schedule": schedule, "path": order},
        "schedules": {},
        "simulate": {"schedule": schedule, "costs": costs},
        "straggler_savings": {**both, "slowdowns": [1.0, 1.2], "expected": [1.2, 1.0]},
        "stress": {"plans": {"a": chosen}, "switch_s": [0.1], "jitter": [0.1], "num_draws": 2},
        "sweep": {
            "profiles": {"p": profile},
            "num_microbatches": [2],
            "cases": {"a": {"schedule": "1f1b", "method": "optimal"}},
        },
    }


def target(name: str) -> Callable[..., Any]:
    """The function or class of that name; what follows a colon only tells cases apart."""
    name = name.partition(":")[0]
    if name in ("Grid", "Search"):
        return {"Grid": Grid, "Search": Search}[name]
    owner, _, method = name.partition(".")
    return getattr(getattr(pipeline, owner), method) if method else getattr(pipeline, owner)


def parameters(name: str, given: Mapping[str, Any]) -> set[str]:
    """Every argument there is, and the ones that cases give beyond the signature."""
    call = target(name)
    if is_dataclass(call):
        return {field.name for field in fields(call)}
    named = inspect.signature(call).parameters.values()
    return {p.name for p in named if p.kind is not p.VAR_KEYWORD} | set(given)


# Functions and classes that are not made by users: results, and the error.
RESULTS = {"DeadlockError", "Instruction", "JointChoice", "Timeline"}


def test_everything_public_is_tried(right: Any) -> None:
    tried = {name.partition(":")[0].partition(".")[0] for name in right}
    assert tried >= set(pipeline.__all__) - RESULTS


def test_no_wrong_kind_reaches_python(
    right: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer, or one paragraph that names the argument: in every one of some thousand calls."""
    monkeypatch.chdir(tmp_path)  # "text" is a file that can be written
    calls = assert_answers_or_paragraphs(
        right, target, lambda name: parameters(name, right[name]) - {"self"}, WRONG
    )
    assert calls > 2000
