"""Every field of every public description and every argument of every function, every wrong kind.

Whatever is given, there is an answer or one paragraph: never a raw Python error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import planner
from labkit.errors import LabkitError
from tests.wrong_kinds import assert_answers_or_paragraphs

WRONG: tuple[Any, ...] = (
    None, "text", "", float("nan"), float("inf"), -1, 0, 9.5, [], {}, object(), True, [None],
    ["text"], [0], [-1.0], np.array([1.5]), (1, 2, 3, 4, 5), (0, 0, 0), Path("nowhere"), range(3),
)  # fmt: skip
CHAIN = planner.Chain(
    forward_s=(0.1, 0.2, 0.1), backward_s=(0.2, 0.4, 0.2), activation_bytes=(1e6, 1e6, 1e6),
    cut_bytes=(1e6, 1e6, 0.0), parameter_bytes=(1e6, 1e6, 1e8),
)  # fmt: skip
LEVEL = planner.Level(count=3, bandwidth_bytes_per_s=1e9)
CLUSTER = planner.Cluster(levels=(LEVEL,))
PLAN = planner.plan(CHAIN, CLUSTER)
BOTH = {"chain": CHAIN, "cluster": CLUSTER}
RIGHT: dict[str, dict[str, Any]] = {
    "Chain": {field.name: getattr(CHAIN, field.name) for field in fields(CHAIN)},
    "Chain.coarse": {"self": CHAIN, "most_tensors": 1},
    "Chain.even": {"num_layers": 3, "forward_s": 0.1, "backward_s": 0.2,
                   "cut_bytes": 1.0, "parameter_bytes": 1.0},
    "Chain.scaled": {"self": CHAIN, "batch": 0.5},
    "Cluster": {"levels": (LEVEL,)},
    "Cluster.flat": {"count": 3, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0},
    "Cluster.machines": {"count": 2, "devices": 2, "inside_bytes_per_s": 1e10,
                         "between_bytes_per_s": 1e9, "latency_s": 0.0},
    "Cluster.scaled": {"self": CLUSTER, "bandwidth": 2.0},
    "Level": {"count": 3, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0},
    "sweep": {"chains": {"a": CHAIN}, "clusters": (CLUSTER,), "costings": ("ring",)},
    "figure_layers": {"chain": CHAIN, "plans": {"best": PLAN}, "title": "a"},
    "figure_plans": {"plans": {"best": PLAN}, "title": "a"},
    "price": {**BOTH, "replicas": (2, 1), "cuts": (2,), "objective": "throughput"},
    "price:flush": {**BOTH, "replicas": (2, 1), "cuts": (2,), "objective": "flush",
                    "num_microbatches": 4},
    "sensitivity": {"plan": PLAN, "bandwidth": (0.5, 2.0)},
    "plan": {**BOTH, "objective": "throughput", "costing": "ring", "straight": False,
             "memory_bytes": 1e12},
    "plan:latency": {**BOTH, "objective": "latency", "num_microbatches": 4,
                     "tolerance": 0.1},
}  # fmt: skip


def target(name: str) -> Callable[..., Any]:
    owner, _, method = name.partition(":")[0].partition(".")
    return getattr(getattr(planner, owner), method) if method else getattr(planner, owner)


def parameters(name: str) -> set[str]:
    call = target(name)
    if is_dataclass(call):
        return {field.name for field in fields(call)}
    return set(inspect.signature(call).parameters) - {"self"}


def test_everything_public_is_tried() -> None:
    tried = {name.partition(":")[0].partition(".")[0] for name in RIGHT}
    assert tried == set(planner.__all__)
    assert len(planner.__all__) <= 10


def test_no_wrong_kind_reaches_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_answers_or_paragraphs(RIGHT, target, parameters, WRONG)


@pytest.mark.parametrize("wrong", WRONG)
def test_no_wrong_path_reaches_python(wrong: Any) -> None:
    with pytest.raises(LabkitError):
        planner.Chain.read(wrong)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: planner.price(CHAIN, CLUSTER, (2, 2), (1,)), "replicas add up to 4, devices to 3"),
        (lambda: planner.price(CHAIN, CLUSTER, (1, 1), (3,)), "cuts must rise between 1 and 2"),
        (lambda: planner.plan(CHAIN, CLUSTER, objective="flush"), "which need it; got None"),
        (lambda: planner.plan(CHAIN, CLUSTER, num_microbatches=4), "got 4 with 'throughput'"),
        (lambda: planner.plan(CHAIN, CLUSTER, memory_bytes=1.0), "no plan keeps every device"),
        (lambda: planner.plan(CHAIN, CLUSTER, costing="rings"), "did you mean 'ring'?"),
        (lambda: planner.Cluster(levels=(LEVEL,) * 3), "one or two levels, got 3"),
        (
            lambda: planner.price(CHAIN, planner.Cluster(levels=(LEVEL, LEVEL)), (1,)),
            "takes a flat cluster; got 2 levels",
        ),
        (lambda: planner.price(CHAIN, CLUSTER, (3,)).timeline(), "no pipeline to draw"),
    ],
)
def test_refusals_say_what_is_valid(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(LabkitError) as caught:
        call()
    assert problem in str(caught.value)
