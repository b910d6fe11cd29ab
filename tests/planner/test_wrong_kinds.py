"""Whatever is asked of the planner: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import planner
from labkit.errors import LabkitError
from tests import kinds

CHAIN = planner.Chain(
    forward_s=(0.1, 0.2, 0.1), backward_s=(0.2, 0.4, 0.2), activation_bytes=(1e6, 1e6, 1e6),
    cut_bytes=(1e6, 1e6, 0.0), parameter_bytes=(1e6, 1e6, 1e8),
)  # fmt: skip
LEVEL = planner.Level(count=3, bandwidth_bytes_per_s=1e9)
FABRIC = planner.Fabric(levels=(LEVEL,))
PLAN = planner.plan(CHAIN, FABRIC)
MANY = planner.Fabric.flat(10**9, bandwidth_bytes_per_s=1e9)
ALEXNET = planner.network("alexnet", batch=2)
MACHINES = planner.Fabric.machines(2, 2, inside_bytes_per_s=1e10, between_bytes_per_s=1e9)
JOB = {
    "model": "gpt2-124m",
    "batch": 4,
    "length": 8,
    "fabric": MACHINES,
    "flops_per_s": 1e12,
    "memory_bytes": 1e10,
    "num_layers": 4,
}
PROBLEM = planner.Problem(
    choices={"a": ("x", "y"), "b": ("x",)},
    node_costs={"a": np.array([1.0, 2.0]), "b": np.array([1.0])},
    edge_costs={("a", "b"): np.zeros((2, 1))},
    memory_bytes={"a": np.array([1.0, 2.0])},
)
PART = planner.Part(resources=np.array([0]), seconds=np.array([1.0]))
MOVES = planner.ChoiceMoves(PROBLEM)
START = MOVES.start({"a": "y", "b": "x"})
STAGES = planner.StageTable(
    meshes=("one", "two"),
    devices=np.array([1, 2]),
    seconds=np.ones((2, 3, 3)),
    stage_bytes=np.ones((2, 3, 3)),
    microbatch_bytes=np.ones((2, 3, 3)),
)
BOTH = {"chain": CHAIN, "fabric": FABRIC}
TABLE = (
    "layer,forward_s,backward_s,activation_bytes,cut_bytes,parameter_bytes,tensors\n"
    "a,0.1,0.2,1e6,1e6,4e6,1\n"
    "b,0.3,0.4,1e6,0,4e6,1\n"
)


def examples() -> Mapping[str, Mapping[str, Any]]:
    return {
        "Chain": {field.name: getattr(CHAIN, field.name) for field in fields(CHAIN)},
        "Chain.coarse": {"most_tensors": 1},
        "Chain.even": {
            "num_layers": 3,
            "forward_s": 0.1,
            "backward_s": 0.2,
            "cut_bytes": 1.0,
            "parameter_bytes": 1.0,
        },
        "Chain.read": {"path": kinds.file("chain.csv", TABLE)},
        "Chain.scaled": {"batch": 0.5},
        "Draft": {"name": "small", "batch": 2, "size": 8},
        "Draft.of_tokens": {"name": "small", "batch": 2, "length": 8},
        "Fabric": {"levels": (LEVEL,)},
        "Fabric.flat": {"count": 3, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0},
        "Fabric.machines": {
            "count": 2,
            "devices": 2,
            "inside_bytes_per_s": 1e10,
            "between_bytes_per_s": 1e9,
            "latency_s": 0.0,
        },
        "Fabric.scaled": {"bandwidth": 2.0},
        "Level": {"count": 3, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0},
        "sweep": {"chains": {"a": CHAIN}, "fabrics": (FABRIC,), "costings": ("ring",)},
        "Problem": {
            "choices": {"a": ("x", "y"), "b": ("x",)},
            "node_costs": {"a": np.array([1.0, 2.0]), "b": np.array([1.0])},
            "edge_costs": {("a", "b"): np.zeros((2, 1))},
            "memory_bytes": {"a": np.array([1.0, 2.0])},
        },
        "Problem.cost": {"plan": {"a": "x", "b": "x"}},
        "choose": {"problem": PROBLEM, "method": "integer", "memory_limit_bytes": 10.0},
        "relax": {"problem": PROBLEM, "memory_limit_bytes": 10.0},
        "ChoiceMoves": {"problem": PROBLEM},
        "ChoiceMoves.start": {"choices": {"a": "x", "b": "x"}},
        "TimelineMoves": {
            "choices": {"a": ("x", "y")},
            "parts": lambda nodes, plan: {"a": PART},
            "delta": True,
        },
        "TimelineMoves.start": {"choices": {"a": "x"}},
        "Part": {"resources": np.array([0]), "seconds": np.array([1.0]), "needs": ()},
        "simulate": {"parts": {"a": PART}},
        "walk": {
            "moves": MOVES,
            "plan": START,
            "num_plans": 5,
            "temperature": 1.0,
            "rng": np.random.default_rng(0),
            "stop_early": True,
        },
        "descend": {"moves": MOVES, "plan": START, "num_plans": 5},
        "StageTable": {
            "meshes": ("one", "two"),
            "devices": np.array([1, 2]),
            "seconds": np.ones((2, 3, 3)),
            "stage_bytes": np.ones((2, 3, 3)),
            "microbatch_bytes": np.ones((2, 3, 3)),
        },
        "place": {
            "table": STAGES,
            "num_devices": 2,
            "num_microbatches": 4,
            "memory_bytes": 1e3,
            "tolerance": 1e-6,
        },
        "Job": JOB,
        "lineup": {"job": planner.Job(**JOB), "methods": ("Whale",)},
        "layout_name": {"layout": (2, 1, 1, 1)},
        "layout_name:copies": {"layout": (2, 1, 1, 1, 2)},
        "network": {"name": "alexnet", "batch": 2},
        "network:gpt": {"name": "gpt2-124m", "batch": 2, "length": 8, "num_layers": 1},
        "split": {
            "network": ALEXNET,
            "fabric": FABRIC,
            "flops_per_s": 1e12,
            "axes": ("sample", "channel"),
            "element_bytes": 4,
            "operator_s": {"conv1": 0.1},
            "copies": False,
        },
        "figure_layers": {"chain": CHAIN, "plans": {"best": PLAN}, "title": "a"},
        "figure_plans": {"plans": {"best": PLAN}, "title": "a"},
        "price": {**BOTH, "replicas": (2, 1), "cuts": (2,), "objective": "throughput"},
        "price:flush": {
            **BOTH,
            "replicas": (2, 1),
            "cuts": (2,),
            "objective": "flush",
            "num_microbatches": 4,
        },
        "sensitivity": {"plan": PLAN, "bandwidth": (0.5, 2.0)},
        "plan": {
            **BOTH,
            "objective": "throughput",
            "costing": "ring",
            "straight": False,
            "memory_bytes": 1e12,
        },
        "plan:latency": {**BOTH, "objective": "latency", "num_microbatches": 4, "tolerance": 0.1},
        "Plan.priced": {"fabric": FABRIC, "objective": "throughput", "costing": "ring"},
        "Plan.timeline": {"num_minibatches": 2, "schedule": "1f1b", "options": {}},
    }


def objects() -> Mapping[str, Any]:
    plan = planner.price(CHAIN, FABRIC, (2, 1), (2,))
    return {
        "Draft": planner.Draft("small", 2, 8),
        "ChoiceMoves": MOVES,
        "TimelineMoves": planner.TimelineMoves({"a": ("x", "y")}, lambda nodes, plan: {"a": PART}),
        "Problem": PROBLEM,
        "Chain": CHAIN,
        "Fabric": FABRIC,
        "Level": LEVEL,
        "Plan": plan,
        "StageTable": STAGES,
    }


ROOM = kinds.Room(
    planner,
    examples,
    objects,
    left_out={
        f"Draft.{method}": "a draft keeps what was added; tests/planner/test_layouts.py tries them"
        for method in ("add", "concat", "convolution", "dense", "network", "pool")
    }
    | {
        f"Draft.{method}": "the same; tests/planner/test_transformers.py tries them"
        for method in ("attention", "block", "embedding", "linear", "norm", "pointwise")
    }
    | {
        f"{moves}.{method}": "searches call it, which look at the plan that they are given"
        for moves in ("ChoiceMoves", "TimelineMoves")
        for method in ("changes", "cost", "price", "propose")
    },
    strange={
        r"add_bytes_per_s\.inf": "adding takes no time unless something is said",
        r"seconds\..*inf": "a stage that takes for ever cannot stand on a mesh",
        r"(node|edge)_costs\..*inf": "an infinite cost forbids a choice",
    },
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str) -> None:
    ROOM.check(name)


@pytest.mark.parametrize("text", kinds.tables(TABLE), ids=kinds.numbered(kinds.tables(TABLE)))
def test_odd_files(text: bytes, tmp_path: Path) -> None:
    kinds.check_file(planner.Chain.read, tmp_path / "chain.csv", text)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: planner.price(CHAIN, FABRIC, (2, 2), (1,)), "replicas add up to 4, devices to 3"),
        (lambda: planner.price(CHAIN, FABRIC, (1, 1), (3,)), "cuts must rise between 1 and 2"),
        (lambda: planner.plan(CHAIN, FABRIC, objective="flush"), "which need it; got None"),
        (lambda: planner.plan(CHAIN, FABRIC, num_microbatches=4), "got 4 with 'throughput'"),
        (lambda: planner.plan(CHAIN, FABRIC, memory_bytes=1.0), "no plan keeps every device"),
        (lambda: planner.plan(CHAIN, FABRIC, costing="rings"), "did you mean 'ring'?"),
        (
            lambda: planner.plan(CHAIN, planner.Fabric(levels=(LEVEL,) * 3)),
            "one or two levels of links; got 3",
        ),
        (
            lambda: planner.price(CHAIN, planner.Fabric(levels=(LEVEL, LEVEL)), (1,)),
            "takes a flat fabric; got 2 levels",
        ),
        (lambda: planner.price(CHAIN, FABRIC, (3,)).timeline(), "no pipeline to draw"),
        (lambda: planner.plan(CHAIN, MANY), "a fabric of 1000000000 devices needs tables"),
        (lambda: planner.price(CHAIN, MANY, (2, 1), (2,)), "needs tables of 4e+09 numbers"),
    ],
)
def test_refusals_say_what_is_valid(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(LabkitError) as caught:
        call()
    assert problem in str(caught.value)
