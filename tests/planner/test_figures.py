"""Figures show the numbers of their chains and plans, and say what axes are."""

from __future__ import annotations

import pytest

from labkit import planner

CHAIN = planner.Chain.even(6, forward_s=0.1, backward_s=0.2, cut_bytes=4e6, parameter_bytes=8e6)
CLUSTER = planner.Fabric.flat(4, bandwidth_bytes_per_s=1e9)


def test_layers_and_cuts() -> None:
    plan = planner.price(CHAIN, CLUSTER, (2, 2), (3,))
    fig = planner.figure_layers(CHAIN, plans={"half": plan}, title="Layers")
    bars = {trace.name: trace.y for trace in fig.data if trace.type == "bar"}
    assert bars["forward"] == (100,) * 6
    assert bars["parameter"] == (8,) * 6
    assert bars["cut"] == (*[4] * 5, 0)
    assert {shape.x0 for shape in fig.layout.shapes} == {3.5}
    assert fig.layout.title.text == "Layers"
    assert [fig.layout[f"yaxis{n}"].title.text for n in ("", 2, 3)] == [
        "time (ms)",
        "weights (MB)",
        "cut (MB)",
    ]


def test_parts_of_stages_are_the_frames() -> None:
    plan = planner.price(CHAIN, CLUSTER, (3, 1), (4,))
    fig = planner.figure_plans({"mine": plan}, title="Stages")
    table = plan.frame()
    for trace in fig.data:
        assert list(trace.y) == pytest.approx(1e3 * table[f"{trace.name}_s"].to_numpy(), rel=1e-5)
    slowest = max(max(trace.y) for trace in fig.data)
    assert slowest == pytest.approx(1e3 * plan.cost_s, rel=1e-5)


def test_why_names_the_stage_that_limits() -> None:
    slow = planner.Chain.even(2, forward_s=0.1, backward_s=0.2, cut_bytes=4e9)
    plan = planner.price(slow, CLUSTER, (1, 1), (1,))
    assert "by its transfers" in plan.why()
    heavy = planner.Chain.even(2, forward_s=0.1, backward_s=0.2, parameter_bytes=4e9)
    assert "stage 0 (layer 1 to layer 2, 4 replicas) limits it, by its gradients" in (
        planner.price(heavy, CLUSTER, (4,)).why()
    )
