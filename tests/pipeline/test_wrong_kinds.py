"""Whatever is asked of pipeline: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from labkit.pipeline.choice.candidates import Grid
from labkit.pipeline.choice.joint import Search
from tests import kinds

TABLE = pd.DataFrame(
    [
        (stage, kind, mhz, work * 100 / mhz, work * 100 / mhz * (90 + mhz**3 / 1e7))
        for stage in range(2)
        for kind, work in (("forward", 1.0), ("backward", 2.0))
        for mhz in (1400, 1200, 1000, 800)
    ],
    columns=["stage", "instruction", "frequency", "time", "energy"],
)
PROFILE = pipeline.EnergyProfile.from_frame(TABLE, blocking_power_w=80.0)
SCHEDULE = pipeline.build("1f1b", 2, 2)
COSTS = pipeline.Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
NETWORK = pipeline.Network(latency_s=0.1)
SIZED: dict[str, Any] = {"profile": PROFILE, "num_microbatches": 2}
BOTH: dict[str, Any] = {"schedule": SCHEDULE, "profile": PROFILE}
CSV = TABLE.to_csv(index=False)
ORDER = "stage,kind,microbatch\n0,forward,0\n0,backward,0\n"


def fields_of(valid: Any) -> dict[str, Any]:
    return {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}


def examples() -> Mapping[str, Mapping[str, Any]]:
    made = objects()
    chosen = made["Plan"]
    line = made["Timeline"]
    marks = pipeline.compare({"a": chosen}, bounds=False)
    front = pipeline.frontier(**BOTH, num_points=2)
    order = kinds.file("order.csv", "")
    pipeline.save_order(SCHEDULE, order)
    each = np.ones(len(SCHEDULE))
    return {
        **{name: fields_of(valid) for name, valid in made.items() if name in DESCRIBED},
        "Costs.durations_s": {"schedule": SCHEDULE},
        "Costs.per_stage": {"name": "forward_s", "schedule": SCHEDULE},
        "EnergyProfile.for_schedule": {"schedule": SCHEDULE, "weight_fraction": 0.5},
        "EnergyProfile.from_csv": {"path": kinds.file("a.csv", CSV), "blocking_power_w": 80.0},
        "EnergyProfile.from_frame": {"table": TABLE, "blocking_power_w": 80.0},
        "EnergyProfile.restage": {"stages": [0, 1], "scale": [1.0, 1.0]},
        "EnergyProfile.rows": {"stage": 0, "kind": "forward", "kept_only": True},
        "EnergyProfile.rows_together": {"works": [(0, 0), (1, 0)]},
        "EnergyProfile.scaled": {"factor": 1.1},
        "EnergyProfile.split_backward": {"weight_fraction": 0.5},
        "EnergyProfile.stage_table": {"stage": 0},
        "EnergyProfile.valley_clock_mhz": {"stage": 0},
        "EnergyProfile.with_dominance": {"dominance": "raw"},
        "Network.lag_s": {"schedule": SCHEDULE},
        "Network.transfer_s": {"schedule": SCHEDULE},
        "Plan.data": {"fastest": chosen},
        "Schedule.by_device": {"values": each},
        "Schedule.from_order": {"order": SCHEDULE.order, "name": "own"},
        "Schedule.held": {"each": np.ones(2)},
        "Schedule.peak_held": {"each": np.ones(2)},
        "build": {"name": "1f1b", "num_stages": 2, "num_microbatches": 2},
        "build:envpipe": {
            "name": "envpipe",
            "num_stages": 2,
            "num_microbatches": 2,
            "options": {"max_in_flight": 2, "early_forwards": 0},
        },
        "build:zb-v": {
            "name": "zb-v",
            "num_stages": 2,
            "num_microbatches": 2,
            "options": {"durations_s": (1.0, 1.0, 1.0)},
        },
        "build:dapple": {
            "name": "dapple",
            "num_stages": 2,
            "num_microbatches": 2,
            "options": {"warmup": "a"},
        },
        "build:hanayo": {
            "name": "hanayo",
            "num_stages": 2,
            "num_microbatches": 2,
            "options": {"num_waves": 1},
        },
        "build_for": {**SIZED, "name": "1f1b"},
        "choose": {
            **SIZED,
            "memory_limit_bytes": 10.0,
            "deadline_s": 3.0,
            "described": {"schedules": ("1f1b",), "num_chunks": (2,), "num_caps": 2},
        },
        "closed_form_bubble_ratio": {"schedule": SCHEDULE, "forward_s": 1.0, "backward_s": 1.0},
        "compare": {"plans": {"a": chosen}, "baseline": "a"},
        "early_forwards": {**SIZED, "max_in_flight": 2},
        "figure_frontier": {"front": front, "plans": marks, "lines": {"b": front}},
        "figure_idle": {"table": line.idle_frame()},
        "figure_memory": {"table": line.memory_frame()},
        "figure_plans": {"table": marks.assign(method="optimal")},
        "figure_timeline": {
            "table": chosen.frame(),
            "colour": "clock",
            "title": "t",
            "span_s": 5.0,
            "colour_range": (800.0, 1400.0),
            "messages": line.messages_frame(),
        },
        "figure_tradeoff": {"table": Search(**SIZED, schedules=("1f1b",)).tradeoff()},
        "fitted": {**SIZED, "name": "zb-h1"},
        "frontier": {**BOTH, "num_points": 2, "network": NETWORK},
        "load_order": {"path": order},
        "outer_envelope": {"schedule": SCHEDULE},
        "plan": {
            **BOTH,
            "method": "envpipe",
            "deadline_s": 10.0,
            "settings": {"reconfigure": "greedy"},
        },
        "plan:zeus-local": {**BOTH, "method": "zeus-local", "settings": {"eta": 0.5}},
        "plan:perseus": {**BOTH, "method": "perseus", "settings": {"unit_s": 0.01}},
        "plan:optimal": {**BOTH, "method": "optimal", "deadline_s": 1.0, "network": NETWORK},
        "simulate": {
            "schedule": SCHEDULE,
            "costs": COSTS,
            "network": NETWORK,
            "jitter": 0.1,
            "rng": 1,
        },
        "simulate:durations": {"schedule": SCHEDULE, "costs": np.ones(len(SCHEDULE))},
        "straggler_savings": {**BOTH, "slowdowns": [1.0, 1.2], "expected": [1.2, 1.0]},
        "stress": {
            "plans": {"a": chosen},
            "switch_s": [0.1],
            "jitter": [0.1],
            "replicas": [1],
            "num_draws": 2,
            "rng": 1,
        },
        "sweep": {
            "profiles": {"p": PROFILE},
            "num_microbatches": [2],
            "cases": {"a": {"schedule": "1f1b", "method": "optimal"}},
        },
    }


WRITES = "it writes where it is told: test_odd_paths tells it what is odd and harmless"
DESCRIBED = ("Costs", "EnergyProfile", "Network", "Plan", "Schedule")
"""The classes that users make; a joint choice and a timeline are results."""


def objects() -> Mapping[str, Any]:
    made = (
        COSTS,
        PROFILE,
        NETWORK,
        SCHEDULE,
        pipeline.plan(SCHEDULE, PROFILE),
        pipeline.simulate(SCHEDULE, COSTS, network=NETWORK),
        pipeline.choose(**SIZED, schedules=("1f1b",), num_chunks=(2,), num_caps=2),
    )
    return {type(each).__name__: each for each in made}


ROOM = kinds.Room(
    pipeline,
    examples,
    objects,
    left_out={
        "DeadlockError": "an error, which nobody makes",
        "Instruction": "a plain tuple, which Schedule.from_order checks",
        "JointChoice": "a result",
        "Timeline": "a result",
        **dict.fromkeys(("Plan.save_trace", "Timeline.save_trace", "save_order"), WRITES),
    },
    also={
        "Schedule.stage": "(lengths|shape|runs|holds|lacks|puts)",
        "Schedule.kind": "(runs|holds|lacks|puts)",
        "Schedule.microbatch": "(runs|holds|lacks|puts)",
        "Schedule.from_order.order": "(runs|holds|lacks|puts)",
        "EnergyProfile.stage": "must have shape",
        "choose.described": "no schedule",
    },
    strange={
        r"bound_j\.nan": "a memory limit or a deadline that no schedule keeps",
        r"^\.?(nan|inf)$": "numbers that are handed back as they are",
    },
    thin={
        "": 4,
        "choose": 16,
        "straggler_savings": 16,
        "frontier": 12,
        "sweep": 12,
        "plan:perseus": 12,
        "figure_frontier": 12,
        "figure_plans": 12,
        "figure_timeline": 12,
        "figure_tradeoff": 8,
        "figure_idle": 8,
    },
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "text" is a file that can be written
    ROOM.check(name)


def test_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = objects()
    writers = (
        lambda path: pipeline.save_order(SCHEDULE, path),
        made["Plan"].save_trace,
        made["Timeline"].save_trace,
    )
    outside = [path for path in kinds.TEXTS if str(path).startswith("/")]
    for path in (*kinds.NUMBERS, *kinds.COLLECTIONS, *kinds.TEXTS, None, "."):
        if not any(path is each for each in outside):  # nothing is written out of this folder
            assert [kinds.problem(lambda w=write, p=path: w(p)) for write in writers] == [""] * 3


ODD_CSV = kinds.tables(CSV, every=6)
ODD_ORDERS = kinds.tables(ORDER, every=6)


@pytest.mark.parametrize("content", ODD_CSV, ids=kinds.numbered(ODD_CSV))
def test_odd_files_of_measurements(content: bytes, tmp_path: Path) -> None:
    def read(path: Path) -> pipeline.EnergyProfile:
        return pipeline.EnergyProfile.from_csv(path, blocking_power_w=80.0)

    kinds.check_file(read, tmp_path / "a.csv", content)


@pytest.mark.parametrize("content", ODD_ORDERS, ids=kinds.numbered(ODD_ORDERS))
def test_odd_files_of_orders(content: bytes, tmp_path: Path) -> None:
    kinds.check_file(pipeline.load_order, tmp_path / "a.csv", content)


@pytest.mark.parametrize("made", [Grid, Search])
def test_what_a_choice_looks_through(made: Callable[..., Any]) -> None:
    given = {**SIZED, "schedules": ("1f1b",)}
    kinds.check_arguments(made, given)
